"""Lockstep admission through real stage caches: worked examples, and first come, first served."""

from wavepp.admission.config import AdmissionConfig
from wavepp.admission.snapshot_plan import reuse_limit
from wavepp.simulator.group import Group, prompt
from wavepp.simulator.rank import RankSpec

K = 1024
BOTH, ATTENTION, RECURRENT, NONE = (True, True), (True, False), (False, True), (False, False)


def group_of(*specs: RankSpec, block: int = 4, **config: int | float) -> Group:
    return Group(specs, block, AdmissionConfig(**{"snapshot_interval": 64 * K, **config}))  # pyright: ignore[reportArgumentType]


def rounds_only(group: Group) -> None:
    """Lets rounds go back and forth until nothing more is said; no wave is planned."""
    moved = True
    while moved:
        moved = group.broadcast()
        for number, rank in enumerate(group.ranks):
            while rank.rounds:
                rank.apply()
            rank.report()
            while rank.answers:
                group.hear(number)
                moved = True


def test_the_candidate_is_the_shorter_of_seven_attention_blocks_and_six_recurrent() -> None:
    group = group_of(RankSpec(*ATTENTION, 20, 0), RankSpec(*RECURRENT, 0, 6))
    tokens = prompt(range(33))
    group.ranks[0].preload(tokens, 7 * 4)
    group.ranks[1].preload(tokens, 6 * 4, (6 * 4,))
    group.submit("a", tokens)
    rounds_only(group)
    assert group.installs[0].candidate == 6 * 4
    assert group.admitted["a"].endpoint == 6 * 4


def test_ranks_that_fall_short_are_reconciled_from_80k_over_72k_to_64k() -> None:
    spec = RankSpec(*BOTH, 120, 12)
    group = group_of(spec, spec, block=K)
    tokens = prompt(range(100 * K))
    group.ranks[0].preload(tokens, 90 * K, (64 * K, 72 * K, 90 * K))
    group.ranks[1].preload(tokens, 90 * K, (64 * K, 80 * K))
    group.submit("a", tokens)
    rounds_only(group)
    assert [install.candidate for install in group.installs] == [80 * K, 72 * K, 64 * K]
    assert (group.admitted["a"].attempt, group.admitted["a"].endpoint) == (3, 64 * K)
    for rank in group.ranks:
        rank.cache.check()
        assert rank.cache.gauges().leases == 1
    group.settle(16 * K)
    assert (group.completed["a"].cached_tokens, group.completed["a"].limited_by) == (64 * K, "rank 1: recurrent")


def test_a_rank_without_windows_limits_nothing() -> None:
    group = group_of(RankSpec(*NONE, 0, 0), RankSpec(*ATTENTION, 20, 0))
    tokens = prompt(range(30))
    group.ranks[1].preload(tokens, 28)
    group.submit("a", tokens)
    group.settle()
    assert group.completed["a"].cached_tokens == reuse_limit(30, 4) == 28
    assert group.completed["a"].limited_by == ""


def test_what_limits_reuse_is_named_by_rank_and_window() -> None:
    group = group_of(RankSpec(*ATTENTION, 20, 0), RankSpec(*ATTENTION, 20, 0))
    tokens = prompt(range(30))
    group.ranks[0].preload(tokens, 28)
    group.ranks[1].preload(tokens, 12)
    group.submit("a", tokens)
    group.settle()
    assert (group.completed["a"].cached_tokens, group.completed["a"].limited_by) == (12, "rank 1: attention")


def test_snapshots_are_the_same_on_every_rank_and_none_without_a_recurrent_window() -> None:
    group = group_of(RankSpec(*BOTH, 20, 16), RankSpec(*RECURRENT, 0, 12), snapshot_interval=8)
    group.submit("a", prompt(range(30)))
    rounds_only(group)
    assert group.installs[0].snapshots == (8, 16, 24, 28)
    plain = group_of(RankSpec(*ATTENTION, 20, 0), snapshot_interval=8)
    plain.submit("a", prompt(range(30)))
    rounds_only(plain)
    assert plain.installs[0].snapshots == ()


def test_no_prompt_plans_snapshots_for_more_than_half_of_the_slots() -> None:
    group = group_of(RankSpec(*RECURRENT, 0, 16), RankSpec(*RECURRENT, 0, 6), snapshot_interval=4)
    group.submit("a", prompt(range(64)))
    rounds_only(group)
    assert group.installs[0].snapshots == (32, 60)


