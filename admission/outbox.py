"""The next round, while the leader is still filling it."""

from dataclasses import dataclass, field

from .messages import Cancel, Install, Probe, RoundDown, Verdict
from .request import Request


@dataclass(slots=True)
class _Draft:
    wanted: bool = False
    reset: bool = False
    announces: dict[int, Request] = field(default_factory=dict)
    probes: list[Probe] = field(default_factory=list)
    installs: list[Install] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    cancels: list[Cancel] = field(default_factory=list)
    releases: list[str] = field(default_factory=list)


class Outbox:
    """Decisions that wait for the next round; true when there is one to send. Owner: the leader's thread."""

    def __init__(self) -> None:
        self._draft = _Draft()

    def __bool__(self) -> bool:
        return self._draft.wanted

    def announce(self, request: Request) -> None:
        self._draft.announces[request.id] = request
        self._draft.wanted = True

    def withdraw(self, request: int) -> bool:
        """Takes back an announcement that no rank has heard yet; False when it has gone out."""
        if self._draft.announces.pop(request, None) is None:
            return False
        self._draft.probes = [probe for probe in self._draft.probes if probe.request != request]
        return True

    def probe(self, probe: Probe) -> None:
        self._draft.probes.append(probe)
        self._draft.wanted = True

    def install(self, install: Install) -> None:
        self._draft.installs.append(install)
        self._draft.wanted = True

    def verdict(self, verdict: Verdict) -> None:
        self._draft.verdicts.append(verdict)
        self._draft.wanted = True

    def cancel(self, cancel: Cancel) -> None:
        self._draft.cancels.append(cancel)
        self._draft.wanted = True

    def release(self, handle: str) -> None:
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
            probes=tuple(draft.probes),
            installs=tuple(draft.installs),
            verdicts=tuple(draft.verdicts),
            cancels=tuple(draft.cancels),
            releases=tuple(draft.releases),
            reset=draft.reset,
        )
