"""A GGUF file becomes a folder that transformers loads as the very model the file was made from."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from wavepp.models.demo.smollm2 import convert_smollm2
from wavepp.models.errors import CheckpointError, UnsupportedModelError

from .loading import load_whole
from .tiny_gguf import CHAT_TEMPLATE, tiny_llama, write_gguf


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_llama())


@pytest.fixture(scope="module")
def folder(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert_smollm2(gguf_path, tmp_path_factory.mktemp("converted") / "tiny")


def test_the_converted_model_is_the_original_to_the_bit(folder: Path) -> None:
    original = tiny_llama()
    model = load_whole(folder)
    for name, value in original.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, original(ids).logits, atol=0, rtol=0)


def test_the_tokenizer_merges_splits_digits_and_knows_special_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("in the") == ["i", "n", "Ġthe"]
    assert tokenizer.tokenize("12") == ["1", "2"]
    assert tokenizer.encode("<|im_start|>t<|im_end|>")[::2] == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    for text in ("naïve — 🙂", "  a\n\n\tb 1984"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_progress_rises_to_one(gguf_path: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    convert_smollm2(gguf_path, tmp_path / "out", lambda _, fraction: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_second_conversion_leaves_the_finished_folder_alone(gguf_path: Path, tmp_path: Path) -> None:
    out = convert_smollm2(gguf_path, tmp_path / "out")
    (out / "config.json").write_text("the first one's")
    assert convert_smollm2(gguf_path, out) == out
    assert (out / "config.json").read_text() == "the first one's"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_conversion_that_fails_leaves_nothing(gguf_path: Path, tmp_path: Path) -> None:
    def interrupt(_: str, fraction: float) -> None:
        if fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_smollm2(gguf_path, tmp_path / "out", interrupt)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_named(gguf_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf_path.read_bytes()[:2000])
    for path in (cut, tmp_path / "absent.gguf", _garbage(tmp_path)):
        with pytest.raises(CheckpointError, match=path.name):
            convert_smollm2(path, tmp_path / "out")


def _garbage(folder: Path) -> Path:
    path = folder / "garbage.gguf"
    path.write_bytes(json.dumps({"not": "gguf"}).encode() * 50)
    return path


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "other.gguf", tiny_llama(), architecture="gpt2")
    with pytest.raises(UnsupportedModelError, match="gpt2"):
        convert_smollm2(path, tmp_path / "out")
