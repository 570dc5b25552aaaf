"""The policy `static`."""

from .work import Work


class StaticBudget:
    """b = M, whatever there is to do: every wave may be full."""

    def __init__(self, max_wave_tokens: int) -> None:
        self._max_wave_tokens = max_wave_tokens

    def budget(self, work: Work, idle: bool) -> int:
        return self._max_wave_tokens

    def decided(self) -> None:
        pass
