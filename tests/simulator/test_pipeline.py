"""The virtual pipeline against stages that are played one by one, and the planner before it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import StageProfile, load_of
from wavepp.scheduler.planner import Planner
from wavepp.scheduler.span import WavePlan
from wavepp.simulator import pipeline
from wavepp.simulator.closed_loop import ClosedLoop, Outcome, Surroundings, percentile
from wavepp.simulator.fit import loss_of, search
from wavepp.simulator.goals import goals
from wavepp.simulator.paper_k3 import MEASURED
from wavepp.simulator.virtual_pipeline import VirtualPipeline
from wavepp.simulator.workloads import Cell, Job

PROFILE = StageProfile(wave_s=0.01, weight_s=0.02, token_s=1e-4, context_s=1e-8, hop_s=0.003)
ALONE = Surroundings(num_stages=4)
SMALL = {"max_wave_tokens": 1_024, "min_wave_tokens": 256}


def config_of(policy: str, profile: StageProfile = PROFILE, **more: object) -> SchedulerConfig:
    return SchedulerConfig.model_validate({"policy": policy, "stage_profile": profile, **SMALL, **more})


def run(policy: str, jobs: list[Job], clients: int, around: Surroundings = ALONE) -> Outcome:
    return ClosedLoop(config_of(policy), PROFILE, jobs, clients, around).run()


class Recording(Planner):
    """Keeps what was accepted."""

    def __init__(self, config: SchedulerConfig, stages: int) -> None:
        super().__init__(config, 64, stages)
        self.accepted: list[WavePlan] = []

    def accept(self, plan: WavePlan) -> None:
        super().accept(plan)
        self.accepted.append(plan)


@settings(max_examples=60, deadline=None)
@given(
    suffixes=st.lists(st.integers(1, 5_000), min_size=1, max_size=8),
    shares=st.lists(st.floats(0.5, 2), min_size=1, max_size=5),
    ahead=st.integers(0, 3),
    policy=st.sampled_from(["static", "mpu", "cost"]),
)
def test_waves_leave_when_stages_that_run_one_wave_at_a_time_let_them(
    suffixes: list[int], shares: list[float], ahead: int, policy: str
) -> None:
    profile = PROFILE.model_copy(update={"shares": tuple(shares)})
    stages = len(shares)
    planner = Recording(config_of(policy, profile), stages)
    virtual = VirtualPipeline(planner, profile, stages, planned_ahead=ahead)
    for request, suffix in enumerate(suffixes):
        planner.admit(request, 0, 64 * request, 64 * request + suffix)
    now, launched_at, left_at = 0.0, [], []
    while True:
        launched_at += [now] * virtual.launch(now)
        times = [time for time in (virtual.ready_at(), virtual.completes_at()) if time is not None]
        if not times:
            break
        now = max(now, min(times))
        while (at := virtual.completes_at()) is not None and at <= now:
            left_at.append(now)
            virtual.complete()
    factors = profile.factors(stages)
    ends: list[list[float]] = []
    for number, plan in enumerate(planner.accepted):
        tokens, pairs = load_of(plan.spans)
        seconds = 0.01 + max(0.02, 1e-4 * tokens) + 1e-8 * pairs
        row: list[float] = []
        for stage, factor in enumerate(factors):
            arrives = row[-1] + 0.003 if row else launched_at[number]
            before = ends[-1][stage] if ends else 0.0
            row.append(max(arrives, before) + factor * seconds)
        ends.append(row)
        waiting = sum(row[0] - factors[0] * seconds > launched_at[number] for row in ends[:-1])
        assert waiting <= ahead
    assert left_at == pytest.approx([row[-1] for row in ends])
    assert sum(plan.tokens for plan in planner.accepted) == sum(suffixes)
    in_flight = [sum(left > at for left in left_at[:number]) for number, at in enumerate(launched_at)]
    assert max(in_flight) < 2 * stages


def test_one_request_takes_what_its_waves_take() -> None:
    outcome = run("static", [Job(2_048, 0)], clients=1)
    first, second = (0.01 + 1e-4 * 1_024 + 1e-8 * pairs for pairs in (1_024 * 511.5, 1_024 * 1_535.5))
    assert outcome.waves == 2
    assert outcome.wall_s == pytest.approx(first + 4 * second + 3 * 0.003)
    assert outcome.p50_s == outcome.p95_s == outcome.wall_s
    assert outcome.tokens_s == pytest.approx(2_048 / outcome.wall_s)
    assert outcome.bubble == pytest.approx(1 - (first + second) / outcome.wall_s)


def test_cached_tokens_count_as_served_and_cost_only_as_context() -> None:
    cold, warm = (run("static", [Job(2_048, endpoint)], clients=1) for endpoint in (0, 1_920))
    assert warm.waves == 1
    assert warm.wall_s == pytest.approx(4 * (0.01 + 0.02 + 1e-8 * 128 * 1_983.5) + 3 * 0.003)
    assert warm.tokens_s == pytest.approx(2_048 / warm.wall_s)
    assert warm.tokens_s > cold.tokens_s


def test_the_next_request_is_sent_when_the_last_one_has_completed() -> None:
    alone = run("static", [Job(1_024, 0)], clients=1)
    three = run("static", [Job(1_024, 0)] * 3, clients=1, around=replace(ALONE, admission_s=0.5))
    assert three.wall_s == pytest.approx(3 * (alone.wall_s + 0.5))
    assert three.p50_s == pytest.approx(alone.wall_s + 0.5)


@pytest.mark.parametrize("policy", ["static", "mpu", "cost"])
def test_every_request_completes_whatever_surrounds_the_pipeline(policy: str) -> None:
    jobs = [Job(64 * n + 1_500, 64 * n) for n in range(30)]
    noisy = replace(ALONE, jitter=0.2, seed=5)
    for around in (ALONE, replace(ALONE, admission_s=0.3), replace(ALONE, planned_ahead=3), noisy):
        outcome = run(policy, jobs, clients=5, around=around)
        assert outcome.requests == 30
        assert 0 < outcome.bubble < 1
        assert outcome.p50_s <= outcome.p95_s
    assert run(policy, jobs, 5, noisy) == run(policy, jobs, 5, noisy) != run(policy, jobs, 5, replace(noisy, seed=6))


def test_a_lone_small_wave_waits_for_the_request_under_admission() -> None:
    planner = Recording(config_of("mpu", min_wave_tokens=1_024), 4)
    virtual = VirtualPipeline(planner, PROFILE, 4)
    planner.admit(0, 0, 0, 1_024 + 200)
    assert virtual.launch(0.0) == 1
    now = virtual.ready_at()
    assert now is not None
    assert virtual.launch(now, admitting=True) == 0
    assert virtual.ready_at() is None
    planner.admit(1, 0, 0, 56)
    assert virtual.launch(now) == 1
    assert [span.request for span in planner.accepted[-1].spans] == [0, 1]


def test_percentiles_lie_between_neighbours() -> None:
    assert [percentile([1.0, 2.0, 4.0], percent) for percent in (0, 50, 75, 95, 100)] == pytest.approx(
        [1, 2, 3, 3.8, 4]
    )
    assert percentile([7.0], 95) == 7


def test_the_mixture_is_a_quarter_cold_by_count() -> None:
    jobs = Cell("mixed", 0, 8).jobs(400, 64)
    assert sum(job == Job(262_144, 0) for job in jobs) == 100
    assert jobs[:4] == [Job(131_072, 117_952)] * 3 + [Job(262_144, 0)]
    drawn = Cell("mixed", 0, 8).jobs(400, 64, shuffle=1)
    assert drawn != jobs
    assert sorted(drawn, key=repr) == sorted(jobs, key=repr)


def test_all_cells_of_the_paper_are_there() -> None:
    assert len(MEASURED) == 28
    assert pipeline.chosen_cells("all") == list(MEASURED)
    assert len(pipeline.chosen_cells("reuse,mixed")) == 13
    assert pipeline.chosen_cells("reuse:131072:8,cold:65536:1") == [Cell("reuse", 131_072, 8), Cell("cold", 65_536, 1)]
    with pytest.raises(ValueError, match="names no cell"):
        pipeline.chosen_cells("warm")


CELLS = "cold:65536:1,cold:65536:4,reuse:131072:1,reuse:131072:4,reuse:131072:8,reuse:262144:1,reuse:262144:4"


def test_the_planner_is_as_good_as_it_is_held_to(capsys: pytest.CaptureFixture[str]) -> None:
    """The cells with the least work, which are those that planning decides; all 28 take a minute."""
    assert pipeline.main(["--cells", CELLS, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["cells"]) == 7
    assert [goal for goal in report["goals"] if not goal["met"]] == []
    assert len(report["goals"]) == 5
    for cell in report["cells"]:
        off = cell["mpu"]["tokens_s"] / cell["paper"]["tokens_s"] - 1
        assert abs(off) <= 0.1 or (cell["input_tokens"], cell["concurrency"]) == (131_072, 4)


@pytest.mark.parametrize("cell", [Cell("reuse", 131_072, 8), Cell("reuse", 131_072, 16), Cell("cold", 65_536, 16)])
def test_cost_is_no_worse_where_work_runs_out(cell: Cell) -> None:
    """A burst that nothing follows."""
    throughput = {
        policy: pipeline.run_cell(
            cell,
            (config := pipeline.config_of(policy, "kimi-k3-gb300")),
            config.profile,
            Surroundings(8),
            cell.concurrency,
        ).tokens_s
        for policy in ("static", "mpu", "cost")
    }
    assert throughput["cost"] >= 0.99 * max(throughput.values())


def test_cost_learns_that_stages_are_slower_and_uneven() -> None:
    """It plans by a profile of even stages; what it hears of the real ones makes it as good as if it had known."""
    cell = Cell("reuse", 131_072, 4)
    believed = pipeline.config_of("cost", "kimi-k3-gb300")
    real = believed.profile.model_copy(update={"shares": (1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 0.7, 0.8)})
    told = pipeline.config_of("cost", real)
    learning, knowing = (
        pipeline.run_cell(cell, config, real, Surroundings(8), 64).tokens_s for config in (believed, told)
    )
    assert learning == pytest.approx(knowing, rel=0.03)


def test_the_table_names_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--cells", "reuse:131072:1", "--policies", "mpu"]) == 0
    printed = capsys.readouterr()
    assert "reuse 131K c=1" in printed.out
    assert "56,810" in printed.out
    assert "1 of 1" in printed.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cells", "none"], "names no cell"),
        (["--policies", "greedy"], "policy"),
        (["--profile", "h100"], "no profile is named"),
    ],
)
def test_wrong_flags_are_refused_by_name(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pipeline.main(flags)
    assert message in capsys.readouterr().err


def test_goals_are_told_only_where_the_cells_tell_them() -> None:
    outcome = Outcome(1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1, 1)
    assert goals({Cell("cold", 65_536, 8): {"mpu": outcome}}) == []
    (goal,) = goals({Cell("reuse", 131_072, 1): {"cost": outcome}})
    assert (goal.met, goal.found) == (False, "0.00")


def test_the_search_finds_the_profile_that_made_the_figures() -> None:
    true = StageProfile(wave_s=0.02, token_s=2e-5, context_s=1e-10)

    def loss(profile: StageProfile) -> float:
        waves = ((1_000, 1e6), (16_000, 1e8), (8_000, 2e9))
        return sum(math.log(profile.wave(*wave) / true.wave(*wave)) ** 2 for wave in waves)

    start = StageProfile(wave_s=0.015, token_s=1.8e-5, context_s=1.35e-10)
    found = search(start, ("wave_s", "token_s", "context_s"), loss, last_step=0.0005)
    for name in ("wave_s", "token_s", "context_s"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.02)


def test_the_loss_counts_in_units_of_what_a_cell_may_be_off_by() -> None:
    cell = Cell("cold", 65_536, 1)
    assert loss_of({cell: (0.1, 0.15)}, power=4) == pytest.approx(1)
    assert loss_of({cell: (0.0, 0.3)}, power=2) == pytest.approx(math.sqrt(2))
