"""Emulated stages take the time that the profile says, without drifting, and cache what the model would."""

from __future__ import annotations

import itertools

import pytest
import torch
from wavepp.admission.claim import Claim
from wavepp.admission.claims import Claims
from wavepp.admission.request import Request
from wavepp.cache.device_pools import DevicePools
from wavepp.cache.layout import Window, bytes_per_token
from wavepp.cache.stage_cache import StageCache
from wavepp.engine.config import EngineConfig
from wavepp.engine.emulation import EmulatedExecutor, Pace
from wavepp.engine.header import WaveHeader, WaveSpan
from wavepp.engine.materialiser import Materialiser
from wavepp.engine.settings import GroupSettings
from wavepp.engine.trace import NullTracer
from wavepp.models.batch import Activations, LayerPools, SpanState, WaveBatch
from wavepp.models.demo.resolve import resolve_model
from wavepp.models.emulated import EmulatedStage, emulate_stage
from wavepp.models.partition import even_partition
from wavepp.models.stage_model import load_stage
from wavepp.scheduler.cost_model import StageProfile, pairs_of
from wavepp.scheduler.profiles import KIMI_K3_GB300

from ..conftest import TinyModelFactory

BLOCK = 64
PROFILE = StageProfile(
    wave_s=0.02, weight_s=0.03, token_s=1e-4, context_s=1e-7, hop_s=0.004, hop_token_s=1e-6, shares=(1, 2, 3)
)
EMULATED = resolve_model("emulated")


class Clock:
    """Sleeps last `late` longer than asked for."""

    def __init__(self, now: float = 1_000.0, late: float = 0.0) -> None:
        self.now, self.late = now, late
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds + self.late


class Busy(EmulatedStage):
    """Its real work takes `work_s` of the clock."""

    work_s, clock = 0.0, Clock()

    def forward(
        self, batch: WaveBatch, pools: LayerPools, tokens: torch.Tensor | None, inputs: Activations
    ) -> Activations:
        self.clock.now += self.work_s
        return super().forward(batch, pools, tokens, inputs)


