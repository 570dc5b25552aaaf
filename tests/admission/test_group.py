"""A whole group on real objects, one thing at a time. What any order of events must leave: see the campaign's tests."""

from __future__ import annotations

import pytest
from wavepp.admission.config import AdmissionConfig
from wavepp.cache.errors import CacheCorrupt, CacheError
from wavepp.cache.layout import Window
from wavepp.scheduler.config import SchedulerConfig
from wavepp.simulator.group import Group, prompt
from wavepp.simulator.rank import RankSpec

BLOCK = 4
BOTH = pytest.mark.parametrize("admission", ["lease", "lockstep"])
TOKENS = prompt(range(41))


def group(*specs: RankSpec, admission: str = "lease", **config: float) -> Group:
    made = Group(
        specs or (RankSpec(), RankSpec(recurrent=False), RankSpec(attention=False)),
        BLOCK,
        AdmissionConfig.model_validate({"admission": admission, "snapshot_interval": 2 * BLOCK, **config}),
        SchedulerConfig(max_wave_tokens=4 * BLOCK, min_wave_tokens=4 * BLOCK),
    )
    made.keep_sent = True
    return made


def assert_nothing_is_held(made: Group) -> None:
    assert (made.leader.queued, made.leader.running, made.leader.handles) == (0, 0, 0)
    for rank in made.ranks:
        rank.cache.check()
        gauges = rank.cache.gauges()
        assert (gauges.leases, gauges.escrows, gauges.handles, gauges.pulls) == (0, 0, 0, 0)
        assert (gauges.pages_pinned, gauges.slots_pinned) == (0, 0)
        assert (gauges.pages_promised, gauges.slots_promised) == (0, 0)
        assert (rank.participant.known, rank.participant.admitted, len(rank.claims), len(rank.keys)) == (0, 0, 0, 0)


@BOTH
def test_a_prompt_that_comes_again_is_reused_on_every_rank_up_to_its_last_whole_block(admission: str) -> None:
    made = group(admission=admission)
    for name in ("first", "second"):
        assert made.submit(name, TOKENS) is None
        made.settle()
    completed = made.witness.completed
    assert (completed["first"].cached_tokens, completed["second"].cached_tokens) == (0, 40)
    for number in range(3):
        for name in completed:
            made.close_pull(number, name, made.open_pull(number, name))
    for name in completed:
        assert made.release(name) == ""
    made.settle()
    assert_nothing_is_held(made)


def test_what_lies_on_the_host_is_brought_back_and_is_the_same() -> None:
    ranks = [RankSpec(num_pages=12, num_slots=6, host_pages=30, host_slots=20) for _ in range(2)]
    made = group(*ranks)
    made.submit("first", TOKENS)
    made.settle()
    made.release("first")
    made.settle()
    made.submit("other", prompt(range(1_000, 1_045)))
    made.settle()
    made.release("other")
    made.submit("again", TOKENS)
    made.settle()
    assert made.witness.completed["again"].cached_tokens == 40
    for rank in made.ranks:
        gauges = rank.cache.gauges()
        assert gauges.offloaded and gauges.onboarded
        rank.storage.check_state(*state(made, rank.number, "again"), TOKENS)


def state(made: Group, number: int, name: str) -> tuple[tuple[int, ...], int]:
    pull = made.open_pull(number, name)
    made.close_pull(number, name, pull)
    return pull.pages, pull.slot


def test_a_cold_herd_computes_what_it_shares_once() -> None:
    made = group(RankSpec(num_pages=200, num_slots=60), RankSpec(num_pages=200, num_slots=60))
    for number in range(5):
        made.submit(f"r{number}", TOKENS[: 4 * 40] + prompt([number]))
    made.settle()
    cached = [made.witness.completed[f"r{number}"].cached_tokens for number in range(5)]
    assert cached == [0, 40, 40, 40, 40]
    assert made.witness.seen["herd holds"] == 4


@BOTH
@pytest.mark.parametrize("events", range(0, 120, 3))
def test_a_request_cancelled_after_any_number_of_events_leaves_nothing(admission: str, events: int) -> None:
    made = group(admission=admission)
    made.submit("r", TOKENS)
    for _ in range(events):
        act = next((act for _, _, act in made.events()), made.broadcast)
        act()
    made.cancel("r")
    made.settle()
    assert set(made.witness.completed) | set(made.witness.ended) == {"r"}
    assert_nothing_is_held(made)


def test_the_head_waits_for_room_and_nobody_passes_it() -> None:
    made = group(RankSpec(num_pages=12, num_slots=8), RankSpec(num_pages=40, num_slots=8), headroom=0)
    made.submit("holds", TOKENS)
    made.settle()
    made.submit("large", prompt(range(500, 530)))
    made.submit("small", prompt([7, 8, 9]))
    made.settle()
    assert list(made.witness.waiting) == ["large", "small"]
    assert made.lacks_room("large") and not made.lacks_room("small")
    made.release("holds")
    made.settle()
    assert list(made.witness.completed) == ["holds", "large", "small"]


def test_nobody_behind_takes_the_room_that_a_lower_endpoint_needs() -> None:
    made = group(
        RankSpec(recurrent=False, num_pages=11), RankSpec(attention=False), headroom=0, max_snapshots_per_request=0
    )
    made.ranks[1].preload(TOKENS, 28, snapshots=(8, 28))
    made.submit("holds", TOKENS[: 4 * 12] + prompt([7]))
    made.settle()
    # From the candidate 12 it falls to 8, and then needs the last of the seven free pages, which the tiny one has.
    made.submit("long", TOKENS[: 4 * 33])
    made.submit("tiny", prompt([7]))
    made.settle()
    assert made.witness.completed["long"].cached_tokens == 8
    assert list(made.witness.completed) == ["holds", "long", "tiny"]


def test_a_handle_ends_with_its_time_on_every_rank() -> None:
    made = group(default_ttl_s=5.0)
    made.submit("r", TOKENS)
    made.settle()
    pull = made.open_pull(1, "r")
    made.pass_time(6.0)
    made.settle()
    with pytest.raises(CacheError):
        made.open_pull(2, "r")
    assert made.ranks[1].cache.gauges().pulls == 1
    made.close_pull(1, "r", pull)
    made.settle()
    assert_nothing_is_held(made)


@pytest.mark.parametrize("window", list(Window))
def test_a_lease_that_ended_before_its_escrow_would_be_noticed(window: Window) -> None:
    made = group(RankSpec())
    cache = made.ranks[0].cache
    made.ranks[0].trial(1, TOKENS, 0, ())
    (held,) = [one for one in cache._windows if one.window is window]
    with pytest.raises(CacheCorrupt, match="before its"):
        held.release(cache.sequence(1))