def test_the_smallest_recurrent_window_still_admits_with_and_without_reuse() -> None:
    group = group_of(RankSpec(*RECURRENT, 0, 2), snapshot_interval=4)
    for name in ("cold", "warm"):
        group.submit(name, prompt(range(30)))
        group.settle()
        group.release(f"handle-{name}")
        group.settle()
    assert [group.completed[name].cached_tokens for name in ("cold", "warm")] == [0, 28]


def test_nobody_passes_a_head_that_waits_for_room() -> None:
    group = group_of(RankSpec(*ATTENTION, 10, 0), RankSpec(*ATTENTION, 20, 0))
    group.submit("holder", prompt(range(24)))
    group.settle()
    group.submit("large", prompt(range(100, 132)))
    group.submit("small", prompt(range(200, 204)))
    group.settle()
    assert (group.leader.queued, list(group.admitted)) == (2, ["holder"])
    assert len([install for install in group.installs if install.request == 2]) == 1, "tried again without more room"
    assert all(rank.cache.gauges().leases == 0 for rank in group.ranks)
    group.release("handle-holder")
    group.settle()
    assert list(group.admitted) == ["holder", "large", "small"]


def test_a_cancelled_head_lets_the_next_one_go() -> None:
    group = group_of(RankSpec(*ATTENTION, 10, 0))
    group.submit("holder", prompt(range(24)))
    group.settle()
    group.submit("large", prompt(range(100, 132)))
    group.submit("small", prompt(range(200, 204)))
    group.settle()
    group.cancel("large")
    group.settle()
    assert list(group.completed) == ["holder", "small"]


def test_a_head_that_waits_goes_when_the_handle_before_it_expires() -> None:
    group = group_of(RankSpec(*ATTENTION, 10, 0))
    group.submit("holder", prompt(range(24)), ttl_s=5.0)
    group.settle()
    group.submit("large", prompt(range(100, 132)))
    group.pass_time(4.9)
    group.settle()
    assert group.leader.queued == 1
    group.pass_time(0.2)
    group.settle()
    assert group.completed["large"].queue_s == group.now
    assert group.completed["large"].admit_s == 0.0


def test_a_prefix_that_a_running_request_publishes_can_make_the_room() -> None:
    group = group_of(RankSpec(*ATTENTION, 12, 0))
    group.submit("first", prompt(range(24)))
    rounds_only(group)
    group.submit("second", prompt([*range(24), *range(90, 102)]))
    rounds_only(group)
    assert group.leader.queued == 1
    group.settle()
    assert group.completed["second"].cached_tokens == 24


def test_max_batch_bounds_what_is_admitted_and_not_finished() -> None:
    group = group_of(RankSpec(*ATTENTION, 40, 0), max_batch=2)
    for number in range(4):
        group.submit(f"r{number}", prompt(range(100 * number, 100 * number + 9)))
    rounds_only(group)
    assert (group.leader.running, group.leader.queued) == (2, 2)
    group.settle()
    assert list(group.completed) == ["r0", "r1", "r2", "r3"]


def test_one_request_takes_two_walks_and_three_rounds() -> None:
    group = group_of(RankSpec(*ATTENTION, 20, 0), RankSpec(*ATTENTION, 20, 0))
    group.submit("a", prompt(range(9)))
    rounds_only(group)
    assert [(len(d.announces), len(d.probes), len(d.installs), len(d.verdicts)) for d in group.sent] == [
        (1, 1, 0, 0),
        (0, 0, 1, 0),
        (0, 0, 0, 1),
    ]


def test_a_head_that_waits_goes_when_a_cancelled_request_has_drained_on_every_rank() -> None:
    group = group_of(RankSpec(*ATTENTION, 10, 0), RankSpec(*ATTENTION, 10, 0))
    group.submit("holder", prompt(range(24)))
    rounds_only(group)
    group.take_command()
    group.plan(8)
    group.submit("large", prompt(range(100, 132)))
    group.cancel("holder")
    group.take_command()
    rounds_only(group)
    for number, rank in enumerate(group.ranks):
        assert "large" not in group.admitted
        group.forward(number)
        rank.settle()
        rounds_only(group)
    assert group.admitted["large"].endpoint == 0
