"""What can go wrong for a decode worker, by name."""


class ClientError(Exception):
    """Base of all errors of this package."""


class ServerError(ClientError):
    """The server refused or failed a call. `message` is its own; `status` the HTTP status, `code` its error code.
    `retry_after_s` is set where the server says when to come back."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status} {code}: {message}" if code else f"{status}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s


class UnreachableError(ClientError):
    """The server did not answer at all, or not in time."""


class PullError(ClientError):
    """The state could not be pulled, and nothing that was written may be used. `code` is the stage's, or one of
    `timeout`, `lost` (the connection broke), `protocol` (the stage answered nonsense), `mismatch`."""

    def __init__(self, code: str, message: str, rank: int | None = None) -> None:
        super().__init__(f"stage {rank}: {message} ({code})" if rank is not None else f"{message} ({code})")
        self.code = code
        self.message = message
        self.rank = rank


class SinkMismatchError(PullError):
    """The state is not what the sink takes: a layer, kind, dtype or shape differs, or one is missing. `held_dtype` is
    that of the stage where nothing but the dtype is wrong."""

    def __init__(self, message: str, held_dtype: str | None = None) -> None:
        super().__init__("mismatch", message)
        self.held_dtype = held_dtype


class DecoderFullError(ClientError):
    """The decoder has no room for this many tokens, or for another state."""
