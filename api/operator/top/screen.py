"""One frame of `penstock top` as lines that fit the terminal. No I/O is here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.text import Text

from api.operator.terminal import one_line
from api.operator.top.figures import Figures, sparkline
from api.operator.top.snapshots import Cache, Engine, Model, Request, Snapshot, Tenant

_T = TypeVar("_T")
_STALL_SECONDS = 10.0
"""Without a step while there is work: worth saying."""
_MOST_ROWS = 200
"""Of a frame without a height."""
_BAR_COLUMNS = 20
_FEW_TENANTS = 5
_FEW_ENGINES = 8


@dataclass(frozen=True, slots=True)
class View:
    """What a frame shows."""

    url: str
    snapshot: Snapshot | None = None
    figures: Figures | None = None
    cache: Cache | None = None
    trouble: str = ""
    """Why nothing new comes; empty: it does."""


@dataclass(frozen=True, slots=True)
class _Column:
    heading: str
    width: int
    """In characters; 0: what is left."""
    needs_columns: int = 0
    """On narrower terminals it is left out."""
    is_number: bool = True


def lines(view: View, width: int, height: int | None = None) -> list[Text]:
    """Return at most `height` lines of at most `width` columns; without a height, all."""
    bound = _MOST_ROWS if height is None else height
    head = [_title(view, width)]
    if view.trouble:
        head.append(_cut(one_line(view.trouble, width), width, "bold red"))
    if view.snapshot is None or view.figures is None:
        return head[:bound]
    head += [
        *_rates(view.figures, width),
        *_cache(view.snapshot, view.cache, width),
        *_state(view.snapshot, width),
    ]
    left = bound - len(head)
    body: list[Text] = []
    for part in (_models, _engines, _tenants):
        body += _section(part(view.snapshot, width), width, left - len(body))
    body += _section(_running(view.snapshot, width), width, left - len(body))
    return [*head, *body][:bound]


def _title(view: View, width: int) -> Text:
    name = "" if view.snapshot is None else one_line(view.snapshot.model, width)
    condition, style = _condition(view.snapshot) if not view.trouble else ("not connected", "bold red")
    text = Text.assemble(("penstock top", "bold"), "  ", (condition, style), f"  {name}  {view.url}")
    text.truncate(width, overflow="ellipsis")
    return text


def _condition(snapshot: Snapshot | None) -> tuple[str, str]:
    """As the page's chip says it."""
    if snapshot is None:
        return "connecting", "dim"
    state, engines = snapshot.engine, snapshot.engines
    silent = max((one.stalled_seconds for one in engines), default=state.stalled_seconds)
    up = sum(one.condition == "ready" for one in engines)
    if state.draining:
        return "draining", "bold yellow"
    if silent > _STALL_SECONDS:
        return f"no step for {duration(silent)}", "bold red"
    if len(engines) > 1 and state.condition != "unloaded":
        return f"{up} of {len(engines)} engines ready", "bold green" if up == len(engines) else "bold red"
    good = {"ready": "bold green", "unloaded": "dim"}
    return one_line(state.condition, 20), good.get(state.condition, "bold red")


def _rates(figures: Figures, width: int) -> list[Text]:
    share = "–" if figures.cached_share is None else f"{100 * figures.cached_share:.0f}%"
    output = f"output  {count(figures.output_rate)} tokens/s"
    rest = (
        f"prefill {count(figures.prefill_rate)}/s   cached {count(figures.cached_rate)}/s, {share} of prompts"
    )
    spark = sparkline(figures.output_rates, width - len(output) - 2)
    first = Text.assemble(output, "  ", (spark, "cyan"))
    first.truncate(width, overflow="ellipsis")
    times = f"TTFT    {_pair(figures.ttft_seconds)}   ITL {_pair(figures.itl_seconds)}  (p50 / p95)"
    return [first, _cut(rest, width), _cut(times, width)]


def _pair(values: tuple[float, float] | None) -> str:
    return "–" if values is None else f"{duration(values[0])} / {duration(values[1])}"


