"""What a wave is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk of one request: the tokens [start, start + length). `last`: it ends the prompt, and so it is the
    only kind of span whose end may lie off a block boundary."""

    request: int
    start: int
    length: int
    last: bool

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class WavePlan:
    """The spans that travel together, in the order of service. Wave ids count up from 0, without
    gaps, over the waves that were accepted."""

    wave: int
    spans: tuple[Span, ...]

    @property
    def tokens(self) -> int:
        return sum(span.length for span in self.spans)
