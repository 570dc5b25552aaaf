"""Which layers each stage of the group holds, and what its stages are taken to need."""

from __future__ import annotations

from collections.abc import Sequence

from ..models.config import ModelSpec
from ..models.errors import PartitionError
from ..models.partition import balanced_partition, even_partition, parse_partition
from ..scheduler.config import SchedulerConfig
from ..scheduler.cost_model import StageProfile
from .config import EngineConfig
from .estimated import LayerTimes, estimated_profile, estimated_times


def place(spec: ModelSpec, config: EngineConfig, profile: StageProfile | None) -> list[range]:
    """As the config says. Balanced: by the times of layers that the profile has, else by the model's description; the
    same on every host. Raises PartitionError for what does not fit the model."""
    if config.partition is None or config.partition == "even":
        return even_partition(spec.num_layers, config.pp)
    if config.partition != "balanced":
        return parse_partition(config.partition, spec.num_layers, config.pp)
    times = _measured_times(spec, profile)
    if times is None and profile is not None and profile.layers:
        raise PartitionError(
            f"the profile {profile} has {len(profile.layers)} layers, the model {spec.num_layers}: it is another's"
        )
    if times is None:
        device = "cpu" if config.resolved_device() == "cpu" else "cuda"
        times = estimated_times(spec, device, config.resolved_dtype())
    return balanced_partition(times.layers, config.pp, first=times.entry, last=times.exit)


def stage_profile(
    spec: ModelSpec, parts: Sequence[range], config: EngineConfig, scheduler: SchedulerConfig
) -> StageProfile:
    """What the stages that hold `parts` take: as is given, with shares by the times of its layers if it has them; else
    estimated; where stages are emulated, Kimi K3's instead."""
    device, given = config.resolved_device(), scheduler.stage_profile
    if given is not None:
        times = _measured_times(spec, given)
        return given if times is None or given.shares else given.model_copy(update={"shares": times.shares(parts)})
    if device == "emulated":
        return scheduler.profile
    return estimated_profile(spec, parts, device, config.resolved_dtype(), config.resolved_threads())


def _measured_times(spec: ModelSpec, profile: StageProfile | None) -> LayerTimes | None:
    if profile is None or len(profile.layers) != spec.num_layers:
        return None
    return LayerTimes(profile.layers, profile.entry, profile.exit)
