"""What a decode worker is asked for, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .config import DecodeConfig
from .http import PrefillResult, Prompt
from .stats import PullStats


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """A prompt to prefill, or the handle of one that is prefilled already."""

    source: Prompt | str
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    keep: bool = False
    cache_salt: str | None = None


class DecodeOutcome(msgspec.Struct, frozen=True):
    """`tokens` begin with the first token, which the prefill side sampled. `text` is empty without a tokenizer.
    `cached_tokens` is None when the job came with a handle. `finish_reason` is `stop` or `length`."""

    handle: str
    model: str
    tokens: tuple[int, ...]
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int | None
    prefill_s: float | None
    pull: PullStats
    decode_s: float


class Listener:
    """Told what happens while a job runs; the default does nothing."""

    def prefilled(self, result: PrefillResult) -> None:
        pass

    def pulled(self, stats: PullStats) -> None:
        pass

    def token(self, token: int, text: str) -> None:
        """`text` is what became certain with this token; it may be empty."""

    def rest(self, text: str) -> None:
        """The end of the text, that was held back until there were no more tokens."""


def job_of(config: DecodeConfig, source: Prompt | str) -> DecodeJob:
    """A job with what the configuration says."""
    return DecodeJob(
        source=source,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        seed=config.seed,
        ignore_eos=config.ignore_eos,
        keep=config.keep,
    )
