"""Which layers each stage of the group holds."""

from ..models.partition import even_partition, parse_partition
from .config import EngineConfig


def place(num_layers: int, config: EngineConfig) -> list[range]:
    """By hand where the config says so, even otherwise. Raises PartitionError for what does not fit the model."""
    if config.partition is not None:
        return parse_partition(config.partition, num_layers, config.pp)
    return even_partition(num_layers, config.pp)
