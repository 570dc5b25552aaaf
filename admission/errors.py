"""What goes wrong on the rounds plane; each of these ends the epoch."""


class RoundError(RuntimeError):
    """A round, or an answer to one, that the protocol does not allow: of another epoch, out of order, or about a
    request or an attempt that this side does not have."""
