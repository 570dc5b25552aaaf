"""A stage reads its own tensors only, from one file or many, and names what is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from wavepp.models.config import load_spec
from wavepp.models.errors import CheckpointError, UnsupportedModelError
from wavepp.models.partition import even_partition
from wavepp.models.stage_model import load_stage, plan_stage
from wavepp.models.weights import StageWeights

from .harness import CPU, Piece, Pipeline, assert_close, expect, prompt

Factory = Callable[..., tuple[Path, PreTrainedModel]]


def copy_with(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    shutil.copy(folder / "config.json", target)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def load(folder: Path, layers: range) -> None:
    load_stage(folder, layers, dtype=torch.float32, device=CPU)


def bytes_of(folder: Path, layers: range) -> int:
    seen: list[tuple[int, int]] = []
    load_stage(folder, layers, dtype=torch.float32, device=CPU, on_progress=lambda *pair: seen.append(pair))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {seen[-1][0]}
    return seen[-1][0]


@pytest.mark.parametrize("family", ["llama", "kimi"])
def test_stages_together_read_every_byte_once(family: str, tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory(family)
    stored = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    assert sum(bytes_of(folder, layers) for layers in even_partition(4, 4)) == stored


def test_the_plan_knows_the_bytes_in_memory_without_reading(tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("llama")
    spec = load_spec(folder)
    plan = plan_stage(spec, range(4), torch.float32)
    with StageWeights(folder, plan, CPU) as weights:
        assert (weights.bytes_read, weights.bytes_total) == (0, plan.num_bytes)
    assert 2 * plan_stage(spec, range(4), torch.bfloat16).num_bytes == plan.num_bytes


def test_tied_embeddings_are_read_by_the_first_and_the_last_stage(tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("qwen3")
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"].nbytes
    whole = bytes_of(folder, range(4))
    assert bytes_of(folder, range(2)) + bytes_of(folder, range(2, 4)) == whole + embedding


def test_a_sharded_checkpoint_loads_and_each_stage_opens_only_its_shards(
    tiny_model_factory: Factory, tmp_path: Path
) -> None:
    _, reference = tiny_model_factory("kimi")
    reference.save_pretrained(tmp_path, max_shard_size="40KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    tokens = prompt(40, 1)
    (logits,) = Pipeline(tmp_path, 2).run({"a": tokens}, [Piece("a", 0, 40)])
    assert_close(logits, expect(reference, tokens).logits)
    of_first = ("model.layers.0.", "model.embed_tokens.")
    others = set(index.values()) - {file for key, file in index.items() if key.startswith(of_first)}
    assert others
    for name in others:
        (tmp_path / name).write_bytes(b"not safetensors")
    load(tmp_path, range(1))
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(tmp_path, range(3, 4))


def test_every_missing_tensor_is_named(tiny_model_factory: Factory, tmp_path: Path) -> None:
    folder, _ = tiny_model_factory("llama")

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"], tensors["lm_head.weight"]

    copy_with(folder, tmp_path, drop)
    with pytest.raises(CheckpointError, match=r"missing tensors lm_head.weight, model.layers.1.mlp.up_proj.weight"):
        load(tmp_path, range(4))
    load(tmp_path, range(1))


def test_a_tensor_of_another_shape_is_named_with_both(tiny_model_factory: Factory, tmp_path: Path) -> None:
    folder, _ = tiny_model_factory("llama")

    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.ones(32)

    copy_with(folder, tmp_path, shrink)
    with pytest.raises(CheckpointError, match=r"model.norm.weight has shape \(32,\), the configuration.*\(64,\)"):
        load(tmp_path, range(4))


def test_a_quantized_tensor_is_refused(tiny_model_factory: Factory, tmp_path: Path) -> None:
    folder, _ = tiny_model_factory("llama")

    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int8)

    copy_with(folder, tmp_path, quantize)
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight has dtype I8"):
        load(tmp_path, range(4))


def test_a_truncated_file_is_recognised(tiny_model_factory: Factory, tmp_path: Path) -> None:
    folder, _ = tiny_model_factory("llama")
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="shorter than its header says"):
        load(tmp_path, range(4))


def test_a_folder_without_weights_is_explained(tiny_model_factory: Factory, tmp_path: Path) -> None:
    folder, _ = tiny_model_factory("llama")
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"neither model.safetensors nor"):
        load(tmp_path, range(4))


def test_layers_outside_the_model_and_other_dtypes_are_refused(tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("llama")
    for layers in (range(5), range(2, 2), range(0, 4, 2)):
        with pytest.raises(ValueError, match="not a part of the model's 4"):
            load(folder, layers)
    with pytest.raises(UnsupportedModelError, match="float16 is not supported"):
        load_stage(folder, range(4), dtype=torch.float16, device=CPU)
    with pytest.raises(UnsupportedModelError, match="no kernels for device 'meta'"):
        load_stage(folder, range(4), dtype=torch.float32, device=torch.device("meta"))
