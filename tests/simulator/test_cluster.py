"""The cluster on virtual time: its clock, what it admits and reuses, and how long things take there."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.cache.gauges import CacheGauges
from wavepp.scheduler.config import SchedulerConfig
from wavepp.scheduler.cost_model import StageProfile
from wavepp.simulator.clients import Clients
from wavepp.simulator.clock import Alarm, Clock
from wavepp.simulator.closed_loop import ClosedLoop, Outcome, Surroundings
from wavepp.simulator.cluster import ClusterSpec, NoRoomError, RefusedError
from wavepp.simulator.costs import PlaneCosts
from wavepp.simulator.k3 import Setting, run_cell
from wavepp.simulator.memory import KIMI_K3, StageMemory
from wavepp.simulator.rungs import DECOUPLED, LEASED, NAIVE, Rung
from wavepp.simulator.workloads import Cell, Job, prompts

BLOCK = 64
PROFILE = StageProfile(wave_s=0.01, weight_s=0.02, token_s=1e-4, context_s=1e-8, hop_s=0.003)
ROOMY = StageMemory(num_pages=4_000, num_slots=400)
FREE = PlaneCosts(link_s=0, round_s=0, hash_block_s=0, walk_block_s=0, copy_page_s=0, copy_slot_s=0)
STAGES = 4


def spec_of(
    policy: str = "static",
    *,
    memory: StageMemory = ROOMY,
    costs: PlaneCosts = FREE,
    rung: Rung = LEASED,
    profile: StageProfile = PROFILE,
    jitter: float = 0.0,
    max_batch: int = 128,
) -> ClusterSpec:
    scheduler = SchedulerConfig.model_validate(
        {"policy": policy, "stage_profile": PROFILE, "max_wave_tokens": 1_024, "min_wave_tokens": 256}
    )
    admission = AdmissionConfig(
        admission="lease" if rung.leased else "lockstep",
        snapshot_interval=512,
        max_batch=max_batch,
        rank_silence_s=3_600,
        wave_timeout_s=3_600,
    )
    return ClusterSpec(STAGES, BLOCK, profile, memory, scheduler, admission, costs, rung, jitter)


def sent(jobs: Sequence[Job], prefixes: int = 2) -> list[bytes]:
    return [tokens.tobytes() for tokens in prompts(jobs, 0, 1_000, prefixes)]


def held(clients: Clients) -> list[int]:
    """What somebody holds, or is promised, on every rank."""
    found: list[int] = []
    for rank in clients.cluster.ranks:
        gauges: CacheGauges = rank.cache.gauges()
        found += [gauges.pages_total - gauges.pages_free - gauges.pages_reclaimable, gauges.pages_promised]
        found += [gauges.slots_total - gauges.slots_free - gauges.slots_reclaimable, gauges.slots_promised]
        found += [gauges.leases, gauges.escrows, gauges.handles, gauges.pulls]
    return found


def finish(clients: Clients) -> None:
    clients.come_to_rest()
    for _ in range(200):  # What the last release has every rank do.
        clients.clock.step()
    assert not any(held(clients))
    for rank in clients.cluster.ranks:
        rank.cache.check()


def run(spec: ClusterSpec, jobs: Sequence[Job], count: int) -> Outcome:
    clients = Clients(spec)
    made = prompts(jobs, 0, 1_000, count)
    for tokens in made.warm_up():
        clients.cluster.preload(tokens.tobytes(), len(tokens) - 1, (len(tokens) - 1,))
    outcome = clients.closed_loop((tokens.tobytes() for tokens in made), count)
    assert [seen.cached_tokens for seen in clients.by_sending()] == [job.endpoint for job in jobs]
    finish(clients)
    return outcome


def test_things_happen_in_the_order_of_their_times_and_then_of_their_planning() -> None:
    clock, seen = Clock(), []
    for name, time in (("c", 2.0), ("a", 1.0), ("d", 2.0), ("b", 1.0)):
        clock.at(time, lambda name=name: seen.append((clock.now, name)))
    while clock.step():
        pass
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]
    clock.at(0.5, lambda: seen.append((clock.now, "late")))
    assert clock.step() and seen[-1] == (2.0, "late")


def test_an_alarm_goes_off_once_at_the_earliest_time() -> None:
    clock, rung = Clock(), []
    alarm = Alarm(clock, lambda: rung.append(clock.now))
    for time in (3.0, 1.0, 2.0):
        alarm.set(time)
    while clock.step():
        pass
    assert rung == [1.0]
    alarm.set(5.0)
    while clock.step():
        pass
    assert rung == [1.0, 5.0]


def test_one_wave_takes_the_links_and_every_stage_and_hop() -> None:
    costs = FREE.model_copy(update={"link_s": 0.001, "round_s": 0.0005, "front_s": 0.25})
    outcome = run(spec_of(costs=costs), [Job(640, 0)], 1)
    stages = STAGES * PROFILE.wave(640, 640 * 639 / 2) + (STAGES - 1) * PROFILE.hop(640)
    # Two rounds: the first brings hints, the second votes; ranks are asked and answer over a link. Rank 0 begins when
    # it has applied the third, which admits. The last rank's report comes back over a link.
    admission = 2 * (0.001 + 0.0005 + 0.001) + 0.0005
    assert outcome.p50_s == pytest.approx(0.25 + admission + stages + 0.001)
    assert outcome.bubble == pytest.approx(1 - STAGES * PROFILE.wave(640, 640 * 639 / 2) / STAGES / outcome.wall_s)


@pytest.mark.parametrize("policy", ["static", "mpu", "cost"])
@pytest.mark.parametrize("clients", [1, 3, 8])
def test_with_admission_for_nothing_it_is_the_pipeline_alone(policy: str, clients: int) -> None:
    kinds = [Job(2_560, 1_920), Job(1_600, 0), Job(2_560, 1_920), Job(700, 0)]
    jobs = [kinds[number % 4] for number in range(40)]
    spec = spec_of(policy)
    whole = run(spec, jobs, clients)
    alone = ClosedLoop(spec.scheduler, PROFILE, jobs, clients, Surroundings(STAGES)).run()
    assert whole.tokens_s == pytest.approx(alone.tokens_s, rel=0.04)
    assert whole.p50_s == pytest.approx(alone.p50_s, rel=0.06)


@pytest.mark.parametrize("rung", [NAIVE, DECOUPLED, LEASED], ids=lambda rung: rung.name)
def test_every_rung_serves_all_and_holds_nothing_afterwards(rung: Rung) -> None:
    jobs = [Job(2_560, 1_920), Job(1_600, 0)] * 12
    run(spec_of(rung=rung), jobs, 6)


@pytest.mark.parametrize("rung", [NAIVE, DECOUPLED, LEASED], ids=lambda rung: rung.name)
@pytest.mark.parametrize("host", [0, 60])
def test_requests_that_need_most_of_the_cache_all_finish(rung: Rung, host: int) -> None:
    memory = StageMemory(num_pages=60, num_slots=12, host_pages=host, host_slots=host // 5)
    clients = Clients(spec_of(memory=memory, rung=rung, costs=PlaneCosts()))
    chance = random.Random(5)
    jobs = [Job(chance.randint(200, 3_600), 0) for _ in range(40)]
    outcome = clients.closed_loop(sent(jobs), 10)
    assert outcome.requests == 40
    finish(clients)


@pytest.mark.parametrize("rung", [NAIVE, DECOUPLED, LEASED], ids=lambda rung: rung.name)
def test_prefixes_that_come_back_from_the_host_hold_nobody_up_for_ever(rung: Rung) -> None:
    memory = StageMemory(num_pages=60, num_slots=12, host_pages=200, host_slots=60)
    clients = Clients(spec_of(memory=memory, rung=rung, costs=PlaneCosts(copy_page_s=0.001)))
    jobs = [Job(1_600, 1_280)] * 30
    made = prompts(jobs, 0, 1_000, 6)
    for tokens in made.warm_up():
        clients.cluster.preload(tokens.tobytes(), len(tokens) - 1, (len(tokens) - 1,))
    outcome = clients.closed_loop((tokens.tobytes() for tokens in made), 4)
    assert outcome.requests == 30
    assert sum(rank.cache.gauges().onboarded for rank in clients.cluster.ranks) > 0
    finish(clients)


def test_each_rung_of_the_ablation_is_no_slower_than_the_one_below() -> None:
    jobs = [Job(2_560, 1_920)] * 48
    naive, decoupled, leased = (run(spec_of(rung=rung, max_batch=16), jobs, 8) for rung in (NAIVE, DECOUPLED, LEASED))
    assert naive.tokens_s < 0.5 * decoupled.tokens_s
    assert decoupled.tokens_s < leased.tokens_s


def test_the_planner_learns_which_stage_is_slow() -> None:
    slowed = PROFILE.slowed(STAGES, 2, 1.5)
    clients = Clients(spec_of("cost", profile=slowed))
    clients.closed_loop(sent([Job(3_000, 0)] * 12), 4)
    planner = clients.cluster.ranks[0].loop.planner
    assert planner is not None
    assert planner.stage_factors == pytest.approx((1.0, 1.0, 1.5, 1.0))


def test_jitter_is_drawn_by_the_seed() -> None:
    jobs = [Job(1_500, 0)] * 10
    first, again, none = (run(spec_of(jitter=jitter), jobs, 4) for jitter in (0.2, 0.2, 0.0))
    assert first == again
    assert first.wall_s != none.wall_s


def test_an_open_loop_sends_whatever_has_completed() -> None:
    clients = Clients(spec_of())
    times = [0.0, 0.1, 5.0]
    clients.timed(zip(times, sent([Job(640, 0)] * 3), strict=True))
    assert [seen.sent_at for seen in clients.by_sending()] == times
    finish(clients)


def test_what_can_never_fit_is_refused_by_name() -> None:
    clients = Clients(spec_of(memory=StageMemory(num_pages=10, num_slots=5)))
    with pytest.raises(RefusedError, match="640"):
        clients.closed_loop(sent([Job(1_000, 0)]), 1)
    with pytest.raises(NoRoomError, match="1024"):
        clients.cluster.preload(bytes(4 * 1_024), 1_024, ())


def test_more_stages_cache_more_each() -> None:
    eight, sixteen = (KIMI_K3.stage_memory(stages, 2.6e11, 0, BLOCK, 8_192) for stages in (8, 16))
    tensor = KIMI_K3.tensor_parallel_memory(8, 2.6e11, 0, BLOCK, 8_192)
    assert sixteen.num_pages > 4 * eight.num_pages
    assert tensor.num_pages < eight.num_pages / 3


def test_a_cell_of_the_paper_on_sixteen_stages_comes_to_rest() -> None:
    outcome = run_cell(Cell("reuse", 131_072, 4), "cost", Setting(num_stages=16, block_size=512), requests=8)
    assert outcome.requests == 8
