"""Arrivals: when the sessions of an open loop start.

Plain number series, drawn from the caller's random source; the driver sleeps until each is due. Closed loops
have no arrivals: a session starts when another has ended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import takewhile

from loadtests.scenario import Burst, OfCapacity, Poisson, Ramp, ScenarioError, Schedule


def offsets(
    arrivals: Poisson | Ramp | Schedule | Burst, rng: random.Random, until_seconds: float
) -> Iterator[float]:
    """Return ascending seconds from the population's start, all before `until_seconds`."""
    match arrivals:
        case Poisson():
            endless = _poisson(arrivals, rng)
        case Ramp():
            endless = _ramp(arrivals, rng)
        case Schedule():
            endless = iter(sorted(arrivals.at_seconds))
        case Burst():
            endless = iter([0.0] * arrivals.clients)
    return takewhile(lambda offset: offset < until_seconds, endless)


def resolved(arrivals: OfCapacity, capacity_per_second: float) -> Poisson:
    """Return the open loop for a target that finishes `capacity_per_second` sessions a second. Raise
    ScenarioError if the target finished none."""
    rate = arrivals.multiple * capacity_per_second
    if not 0 < rate < math.inf:
        raise ScenarioError(
            f"the capacity probe measured {capacity_per_second:g} sessions a second; "
            f"{arrivals.multiple:g} times that is not a positive rate"
        )
    return Poisson(kind="poisson", rate=rate)


def _poisson(arrivals: Poisson, rng: random.Random) -> Iterator[float]:
    """Yield arrivals with Gamma-distributed gaps of mean 1/rate. vllm bench rescales its series to hit the
    mean exactly, for which it must know the number of requests; this series is endless and has the mean on
    average."""
    scale = 1 / (arrivals.rate * arrivals.burstiness)
    at = 0.0
    while True:
        at += rng.gammavariate(arrivals.burstiness, scale)
        yield at


def _ramp(arrivals: Ramp, rng: random.Random) -> Iterator[float]:
    """Yield a Poisson process whose rate r(t) grows linearly and then stays: unit arrivals, mapped back
    through R(t) = expected arrivals until t = rate_from·t + slope·t²/2."""
    slope = (arrivals.rate_to - arrivals.rate_from) / arrivals.seconds
    expected_in_ramp = arrivals.seconds * (arrivals.rate_from + arrivals.rate_to) / 2
    expected = 0.0
    while True:
        expected += rng.expovariate(1.0)
        if expected >= expected_in_ramp:
            yield arrivals.seconds + (expected - expected_in_ramp) / arrivals.rate_to
        else:
            # The root of R(t) = expected in the form that stays exact for a slope near zero. It is right for
            # falling ramps too: R is below its peak there, so the square is positive.
            square = arrivals.rate_from**2 + 2 * slope * expected
            yield 2 * expected / (arrivals.rate_from + math.sqrt(max(0.0, square)))
