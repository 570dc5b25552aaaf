"""`wavepp decode` from the command line: what it shows, what it leaves behind, how it fails."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from wavepp.server.cli import main

from ..conftest import TinyModelFactory
from .prefill_group import HttpFront, PrefillGroup

PROMPT = "The quick brown fox jumps"


def _write_tokenizer(folder: Path) -> None:
    """Bytes are tokens, as `HttpFront` takes them."""
    vocab = dict(zip(_byte_characters(), range(256), strict=True))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(folder / "tokenizer.json"))


def _byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level tokenizers (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(extra)) for byte in range(256)]


@pytest.fixture(scope="module")
def folder(tiny_model_factory: TinyModelFactory) -> Path:
    folder, _ = tiny_model_factory("llama", rms_norm_eps=1e-5)
    _write_tokenizer(folder)
    return folder


@pytest.fixture
def front(folder: Path) -> Iterator[HttpFront]:
    with PrefillGroup(folder, (0, 2, 4)) as group, HttpFront(group) as front:
        yield front


def _run(front: HttpFront, folder: Path, *flags: str) -> int:
    common = ["--url", front.url, "--model", str(folder), "--capacity-tokens", "256", "--threads", "1", "--ignore-eos"]
    return main(["decode", *common, *flags])


def _ids(front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[int]:
    assert _run(front, folder, "--max-tokens", "8", "--ids", *flags) == 0
    return [int(word) for word in capsys.readouterr().out.split()]


def test_a_prompt_is_decoded_and_its_handle_released(
    front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(front, folder, "--prompt", PROMPT, "--max-tokens", "8", "--json") == 0
    captured = capsys.readouterr()
    outcome = json.loads(captured.out)
    assert len(outcome["tokens"]) == 8
    assert outcome["finish_reason"] == "length"
    assert outcome["prompt_tokens"] == len(PROMPT)
    assert outcome["cached_tokens"] == 0
    # Two stages of two layers, k and v of 2 heads of 16 in float32, in whole blocks of 8.
    blocks = -(-len(PROMPT) // 8)
    assert outcome["pull"]["num_bytes"] == 4 * 2 * (2 * 16 * 4) * blocks * 8
    assert "of them reused" in captured.err
    assert "MB/s" in captured.err
    assert front.group.handles == 0


def test_text_and_ids_and_json_are_the_same_tokens(
    front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = _ids(front, folder, capsys, "--prompt", PROMPT)
    assert _run(front, folder, "--max-tokens", "8", "--prompt", PROMPT) == 0
    text = capsys.readouterr().out
    assert _run(front, folder, "--max-tokens", "8", "--prompt", PROMPT, "--json") == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["tokens"] == ids
    assert outcome["text"] + "\n" == text
    assert outcome["text"] == bytes(ids).decode(errors="replace")


def test_a_handle_is_decoded_and_released_unless_it_is_to_be_kept(
    front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = _ids(front, folder, capsys, "--prompt", PROMPT)
    handle = front.group.prefill(list(PROMPT.encode())).handle
    assert _ids(front, folder, capsys, "--handle", handle, "--keep") == expected
    assert front.group.handles == len(front.group.stages)
    assert _ids(front, folder, capsys, "--handle", handle) == expected
    assert front.group.handles == 0


def test_a_prompt_can_come_from_a_file(
    front: HttpFront, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("naïve 漢字", encoding="utf-8")
    _ids(front, folder, capsys, "--prompt-file", str(file))
    assert front.bodies[-1]["prompt"] == "naïve 漢字"


def test_sampling_is_handed_on_to_the_server(
    front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _ids(front, folder, capsys, "--prompt", PROMPT, "--temperature", "0.7", "--seed", "5")
    assert front.bodies[-1]["sampling"] == {"temperature": 0.7, "seed": 5}


def test_what_fails_is_said_by_name(front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(front, folder, "--handle", "never") == 1
    assert "unknown_handle: there is no such handle" in capsys.readouterr().err
    assert _run(front, folder, "--prompt", "") == 1
    assert "the prompt is empty" in capsys.readouterr().err
    assert main(["decode", "--url", "http://127.0.0.1:1", "--model", str(folder), "--prompt", "x"]) == 1
    assert "cannot be reached" in capsys.readouterr().err
    assert main(["decode", "--model", str(folder / "nowhere"), "--prompt", "x"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_another_dtype_than_the_servers_is_said_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with PrefillGroup(folder, (0, 4), dtype=torch.bfloat16) as group, HttpFront(group) as front:
        assert _run(front, folder, "--prompt", PROMPT) == 1
        error = capsys.readouterr().err
        assert "is bfloat16 there and float32 here" in error
        assert "--dtype bfloat16" in error
        group.wait_released()
        assert _run(front, folder, "--prompt", PROMPT, "--dtype", "bfloat16", "--max-tokens", "2") == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "one of the arguments"),
        (["--prompt", "x", "--handle", "h"], "not allowed with"),
        (["--prompt", "x", "--serve-stdin"], "not allowed with"),
        (["--prompt", "x", "--max-tokens", "0"], "--max-tokens"),
        (["--prompt", "x", "--max-tokens", "many"], "--max-tokens"),
        (["--prompt", "x", "--dtype", "int4"], "--dtype"),
        (["--prompt-file", "/does/not/exist"], "/does/not/exist"),
    ],
)
def test_wrong_arguments_are_usage_errors(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["decode", *flags])
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert says in capsys.readouterr().err


def test_settings_come_from_the_environment_too(
    front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAVEPP_DECODE_MAX_TOKENS", "3")
    monkeypatch.setenv("WAVEPP_DECODE_IGNORE_EOS", "true")
    assert (
        main(["decode", "--url", front.url, "--model", str(folder), "--prompt", PROMPT, "--json", "--threads", "1"])
        == 0
    )
    assert len(json.loads(capsys.readouterr().out)["tokens"]) == 3


def test_one_loaded_decoder_answers_many_lines(
    front: HttpFront, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _ids(front, folder, capsys, "--prompt", PROMPT)
    handle = front.group.prefill(list(PROMPT.encode())).handle
    jobs = [
        json.dumps({"id": 1, "prompt": PROMPT, "max_tokens": 8}),
        json.dumps({"id": "two", "handle": handle}),
        "",
        "not json",
        json.dumps({"id": 3, "prompt": PROMPT, "handle": "h"}),
        json.dumps({"id": 4, "prompt": PROMPT, "max_tokens": 0}),
        json.dumps({"id": 5, "prompt": PROMPT, "surprise": 1}),
        json.dumps({"id": 6, "handle": "never"}),
        json.dumps({"id": 7, "prompt": list(range(3, 250))}),
        json.dumps({"id": 8, "prompt": list(PROMPT.encode()), "max_tokens": 4}),
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(jobs) + "\n"))
    assert _run(front, folder, "--serve-stdin", "--max-tokens", "6", "--max-states", "1") == 0
    ready, *answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ready == {"ready": True}
    assert [answer["id"] for answer in answers] == [1, "two", None, 3, 4, None, 6, 7, 8]
    assert answers[0]["outcome"]["tokens"] == expected
    assert answers[1]["outcome"]["tokens"] == expected[:6]
    assert [answers[index]["error"]["code"] for index in (2, 3, 4, 5, 6)] == [
        "malformed",
        "malformed",
        "malformed",
        "malformed",
        "unknown_handle",
    ]
    assert len(answers[7]["outcome"]["tokens"]) == 6
    assert answers[8]["outcome"]["tokens"] == expected[:4]
    assert front.group.handles == 0
