"""The figures of steps, and how they are printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

from loadtests.percentiles import percentile
from loadtests.step.parts import REST
from loadtests.step.record import Run, Step

ENGINE_PARTS = ("drain", "plan", "graph", "sample", "submit", "read", "account", "emit", "send", REST)
SERVER_PARTS = ("parse", "account", "route", "detokenize", "encode", "write", REST)
STAGES = ("sampled to sent", "sent to parsed", "parsed to written", "sampled to written")
_WARM_STEPS = 4


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds."""

    median: float
    p99: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread:
        ordered = sorted(seconds)
        return Spread(1000 * percentile(ordered, 0.5), 1000 * percentile(ordered, 0.99))


@dataclass(frozen=True, slots=True)
class PartFigures:
    passed: Spread
    used: Spread
    """Processor time of this thread."""


@dataclass(frozen=True, slots=True)
class SideFigures:
    """Steps of one process: the times of one run, and the counts of it and of another."""

    steps: int
    parts: dict[str, PartFigures]
    whole: PartFigures
    counts: dict[str, float]
    """Means a step."""


def steady(run: Run, rows: int) -> list[Step]:
    """Return the steps in which all rows got a token, and nothing else was done."""
    return [step for step in run.steps if step.rows == rows][_WARM_STEPS:]


def side(timed: Run, counted: Run, rows: int) -> SideFigures:
    """Raise ValueError if a run has no steady step."""
    steps = steady(timed, rows)
    if not steps:
        raise ValueError(f"no step gave all {rows} rows a token")
    names = sorted({name for step in steps for name in step.times})
    parts = {name: _figures([step.times.get(name, (0.0, 0.0)) for step in steps]) for name in names}
    totals = [
        (sum(wall for wall, _ in step.times.values()), sum(used for _, used in step.times.values()))
        for step in steps
    ]
    counts = {
        "page faults": mean(step.faults for step in steps),
        "waits of threads": mean(step.waits for step in steps),
    }
    for name, attribute in (
        ("Python calls", "other_calls"),
        ("Python calls in the model", "model_calls"),
        ("operations", "operations"),
        ("evaluations", "evaluations"),
    ):
        found = [value for step in steady(counted, rows) if (value := getattr(step, attribute)) is not None]
        if found:
            counts[name] = percentile(sorted(found), 0.5)
    return SideFigures(len(steps), parts, _figures(totals), counts)


def _figures(times: Sequence[tuple[float, float]]) -> PartFigures:
    return PartFigures(Spread.of([wall for wall, _ in times]), Spread.of([used for _, used in times]))


def way_out(engine: Run, server: Run) -> dict[str, Spread]:
    """Return how long tokens took from the moment in which the engine had read them to that in which their
    bytes were handed to their client's socket, and its parts. Tokens that complete no character have no
    bytes. The first ones of answers are left out: they carry the response's head."""
    sampled = {(request, token): at for request, token, at in engine.sampled}
    carrier = {(request, token): frame for request, token, frame in engine.carried}
    sent, parsed, texts = dict(engine.frames), dict(server.frames), set(server.texts)
    stages: dict[str, list[float]] = {stage: [] for stage in STAGES}
    seen: dict[int, int] = {}
    for request, token, at in server.written:
        for each in range(seen.get(request, token) + 1, token + 1):
            key = request, each
            if key not in texts or key not in sampled:
                continue
            frame = carrier[key]
            # On a busy machine the reader may be done before the sender has noted that it sent.
            times = sampled[key], min(sent[frame], parsed[frame]), parsed[frame], at
            for stage, begin, end in zip(STAGES, times, times[1:], strict=False):
                stages[stage].append(end - begin)
            stages[STAGES[-1]].append(at - sampled[key])
        seen[request] = max(seen.get(request, 0), token)
    return {stage: Spread.of(seconds) for stage, seconds in stages.items() if seconds}


def lines(
    rows: int, engine: SideFigures, bare: SideFigures, server: SideFigures, out: dict[str, Spread]
) -> Iterator[str]:
    """Yield the tables of one number of rows."""
    yield f"\n{rows} {'row' if rows == 1 else 'rows'}, a decode step in ms ({engine.steps} steps)"
    yield _head("", ("engine", "p99", "CPU", "bare", "p99", "CPU"))
    for part in ENGINE_PARTS:
        yield _line(part, (engine.parts.get(part), bare.parts.get(part)))
    yield _line("whole step", (engine.whole, bare.whole))
    yield _head("the server's event loop", ("passed", "p99", "CPU"))
    for part in SERVER_PARTS:
        # What passed in the rest is waiting, and is the engine's step.
        yield _line(part, (server.parts.get(part),))
    yield _head("a token's way out", ("median", "p99"))
    for stage, spread in out.items():
        yield f"  {stage:26}" + "".join(f"{value:9.3f}" for value in (spread.median, spread.p99))
    yield _head("counts a step", ("engine", "bare", "server"))
    names = dict.fromkeys(name for one in (engine, bare, server) for name in one.counts)
    for name in names:
        cells = (one.counts.get(name) for one in (engine, bare, server))
        text = "".join(" " * 9 if one is None else f"{one:9.1f}" for one in cells)
        yield f"  {name:26}{text}".rstrip()


def _head(title: str, columns: Sequence[str]) -> str:
    return f"  {title:26}" + "".join(f"{column:>9}" for column in columns)


def _line(name: str, cells: Sequence[PartFigures | None]) -> str:
    text = f"  {name:26}"
    for cell in cells:
        values = () if cell is None else (cell.passed.median, cell.passed.p99, cell.used.median)
        text += "".join(f"{value:9.3f}" for value in values) if values else " " * 27
    return text.rstrip()
