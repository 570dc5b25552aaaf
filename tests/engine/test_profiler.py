"""Stage profiles: what a fit recovers, what is measured of a real model, and what its file is taken for."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from wavepp.cache.device_pools import DevicePools
from wavepp.engine.estimated import Reference
from wavepp.engine.measured import Kind, Measured, WaveTimes, kinds_of
from wavepp.engine.profile_fit import Point, fit
from wavepp.engine.profiler import Effort, Shape, measure
from wavepp.models.config import load_spec
from wavepp.models.partition import parse_partition
from wavepp.models.stage_model import load_stage
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import StageProfile
from wavepp.server.cli import main

CPU = torch.device("cpu")
Factory = Callable[..., tuple[Path, object]]


def points_of(made: StageProfile, noise: float, seed: int = 3) -> list[Point]:
    chance = random.Random(seed)
    waves = itertools.product((8, 16, 32, 64, 128, 256, 512, 1_024), (0, 1_000, 8_000))
    return [
        Point(tokens, tokens * context, made.wave(tokens, tokens * context) * chance.uniform(1 - noise, 1 + noise))
        for tokens, context in waves
    ]


@pytest.mark.parametrize("weight_s", [0.0, 0.004, 0.02])
def test_a_fit_finds_the_numbers_that_noisy_times_were_made_from(weight_s: float) -> None:
    made = StageProfile(wave_s=0.004, weight_s=weight_s, token_s=1e-4, context_s=2e-8)
    found = fit(points_of(made, noise=0.02))
    assert found.wave_s + found.weight_s == pytest.approx(made.wave_s + made.weight_s, rel=0.03)
    assert found.wave_s == pytest.approx(made.wave_s, rel=0.1)
    assert found.token_s == pytest.approx(made.token_s, rel=0.03)
    assert found.context_s == pytest.approx(made.context_s, rel=0.03)
    assert found.rms <= found.worst < 0.03


@pytest.mark.parametrize("seed", range(8))
def test_noise_alone_makes_no_floor(seed: int) -> None:
    made = StageProfile(wave_s=0.004, token_s=1e-4, context_s=2e-8)
    found = fit(points_of(made, noise=0.05, seed=seed))
    assert found.weight_s == 0 or found.weight_s < 0.1 * found.wave_s


def test_no_number_is_negative_whatever_is_measured() -> None:
    found = fit([Point(64, 0, 1.0), Point(128, 0, 0.5), Point(64, 1e6, 0.8)])
    assert min(found.wave_s, found.weight_s, found.token_s, found.context_s) >= 0
    only = fit([Point(64, 0, 1.0)])
    assert only.seconds(64, 0) == pytest.approx(1.0) and only.worst == pytest.approx(0)
    with pytest.raises(ValueError, match="nothing"):
        fit([])


def test_a_stage_of_average_size_has_its_part_of_every_kind_and_of_the_embedding() -> None:
    kinds = Kind("light", (0, 1, 2)), Kind("heavy", (3,))
    waves = [
        WaveTimes(tokens, 0.0, 1, prepare_s=0.5, embedding_s=0.2 * tokens, kinds=(1.0 + tokens, 5.0 * tokens))
        for tokens in (1, 2, 4, 8)
    ]
    measured = Measured(kinds, tuple(waves), head_s=8.0, waited=0.0)
    assert measured.stage_points(2)[0].seconds == pytest.approx(0.5 + (0.2 + 3 * 2 + 5) / 2)
    # No profile has a negative number or a time of zero for a token, so these numbers are too large by far for one.
    found = fit(measured.stage_points(2))
    assert found.wave_s == pytest.approx(2.0) and found.token_s == pytest.approx((0.2 + 3 + 5) / 2)
    times = measured.layer_times(Reference(prompt=2_048, most=512))
    assert times.layers[0] == times.layers[2] == pytest.approx(513) and times.layers[3] == pytest.approx(5 * 512)
    assert times.shares([range(3), range(3, 4)])[0] == pytest.approx(3 * 513 + 0.2 * 8)
    assert times.exit == pytest.approx(2.0)


def test_layers_are_of_one_kind_where_they_are_alike(tiny_model_factory: Factory) -> None:
    dense = load_spec(tiny_model_factory("llama")[0])
    assert [(kind.name, len(kind.layers)) for kind in kinds_of(dense, torch.float32)] == [
        ("gqa, dense", dense.num_layers)
    ]
    spec = load_spec(tiny_model_factory("kimi")[0])
    kinds = kinds_of(spec, torch.float32)
    assert sorted(layer for kind in kinds for layer in kind.layers) == list(range(spec.num_layers))
    assert {kind.name for kind in kinds} >= {"kda, dense", "kda, moe", "mla, moe"}


@pytest.mark.parametrize("family", ["llama", "kimi"])
def test_a_real_model_is_measured_layer_by_layer(family: str, tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory(family)
    spec = load_spec(folder)
    shapes = (Shape(16), Shape(48), Shape(32, 64), Shape(16, 32, spans=2), Shape(16, spec.max_context))
    said: list[str] = []
    measured = measure(folder, torch.float32, CPU, spec.num_layers, Effort(shapes, 2, 60.0), said.append)
    assert len(measured.waves) == len(shapes) - 1, "no wave is longer than the model's prompts may be"
    assert all(seconds > 0 for wave in measured.waves for seconds in wave.kinds)
    assert measured.head_s > 0 and 0 <= measured.waited < 1 and said
    profile, found = measured.profile("measured", 2, Reference(64, 512))
    assert len(profile.layers) == spec.num_layers and profile.token_s == max(found.token_s, 1e-9)
    assert len(parse_partition(profile.partition, spec.num_layers, 2)) == 2


def test_a_watched_stage_tells_of_its_layers_and_computes_the_same(tiny_model_factory: Factory) -> None:
    folder, _ = tiny_model_factory("llama")
    stage = load_stage(folder, range(2), dtype=torch.float32, device=CPU)
    shape, seen = Shape(20), list[int]()
    tokens = torch.arange(20)
    outputs = []
    for model in (stage, stage.watched(seen.append)):
        pools = DevicePools(stage.cache_layout(), num_pages=1, num_slots=1, block_size=64, device=CPU)
        outputs.append(model.forward(shape.batch(), pools.pools, tokens, {})["hidden"])
    assert seen == [0, 1] and torch.equal(*outputs)


def test_what_the_command_writes_is_what_the_flag_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model_factory: Factory
) -> None:
    folder, _ = tiny_model_factory("llama")
    path = tmp_path / "profile.json"
    assert main(["profile", str(folder), "--pp", "2", "--quick", "--json", "--output", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    taken = SchedulerConfig.model_validate({"stage_profile": str(path)}).profile
    assert taken == StageProfile.model_validate(printed["profile"]) and taken.stages == 2
    assert len(taken.layers) == load_spec(folder).num_layers and taken.partition
    assert set(printed["stage_s"]) == {"even", "balanced"}
    assert max(printed["stage_s"]["balanced"]) <= max(printed["stage_s"]["even"])
    assert [set(point) for point in printed["points"]] == [{"tokens", "pairs", "seconds", "fitted"}] * len(
        printed["points"]
    )


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


def test_more_stages_than_layers_are_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], tiny_model_factory: Factory
) -> None:
    assert main(["profile", str(tiny_model_factory("llama")[0]), "--pp", "60"]) == 2
    assert "60 stages need at least 60 layers" in capsys.readouterr().err