class Stage:
    """One stage of three, which has committed the prompts that it is given waves of."""

    def __init__(self, rank: int, clock: Clock, speed: float = 1.0, profile: StageProfile = PROFILE) -> None:
        spec = emulate_stage(EMULATED, range(1), torch.bfloat16).spec
        self.model = Busy(spec, even_partition(spec.num_layers, 3)[rank], torch.bfloat16)
        self.model.clock, self.clock = clock, clock
        self.cache = StageCache(frozenset({Window.ATTENTION, Window.RECURRENT}), 64, 16, BLOCK)
        self.claims = Claims(self.cache)
        pools = DevicePools(
            self.model.cache_layout(), num_pages=64, num_slots=16, block_size=BLOCK, device=torch.device("cpu")
        )
        materialiser = Materialiser(self.cache, pools, NullTracer(), 8)
        device, tracer = torch.device("cpu"), NullTracer()
        self.busy_since = clock.now
        self.executor = EmulatedExecutor(
            *(self.model, pools, self.cache, self.claims, materialiser, BLOCK, device, tracer),
            pace=Pace(profile, 3, rank, speed),
            busy_since=lambda: self.busy_since,
            clock=clock,
            sleep=clock.sleep,
        )
        self._waves = itertools.count()

    def commit(self, request: int, tokens: list[int]) -> None:
        keys = tuple(f"{request} {block}".encode() for block in range(len(tokens) // BLOCK))
        self.cache.lease(request, 1, f"h{request}", keys, len(tokens), 0)
        self.cache.prepare(request, ())
        self.cache.commit(request, 0, ())
        data = b"".join(token.to_bytes(4, "little") for token in tokens)
        self.claims.take(Claim(Request(request, f"r{request}", data, f"h{request}"), 1, 0))

    def run(self, *spans: tuple[int, int, int, bool], inputs: Activations | None = None) -> tuple[Activations, float]:
        header = WaveHeader(1, next(self._waves), tuple(WaveSpan(r, 1, 0, at, size, end) for r, at, size, end in spans))
        outputs, seconds = self.executor.forward(header, inputs or {})
        if self.model.is_last:
            self.first_tokens = self.executor.sample(header, outputs)
        self.executor.settle(header)
        return outputs, seconds


def expected(rank: int, *spans: tuple[int, int]) -> float:
    """Of PROFILE, by its formula, for spans (start, length)."""
    tokens, pairs = sum(length for _, length in spans), sum(pairs_of(*span) for span in spans)
    return (rank + 1) / 2 * (0.02 + max(0.03, 1e-4 * tokens) + 1e-7 * pairs)


def test_a_wave_takes_what_the_profile_says_of_its_tokens_and_its_context_on_this_stage() -> None:
    for rank in (0, 2):
        clock = Clock()
        stage = Stage(rank, clock)
        stage.commit(1, [5] * 1024)
        stage.commit(2, [6] * 500)
        first = Stage(0, Clock())
        first.commit(1, [5] * 1024)
        first.commit(2, [6] * 500)
        for wave in ([(1, 0, 640, False)], [(1, 640, 384, True), (2, 0, 500, True)]):
            began = clock.now
            inputs, _ = first.run(*wave)
            took = stage.run(*wave, inputs=inputs if rank else None)[1]
            assert took == pytest.approx(expected(rank, *[(start, length) for _, start, length, _ in wave]))
            if rank == 0:
                assert clock.now - began == pytest.approx(took)


def test_a_small_wave_takes_as_long_as_reading_the_weights() -> None:
    stage = Stage(1, Clock())
    assert Pace(PROFILE, 3, 1).ends(0.0, batch((0, 1))) == pytest.approx(0.05)
    assert stage.model.weight_bytes == 0


def test_a_profile_of_another_number_of_stages_is_scaled_and_its_shares_must_fit() -> None:
    wave = batch((0, 8192))
    on_eight, on_sixteen = Pace(KIMI_K3_GB300, 8, 0), Pace(KIMI_K3_GB300, 16, 9)
    assert on_eight.ends(0.0, wave) == pytest.approx(KIMI_K3_GB300.wave(8192, pairs_of(0, 8192)))
    assert on_sixteen.ends(0.0, wave) == pytest.approx(on_eight.ends(0.0, wave) / 2)
    with pytest.raises(ValueError, match="shares for 3 stages, not 4"):
        Pace(PROFILE, 4, 0)


@pytest.mark.parametrize("speed", [0.5, 8.0])
def test_at_another_speed_the_wait_is_shorter_or_longer_and_the_time_that_is_told_is_not(speed: float) -> None:
    clock = Clock()
    stage = Stage(0, clock, speed)
    stage.commit(1, [5] * 1024)
    began = clock.now
    _, seconds = stage.run((1, 0, 1024, True))
    assert seconds == pytest.approx(expected(0, (0, 1024)))
    assert clock.now - began == pytest.approx(seconds / speed)


def test_the_work_that_is_real_counts_as_part_of_the_wave_and_a_longer_one_as_the_wave() -> None:
    clock = Clock()
    stage = Stage(0, clock)
    stage.commit(1, [5] * 1024)
    modelled = expected(0, (0, 512))
    stage.model.work_s = 0.75 * modelled
    assert stage.run((1, 0, 512, False))[1] == pytest.approx(modelled)
    assert clock.now == pytest.approx(1_000 + modelled)
    assert clock.slept == [pytest.approx(0.25 * modelled)]
    stage.model.work_s = 3.0
    assert stage.run((1, 512, 512, True))[1] == pytest.approx(3.0)
    assert clock.slept == clock.slept[:1]


def test_late_awakenings_do_not_add_up_over_the_waves_of_a_busy_stage() -> None:
    clock = Clock(late=0.005)
    stage = Stage(0, clock)
    stage.commit(1, [5] * 1024)
    modelled = sum(stage.run((1, at, 128, at == 896))[1] for at in range(0, 1024, 128))
    assert modelled == pytest.approx(sum(expected(0, (at, 128)) for at in range(0, 1024, 128)))
    assert clock.now == pytest.approx(1_000 + modelled + 0.005)


def test_a_stage_that_waited_begins_when_something_came() -> None:
    clock = Clock()
    stage = Stage(0, clock)
    stage.commit(1, [5] * 1024)
    stage.run((1, 0, 512, False))
    stage.busy_since = clock.now = 1_100.0
    clock.now += 0.01  # LOOP plans the wave, say.
    _, seconds = stage.run((1, 512, 512, True))
    assert seconds == pytest.approx(expected(0, (512, 512)))
    assert clock.now == pytest.approx(1_100 + seconds)


def test_the_next_stage_begins_a_hop_after_this_one_ended_however_late_its_thread_is() -> None:
    clock = Clock(late=0.002)
    one, two = Stage(0, clock), Stage(1, clock)
    for stage in (one, two):
        stage.commit(1, [5] * 1024)
    outputs, first = one.run((1, 0, 1024, True))
    clock.now += 0.003  # What the host needs to send it.
    _, second = two.run((1, 0, 1024, True), inputs=outputs)
    hop = 0.004 + 1e-6 * 1024
    assert second == pytest.approx(expected(1, (0, 1024)))
    assert clock.now == pytest.approx(1_000 + first + hop + second + 0.002)


def test_a_wave_from_another_host_begins_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Stage(0, Clock(5_000.0)), Stage(1, clock := Clock())
    for stage in (one, two):
        stage.commit(1, [5] * 1024)
    outputs, _ = one.run((1, 0, 1024, True))
    monkeypatch.setattr("wavepp.engine.emulation._HOST", b"elsewher")
    two.busy_since, clock.now = 1_000.0, 1_000.01
    _, seconds = two.run((1, 0, 1024, True), inputs=outputs)
    assert seconds == pytest.approx(expected(1, (0, 1024)))
    assert clock.now == pytest.approx(1_000 + 0.004 + 1e-6 * 1024 + seconds)


def test_first_tokens_depend_on_the_last_token_alone() -> None:
    def answer(chunks: list[int], tokens: list[int]) -> int:
        stages = [Stage(rank, Clock()) for rank in range(3)]
        for stage in stages:
            stage.commit(1, tokens)
        at = 0
        for size in chunks:
            outputs: Activations = {}
            for stage in stages:
                outputs, _ = stage.run((1, at, size, at + size == len(tokens)), inputs=outputs)
            at += size
        (first,) = stages[-1].first_tokens
        assert not first.error
        assert 0 <= first.token < stages[-1].model.spec.vocab_size
        return first.token

    whole = answer([300], [*range(299), 163_839])
    assert whole == answer([128, 64, 108], [*range(1, 300), 163_839])
    assert whole == answer([1], [163_839])
    assert whole != answer([300], [*range(299), 7])


def test_an_emulated_stage_caches_what_the_model_would(tiny_model_factory: TinyModelFactory) -> None:
    for name in ("kimi", "qwen3"):
        folder, _ = tiny_model_factory(name)
        for layers in (range(0, 2), range(2, 4)):
            real = load_stage(folder, layers, dtype=torch.bfloat16, device=torch.device("cpu"))
            emulated = emulate_stage(folder, layers, torch.bfloat16)
            assert emulated.cache_layout() == real.cache_layout()
            assert emulated.spec == real.spec
            assert (emulated.is_first, emulated.is_last) == (real.is_first, real.is_last)
            assert bool(emulated.hop_spec()) == bool(real.hop_spec())


def test_the_model_that_is_described_only_is_small_and_takes_long_prompts_on_any_number_of_stages() -> None:
    for num_stages in (1, 8, 64):
        stages = even_partition(emulate_stage(EMULATED, range(1), torch.bfloat16).spec.num_layers, num_stages)
        whole = [emulate_stage(EMULATED, layers, torch.bfloat16) for layers in stages]
        assert all(stage.cache_layout() for stage in whole)
        assert sum(BLOCK * bytes_per_token(stage.cache_layout()) for stage in whole) <= 8_192
        assert all(stage.spec.max_context >= 1_048_576 for stage in whole)
    with pytest.raises(ValueError, match="not a part"):
        emulate_stage(EMULATED, range(90, 97), torch.bfloat16)


def test_the_settings_say_what_is_emulated() -> None:
    def said(**engine: object) -> str:
        return GroupSettings(model=EMULATED, model_name="emulated", engine=EngineConfig.model_validate(engine)).emulated

    assert said() == ""
    assert "kimi-k3-gb300" in said(device="emulated")
    assert "4 times as fast" in said(device="emulated", emulation_speed=4)
    assert EngineConfig(device="emulated").resolved_dtype() == "bfloat16"


def batch(*spans: tuple[int, int]) -> WaveBatch:
    return WaveBatch([SpanState(start, length, (), -1) for start, length in spans], BLOCK)
