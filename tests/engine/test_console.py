"""What is said at the start about what will be served."""

from __future__ import annotations

from wavepp.engine.console import banner
from wavepp.engine.messages import GroupUp, StageInfo
from wavepp.engine.status import HostTier


def stage(rank: int, num_pages: int, num_slots: int) -> StageInfo:
    windows = tuple(name for name, count in (("attention", num_pages), ("recurrent", num_slots)) if count)
    return StageInfo(rank, (4 * rank, 4 * rank + 4), windows, num_pages, num_slots, 3 << 20, 1 << 20, "tcp://x:1")


def test_each_stage_says_what_its_two_tiers_hold_and_the_policy_is_named() -> None:
    group = GroupUp(3, "tcp://x:2", (stage(0, 40, 0), stage(1, 60, 7)), 16, 256, 640)
    lines = banner("m", "lease", group, {0: HostTier(), 1: HostTier(100, 2, 5 << 20)})
    assert lines[0] == "m is ready on 2 stages (epoch 3)"
    assert lines[1] == "  stage 0: layers 0-3; 3.0 MiB of cache, 640 tokens of attention state"
    assert lines[2] == "  stage 1: layers 4-7; 3.0 MiB of cache, 960 tokens of attention state, 7 recurrent states"
    assert lines[3] == "    and 5.0 MiB on the host, 1,600 tokens of attention state, 2 recurrent states"
    assert "  admission: lease" in lines
    assert any("every 256 tokens" in line for line in lines)
    assert "  emulated: all of it" in banner("m", "lease", group, {}, "all of it")


def test_a_group_without_a_host_tier_does_not_speak_of_it() -> None:
    group = GroupUp(1, "tcp://x:2", (stage(0, 40, 0),), 16, 0, 640)
    lines = banner("m", "lockstep", group, {0: HostTier()})
    assert not any("host" in line for line in lines)
    assert not any("emulated" in line for line in lines)
    assert "  admission: lockstep" in lines
