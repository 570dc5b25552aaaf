"""Between the front end and rank 0 (and the supervisor, which speaks for a group that is down)."""

from msgspec import Struct

from ..admission.effects import Reuse
from ..admission.messages import Gauges
from ..admission.request import Sampling


class Submit(Struct, frozen=True, tag="submit"):
    """Front end → rank 0: prefill this prompt. `name` is the request's public id; `tokens` int32 little-endian;
    `ttl_s` the life of its handle. Of two priorities the lower number goes first; the first token should be there
    within `deadline_s` seconds from now, which may have passed already."""

    name: str
    tokens: bytes
    ttl_s: float
    sampling: Sampling = Sampling()
    salt: str = ""
    adapter: str = ""
    priority: int = 0
    deadline_s: float | None = None


class CancelRequest(Struct, frozen=True, tag="cancel"):
    """Front end → rank 0: the request is no longer wanted. Answered by its `RequestFailed` (code `cancelled`) or,
    when it was already finished, by nothing: the handle is then released."""

    name: str


class KvGet(Struct, frozen=True, tag="kv_get"):
    """Front end → rank 0: the manifest of a handle. Answered by a `Reply` whose `body` is the `Manifest`."""

    call: int
    handle: str


class KvRenew(Struct, frozen=True, tag="kv_renew"):
    """Front end → rank 0: let the handle live for `ttl_s` seconds from now at least. Answered as a `KvGet` is."""

    call: int
    handle: str
    ttl_s: float


class KvRelease(Struct, frozen=True, tag="kv_release"):
    call: int
    handle: str


class ResetCache(Struct, frozen=True, tag="reset_cache"):
    call: int


class GetState(Struct, frozen=True, tag="get_state"):
    """Front end → rank 0: answered, when every rank has reported afresh, by a `Reply` with a `GroupState`."""

    call: int


class StageInfo(Struct, frozen=True):
    """One stage as the outside sees it. `windows` → what limits reuse there; `address` is its transfer endpoint."""

    rank: int
    layers: tuple[int, int]
    windows: tuple[str, ...]
    num_pages: int
    num_slots: int
    cache_bytes: int
    weight_bytes: int
    address: str


class GroupUp(Struct, frozen=True, tag="group_up"):
    """Rank 0 → front end: the epoch is ready to serve."""

    epoch: int
    submit_address: str
    stages: tuple[StageInfo, ...]
    block_size: int
    snapshot_interval: int
    max_prompt_tokens: int
    """The longest prompt that the cache of every stage can hold."""


class GroupDown(Struct, frozen=True, tag="group_down"):
    """Supervisor → front end: the epoch has ended (`epoch` 0: none has begun yet); everything in flight failed.
    `final` is set when no new epoch will be formed."""

    epoch: int
    reason: str
    final: bool = False


class Progress(Struct, frozen=True, tag="progress"):
    """Rank 0 → front end: the request was admitted (`computed` is then the reused prefix), or a chunk is done."""

    name: str
    phase: str
    computed: int
    total: int


class Timing(Struct, frozen=True):
    """Seconds: waiting for its turn, being admitted, from admission to the first token. `deadline_met` is None where
    there was no deadline."""

    queue_s: float
    admit_s: float
    prefill_s: float
    deadline_met: bool | None = None


class Finished(Struct, frozen=True, tag="finished"):
    """Rank 0 → front end: the first token is sampled, and the handle's life has begun."""

    name: str
    handle: str
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    prompt_tokens: int
    cached_tokens: int
    timing: Timing
    reuse: Reuse
    """Why `cached_tokens` are as many as they are."""


class RequestFailed(Struct, frozen=True, tag="request_failed"):
    """Rank 0 → front end. `code` is one of `cancelled`, `too_long`, `duplicate`, `queue_full`, `internal`."""

    name: str
    code: str
    message: str


class StageManifest(Struct, frozen=True):
    """Where and what to pull from one stage. `layers` are the public layer names in order."""

    rank: int
    address: str
    layers: tuple[str, ...]


class Manifest(Struct, frozen=True, tag="manifest"):
    """`GET /v1/kv/{handle}`: all that a decode worker needs. `expires_in_s` counts from the answer."""

    handle: str
    epoch: int
    model: str
    num_tokens: int
    block_size: int
    first_token: int
    expires_in_s: float
    stages: tuple[StageManifest, ...]


class GroupState(Struct, frozen=True, tag="group_state"):
    """The group at one moment. `queued` wait for admission, `running` are admitted and not finished."""

    epoch: int
    queued: int
    running: int
    waves_in_flight: int
    handles: int
    waves_done: int
    tokens_computed: int
    tokens_reused: int
    ranks: tuple[Gauges, ...]
    stage_seconds: tuple[float, ...]
    """Seconds for which waves have kept the stage so far, by rank."""


class Reply(Struct, frozen=True, tag="reply"):
    """Rank 0 → front end: the answer to a numbered call. `error` is a code (`unknown_handle`, `expired_handle`,
    `not_finished`), empty when it went well."""

    call: int
    error: str = ""
    body: Manifest | GroupState | None = None


ToRankZero = Submit | CancelRequest | KvGet | KvRenew | KvRelease | ResetCache | GetState
ToFrontEnd = GroupUp | GroupDown | Progress | Finished | RequestFailed | Reply
