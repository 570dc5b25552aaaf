"""What every route of the app shares."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from .config import ServerConfig
from .engine_client import EngineClient
from .errors import BadRequestError, NotFoundError
from .in_flight import InFlight
from .metrics import Metrics
from .tokenizer import TokenizerService


@dataclass(frozen=True)
class Context:
    """The parts of the front end process, each with one owner: the event loop."""

    config: ServerConfig
    model_name: str
    version: str
    client: EngineClient
    tokenizer: TokenizerService
    metrics: Metrics
    in_flight: InFlight
    default_ttl_s: float
    max_ttl_s: float
    batches: dict[str, list[str]] = field(default_factory=dict)
    """The prompts of each batch in flight, by the batch's id."""
    started_at: int = field(default_factory=lambda: int(time.time()))

    def check_model(self, model: str | None) -> None:
        """Errors: `NotFoundError` for any model but the one served. None means that one."""
        if model is not None and model != self.model_name:
            raise NotFoundError(f"model: {model[:100]} is not served here; {self.model_name} is", "model_not_found")

    def handle_life(self, ttl_s: float | None) -> float:
        """Seconds. Errors: `BadRequestError` for more than rank 0 grants."""
        if ttl_s is not None and ttl_s > self.max_ttl_s:
            raise BadRequestError(
                f"ttl_s: a handle lives at most {self.max_ttl_s:g} s, the server's --max-ttl-s (got {ttl_s:g})"
            )
        return self.default_ttl_s if ttl_s is None else ttl_s

    def prompt_limit(self) -> int:
        """The longest prompt, in tokens, that model and stages can take. Errors: `UnavailableError`."""
        return min(self.tokenizer.max_model_len, self.client.group.require_up().max_prompt_tokens)


def context_of(request: Request) -> Context:
    return request.app.state.context
