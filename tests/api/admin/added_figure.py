"""Prints, as JSON, where a field appears that is added to the counters of the wire and to nothing else. A
process of its own: the field must be there before anything that loops over fields is imported."""

from __future__ import annotations

import json
from typing import Annotated, Any

import trio
from trio.testing import MockClock

from scheduler.shared import counters, figures


class _Counters(counters.Counters):
    added: Annotated[
        int,
        figures.counter(
            "penstock_added", "Said once.", live="added_live", history="added_history", vllm=("added",)
        ),
    ] = 0
    added_gauge: Annotated[int, figures.gauge("penstock_added_gauge", "Once, too.", live="gauge_live")] = 0


counters.Counters = _Counters  # type: ignore[misc]

# ruff: noqa: E402
from api.admin.live import snapshot
from scheduler.engine.step_meter import StepMeter
from scheduler.shared.messages import ScriptedPlan
from scheduler.telemetry.vllm_names import VllmNames
from tests.api.admin.figures_run import metrics_text
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running
from tests.scheduler.telemetry.metric_table import table

_count = StepMeter.count


def _count_more(meter: StepMeter, *args: Any) -> None:
    _count(meter, *args)
    assert isinstance(meter.totals, _Counters)
    meter.totals.added += 3
    meter.totals.added_gauge = 5


async def _found() -> dict[str, Any]:
    """Three steps in each of two lives of the engine."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=0.01))
    scheduler.metrics.registry.register(VllmNames(scheduler.metrics.server))
    async with running(scheduler):
        for life in (1, 2):
            await trio.sleep(1.5)
            await answer(scheduler, ask(max_tokens=3))
            await trio.sleep(1.5)
            if life == 1:
                launcher.kill()
                await trio.sleep(1.5)
        return {
            "metrics": metrics_text(scheduler.metrics.registry).splitlines(),
            "table": table().splitlines(),
            "live": snapshot(scheduler),
            "history": scheduler.history.since(0),
        }


StepMeter.count = _count_more  # type: ignore[assignment, method-assign]
print(json.dumps(trio.run(_found, clock=MockClock(autojump_threshold=0))))
