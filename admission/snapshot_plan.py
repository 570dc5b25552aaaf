"""Where a prompt's recurrent snapshots are taken: the same positions on every rank, chosen by the leader."""


def reuse_limit(num_tokens: int, block_size: int) -> int:
    """The longest prefix, in tokens, that may be reused: at least one token is always computed."""
    return (num_tokens - 1) // block_size * block_size


def plan_snapshots(endpoint: int, num_tokens: int, interval: int, block_size: int, most: int) -> tuple[int, ...]:
    """Positions in tokens, ascending and block-aligned, beyond `endpoint`: multiples of `interval`, and the last one
    that a request with the same prompt could reuse. At most `most` of them: the interval doubles until they fit, and
    the last stays."""
    last = reuse_limit(num_tokens, block_size)
    if last <= endpoint or most < 1:
        return ()
    step = interval
    while _multiples_between(endpoint, last, step) > most - 1:
        step *= 2
    return (*range((endpoint // step + 1) * step, last, step), last)


def _multiples_between(low: int, high: int, step: int) -> int:
    """How many multiples of `step` lie strictly between the two."""
    return max(0, (high - 1) // step - low // step)