def _cache(snapshot: Snapshot, cache: Cache | None, width: int) -> list[Text]:
    memory = snapshot.memory
    held = memory.running_bytes + memory.prefix_bytes
    budget = memory.budget_bytes or (0.0 if cache is None else cache.budget_bytes)
    sizes = f"rows {size(memory.running_bytes)}, prefixes {size(memory.prefix_bytes)}"
    sizes += f" of {size(budget)}" if budget else ""
    found = [_bar("cache", (memory.running_bytes, memory.prefix_bytes), max(budget, held), sizes, width)]
    kept = "" if cache is None else "no prefix cache, "
    if cache is not None and cache.enabled:
        kept = f"{cache.tokens:,} tokens in {cache.nodes:,} nodes, "
    return [*found, _cut(f"        {kept}weights {size(memory.weights_bytes)}", width, "dim")]


def _state(snapshot: Snapshot, width: int) -> list[Text]:
    queue, slots = snapshot.queue, int(snapshot.slots)
    used = sum(one.state != "submitted" for one in snapshot.running)
    found = [_bar("slots", (used,), max(slots, used), f"{used} of {slots} in use", width)]
    if queue.requests:
        tokens, oldest = count(queue.prompt_tokens), duration(queue.oldest_seconds)
        waiting = f"queue   {queue.requests:,} wait, {tokens} tokens, oldest {oldest}"
        found.append(_cut(waiting, width, "yellow"))
    else:
        found.append(_cut("queue   nobody waits", width))
    if snapshot.engine.restarts:
        death = f"; last: {one_line(snapshot.engine.last_death, width)}" if snapshot.engine.last_death else ""
        found.append(_cut(f"        {snapshot.engine.restarts} restarts{death}", width, "red"))
    return found


def _bar(name: str, parts: Sequence[float], whole: float, text: str, width: int) -> Text:
    """Name, bar and text; the bar is left out where the text would not fit."""
    line = Text(f"{name:7} ")
    if width >= len(line) + _BAR_COLUMNS + 1 + len(text):
        left = _BAR_COLUMNS
        for part, style in zip(parts, ("green", "blue"), strict=False):
            columns = min(left, round(_BAR_COLUMNS * part / whole)) if whole > 0 else 0
            # What is there at all is seen.
            columns = min(left, max(columns, 1)) if part > 0 else 0
            line.append("█" * columns, style)
            left -= columns
        line.append("░" * left, "dim")
        line.append(" ")
    line.append(text)
    line.truncate(width, overflow="ellipsis")
    return line


def _models(snapshot: Snapshot, width: int) -> list[Text]:
    if len(snapshot.models) < 2:
        return []
    columns = (
        _Column("MODEL", 0, is_number=False),
        _Column("STATE", 10, 40, is_number=False),
        _Column("RUNNING", 7),
        _Column("WAITING", 7),
        _Column("MEMORY", 9, 60),
    )

    def cells(one: Model) -> tuple[str, ...]:
        marked = f"{one.model}{' *' if one.model == snapshot.model else ''}"
        return (marked, one.condition, f"{one.in_engine:,}", f"{one.queued:,}", size(one.held_bytes))

    return _table(columns, snapshot.models, cells, width)


def _engines(snapshot: Snapshot, width: int) -> list[Text]:
    if len(snapshot.engines) < 2:
        return []
    columns = (
        _Column("ENGINE", 0, is_number=False),
        _Column("STATE", 12, is_number=False),
        _Column("SLOTS", 9),
        _Column("WAITING", 7, 50),
        _Column("CACHE", 9, 60),
        _Column("RESTARTS", 8, 70),
    )

    def cells(one: Engine) -> tuple[str, ...]:
        state = "draining" if one.draining else "quarantined" if one.quarantined else one.condition
        state = "no step" if one.stalled_seconds > _STALL_SECONDS else state
        slots = f"{one.running_slots:.0f} of {one.slots:.0f}"
        held = size(one.running_bytes + one.prefix_bytes)
        return (one.engine, state, slots, f"{one.waiting_requests:.0f}", held, str(one.restarts))

    return _table(columns, snapshot.engines, cells, width)[: _FEW_ENGINES + 1]


