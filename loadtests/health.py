"""Whether the load generator kept up with itself. If it did not, its figures are about it.

A file of its own because it measures the load generator, where the rest measures the target.
"""

from __future__ import annotations

import time

import trio

from loadtests.record import GeneratorHealth

_TICK_SECONDS = 0.05
LAG_LIMIT_SECONDS = 0.1
"""Above this at the 99th percentile, stamps are late by more than a token's time."""
CPU_LIMIT = 0.9
"""Of the one core that a trio program can use."""


class HealthMeter:
    """Runs beside the load; `lateness` also takes how late scheduled requests were sent."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._cpu_started = time.process_time()
        self._started = trio.current_time()

    async def run(self) -> None:
        while True:
            due = trio.current_time() + _TICK_SECONDS
            await trio.sleep_until(due)
            self._lags.append(trio.current_time() - due)

    def lateness(self, seconds: float) -> None:
        self._lags.append(seconds)

    def result(self) -> GeneratorHealth:
        elapsed = trio.current_time() - self._started
        cpu_share = (time.process_time() - self._cpu_started) / elapsed if elapsed > 0 else 0.0
        lags = sorted(self._lags) or [0.0]
        p99 = lags[int(0.99 * (len(lags) - 1))]
        void = None
        if cpu_share > CPU_LIMIT:
            void = f"the load generator used {cpu_share:.0%} of its core"
        elif p99 > LAG_LIMIT_SECONDS:
            void = f"the load generator was late by {p99:.3f} s (p99)"
        return GeneratorHealth(
            cpu_share=cpu_share, lag_p50_seconds=lags[len(lags) // 2], lag_p99_seconds=p99, void=void
        )
