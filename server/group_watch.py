"""What the front end knows of the stage group: which epoch serves, and when it last gave signs of life."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from ..engine.messages import GroupDown, GroupState, GroupUp
from .errors import UnavailableError

log = logging.getLogger(__name__)


class GroupWatch:
    """The stage group as last heard of. `up` is set while it serves, and `reason` says why it does not. Owned by the
    event loop; `clock` counts seconds."""

    def __init__(
        self, *, stall_timeout_s: float, retry_after_s: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stall_timeout_s = stall_timeout_s
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._heard_at = self._progress_at = clock()
        self.status: Literal["forming", "up", "down"] = "forming"
        self.epoch = 0
        self.reason = "the stage group is forming"
        self.up: GroupUp | None = None
        self.last_state: GroupState | None = None
        """Rank 0's newest report on the epoch that serves."""

    def require_up(self) -> GroupUp:
        """Errors: `UnavailableError` with the reason."""
        if self.up is None:
            code = "group_forming" if self.status == "forming" else "group_down"
            raise UnavailableError(self.reason, code, retry_after_s=self._retry_after_s)
        return self.up

    def ended(self, reason: str) -> UnavailableError:
        """What everything in flight is answered with when its epoch has ended."""
        return UnavailableError(f"the stage group is down: {reason}", retry_after_s=self._retry_after_s)

    def heard(self) -> None:
        """Somebody has said something."""
        self._heard_at = self._clock()

    def progressed(self) -> None:
        """A request has come closer to its end, or there was none until now."""
        self._progress_at = self._clock()

    def take_up(self, message: GroupUp) -> bool:
        """Whether it counts: word of an ended epoch, however late it comes, does not."""
        if message.epoch < self.epoch or (message.epoch == self.epoch and self.status == "down"):
            log.warning("ignored word of the ended epoch %d", message.epoch)
            return False
        if message.epoch != self.epoch:
            self.last_state = None
        self.status, self.epoch, self.reason, self.up = "up", message.epoch, "", message
        self.progressed()
        log.info("epoch %d serves: %d stages", message.epoch, len(message.stages))
        return True

    def take_down(self, message: GroupDown) -> bool:
        """Whether it counts; before the first epoch the group is still forming."""
        if message.epoch < self.epoch and not message.final:
            return False
        begun = self.epoch > 0 or message.epoch > 0 or message.final
        self.status = "down" if begun else "forming"
        self.epoch, self.reason = max(message.epoch, self.epoch), message.reason
        self.up = self.last_state = None
        log.warning("the stage group is %s: %s", self.status, message.reason)
        return True

    def stalled(self, num_admitted: int) -> str:
        """What is wrong with work that was admitted and must progress; empty when nothing is."""
        quiet = self._clock() - self._progress_at
        if num_admitted and quiet > self._stall_timeout_s:
            return f"{num_admitted} admitted requests have made no progress for {quiet:.0f} s"
        return ""

    def silent_for(self) -> float:
        """Seconds since anything was heard."""
        return self._clock() - self._heard_at
