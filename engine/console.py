"""What a person sees of the supervisor: start-up progress and what will be served."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping

from tqdm import tqdm

from .messages import GroupUp, StageInfo
from .status import HostTier, Loaded, Loading


class Console:
    """Owned by the supervisor's main thread. Writes to standard error."""

    def __init__(self, model: str, admission: str, emulated: str = "") -> None:
        """`admission` is the name of the policy; `emulated` says what the stages emulate."""
        self._model, self._admission, self._emulated = model, admission, emulated
        self._url = ""
        self._group: GroupUp | None = None
        self._bar: tqdm | None = None
        self._read: dict[int, tuple[int, int]] = {}
        self._host: dict[int, HostTier] = {}

    def say(self, text: str) -> None:
        # Whoever read our standard error may be gone; the server goes on.
        with contextlib.suppress(OSError, ValueError):
            tqdm.write(text, file=sys.stderr)

    def listening(self, url: str) -> None:
        self._url = url
        self._say_serving()

    def loading(self, status: Loading) -> None:
        """Moves a bar on a terminal; elsewhere the lines of the loaded stages must do."""
        self._read[status.rank] = (status.done, status.total)
        if not sys.stderr.isatty():
            return
        if self._bar is None:
            self._bar = tqdm(desc="reading weights", unit="B", unit_scale=True, total=0, leave=False, file=sys.stderr)
        self._bar.total = sum(total for _, total in self._read.values())
        self._bar.n = sum(done for done, _ in self._read.values())
        self._bar.refresh()

    def loaded(self, status: Loaded) -> None:
        first, stop = status.layers
        self._host[status.rank] = status.host
        self.say(f"  stage {status.rank}: layers {first}-{stop - 1}, {size(status.weight_bytes)} of weights")

    def ready(self, group: GroupUp) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._read.clear()
        self._group = group
        for text in banner(self._model, self._admission, group, self._host, self._emulated):
            self.say(text)
        self._say_serving()

    def ended(self) -> None:
        """The epoch is over; the next one will be announced again."""
        self._group = None

    def _say_serving(self) -> None:
        if self._url and self._group is not None:
            self.say(f"serving {self._model} at {self._url} (epoch {self._group.epoch})")
            self.say(f'  try: curl {self._url}/v1/prefill --json \'{{"prompt": "Hello"}}\'')


def banner(model: str, admission: str, group: GroupUp, host: Mapping[int, HostTier], emulated: str = "") -> list[str]:
    """What will be served, how much cache fits on each stage, at what granularity prefixes can be reused, and how
    requests are admitted. `host` is the host tier of each stage that is known here."""
    lines = [f"{model} is ready on {len(group.stages)} stages (epoch {group.epoch})"]
    for stage in group.stages:
        lines.append(f"  {_stage_line(stage, group.block_size)}")
        lines += [f"    {text}" for text in _host_lines(host.get(stage.rank), group.block_size)]
    lines.append(f"  longest prompt that fits the cache: {group.max_prompt_tokens:,} tokens")
    lines.append(f"  admission: {admission}")
    if emulated:
        lines.append(f"  emulated: {emulated}")
    if group.snapshot_interval:
        lines.append(
            f"  prefixes are reused at snapshots: every {group.snapshot_interval} tokens, and at the last block "
            f"boundary ({group.block_size} tokens) of each prompt"
        )
    else:
        lines.append(f"  prefixes are reused in blocks of {group.block_size} tokens")
    return lines


def size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024 or unit == "GiB":
            break
        num_bytes /= 1024
    return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"


def _host_lines(host: HostTier | None, block_size: int) -> list[str]:
    if host is None or not host.num_bytes:
        return []
    parts = [f"{size(host.num_bytes)} on the host"]
    if host.num_pages:
        parts.append(f"{host.num_pages * block_size:,} tokens of attention state")
    if host.num_slots:
        parts.append(f"{host.num_slots} recurrent states")
    return [f"and {', '.join(parts)}"]


def _stage_line(stage: StageInfo, block_size: int) -> str:
    first, stop = stage.layers
    parts = [f"{size(stage.cache_bytes)} of cache"]
    if stage.num_pages:
        parts.append(f"{stage.num_pages * block_size:,} tokens of attention state")
    if stage.num_slots:
        parts.append(f"{stage.num_slots} recurrent states")
    return f"stage {stage.rank}: layers {first}-{stop - 1}; {', '.join(parts)}"
