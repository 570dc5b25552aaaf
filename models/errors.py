"""Errors of reading a model folder. All are the user's to fix, and say which folder, key or tensor is at fault."""


class ModelError(ValueError):
    """A model folder cannot be served."""


class UnsupportedModelError(ModelError):
    """The architecture, or an option of it, is not one that is implemented here."""


class CheckpointError(ModelError):
    """A file, a configuration key or a tensor is missing or malformed."""


class PartitionError(ValueError):
    """The layers cannot be divided over the stages as asked."""
