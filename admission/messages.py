"""The rounds plane: what rank 0 says to every rank, and what the ranks answer (msgpack-encoded tagged structs)."""

from msgspec import Struct

from ..cache.gauges import CacheGauges
from .request import Request


class Probe(Struct, frozen=True, array_like=True):
    """Asks every rank how much of the request's prefix it could reuse; nothing is owned by the answer. Any queued
    request may be probed, with its announcement or again later; answered by a `Hint` of the same attempt."""

    request: int
    attempt: int


class Install(Struct, frozen=True, array_like=True):
    """Asks every rank to pin at most `candidate` tokens of prefix and to reserve the whole suffix, and to capture
    recurrent snapshots at exactly `snapshots` (block-aligned positions beyond the candidate, ascending).
    Applying one twice is harmless: idempotent by (request, attempt). Answered by a `Vote`."""

    request: int
    attempt: int
    candidate: int
    snapshots: tuple[int, ...]


class Trim(Struct, frozen=True, array_like=True):
    """Asks every rank to lower the attempt that it has prepared to `endpoint`, below what it was asked before, and to
    commit it there, with snapshots at exactly `snapshots`. Sent only while no rank has committed the attempt; where one
    has, all release it and prepare a new one. Answered by a `Vote`; idempotent by (request, attempt, endpoint)."""

    request: int
    attempt: int
    endpoint: int
    snapshots: tuple[int, ...]


class Verdict(Struct, frozen=True, array_like=True):
    """The leader's decision on an attempt. Not admitted: every rank releases what the attempt holds."""

    request: int
    attempt: int
    endpoint: int
    admitted: bool


class Cancel(Struct, frozen=True, array_like=True):
    """The request ends here, on every rank, after wave `after_wave` has run there (-1: no wave ever named it). Where
    its last chunk has run already, its handle ends instead."""

    request: int
    after_wave: int
    handle: str


class RoundDown(Struct, frozen=True, tag="down"):
    """One broadcast of rank 0. Decisions are applied in the order of the fields, and rounds in their order."""

    epoch: int
    round: int
    announces: tuple[Request, ...] = ()
    probes: tuple[Probe, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    installs: tuple[Install, ...] = ()
    trims: tuple[Trim, ...] = ()
    cancels: tuple[Cancel, ...] = ()
    releases: tuple[str, ...] = ()
    """Handles that end: released by their holder, or expired by rank 0's clock."""
    reset: bool = False
    """Drop every reusable block and snapshot that nothing references."""


class Hint(Struct, frozen=True, array_like=True):
    """The longest prefix, in tokens, that this rank could reuse for the request, by all of its windows.
    `limited_by` is the name of the window that set it (empty: nothing did)."""

    request: int
    attempt: int
    endpoint: int
    limited_by: str = ""


BLOCKED = "blocked"
"""The reason of a vote on a request that came behind one which lacked room on that rank."""


class Vote(Struct, frozen=True, array_like=True):
    """The rank's answer to an install or a trim that asked for `asked` tokens.

    `committed`: the prefix up to `endpoint` == `asked` is leased and the whole suffix in escrow. Otherwise, with a
    `reason` (the window that lacked room, or `BLOCKED`) nothing is held; without one, the prefix reaches only to
    `endpoint`, where the window `limited_by` ends it, and lease and escrow are prepared there.
    `released` is the rank's counter of the same name when it cast the vote: room that came later is room to retry."""

    request: int
    attempt: int
    asked: int
    endpoint: int
    committed: bool
    reason: str = ""
    limited_by: str = ""
    released: int = 0


Gauges = CacheGauges
"""What a rank's caches hold right now, as it travels."""


class RoundUp(Struct, frozen=True, tag="up"):
    """One rank's answer. `round` is the newest round applied; a repeat of an answer is harmless. `released` counts the
    times that this rank's capacity has grown since the epoch began."""

    epoch: int
    rank: int
    round: int
    hints: tuple[Hint, ...] = ()
    votes: tuple[Vote, ...] = ()
    released: int = 0
    gauges: Gauges = Gauges()


class FirstToken(Struct, frozen=True):
    """What the last stage sampled. `top` holds (token, logprob) alternatives where they were asked for. With an
    `error` there is no token: the request fails, and no other."""

    request: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    error: str = ""


class WaveStarted(Struct, frozen=True, tag="wave_started"):
    """A rank has begun a wave. Under lockstep admission it answers no round before the wave is done."""

    epoch: int
    rank: int
    wave: int


class WaveDone(Struct, frozen=True, tag="wave_done"):
    """A rank has finished a wave. Only the last stage sends first tokens. `stage_time` is seconds of forward."""

    epoch: int
    rank: int
    wave: int
    stage_time: float
    first_tokens: tuple[FirstToken, ...] = ()


class Failed(Struct, frozen=True, tag="failed"):
    """The rank cannot go on in this epoch, and why."""

    epoch: int
    rank: int
    reason: str


class Hello(Struct, frozen=True, tag="hello"):
    """A rank that has loaded its layers asks to join. Capacities are in pages and slots; `windows` names the
    windows that exist on this rank."""

    rank: int
    version: str
    fingerprint: str
    config: str
    layers: tuple[int, int]
    windows: tuple[str, ...]
    num_pages: int
    num_slots: int
    cache_bytes: int
    weight_bytes: int
    transfer_address: str


class Welcome(Struct, frozen=True, tag="welcome"):
    """The leader takes the rank in; the data plane is formed through the store at `store_host:store_port`."""

    epoch: int
    store_host: str
    store_port: int


class Refused(Struct, frozen=True, tag="refused"):
    """The leader will not take the rank in, and why."""

    reason: str


class Stop(Struct, frozen=True, tag="stop"):
    """The epoch ends in good order: finish nothing, leave."""

    epoch: int


FromLeader = RoundDown | Welcome | Refused | Stop
ToLeader = RoundUp | WaveStarted | WaveDone | Failed | Hello
