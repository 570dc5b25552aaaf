"""Whatever the order of messages, waves, copies, pulls, cancels and expiries, the group stays consistent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from wavepp.simulator import campaign
from wavepp.simulator.campaign import Trial, TrialError, run
from wavepp.simulator.unowned import AdmittedRequestFailedError

STEPS = 2_000
TRIALS = [Trial(seed, 1 + seed % 8, STEPS, "lockstep" if seed % 3 == 0 else "lease") for seed in range(80)]
MUST_HAPPEN = [
    "admitted",
    "reused",
    "completed",
    "trims",
    "released and lowered",
    "blocked votes",
    "lacked room",
    "asked again",
    "repeated down",
    "repeated up",
    "offloaded",
    "onboarded",
    "dropped",
    "herd holds",
    "passed the held",
    "went before who had come first",
    "went before who was turned away",
    "cancelled queued",
    "cancelled probing",
    "cancelled held",
    "cancelled installing",
    "cancelled running",
    "cancelled stopping",
    "cancelled finished",
    "released handles",
    "renewed handles",
    "pulls",
    "pressed",
    "resets",
]


def test_any_order_of_events_leaves_every_rank_agreed_and_nothing_behind() -> None:
    assert sum(trial.steps for trial in TRIALS) >= 100_000
    seen: Counter[str] = Counter()
    for trial in TRIALS:
        seen += run(trial)
    assert not [what for what in MUST_HAPPEN if not seen[what]], f"never happened; what did: {seen}"


@pytest.mark.parametrize("admission", ["lease", "lockstep"])
def test_one_rank_alone_is_a_group_too(admission: str) -> None:
    seen = run(Trial(1, 1, STEPS, admission))
    assert seen["completed"]


def test_a_seed_happens_the_same_way_every_time() -> None:
    trial = Trial(5, 3, 600, "lease")
    assert run(trial) == run(trial)


def test_a_failure_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(5, 3, 600, "lease")

    def broken(self: campaign.Chaos) -> None:
        self.steps += 1
        assert self.steps < 40, "broken on purpose"

    monkeypatch.setattr(campaign.Chaos, "step", broken)
    with pytest.raises(TrialError, match="broken on purpose"):
        run(trial)
    assert campaign.main(trial.command.split()[3:]) == 1
    assert f"{trial.command}\n" in capsys.readouterr().out


@pytest.mark.parametrize("failure", ["no room for what was admitted", "are left"])
def test_without_ownership_an_admitted_request_fails_where_leases_keep_it(failure: str) -> None:
    for seed in range(200):
        trial = Trial(seed, 2 + seed % 3, 1_500, "unowned")
        try:
            run(trial)
        except TrialError as error:
            if isinstance(error.__cause__, AdmittedRequestFailedError) and failure in str(error):
                break
    else:
        raise AssertionError("no seed has shown it")
    assert run(replace(trial, admission="lease"))["completed"]
