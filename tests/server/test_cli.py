"""The command line: its help is complete and quick, and wrong usage is one clear line."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest
from wavepp.engine.flags import ConfigError, add_config_flags, config_from_args
from wavepp.server.cli import build_parser, main
from wavepp.server.config import ServerConfig


def test_a_key_is_never_shown() -> None:
    parser = argparse.ArgumentParser()
    add_config_flags(parser, ServerConfig)
    args = parser.parse_args(["--api-key", "", "--port", "1"])
    with pytest.raises(ConfigError, match="--api-key"):
        config_from_args(ServerConfig, args, environ={})
    config = config_from_args(ServerConfig, args, environ={}, api_key="hidden")
    assert "hidden" not in repr(config)


def test_help_of_every_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {
        "serve": ("--pp", "WAVEPP_PP"),
        "stage": ("--pp", "WAVEPP_PP"),
        "decode": ("--max-tokens", "WAVEPP_DECODE_MAX_TOKENS"),
    }
    for command, words in shown.items():
        with pytest.raises(SystemExit) as left:
            build_parser(command).parse_args([command, "--help"])
        assert left.value.code == 0
        text = capsys.readouterr().out
        assert all(word in text for word in words)


def test_the_command_line_refuses_wrong_usage_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["fly"], ["serve"], ["serve", "demo", "--prt", "1"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2
    capsys.readouterr()
    assert main(["serve", "demo", "--port", "70000"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--port" in error
    assert "0 to 65535" in error


def test_version_is_that_of_the_package() -> None:
    command = [sys.executable, "-m", "wavepp.server.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("wavepp 0.")


def test_help_and_wrong_arguments_do_not_import_torch() -> None:
    program = (
        "import sys\nfrom wavepp.server.cli import main\ntry:\n    main(sys.argv[1:])\nfinally:\n"
        "    assert 'torch' not in sys.modules"
    )
    for words in (["--help"], ["decode", "--help"], ["decode", "--prompt", "x", "--max-tokens", "0"]):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
