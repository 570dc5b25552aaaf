"""LOOP's side: what it may run and materialise, and what ends, whichever plane is faster."""

import random

import pytest
from wavepp.admission.claim import Claim, Drop, Grant, Retract
from wavepp.admission.errors import RoundError
from wavepp.admission.request import Request

from .one_rank import OTHER, TOKENS, OneRank, prompt

NOTHING = (0, 0, 0)


def committed(rank: OneRank, number: int = 1, tokens: bytes = TOKENS) -> None:
    """LOOP has the claim, and the verdict is still to come."""
    rank.announce(number, tokens)
    assert rank.install(number).committed
    rank.deliver()


def test_a_claim_is_there_before_it_is_granted() -> None:
    rank = OneRank()
    committed(rank)
    claim = rank.claims.find(1)
    assert claim is not None and (claim.attempt, claim.endpoint) == (1, 0)
    assert rank.claims.request(1).tokens == TOKENS
    assert rank.claims.granted() == (), "it may still be released"
    assert (rank.claims.find(2), len(rank.claims)) == (None, 1)


def test_no_wave_may_name_what_was_not_claimed() -> None:
    with pytest.raises(RoundError, match="request 9 is not claimed here"):
        OneRank().claims.request(9)
    with pytest.raises(RoundError, match="request 9 is not claimed here"):
        OneRank().claims.finished(9)


def test_granted_claims_come_in_order_until_their_prefix_is_on_the_device() -> None:
    rank = OneRank(pages=20)
    committed(rank, 1)
    committed(rank, 2, OTHER)
    for number in (2, 1):
        rank.admit(number)
    rank.deliver()
    assert [claim.request.id for claim in rank.claims.granted()] == [2, 1]
    rank.claims.on_device(2)
    assert [claim.request.id for claim in rank.claims.granted()] == [1]
    assert len(rank.claims) == 2


def test_a_wave_may_be_faster_than_the_grant() -> None:
    rank = OneRank()
    committed(rank)
    rank.admit()
    rank.run(8)
    rank.deliver()
    assert [claim.request.id for claim in rank.claims.granted()] == [1], "a look at it shows that nothing is left to do"
    rank.run(30)
    assert (rank.claims.granted(), rank.held()) == ((), (0, 0, 1))


def test_a_grant_that_comes_after_all_waves_is_harmless() -> None:
    rank = OneRank()
    committed(rank)
    rank.admit()
    rank.run(30)
    assert rank.claims.find(1) is None
    rank.deliver()
    assert (rank.claims.granted(), rank.held(), rank.known()) == ((), (0, 0, 1), (0, 1, 0, 0))
    with pytest.raises(RoundError, match="nothing waits to be granted"):
        rank.claims.take(Grant(1, 1))


def test_a_retracted_claim_is_gone_and_the_next_attempt_takes_its_place() -> None:
    rank = OneRank()
    committed(rank)
    rank.reject()
    rank.install(attempt=2)
    rank.deliver()
    claim = rank.claims.find(1)
    assert claim is not None and claim.attempt == 2
    rank.reject(attempt=2)
    rank.deliver()
    assert (rank.claims.find(1), len(rank.claims), rank.held()) == (None, 0, NOTHING)


def test_orders_that_do_not_fit_what_came_before_are_refused() -> None:
    claims = OneRank().claims
    claim = Claim(Request(1, "a", TOKENS, "secret"), 1, 0)
    for order in (Grant(1, 1), Retract(1, 1)):
        with pytest.raises(RoundError):
            claims.take(order)
    claims.take(claim)
    for order, says in (
        (Claim(claim.request, 2, 0), "attempt 2 of request 1 is claimed while another one is"),
        (Grant(1, 2), "Grant.*where attempt 1 is claimed"),
        (Retract(1, 2), "Retract.*where attempt 1 is claimed"),
        (Drop(1, -1, "secret"), "request 1 ends after wave -1, though it was never granted"),
    ):
        with pytest.raises(RoundError, match=says) as refusal:
            claims.take(order)
        assert "secret" not in str(refusal.value)
    claims.take(Grant(1, 1))
    for order in (Grant(1, 1), Retract(1, 1)):
        with pytest.raises(RoundError):
            claims.take(order)


