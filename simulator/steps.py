"""A seeded scheduler for a group: each step, one thing that could happen next does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from ..cache.answers import Pull
from ..cache.errors import CacheError
from ..cache.gauges import CacheGauges
from .arbitrary import Prompts, Wishes, some_group
from .group import Event, prompt
from .witness import entry_of

_WEIGHTS = {"receive": 3, "hear": 4, "post": 4, "take": 5, "bring": 3, "begin": 3, "plan": 3, "go on": 6}
_LOOP = {"take", "bring", "begin", "plan", "go on"}
_ROUND = 0.15
_RESHUFFLE = 300
_CHECK = 24
_REST = 100
_DRAIN = 60_000
_COUNTS = ("total", "free", "reclaimable")


class Chaos:
    """Sizes, policies, load and order all come from the seed. Raises AssertionError, or what the group raises."""

    def __init__(self, seed: int, ranks: int, admission: str) -> None:
        """`admission` is `lease`, `lockstep`, or, to see it fail, `unowned`: in all else the same as `lease`."""
        self.random = random.Random(f"{seed} {ranks} {'lockstep' if admission == 'lockstep' else 'lease'}")
        pick = self.random
        self.group = some_group(pick, ranks, admission)
        self.seen: Counter[str] = self.group.witness.seen
        self._prompts, self._wishes = Prompts(pick, self.group), Wishes(pick)
        self._names: list[str] = []
        self._pulls: list[tuple[int, str, Pull]] = []
        self._paces: dict[tuple[str, int], float] = {}
        self._slow = -1
        """The rank whose LOOP lags behind; -1: none does."""
        self.steps = 0
        self._busyness = pick.choice([0.2, 0.4, 0.8]) / (1 + ranks)
        """What share of the steps comes from outside."""
        evicting = pick.choice([0, 1, 3, 6])
        outside: dict[Callable[[], object], float] = {
            self._submit: 3,
            self._cancel: pick.choice([0.2, 0.8]),
            self._release: 3,
            self._renew: 0.2,
            self._pull: 1.5,
            self._again: 2,
            self._evict: evicting,
            self._reset: 0.02,
            self._time: 3,
        }
        self._outside, self._outside_weights = list(outside), list(outside.values())

    # One step.

    def step(self) -> None:
        if self.steps % _REST == 0 and self.random.random() < 0.3:
            self.rest()
        if self.steps % _RESHUFFLE == 0:
            # Now and then another rank, or another of its links, is the slow one.
            self._paces, self._slow = {}, self.random.randrange(-1, len(self.group.ranks))
        self.steps += 1
        inside = self.random.random() >= self._busyness
        if not inside or not self._happen():
            (act,) = self.random.choices(self._outside, self._outside_weights)
            act()
        if self.steps % _CHECK == 0:
            self.random.choice(self.group.ranks).cache.check()

    def _happen(self) -> bool:
        """Something that can happen by itself; False when nothing can."""
        events = list(self.group.events())
        if (not events or self.random.random() < _ROUND) and self.group.broadcast():
            return True
        if events:
            ((_, _, act),) = self.random.choices(events, [self._pace(event) for event in events])
            act()
        return bool(events)

    def _pace(self, event: Event) -> float:
        kind, number, _ = event
        pace = self._paces.get((kind, number))
        if pace is None:
            pace = self.random.choice([0.05, 0.5, 1, 1, 1, 3]) * _WEIGHTS[kind]
            if number == self._slow and kind in _LOOP:
                pace *= 0.03
            self._paces[kind, number] = pace
        return pace

    def drain(self) -> None:
        """Nothing comes from outside any more but time: all that was submitted comes to its end, and what waits then
        waits only for what others hold. Afterwards nothing is left anywhere."""
        group = self.group
        for number, name, pull in self._pulls:
            group.close_pull(number, name, pull)
        self._pulls.clear()
        for _ in range(_DRAIN):
            if self._happen():
                continue
            if not group.leader.queued and not group.leader.handles:
                break
            self._at_rest()
            assert group.leader.handles, f"{group.witness.first()} waits for ever"
            if self.random.random() < 0.5:
                group.release(self.random.choice([n for n in group.witness.completed if self._lives(n)]))
                continue
            due = group.leader.next_deadline()
            assert due is not None and due > group.now
            group.pass_time(due - group.now)
            assert not group.leader.silent_ranks(group.now), "a rank owes what it will never give"
        else:
            raise AssertionError("it does not come to an end")
        self._nothing_left()

    def rest(self) -> None:
        """Lets everything happen that can without anything from outside, time standing still."""
        for _ in range(_DRAIN):
            if not self._happen():
                return self._at_rest()
        raise AssertionError("it does not come to rest")

    def _at_rest(self) -> None:
        """Nothing can happen by itself: all that was admitted has finished, and the queue waits for room alone."""
        group = self.group
        assert group.leader.running == 0, "what was admitted does not finish"
        if group.leader.queued:
            name = group.witness.first()
            assert group.lacks_room(name), f"{name}, first in the queue, waits for what it could have"
            self.seen["waited for room"] += 1

    def _lives(self, name: str) -> bool:
        alive = self.group.leader.handle_info(f"handle-{name}", self.group.now)
        self.group.carry_out()
        return not isinstance(alive, str)

    def _nothing_left(self) -> None:
        group = self.group
        witness = group.witness
        assert witness.submitted == {*witness.completed, *witness.ended}
        assert len(witness.completed) + len(witness.ended) == len(witness.submitted)
        assert (group.leader.queued, group.leader.running, group.leader.handles) == (0, 0, 0)
        for rank in group.ranks:
            rank.cache.check()
            gauges = rank.cache.gauges()
            for window in ("pages", "slots", "host_pages", "host_slots"):
                total, free, reclaimable = (getattr(gauges, f"{window}_{kind}") for kind in _COUNTS)
                assert total == free + reclaimable, f"rank {rank.number}: {gauges}"
            assert (gauges.leases, gauges.escrows, gauges.handles, gauges.pulls) == (0, 0, 0, 0)
            assert (gauges.pages_promised, gauges.slots_promised) == (0, 0)
            assert (rank.participant.known, rank.participant.admitted, len(rank.claims), len(rank.keys)) == (0, 0, 0, 0)
            self._count(gauges)
        number = group.leader.reset(group.now)
        while self._happen():
            pass
        assert group.leader.all_answered(number)
        for rank, heard in zip(group.ranks, group.leader.gauges, strict=True):
            assert rank.cache.gauges() == heard
            assert (heard.pages_free, heard.slots_free) == (heard.pages_total, heard.slots_total)
            assert (heard.host_pages_free, heard.host_slots_free) == (heard.host_pages_total, heard.host_slots_total)
            for window in rank.spec.windows:
                assert not rank.cache.index.counts(window)

    def _count(self, gauges: CacheGauges) -> None:
        self.seen["offloaded"] += gauges.offloaded
        self.seen["onboarded"] += gauges.onboarded
        self.seen["dropped"] += gauges.dropped

    # What comes from outside.

    def _submit(self) -> None:
        if self.group.leader.queued >= self.group.config.max_queue and self.random.random() < 0.95:
            return
        for tokens in self._prompts.herd():
            name = f"r{len(self._names)}"
            priority, deadline = self._wishes.next(self.group.now)
            refusal = self.group.submit(name, prompt(tokens), priority=priority, deadline=deadline)
            self._names.append(name)
            if refusal is not None:
                self.seen[f"refused: {refusal.code}"] += 1

    def _cancel(self) -> None:
        """One in any state that there is one in, however rare that is."""
        witness = self.group.witness
        states: dict[str, list[str]] = {}
        for name in [*witness.waiting, *list(witness.admitted)[-8:]]:
            entry = entry_of(self.group.leader, name)
            if entry is not None:
                states.setdefault(entry.state.value, []).append(name)
            elif name in witness.completed:
                states.setdefault("finished", []).append(name)
        if states:
            name = self.random.choice(states[self.random.choice(list(states))])
            self.group.cancel(name)
            if entry_of(self.group.leader, name) is not None and self.random.random() < 0.2:
                self.group.cancel(name)

    def _release(self) -> None:
        name = self._finished(8)
        if name:
            error = self.group.release(name)
            assert error in ("", "expired_handle")
            self.seen["released handles"] += not error

    def _renew(self) -> None:
        name = self._finished(8)
        if name:
            error = self.group.renew(name, 5.0)
            assert error in ("", "expired_handle")
            self.seen["renewed handles"] += not error

    def _pull(self) -> None:
        if self._pulls and self.random.random() < 0.6:
            self.group.close_pull(*self._pulls.pop(self.random.randrange(len(self._pulls))))
        elif name := self._finished(4):
            number = self.random.randrange(len(self.group.ranks))
            try:
                pull = self.group.open_pull(number, name)
            except CacheError as error:
                self.seen[f"pull refused: {type(error).__name__}"] += 1
            else:
                self._pulls.append((number, name, pull))
                self.seen["pulls"] += 1

    def _finished(self, newest: int) -> str:
        """One whose handle is alive, mostly; empty when there is none."""
        completed = list(self.group.witness.completed)[-newest:]
        if self.random.random() < 0.95:
            completed = [name for name in completed if self._lives(name)]
        return self.random.choice(completed) if completed else ""

    def _again(self) -> None:
        """A frame comes once more, down or up."""
        rank = self.random.choice(self.group.ranks)
        if self.random.random() < 0.5:
            if rank.came_down:
                rank.receive(again=self.random.randrange(len(rank.came_down)))
                self.seen["repeated down"] += 1
        elif rank.went_up:
            self.group.hear(rank.number, again=self.random.randrange(len(rank.went_up)))
            self.seen["repeated up"] += 1

    def _evict(self) -> None:
        """One rank alone loses, or gains, something to reuse, so that ranks differ; or each of them does."""
        ranks = self.group.ranks
        for rank in ranks if self.random.random() < 0.4 else [self.random.choice(ranks)]:
            if rank.loop.busy or not rank.spec.windows:
                continue
            trunk = self.random.choice(self._prompts.trunks)
            keep = prompt(trunk) if self.random.random() < 0.4 else b""
            longest = self.group.leader.max_prompt_tokens
            tokens = self.random.randint(1, min(len(trunk) if keep else 100, longest))
            self.seen["pressed"] += rank.pressed(tokens, keep)

    def _reset(self) -> None:
        self.group.leader.reset(self.group.now)
        self.group.carry_out()

    def _time(self) -> None:
        pick = self.random
        due = self.group.leader.next_deadline()
        if due is not None and due > self.group.now and pick.random() < 0.2:
            self.group.pass_time(due - self.group.now)
        else:
            self.group.pass_time(pick.choice([0.01, 0.1, 0.5]))
