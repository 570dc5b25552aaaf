"""What the leader asks of its surroundings: the values that `Leader.take_effects` hands out, in order."""

from msgspec import Struct

from .messages import FirstToken
from .request import Request


class Admitted(Struct, frozen=True, tag="admitted"):
    """To LOOP: every rank has committed the request at `endpoint`; tokens from there on may be planned."""

    request: Request
    attempt: int
    endpoint: int
    num_tokens: int


class StopPlanning(Struct, frozen=True, tag="stop_planning"):
    """To LOOP: plan nothing more of the request, and answer with `Leader.on_stopped`."""

    request: int


class Progressed(Struct, frozen=True, tag="progressed"):
    """To the front end: `computed` of `total` tokens are there. `phase` is `admitted` (then they are all reused) or
    `prefill`."""

    name: str
    phase: str
    computed: int
    total: int


class Completed(Struct, frozen=True, tag="completed"):
    """To the front end: the prompt is prefilled, and its handle good for `ttl_s` seconds from now. `queue_s` is the
    wait for its turn and for room, `admit_s` the rounds that admitted it, `prefill_s` from there to the first token.
    `limited_by` is `rank N: window`, of the one that kept the reused prefix from being longer."""

    name: str
    handle: str
    token: FirstToken
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    admit_s: float
    prefill_s: float
    ttl_s: float
    limited_by: str


class Ended(Struct, frozen=True, tag="ended"):
    """To the front end: the request ended without a handle."""

    name: str
    code: str
    message: str


Effect = Admitted | StopPlanning | Progressed | Completed | Ended


class Refusal(Struct, frozen=True):
    """Why a submission was not taken: `code` is `too_long`, `duplicate`, `queue_full` or `internal`."""

    code: str
    message: str