# Ends.


def test_a_request_that_no_wave_named_ends_at_once() -> None:
    rank = OneRank()
    rank.begin()
    rank.cancel()
    assert rank.held() == (1, 1, 0), "LOOP's to end"
    rank.deliver()
    assert (rank.held(), rank.claims.granted(), rank.known()) == (NOTHING, (), (0, 0, 0, 0))


def test_a_cancelled_request_keeps_its_storage_until_the_last_wave_that_names_it_has_run() -> None:
    rank = OneRank()
    rank.begin()
    rank.run(8)
    rank.cancel(after_wave=2)
    rank.deliver()
    assert rank.claims.granted() == (), "nothing is brought to the device ahead of those waves"
    assert not rank.run(16)
    assert rank.held() == (1, 1, 0)
    assert rank.run(24), "whoever waits for handles is to be told"
    assert (rank.held(), len(rank.claims)) == (NOTHING, 0)
    gauges = rank.cache.gauges()
    assert gauges.pages_reclaimable == 24 // 4, "what was computed stays reusable"
    assert (gauges.pages_pinned, gauges.pages_promised) == (0, 0)


def test_a_cancellation_after_its_last_wave_has_run_takes_effect_at_once() -> None:
    rank = OneRank()
    rank.begin()
    rank.run(8)
    rank.cancel(after_wave=0)
    rank.deliver()
    assert rank.held() == NOTHING


def test_a_wave_that_has_run_but_is_not_settled_is_waited_for() -> None:
    rank = OneRank()
    rank.begin()
    while rank.cache.materialise(1, 8) is not None:
        pass
    rank.cancel(after_wave=0)
    rank.deliver()
    rank.cache.publish(1, 8)
    assert rank.claims.wave_completed(0)
    assert (rank.held(), rank.cache.gauges().pages_reclaimable) == (NOTHING, 2)


@pytest.mark.parametrize("grant_first", [False, True])
def test_a_cancellation_of_a_request_that_was_sealed_meanwhile_ends_its_handle(grant_first: bool) -> None:
    rank = OneRank()
    committed(rank)
    rank.admit()
    if grant_first:
        rank.deliver()
    rank.run(30)
    assert rank.held() == (0, 0, 1)
    rank.cancel(after_wave=0)
    rank.deliver()
    assert (rank.held(), rank.known()) == (NOTHING, (0, 0, 0, 0))


def test_a_request_that_is_sealed_while_it_drains_ends_with_its_wave() -> None:
    rank = OneRank()
    rank.begin()
    rank.cancel(after_wave=0)
    rank.deliver()
    assert rank.run(30)
    assert (rank.held(), len(rank.claims)) == (NOTHING, 0)


def test_the_end_of_a_wave_ends_all_that_waited_for_it() -> None:
    rank = OneRank(pages=20)
    rank.begin(1)
    rank.begin(2, OTHER)
    rank.cancel(1, after_wave=5)
    rank.cancel(2, after_wave=4)
    rank.deliver()
    assert not rank.claims.wave_completed(3)
    assert rank.claims.wave_completed(5)
    assert rank.held() == NOTHING
    with pytest.raises(RoundError, match="wave 5 has run here, though wave 5 had"):
        rank.claims.wave_completed(5)


def test_a_pull_outlives_the_end_of_its_request() -> None:
    rank = OneRank()
    rank.begin()
    rank.run(30)
    pull = rank.cache.open_pull("h1")
    rank.cancel(after_wave=0)
    rank.deliver()
    assert rank.held() == (0, 0, 1)
    assert rank.cache.close_pull(pull.id)
    assert rank.held() == NOTHING


# The planes race.


