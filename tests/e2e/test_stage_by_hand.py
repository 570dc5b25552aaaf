"""Stages started one by one, as on several hosts: they find each other through the leader's address."""

from __future__ import annotations

from wavepp.engine.messages import Finished

from .by_hand import StagesByHand
from .conftest import SMALL_CACHE, SubjectOf


def test_two_stages_over_tcp_prefill_and_leave_together(subject_of: SubjectOf) -> None:
    subject = subject_of("kimi-KKKA")
    with StagesByHand(subject.folder, 2, *SMALL_CACHE) as group:
        assert [stage.layers for stage in group.up.stages] == [(0, 2), (2, 4)]
        prompt = list(range(3, 120))
        group.submit("a", prompt)
        assert group.hear(Finished).token == subject.reference.continuation(prompt, 1).tokens[0]
        group.stages[0].terminate()
        assert [stage.wait(30) for stage in group.stages] == [0, 0]
