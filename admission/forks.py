"""Where recent prompts part: the positions at which recurrent snapshots will be wanted again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

Keys = tuple[bytes, ...]


def common_blocks(first: Keys, second: Keys, at_least: int = 0) -> int:
    """How many leading blocks two prompts share, when it is known to be at least so many. Chained keys name the whole
    prefix, so that equality can be bisected."""
    most = min(len(first), len(second))
    return bisect_left(range(at_least, most), True, key=lambda i: first[i] != second[i]) + at_least


@dataclass(slots=True, eq=False)
class _Branch:
    """The blocks from `start` on, of a prompt that leaves its `parent` there. `parts` are the block counts, ascending,
    at which prompts part that share at least `start` blocks."""

    parent: _Branch | None
    start: int
    keys: Keys
    parts: list[int] = field(default_factory=list)
    leaving: set[int] = field(default_factory=set)
    """Block counts at which other branches have left this one."""


class ForkMemory:
    """A tree of the recent prompts' keys; the least recently seen branches are forgotten first. Remembering a prompt
    costs one pass over the blocks that are new, everything else the logarithm of its length. Owner: the leader's
    thread."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._branches: OrderedDict[int, _Branch] = OrderedDict()
        """In the order in which they were last seen; a branch always before its parent."""
        self._owner: dict[bytes, _Branch] = {}

    def __len__(self) -> int:
        """Blocks remembered."""
        return len(self._owner)

    def remember(self, keys: Keys) -> int:
        """Adds a prompt, and returns how many leading blocks it shares with those before it, as far as is known: all,
        where nothing may be remembered."""
        if not self._max_blocks:
            return len(keys)
        shared = self._reach(keys)
        branch = self._owner[keys[shared - 1]] if shared else None
        if shared < len(keys):
            if branch is not None:
                self._part(branch, shared)
            branch = _Branch(branch, shared, keys)
            self._owner.update(dict.fromkeys(keys[shared:], branch))
        while branch is not None:
            self._branches[id(branch)] = branch
            self._branches.move_to_end(id(branch))
            branch = branch.parent
        while len(self._owner) > self._max_blocks:
            self._forget(self._branches.popitem(last=False)[1])
        return shared

    def forks(self, keys: Keys) -> Sequence[int]:
        """The block counts, ascending, at which other prompts are known to leave this one."""
        end = self._reach(keys)
        branch = self._owner[keys[end - 1]] if end else None
        found: list[int] = []
        while branch is not None:
            found[:0] = branch.parts[: bisect_left(branch.parts, end + 1)]
            branch, end = branch.parent, branch.start
        return found

    def _reach(self, keys: Keys) -> int:
        return bisect_left(keys, True, key=lambda key: key not in self._owner)

    def _part(self, branch: _Branch, at: int) -> None:
        """Another prompt goes on differently after `at` blocks. It is a fork unless it only goes on where all others
        had ended."""
        if at not in branch.parts and (at < len(branch.keys) or at in branch.leaving):
            insort(branch.parts, at)
        branch.leaving.add(at)

    def _forget(self, branch: _Branch) -> None:
        for key in branch.keys[branch.start :]:
            del self._owner[key]