def _tenants(snapshot: Snapshot, width: int) -> list[Text]:
    columns = (
        _Column("WAITING TENANT", 0, is_number=False),
        _Column("REQUESTS", 8),
        _Column("SESSIONS", 8, 50),
        _Column("OLDEST", 8),
        _Column("SERVICE", 8, 60),
    )

    def cells(one: Tenant) -> tuple[str, ...]:
        name = one.tenant or "(everybody)"
        return (
            name,
            f"{one.requests:,}",
            f"{one.sessions:,}",
            duration(one.oldest_seconds),
            count(one.service_tokens),
        )

    few = snapshot.queue.tenants[:_FEW_TENANTS]
    return _table(columns, few, cells, width)


def _running(snapshot: Snapshot, width: int) -> list[Text]:
    columns = (
        _Column("RUNNING", 0, is_number=False),
        _Column("STATE", 11, is_number=False),
        _Column("PROMPT", 8, 60),
        _Column("CACHED", 6, 50),
        _Column("OUTPUT", 12),
        _Column("AGE", 7, 40),
    )

    def cells(one: Request) -> tuple[str, ...]:
        name = " / ".join(filter(None, (one.tenant, one.session))) or one.id[-8:]
        cached = f"{100 * one.cached_tokens // max(1, one.prompt_tokens)}%"
        state = one.state
        if state == "prefilling":
            state = f"prefill {100 * one.prefilled_tokens // max(1, one.prompt_tokens)}%"
        # Most requests ask for far more than they use.
        output = f"{count(one.output_tokens)}/{count(one.max_tokens)}"
        return (name, state, f"{one.prompt_tokens:,}", cached, output, duration(one.age_seconds))

    # Those with a slot come first.
    order = sorted(snapshot.running, key=lambda one: (one.state == "submitted", -one.age_seconds))
    return _table(columns, order, cells, width)


def _table(
    columns: Sequence[_Column], rows: Sequence[_T], cells: Callable[[_T], tuple[str, ...]], width: int
) -> list[Text]:
    """Return a heading and a line for each row; nothing without rows."""
    if not rows:
        return []
    kept = [number for number, column in enumerate(columns) if column.needs_columns <= width]
    fixed = sum(columns[number].width + 1 for number in kept if columns[number].width)
    flexible = max(8, width - fixed)

    def line(values: Sequence[str], style: str = "") -> Text:
        parts = []
        for number in kept:
            column = columns[number]
            room = column.width or flexible
            # By cells, of which a character of a tenant's name may take two.
            text = Text(one_line(values[number], room))
            text.truncate(room, overflow="ellipsis", pad=not column.is_number)
            parts.append(f"{text.plain:>{room}}" if column.is_number else text.plain)
        return _cut(" ".join(parts).rstrip(), width, style)

    return [line([column.heading for column in columns], "bold dim"), *(line(cells(row)) for row in rows)]


def _section(table: list[Text], width: int, room: int) -> list[Text]:
    """Return the table behind an empty line, with as many rows as there is room for."""
    if not table or room < 3:
        return []
    if len(table) + 1 <= room:
        return [Text(""), *table]
    shown = table[: room - 2]
    return [Text(""), *shown, _cut(f"… {len(table) - len(shown)} more", width, "dim")]


def _cut(text: str, width: int, style: str = "") -> Text:
    line = Text(text, style)
    line.truncate(width, overflow="ellipsis")
    return line


def duration(value: float) -> str:
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 100:
        return f"{value:.1f} s"
    return f"{value:.0f} s" if value < 6000 else f"{value / 3600:.1f} h"


def count(value: float | None) -> str:
    if value is None:
        return "–"
    for unit, scale in (("M", 1e6), ("k", 1e3)):
        if value >= 10 * scale or (unit == "M" and value >= scale):
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value / 1024:.0f} KiB"