class Life:
    """One request as a correct leader sees it, driven by chance."""

    def __init__(self, rank: OneRank, chance: random.Random, number: int) -> None:
        self.rank, self.chance, self.number = rank, chance, number
        start, shared = chance.choice((0, 100)), chance.randrange(0, 30)
        length = chance.randrange(5, 31)
        own = range(1000 * number, 1000 * number + max(0, length - shared))
        self.tokens = prompt(range(start, start + min(shared, length))) + prompt(own)
        self.total = len(self.tokens) // 4
        self.attempt = self.endpoint = self.computed = 0
        self.state = "new"
        self.lower = -1

    def wave(self) -> None:
        """The next chunk, whether or not LOOP has heard of the verdict."""
        step = 4 * self.chance.randrange(1, 4)
        end = min(self.total, (self.computed + step) // 4 * 4)
        self.rank.run(end, self.number)
        self.computed = end
        if end == self.total:
            self.state = "done"

    def step(self) -> None:
        rank, number, chance = self.rank, self.number, self.chance
        if self.state in ("new", "waiting", "asked", "prepared", "committed") and chance.random() < 0.1:
            if self.state != "new":
                rank.cancel(number)
            self.state = "over"
        elif self.state == "new":
            rank.announce(number, self.tokens)
            self.state = "waiting"
        elif self.state == "waiting":
            self.ask(chance.randrange(0, rank.probe(number) + 5) // 4 * 4)
        elif self.state == "refused" or (self.state in ("prepared", "committed") and chance.random() < 0.3):
            rank.reject(number, self.attempt)
            self.state = "waiting"
        elif self.state == "prepared":
            self.take(rank.trim(chance.randrange(0, self.lower + 1) // 4 * 4, number, self.attempt, ()))
        elif self.state == "committed":
            rank.admit(number, self.attempt, self.endpoint)
            self.state, self.computed = "running", self.endpoint
        elif self.state == "running":
            self.run()
        elif self.state == "done":
            if chance.random() < 0.5:
                rank.say(releases=(f"h{number}",))
            else:
                rank.cancel(number, rank.wave)
            self.state = "over"

    def run(self) -> None:
        if self.chance.random() < 0.15:
            after = self.rank.wave + self.chance.randrange(0, 3) if self.computed > self.endpoint else -1
            self.rank.cancel(self.number, after)
            self.state = "over"
            # LOOP plans what the cancellation counts on; here, waves of others bring the number on.
            return
        claim = self.rank.claims.find(self.number)
        while claim is None or claim.attempt != self.attempt:  # Claims are with LOOP before any wave that names them.
            self.rank.claims.take(self.rank.orders.popleft())
            claim = self.rank.claims.find(self.number)
        self.wave()

    def ask(self, candidate: int) -> None:
        self.attempt += 1
        self.take(self.rank.install(self.number, self.attempt, min(candidate, (self.total - 1) // 4 * 4), ()))

    def take(self, vote: object) -> None:
        reason, done, endpoint = (getattr(vote, name) for name in ("reason", "committed", "endpoint"))
        self.state = "refused" if reason else "committed" if done else "prepared"
        self.endpoint = self.lower = endpoint


@pytest.mark.parametrize("seed", range(30))
def test_whatever_order_the_planes_come_in_an_idle_rank_holds_nothing(seed: int) -> None:
    chance = random.Random(seed)
    rank = OneRank(pages=16, slots=5)
    lives = [Life(rank, chance, number) for number in range(1, 13)]
    for _ in range(4000):
        living = [life for life in lives if life.state != "over"]
        if not living:
            break
        chance.choice(living[:4]).step()
        if chance.random() < 0.3 and rank.orders:
            rank.claims.take(rank.orders.popleft())
            rank.cache.check()
        if chance.random() < 0.02:
            rank.say(reset=True)
    assert {life.state for life in lives} == {"over"}
    rank.deliver()
    rank.wave += 3
    rank.claims.wave_completed(rank.wave)
    rank.say(reset=True)
    assert (rank.held(), rank.known()) == (NOTHING, (0, 0, 0, 0))
    gauges = rank.cache.gauges()
    assert (gauges.pages_free, gauges.slots_free) == (gauges.pages_total, gauges.slots_total)
    assert (gauges.pages_promised, gauges.slots_promised) == (0, 0)
