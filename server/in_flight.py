"""How many prompts may be in work at once, and whether new ones are still taken."""

from __future__ import annotations

import asyncio

from .errors import BadRequestError, TooManyError, UnavailableError


class InFlight:
    """Counts prompts from before they are tokenized until they are answered. Owned by the event loop."""

    def __init__(self, limit: int, retry_after_s: int) -> None:
        self._limit = limit
        self._retry_after_s = retry_after_s
        self._idle = asyncio.Event()
        self._idle.set()
        self.count = 0
        self.draining = False

    def enter(self, prompts: int) -> None:
        """Errors: `UnavailableError` while draining, `TooManyError` when full, `BadRequestError` for a batch that
        could never fit."""
        if self.draining:
            raise UnavailableError("the server is shutting down", "draining", retry_after_s=self._retry_after_s)
        if prompts > self._limit:
            raise BadRequestError(
                f"prompt: a batch of {prompts} is larger than the {self._limit} prompts taken at once"
            )
        if self.count + prompts > self._limit:
            message = f"{self.count} prompts are in work; at most {self._limit} are taken at once"
            raise TooManyError(message, retry_after_s=self._retry_after_s)
        self.count += prompts
        self._idle.clear()

    def leave(self, prompts: int) -> None:
        self.count -= prompts
        if self.count == 0:
            self._idle.set()

    def drain(self) -> None:
        self.draining = True

    async def idle(self) -> None:
        await self._idle.wait()
