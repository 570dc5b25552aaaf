"""What rank 0 can tell of the group: its stages, manifests of handles, and counts."""

from __future__ import annotations

from collections.abc import Sequence

from ..admission.effects import Admitted
from ..admission.handles import HandleInfo
from ..admission.leader import Leader
from ..admission.messages import Hello, WaveDone
from .messages import GroupState, GroupUp, Manifest, StageInfo, StageManifest


class GroupView:
    """Owned by rank 0's WAVE. `layer_names[rank]` are the public names of the layers that keep state there. Ranks tell
    stage times on a clock that is `speed` times as fast as the host's."""

    def __init__(
        self,
        epoch: int,
        model: str,
        hellos: Sequence[Hello],
        layer_names: Sequence[tuple[str, ...]],
        block_size: int,
        snapshot_interval: int,
        speed: float = 1.0,
    ) -> None:
        self.epoch, self._model, self._block_size = epoch, model, block_size
        self._snapshot_interval, self._speed = snapshot_interval, speed
        self._hellos, self._layer_names = tuple(hellos), tuple(layer_names)
        self._waves_planned = 0
        self._waves_done = 0
        self._computed = 0
        self._reused = 0
        self._stage_seconds = [0.0] * len(self._hellos)

    @property
    def size(self) -> int:
        return len(self._hellos)

    @property
    def has_recurrent(self) -> bool:
        return any("recurrent" in hello.windows for hello in self._hellos)

    def group_up(self, submit_address: str, max_prompt_tokens: int) -> GroupUp:
        return GroupUp(
            epoch=self.epoch,
            submit_address=submit_address,
            stages=tuple(_stage_info(hello) for hello in self._hellos),
            block_size=self._block_size,
            snapshot_interval=self._snapshot_interval if self.has_recurrent else 0,
            max_prompt_tokens=max_prompt_tokens,
        )

    def admitted(self, effect: Admitted) -> None:
        self._reused += effect.endpoint
        self._computed += effect.num_tokens - effect.endpoint

    def wave_done(self, done: WaveDone) -> None:
        self._stage_seconds[done.rank] += done.stage_time / self._speed
        if done.rank == 0:
            self._waves_planned = max(self._waves_planned, done.wave + 1)
        if done.rank == self.size - 1:
            self._waves_done = done.wave + 1

    def state(self, leader: Leader) -> GroupState:
        return GroupState(
            epoch=self.epoch,
            queued=leader.queued,
            running=leader.running,
            waves_in_flight=max(0, self._waves_planned - self._waves_done),
            handles=leader.handles,
            waves_done=self._waves_done,
            tokens_computed=self._computed,
            tokens_reused=self._reused,
            ranks=tuple(leader.gauges),
            stage_seconds=tuple(self._stage_seconds),
        )

    def manifest(self, info: HandleInfo, now: float) -> Manifest:
        return Manifest(
            handle=info.handle,
            epoch=self.epoch,
            model=self._model,
            num_tokens=info.num_tokens,
            block_size=self._block_size,
            first_token=info.first_token,
            expires_in_s=max(0.0, info.expires_at - now),
            stages=tuple(
                StageManifest(hello.rank, hello.transfer_address, names)
                for hello, names in zip(self._hellos, self._layer_names, strict=True)
            ),
        )


def _stage_info(hello: Hello) -> StageInfo:
    return StageInfo(
        rank=hello.rank,
        layers=hello.layers,
        windows=hello.windows,
        num_pages=hello.num_pages,
        num_slots=hello.num_slots,
        cache_bytes=hello.cache_bytes,
        weight_bytes=hello.weight_bytes,
        address=hello.transfer_address,
    )
