"""Stage profiles: what a fit recovers, what is measured of a real model, and how a file of it is taken."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp.engine.config import EngineConfig
from wavepp.engine.placement import estimated_profile, place
from wavepp.engine.profile_fit import Point, fit
from wavepp.engine.profiler import Shape, bandwidth, kinds_of, measure, per_layer
from wavepp.models.config import load_spec
from wavepp.models.estimate import model_work
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import StageProfile
from wavepp.server.cli import main

CPU = torch.device("cpu")


@pytest.mark.parametrize("weight_s", [0.0, 0.02])
def test_a_fit_finds_the_numbers_that_noisy_times_were_made_from(weight_s: float) -> None:
    made = StageProfile(wave_s=0.004, weight_s=weight_s, token_s=1e-4, context_s=2e-8)
    chance = random.Random(3)
    points = [
        Point(tokens, tokens * context, made.wave(tokens, tokens * context) * chance.uniform(0.99, 1.01))
        for tokens in (32, 64, 128, 256, 512, 1_024)
        for context in (0, 1_000, 8_000)
    ]
    found = fit(points, weight_s)
    assert found.wave_s == pytest.approx(made.wave_s, rel=0.1)
    assert found.token_s == pytest.approx(made.token_s, rel=0.03)
    assert found.context_s == pytest.approx(made.context_s, rel=0.03)
    assert found.weight_s == weight_s
    assert found.rms <= found.worst < 0.02


def test_no_number_is_negative_whatever_is_measured() -> None:
    found = fit([Point(64, 0, 1.0), Point(128, 0, 0.5), Point(64, 1e6, 0.8)], 0.0)
    assert min(found.wave_s, found.token_s, found.context_s) >= 0
    with pytest.raises(ValueError, match="nothing"):
        fit([], 0.0)


def test_layers_are_of_one_kind_where_they_are_alike(tiny_model_factory: Callable[..., tuple[Path, object]]) -> None:
    dense, _ = tiny_model_factory("llama")
    assert [len(kind.layers) for kind in kinds_of(load_spec(dense), torch.float32)] == [load_spec(dense).num_layers]
    spec = load_spec(tiny_model_factory("kimi")[0])
    kinds = kinds_of(spec, torch.float32)
    assert sorted(layer for kind in kinds for layer in kind.layers) == list(range(spec.num_layers))
    assert {kind.name.split()[0] for kind in kinds} == {"kda", "mla"}


@pytest.mark.parametrize("family", ["llama", "kimi"])
def test_a_real_model_is_measured_layer_by_layer(
    family: str, tiny_model_factory: Callable[..., tuple[Path, object]]
) -> None:
    folder, _ = tiny_model_factory(family)
    shapes = (Shape(16), Shape(48), Shape(32, 64), Shape(16, 32, spans=2))
    measured = measure(folder, torch.float32, CPU, shapes, repeats=1, bytes_per_s=bandwidth(CPU, 1 << 20))
    layers = list(per_layer(measured))
    assert [layer for layer, _ in layers] == list(range(load_spec(folder).num_layers))
    assert all(found.seconds(64, 0) > 0 for _, found in layers)
    assert measured.head_s > 0


def test_work_counts_the_matrices_that_a_token_meets(tiny_model_factory: Callable[..., tuple[Path, object]]) -> None:
    spec = load_spec(tiny_model_factory("llama")[0])
    work = model_work(spec, torch.float32)
    family = spec.family
    assert family.kind == "dense"
    width, heads = spec.hidden_size, family.head_dim * (family.num_heads + 2 * family.num_kv_heads)
    expected = width * heads + family.num_heads * family.head_dim * width + 3 * width * family.intermediate_size
    assert {layer.token for layer in work.layers} == {expected}
    assert {layer.pair for layer in work.layers} == {2 * family.num_heads * family.head_dim}
    assert work.head == spec.vocab_size * width


def test_a_balanced_partition_follows_the_file_or_else_the_model(
    tiny_model_factory: Callable[..., tuple[Path, object]],
) -> None:
    spec = load_spec(tiny_model_factory("llama")[0])
    count = spec.num_layers
    engine = EngineConfig(pp=2, partition="balanced")
    heavy = StageProfile(wave_s=0, token_s=1, layers=(float(count), *[1.0] * (count - 1)))
    assert place(spec, engine, heavy)[0] == range(1)
    even = place(spec, EngineConfig(pp=2), heavy)
    assert even == place(spec, engine, StageProfile(wave_s=0, token_s=1))
    estimated = estimated_profile(spec, EngineConfig(pp=2))
    assert estimated.token_s > 0 and len(estimated.factors(2)) == 2


def test_what_the_command_writes_is_what_the_flag_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model_factory: Callable[..., tuple[Path, object]]
) -> None:
    folder, _ = tiny_model_factory("llama")
    path = tmp_path / "profile.json"
    assert main(["profile", str(folder), "--pp", "2", "--quick", "--json", "--output", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    taken = SchedulerConfig.model_validate({"stage_profile": str(path)}).stage_profile
    assert taken.token_s == printed["token_s"] and taken.stages == 2
    assert len(taken.layers) == load_spec(folder).num_layers
    assert set(printed["partition"]) == {"balanced", "stage_s"} and len(printed["kinds"]) == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [(["--device", "emulated"], "--device"), (["--output", "profile.txt"], "--output"), (["--pp", "99"], "--pp")],
)
def test_what_cannot_be_measured_is_refused_by_name(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["profile", str(tmp_path), *flags]) == 2
    assert named in capsys.readouterr().err
    assert main(["simulate", "--profile", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
