"""What the leader asks of its surroundings: the values that `Leader.take_effects` hands out, in order."""

from msgspec import Struct

from .messages import FirstToken
from .request import Request


class Admitted(Struct, frozen=True, tag="admitted"):
    """To LOOP: every rank has committed the request at `endpoint`; tokens from there on may be planned. Of two
    priorities the lower number goes first; `deadline` is when the first token should be there, and `submitted_at` when
    the request came, both on the leader's clock."""

    request: Request
    attempt: int
    endpoint: int
    num_tokens: int
    priority: int = 0
    deadline: float | None = None
    submitted_at: float | None = None


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


class Reuse(Struct, frozen=True):
    """How the reused prefix came to be as long as it is, in tokens: `hinted` is the all-rank minimum of the hints that
    admission began with, `leased` of what the ranks then pinned at the first try, `endpoint` what all agreed on.
    `limited_by` is `rank N: window`, of the one that kept it from being longer (empty: nothing did). `held_s` is how
    many seconds the request waited for another one that was computing its prefix."""

    hinted: int
    leased: int
    endpoint: int
    limited_by: str = ""
    held_s: float = 0.0


class Completed(Struct, frozen=True, tag="completed"):
    """To the front end: the prompt is prefilled, and its handle good for `ttl_s` seconds from now. `queue_s` is the
    wait for its turn and for room, `admit_s` the rounds that admitted it, `prefill_s` from there to the first token.
    `reuse` says why as much was reused as was. `deadline_met` is None where there was no deadline."""

    name: str
    handle: str
    token: FirstToken
    prompt_tokens: int
    cached_tokens: int
    queue_s: float
    admit_s: float
    prefill_s: float
    ttl_s: float
    reuse: Reuse
    deadline_met: bool | None = None


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
