"""The next round, while the leader is still filling it."""

from dataclasses import dataclass, field

from .messages import Cancel, Install, Probe, RoundDown, Trim, Verdict
from .request import Request


@dataclass(slots=True)
class _Draft:
    wanted: bool = False
    reset: bool = False
    announces: dict[int, Request] = field(default_factory=dict)
    probes: dict[int, Probe] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    installs: dict[int, Install] = field(default_factory=dict)
    trims: dict[int, Trim] = field(default_factory=dict)
    cancels: list[Cancel] = field(default_factory=list)
    releases: list[str] = field(default_factory=list)


class Outbox:
    """Decisions that wait for the next round; true when there is one to send. A request has one open question at a
    time: a probe, an install or a trim. Owner: the leader's thread."""

    def __init__(self) -> None:
        self._draft = _Draft()

    def __bool__(self) -> bool:
        return self._draft.wanted

    def announce(self, request: Request) -> None:
        self._draft.announces[request.id] = request
        self._draft.wanted = True

    def probe(self, probe: Probe) -> None:
        self._draft.probes[probe.request] = probe
        self._draft.wanted = True

    def install(self, install: Install) -> None:
        self._draft.installs[install.request] = install
        self._draft.wanted = True

    def trim(self, trim: Trim) -> None:
        self._draft.trims[trim.request] = trim
        self._draft.wanted = True

    def admit(self, request: int, attempt: int, endpoint: int) -> None:
        """Every rank has committed the attempt."""
        self._draft.verdicts.append(Verdict(request, attempt, endpoint, True))
        self._draft.wanted = True

    def release(self, request: int, attempt: int) -> None:
        """The attempt is given up: an install that no rank has heard yet is taken back, and what the ranks may hold
        for one that they have is released."""
        self._draft.trims.pop(request, None)
        if self._draft.installs.pop(request, None) is None:
            self._draft.verdicts.append(Verdict(request, attempt, 0, False))
            self._draft.wanted = True

    def cancel(self, request: Request, after_wave: int = -1) -> None:
        """Ends the request on every rank that has heard of it; what is still unsaid about it stays so."""
        for unsaid in (self._draft.probes, self._draft.installs, self._draft.trims):
            unsaid.pop(request.id, None)
        if self._draft.announces.pop(request.id, None) is None:
            self._draft.cancels.append(Cancel(request.id, after_wave, request.handle))
            self._draft.wanted = True

    def end_handle(self, handle: str) -> None:
        self._draft.releases.append(handle)
        self._draft.wanted = True

    def reset(self) -> None:
        self._draft.reset = True
        self._draft.wanted = True

    def report(self) -> None:
        """Asks for a round even when there is nothing to say in it."""
        self._draft.wanted = True

    def take(self, epoch: int, number: int) -> RoundDown:
        draft, self._draft = self._draft, _Draft()
        return RoundDown(
            epoch=epoch,
            round=number,
            announces=tuple(draft.announces.values()),
            probes=tuple(draft.probes.values()),
            verdicts=tuple(draft.verdicts),
            installs=tuple(draft.installs.values()),
            trims=tuple(draft.trims.values()),
            cancels=tuple(draft.cancels),
            releases=tuple(draft.releases),
            reset=draft.reset,
        )
