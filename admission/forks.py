"""Where recent prompts part: the positions at which recurrent snapshots will be wanted again."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

Keys = tuple[bytes, ...]


def common_blocks(first: Keys, second: Keys, at_least: int = 0) -> int:
    """How many leading blocks two prompts share, when it is known to be at least so many. Chained keys name the whole
    prefix, so that equality can be bisected."""
    low, high = at_least, min(len(first), len(second))
    while low < high:
        middle = (low + high) // 2
        if first[middle] == second[middle]:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(slots=True, eq=False)
class _Branch:
    """The blocks `keys[start:]` of a prompt that leaves its `parent`, if it has one, after `start` blocks."""

    parent: _Branch | None
    start: int
    keys: Keys
    children: dict[bytes, _Branch] = field(default_factory=dict)
    """Those that leave this one, by the first key that is their own."""
    leaving: set[int] = field(default_factory=set)
    """The block counts at which others have left this one."""
    forks: list[int] = field(default_factory=list)
    """The same, ascending, without the end of this one where only one other has gone on from there."""


class ForkMemory:
    """A tree of the recent prompts' keys; the least recently seen branches are forgotten first. A prompt costs the
    logarithm of its length for each branch that it runs along. Owner: the leader's thread."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._roots: dict[bytes, _Branch] = {}
        self._seen: OrderedDict[_Branch, None] = OrderedDict()
        """In the order in which they were last seen; a branch always before its parent."""
        self._blocks = 0

    def __len__(self) -> int:
        """Blocks remembered."""
        return self._blocks

    def remember(self, keys: Keys) -> int:
        """Adds a prompt, and returns how many leading blocks it shares with those before it, as far as is known: all,
        where nothing may be remembered."""
        if not self._max_blocks:
            return len(keys)
        branch, shared = self._follow(keys)
        if shared < len(keys):
            if branch is not None:
                _part(branch, shared)
            children = self._roots if branch is None else branch.children
            branch = children[keys[shared]] = _Branch(branch, shared, keys)
            self._blocks += len(keys) - shared
        while branch is not None:
            self._seen[branch] = None
            self._seen.move_to_end(branch)
            branch = branch.parent
        while self._blocks > self._max_blocks:
            self._forget(self._seen.popitem(last=False)[0])
        return shared

    def forks(self, keys: Keys) -> Sequence[int]:
        """The block counts, ascending, at which other prompts are known to leave this one."""
        branch, end = self._follow(keys)
        found: list[int] = []
        while branch is not None:
            found[:0] = branch.forks[: bisect_right(branch.forks, end)]
            branch, end = branch.parent, branch.start
        return found

    def _follow(self, keys: Keys) -> tuple[_Branch | None, int]:
        """The branch that shares the most with a prompt, and how many blocks that is."""
        branch, shared, children = None, 0, self._roots
        while shared < len(keys) and (child := children.get(keys[shared])) is not None:
            branch, children = child, child.children
            shared = common_blocks(child.keys, keys, shared + 1)
        return branch, shared

    def _forget(self, branch: _Branch) -> None:
        siblings = self._roots if branch.parent is None else branch.parent.children
        del siblings[branch.keys[branch.start]]
        self._blocks -= len(branch.keys) - branch.start


def _part(branch: _Branch, at: int) -> None:
    """Another prompt goes on differently after `at` blocks. It is a fork unless it only goes on where all others had
    ended."""
    if at < len(branch.keys) or at in branch.leaving:
        place = bisect_left(branch.forks, at)
        if branch.forks[place : place + 1] != [at]:
            insort(branch.forks, at)
    branch.leaving.add(at)
