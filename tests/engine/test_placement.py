"""Which layers a stage holds and what it is taken to need: by hand, by number, by measurement, or by the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp.engine.config import EngineConfig
from wavepp.engine.defaults import device_defaults
from wavepp.engine.estimated import Reference
from wavepp.engine.placement import place, stage_profile
from wavepp.engine.settings import GroupSettings
from wavepp.models.config import ModelSpec, load_spec
from wavepp.models.errors import PartitionError
from wavepp.models.estimate import model_work
from wavepp.models.partition import even_partition
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import StageProfile, pairs_of
from wavepp.scheduler.profiles import KIMI_K3_GB300

Factory = Callable[..., tuple[Path, object]]


@pytest.fixture
def llama(tiny_model_factory: Factory) -> ModelSpec:
    return load_spec(tiny_model_factory("llama")[0])


@pytest.fixture
def kimi(tiny_model_factory: Factory) -> ModelSpec:
    return load_spec(tiny_model_factory("kimi")[0])


def test_work_counts_the_matrices_that_a_token_meets(llama: ModelSpec) -> None:
    work, family = model_work(llama, torch.bfloat16), llama.family
    assert family.kind == "dense"
    width, heads = llama.hidden_size, family.head_dim * (family.num_heads + 2 * family.num_kv_heads)
    expected = width * heads + family.num_heads * family.head_dim * width + 3 * width * family.intermediate_size
    assert {layer.matrices for layer in work.layers} == {expected}
    assert {layer.pair for layer in work.layers} == {2 * family.num_heads * family.head_dim}
    assert {layer.state for layer in work.layers} == {0}
    assert {layer.num_bytes for layer in work.layers} == {2 * (expected + 2 * width)}, "and two norms"
    assert work.head == llama.vocab_size * width


def test_a_token_passes_some_experts_and_a_wave_reads_all(kimi: ModelSpec) -> None:
    work, family = model_work(kimi, torch.float32), kimi.family
    assert family.kind == "kimi_linear"
    sparse = family.sparse.index(True)
    expert = 3 * kimi.hidden_size * family.moe.intermediate_size
    one = work.layers[sparse]
    not_passed = one.num_bytes / 4 - one.matrices - (family.moe.num_experts - family.moe.top_k) * expert
    assert 0 <= not_passed < 10 * kimi.hidden_size, "but for norms and biases"
    for layer, mixer in enumerate(family.mixers):
        assert (work.layers[layer].state > 0) == (mixer == "kda")
        assert (work.layers[layer].pair > 0) == (mixer == "mla")


def test_a_balanced_partition_follows_the_measured_layers_or_else_the_model(llama: ModelSpec) -> None:
    count = llama.num_layers
    engine = EngineConfig(pp=2, partition="balanced")
    heavy = StageProfile(wave_s=0, token_s=1, layers=(float(count), *[1.0] * (count - 1)))
    assert place(llama, engine, heavy) == [range(1), range(1, count)]
    head = StageProfile(wave_s=0, token_s=1, layers=(1.0,) * count, exit=float(count))
    assert place(llama, engine, head) == [range(count - 1), range(count - 1, count)]
    assert place(llama, EngineConfig(pp=2), heavy) == even_partition(count, 2)
    assert place(llama, engine, KIMI_K3_GB300) == place(llama, engine, None)
    assert place(llama, EngineConfig(pp=2, partition=f"0-0,1-{count - 1}"), None) == [range(1), range(1, count)]


def test_the_layers_of_another_model_are_refused_by_both_numbers(llama: ModelSpec) -> None:
    other = StageProfile(name="other", wave_s=0, token_s=1, layers=(1.0,) * 77)
    with pytest.raises(PartitionError, match=f"other has 77 layers, the model {llama.num_layers}"):
        place(llama, EngineConfig(pp=2, partition="balanced"), other)
    assert place(llama, EngineConfig(pp=2), other)


def test_a_balanced_partition_is_the_same_on_hosts_with_more_cores(kimi: ModelSpec) -> None:
    few, many = (EngineConfig(pp=2, partition="balanced", threads_per_stage=threads) for threads in (1, 64))
    assert place(kimi, few, None) == place(kimi, many, None)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_profile_is_estimated_for_the_model_where_none_is_given(
    device: str, llama: ModelSpec, kimi: ModelSpec
) -> None:
    for spec in (llama, kimi):
        engine = EngineConfig.model_validate({"pp": 2, "device": device})
        parts = [range(1), range(1, spec.num_layers)]
        found = stage_profile(spec, parts, engine, SchedulerConfig())
        assert min(found.token_s, found.context_s, found.wave_s) > 0 and found.stages == 2
        assert found.factors(2)[0] < found.factors(2)[1]
        whole = stage_profile(spec, [range(spec.num_layers)], engine.model_copy(update={"pp": 1}), SchedulerConfig())
        assert whole.token_s == pytest.approx(2 * found.token_s, rel=0.01) or device == "cpu"


def test_more_threads_are_taken_to_compute_faster(llama: ModelSpec) -> None:
    one, four = (
        stage_profile(llama, even_partition(llama.num_layers, 2), EngineConfig(threads_per_stage=n), SchedulerConfig())
        for n in (1, 4)
    )
    assert one.token_s == pytest.approx(4 * four.token_s)


def test_stages_are_taken_to_differ_as_their_measured_layers_do(llama: ModelSpec) -> None:
    count = llama.num_layers
    measured = StageProfile(wave_s=0.1, token_s=1e-3, stages=2, layers=(1.0,) * count, entry=0.5, exit=2.0)
    scheduler = SchedulerConfig(stage_profile=measured)
    parts = [range(1), range(1, count)]
    for device in ("cpu", "emulated"):
        engine = EngineConfig.model_validate({"pp": 2, "device": device})
        found = stage_profile(llama, parts, engine, scheduler)
        assert found.shares == (1.5, count - 1 + 2.0) and found.token_s == measured.token_s
    given = measured.model_copy(update={"shares": (1.0, 1.0)})
    assert stage_profile(llama, parts, EngineConfig(), SchedulerConfig(stage_profile=given)) == given
    assert stage_profile(llama, parts, EngineConfig(), SchedulerConfig(stage_profile=KIMI_K3_GB300)) == KIMI_K3_GB300


def test_emulated_stages_take_what_kimi_k3_does_unless_told_otherwise(llama: ModelSpec) -> None:
    engine = EngineConfig(device="emulated")
    assert stage_profile(llama, even_partition(llama.num_layers, 2), engine, SchedulerConfig()) == KIMI_K3_GB300


def test_ranks_compare_what_a_profile_says_and_not_where_it_lies(tmp_path: Path) -> None:
    def digest(profile: str | None) -> str:
        scheduler = {**device_defaults("cpu")["scheduler"], "stage_profile": profile}
        settings = {"model": tmp_path, "model_name": "m", "scheduler": scheduler}
        return GroupSettings.model_validate(settings).digest()

    here, there = tmp_path / "a.json", tmp_path / "b.json"
    text = '{"wave_s": 0.001, "token_s": 1e-4, "layers": [1, 2], "partition": "0-0,1-1"}'
    here.write_text(text)
    there.write_text(text)
    assert digest(str(here)) == digest(str(there)) == digest(text) != digest(None)
    there.write_text(text.replace("0.001", "0.002"))
    assert digest(str(here)) != digest(str(there))


def test_layers_are_weighed_at_the_average_wave_of_a_prompt() -> None:
    reference = Reference(prompt=2_048, most=512)
    whole = sum(pairs_of(start, 512) for start in range(0, 2_048, 512))
    assert reference.pairs == pytest.approx(whole / 4) and reference.tokens == 512 and reference.ends == 0.25
    short = Reference(prompt=100, most=512)
    assert (short.tokens, short.pairs, short.ends) == (100, pairs_of(0, 100), 1.0)
