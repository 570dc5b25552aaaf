"""How much work a wave should hold."""

import math
from dataclasses import dataclass

from .cost_model import StageCosts

PRECISION = 0.02
"""Of the logarithm of a wave's work: the curve is flat around its least."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Work is in seconds that tokens add to waves on the slowest stage. `admitted`: of all requests that have not
    completed, whole; `oldest`: of the one that is served next, whole; `rounds`: how often that much will be served
    before the work runs out, at least 1; `tokens`: of all those requests."""

    admitted: float
    oldest: float
    rounds: float
    tokens: int


def rounds_of(arrived: int, completed: int) -> float:
    """How often the admitted work will be renewed, this time included, when so many requests have arrived and
    completed since the pipeline last began with nothing in flight.

    A completed request makes room for another with a chance that is estimated as (arrived + 1) / (completed + 2),
    Laplace's rule; with a chance of q, work lasts for 1 / (1 − q) rounds."""
    chance = (arrived + 1) / (completed + 2)
    return 1 / max(1 - chance, 0.02)


class WaveTime:
    """Steady state and ramp-down in one: the wave with which the demand at hand, and what follows it, is served in the
    least time. Owner: the planner."""

    def __init__(self, costs: StageCosts, num_stages: int, slack: float) -> None:
        """`slack`: so many waves more than a full pipeline needs are aimed at, since waves are not quite alike."""
        self._costs, self._hops, self._slack = costs, num_stages - 1, slack

    def serving_s(self, demand: Demand, work: float) -> float:
        """Seconds to serve the demand, `rounds` times, in waves of `work` seconds of work each.

        The requests make N = admitted / work waves; m = oldest / work of them are one request's, which is through after
        m + P − 1 of them where nothing is before it. So a round of all requests, each replaced as it leaves, takes
        max(N, m + P − 1 + slack) waves' time, and when work has run out the last wave takes P − 1 more. For one request
        this is the flow shop's (m + P − 1) waves. A wave's time is its work and what each wave costs; P − 1 stands for
        the other stages' share of the slowest one's time, hops included. Convex in `work`."""
        profile, slowest = self._costs.profile, self._costs.slowest
        share = work / demand.admitted
        tokens = share * demand.tokens
        own = profile.token_s * tokens
        wave = work + slowest * (profile.wave_s + max(profile.weight_s, own) - own)
        transit = self._costs.transit * wave + self._hops * profile.hop(tokens)
        slack = self._slack if demand.oldest < demand.admitted else 0.0
        full = demand.rounds / share * wave + transit
        drained = demand.rounds * ((demand.oldest / work + slack) * wave + transit)
        return max(full, drained)

    def best(self, demand: Demand, least: float, most: float) -> float:
        """The work in [least, most] for which `serving_s` is the least, to within `PRECISION`."""
        low, high = math.log(least), math.log(max(least, most))
        while high - low > PRECISION:
            third = (high - low) / 3
            if self.serving_s(demand, math.exp(low + third)) < self.serving_s(demand, math.exp(high - third)):
                high -= third
            else:
                low += third
        return math.exp((low + high) / 2)
