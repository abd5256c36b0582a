"""The figures of steps, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import TypeAlias

from loadtests.percentiles import percentile
from loadtests.step.parts import REST
from loadtests.step.record import Run, Step

ENGINE_PARTS = ("drain", "plan", "graph", "sample", "submit", "read", "account", "emit", "send", REST)
SERVER_PARTS = ("parse", "account", "route", "detokenize", "encode", "write", REST)
STAGES = ("sampled to sent", "sent to parsed", "parsed to written", "sampled to written")
_WHOLE = "whole step"
_MEANS = ("page faults", "waits of threads")
"""Counted in the timed run; other counts are medians of the counting one."""
_WARM_STEPS = 4
_WIDTH = 9
Runs: TypeAlias = tuple[Run, Run]
"""A run of one process for times, and one for counts."""


def steady(run: Run, rows: int) -> list[Step]:
    """Return the steps in which all rows got a token, and nothing else was done."""
    return [step for step in run.steps if step.rows == rows][_WARM_STEPS:]


def _spread(seconds: Sequence[float]) -> list[float]:
    """Return median and 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return [1000 * percentile(ordered, share) for share in (0.5, 0.99)]


def times(run: Run, rows: int) -> dict[str, list[float]]:
    """Return milliseconds of each part: median, 99th percentile, and the median of processor time. Raise
    ValueError if there is no steady step."""
    steps = [step.times for step in steady(run, rows)]
    if not steps:
        raise ValueError(f"no step gave all {rows} rows a token")
    parts = {name: [one.get(name, (0.0, 0.0)) for one in steps] for name in set().union(*steps)}
    parts[_WHOLE] = [
        (sum(wall for wall, _ in one.values()), sum(cpu for _, cpu in one.values())) for one in steps
    ]
    return {
        name: [*_spread([wall for wall, _ in found]), 1000 * median(cpu for _, cpu in found)]
        for name, found in parts.items()
    }


def counts(runs: Runs, rows: int) -> dict[str, float]:
    """Return counts a step."""
    timed, counted = (steady(run, rows) for run in runs)
    names = dict.fromkeys(name for step in counted for name in step.counts if name not in _MEANS)
    return {name: mean(step.counts[name] for step in timed) for name in _MEANS} | {
        name: median(step.counts[name] for step in counted if name in step.counts) for name in names
    }


def way_out(engine: Run, server: Run) -> dict[str, list[float]]:
    """Return how long tokens took (median, 99th percentile) from the moment in which the engine had read them
    to that in which their bytes were handed to their client's socket, and its parts. Tokens that complete no
    character have no bytes. The first ones of answers are left out: they carry the response's head."""
    sampled, sent, parsed, texts = (
        {(request, token): at for request, token, at in run.stamps[what]}
        for run, what in ((engine, "sampled"), (engine, "sent"), (server, "parsed"), (server, "text"))
    )
    stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
    seen: dict[int, int] = {}
    for request, token, written in server.stamps["written"]:
        for each in range(seen.get(request, token) + 1, token + 1):
            key = request, each
            if key in texts and key in sampled:
                # On a busy machine the reader may be done before the sender has noted that it sent.
                at = sampled[key], min(sent[key], parsed[key]), parsed[key], written
                taken = at[1] - at[0], at[2] - at[1], at[3] - at[2], at[3] - at[0]
                for stage, seconds in zip(STAGES, taken, strict=True):
                    stages[stage].append(seconds)
        seen[request] = max(seen.get(request, 0), token)
    return {stage: _spread(seconds) for stage, seconds in stages.items() if seconds}


def lines(rows: int, engine: Runs, bare: Runs, server: Runs) -> Iterator[str]:
    """Yield the tables of one number of rows."""
    steps = len(steady(engine[0], rows))
    yield f"\n{rows} {'row' if rows == 1 else 'rows'}, a decode step in ms ({steps} steps)"
    yield _line("", "engine", "p99", "CPU", "bare", "p99", "CPU")
    ours, theirs, loop = (times(runs[0], rows) for runs in (engine, bare, server))
    for part in (*ENGINE_PARTS, _WHOLE):
        yield _line(part, *ours.get(part, [None] * 3), *theirs.get(part, []))
    yield _line("the server's event loop", "passed", "p99", "CPU")
    for part in SERVER_PARTS:
        # What passed in the rest is waiting, and is the engine's step.
        yield _line(part, *loop.get(part, []))
    yield _line("a token's way out", "median", "p99")
    for stage, spread in way_out(engine[0], server[0]).items():
        yield _line(stage, *spread)
    yield _line("counts a step", "engine", "bare", "server")
    counted = [counts(runs, rows) for runs in (engine, bare, server)]
    for name in dict.fromkeys(name for one in counted for name in one):
        yield _line(name, *(f"{one[name]:.1f}" if name in one else None for one in counted))


def _line(name: str, *cells: float | str | None) -> str:
    texts = (f"{cell:.3f}" if isinstance(cell, float) else cell or "" for cell in cells)
    return f"  {name:26}{''.join(f'{text:>{_WIDTH}}' for text in texts)}".rstrip()
