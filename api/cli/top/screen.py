"""Make one frame of `penstock top` that fits the terminal, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from api.cli.terminal import one_line
from api.cli.top.figures import Figures, sparkline
from api.cli.top.snapshots import (
    CacheSnapshot,
    EngineSnapshot,
    ModelSnapshot,
    Request,
    ServerSnapshot,
    Tenant,
)

_T = TypeVar("_T")
_STALL_SECONDS = 10.0
"""Time without a step, while there is work, from which on the screen reports it."""
_MOST_ROWS = 200
"""Rows of a frame without a height."""
_MOST_CHARACTERS = 400
"""Bound on a name or a trouble: wider than terminals are."""
_BAR_COLUMNS = 20
_FEW_TENANTS = 5
_FEW_ENGINES = 8
_STYLES = dict.fromkeys(("loading", "draining", "unloading"), "bold yellow") | {"unloaded": "dim"}
"""Conditions of a model that are not its engines'."""


@dataclass(frozen=True, slots=True)
class View:
    """What a frame shows."""

    url: str
    snapshot: ServerSnapshot | None = None
    figures: Figures | None = None
    cache: CacheSnapshot | None = None
    trouble: str = ""
    """Why no update comes; empty while updates come."""


@dataclass(frozen=True, slots=True)
class _Column(Generic[_T]):
    heading: str
    cell: Callable[[_T], str]
    columns: int = 0
    """The width of the column; 0 means all that the others leave."""
    needs_columns: int = 0
    """The width of the terminal below which the column is left out."""
    is_number: bool = True


def frame(view: View, width: int, height: int | None = None) -> Group:
    """Return at most `height` lines for `width` columns; without a height, all."""
    bound = _MOST_ROWS if height is None else height
    head = [_title(view)]
    if view.trouble:
        head.append(_line(view.trouble, "bold red"))
    if view.snapshot is None or view.figures is None:
        return Group(*head[:bound])
    snapshot = view.snapshot
    head += [*_rates(view.figures, width), *_cache(snapshot, view.cache, width), *_state(snapshot, width)]
    found: list[Text | Table] = [*head[:bound]]
    left = bound - len(head)
    # Those with a slot come first.
    order = sorted(snapshot.running, key=lambda one: (one.state == "submitted", -one.age_seconds))
    for section in (
        _Section(_models(snapshot), snapshot.models if len(snapshot.models) > 1 else []),
        _Section(_ENGINES, snapshot.engines[:_FEW_ENGINES] if len(snapshot.engines) > 1 else []),
        _Section(_TENANTS, snapshot.queue.tenants[:_FEW_TENANTS]),
        _Section(_RUNNING, order),
    ):
        lines, rows = section.fitted(width, left)
        found += lines
        left -= rows
    return Group(*found)


def _line(text: str, style: str = "") -> Text:
    return Text(one_line(text, _MOST_CHARACTERS), style, no_wrap=True, overflow="ellipsis")


def _title(view: View) -> Text:
    name = "" if view.snapshot is None else one_line(view.snapshot.model, _MOST_CHARACTERS)
    condition, style = _condition(view.snapshot) if not view.trouble else ("not connected", "bold red")
    parts = (("penstock top", "bold"), "  ", (condition, style), f"  {name}  {view.url}")
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _condition(snapshot: ServerSnapshot | None) -> tuple[str, str]:
    """Return the condition in the words of the page's chip."""
    if snapshot is None:
        return "connecting", "dim"
    state, engines = snapshot.engine, snapshot.engines
    silent = max((one.stalled_seconds for one in engines), default=state.stalled_seconds)
    up = sum(one.condition == "ready" for one in engines)
    if state.draining:
        return "draining", "bold yellow"
    if silent > _STALL_SECONDS:
        return f"no step for {duration(silent)}", "bold red"
    # A model's own says more: its engines are ready, too, while it drains.
    own = next((one.condition for one in snapshot.models if one.model == snapshot.model), "")
    condition = own or state.condition
    if len(engines) > 1 and condition not in _STYLES:
        return f"{up} of {len(engines)} engines ready", "bold green" if up == len(engines) else "bold red"
    good = {"ready": "bold green", **_STYLES}
    return one_line(condition, 20), good.get(condition, "bold red")


def _rates(figures: Figures, width: int) -> list[Text]:
    share = "–" if figures.cached_share is None else f"{100 * figures.cached_share:.0f}%"
    output = f"output  {count(figures.output_rate)} tokens/s"
    spark = sparkline(figures.output_rates, width - len(output) - 2)
    prefill = f"prefill {count(figures.prefill_rate)}/s   cached {count(figures.cached_rate)}/s"
    times = f"TTFT    {_pair(figures.ttft_seconds)}   ITL {_pair(figures.itl_seconds)}  (p50 / p95)"
    found = [
        Text.assemble(output, "  ", (spark, "cyan"), no_wrap=True, overflow="ellipsis"),
        Text(f"{prefill}, {share} of prompts", no_wrap=True, overflow="ellipsis"),
        Text(times, no_wrap=True, overflow="ellipsis"),
    ]
    if figures.drafts is not None:
        each, accepted = figures.drafts
        text = f"drafts  {each:.1f} tokens a row and step, {100 * accepted:.0f}% of the drafted accepted"
        found.append(Text(text, no_wrap=True, overflow="ellipsis"))
    return found


def _pair(values: tuple[float, float] | None) -> str:
    return "–" if values is None else f"{duration(values[0])} / {duration(values[1])}"


def _cache(snapshot: ServerSnapshot, cache: CacheSnapshot | None, width: int) -> list[Text]:
    memory = snapshot.memory
    held = memory.running_bytes + memory.prefix_bytes
    budget = memory.budget_bytes or (0.0 if cache is None else cache.budget_bytes)
    sizes = f"rows {size(memory.running_bytes)}, prefixes {size(memory.prefix_bytes)}"
    sizes += f" of {size(budget)}" if budget else ""
    kept = "" if cache is None else "no prefix cache, "
    if cache is not None and cache.enabled:
        kept = f"{cache.tokens:,} tokens in {cache.nodes:,} nodes, "
    text = Text(
        f"        {kept}weights {size(memory.weights_bytes)}", "dim", no_wrap=True, overflow="ellipsis"
    )
    return [_bar("cache", (memory.running_bytes, memory.prefix_bytes), max(budget, held), sizes, width), text]


def _state(snapshot: ServerSnapshot, width: int) -> list[Text]:
    queue, slots = snapshot.queue, int(snapshot.slots)
    used = sum(one.state != "submitted" for one in snapshot.running)
    found = [_bar("slots", (used,), max(slots, used), f"{used} of {slots} in use", width)]
    text, style = "queue   nobody waits", ""
    if queue.requests:
        tokens, oldest = count(queue.prompt_tokens), duration(queue.oldest_seconds)
        text, style = f"queue   {queue.requests:,} wait, {tokens} tokens, oldest {oldest}", "yellow"
    found.append(Text(text, style, no_wrap=True, overflow="ellipsis"))
    if snapshot.engine.restarts:
        last = one_line(snapshot.engine.last_death or "", _MOST_CHARACTERS)
        text = f"        {snapshot.engine.restarts} restarts{f'; last: {last}' if last else ''}"
        found.append(Text(text, "red", no_wrap=True, overflow="ellipsis"))
    return found


def _bar(name: str, parts: Sequence[float], whole: float, text: str, width: int) -> Text:
    """Return name, bar and text; the bar is left out where the text would not fit."""
    line = Text(f"{name:7} ", no_wrap=True, overflow="ellipsis")
    if width >= len(line) + _BAR_COLUMNS + 1 + len(text):
        left = _BAR_COLUMNS
        for part, style in zip(parts, ("green", "blue"), strict=False):
            columns = min(left, round(_BAR_COLUMNS * part / whole)) if whole > 0 else 0
            # A part above 0 gets at least one column.
            columns = min(left, max(columns, 1)) if part > 0 else 0
            line.append("█" * columns, style)
            left -= columns
        line.append("░" * left + " ", "dim")
    return line.append(text)


@dataclass(frozen=True, slots=True)
class _Section(Generic[_T]):
    columns: Sequence[_Column[_T]]
    rows: Sequence[_T]

    def fitted(self, width: int, room: int) -> tuple[list[Text | Table], int]:
        """Return a table behind an empty line, with as many rows as there is room for, and how many lines
        that are."""
        # An empty line, the heading, a row or the count of those that are left out.
        if not self.rows or room < 3:
            return [], 0
        shown = self.rows if len(self.rows) + 2 <= room else self.rows[: room - 3]
        found: list[Text | Table] = [Text(""), self._table(shown, width)]
        if rest := len(self.rows) - len(shown):
            found.append(_line(f"… {rest} more", "dim"))
        return found, len(shown) + 2 + bool(rest)

    def _table(self, rows: Sequence[_T], width: int) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold dim")
        kept = [column for column in self.columns if column.needs_columns <= width]
        for column in kept:
            table.add_column(
                column.heading,
                justify="right" if column.is_number else "left",
                width=column.columns or None,
                ratio=None if column.columns else 1,
                no_wrap=True,
                overflow="ellipsis",
            )
        for row in rows:
            table.add_row(*(Text(one_line(column.cell(row), _MOST_CHARACTERS)) for column in kept))
        return table


def _models(snapshot: ServerSnapshot) -> Sequence[_Column[ModelSnapshot]]:
    def name(one: ModelSnapshot) -> str:
        return f"{one.model}{' *' if one.model == snapshot.model else ''}"

    return (
        _Column("MODEL", name, is_number=False),
        _Column("STATE", lambda one: one.condition, 10, 40, is_number=False),
        _Column("RUNNING", lambda one: f"{one.in_engine:,}", 7),
        _Column("WAITING", lambda one: f"{one.queued:,}", 7),
        _Column("MEMORY", lambda one: size(one.held_bytes), 9, 60),
    )


def _engine_state(one: EngineSnapshot) -> str:
    if one.stalled_seconds > _STALL_SECONDS:
        return "no step"
    return "draining" if one.draining else one.condition


_ENGINES: Sequence[_Column[EngineSnapshot]] = (
    _Column("ENGINE", lambda one: one.engine, is_number=False),
    _Column("STATE", _engine_state, 12, is_number=False),
    _Column("SLOTS", lambda one: f"{one.running_slots:.0f} of {one.slots:.0f}", 9),
    _Column("WAITING", lambda one: f"{one.waiting_requests:.0f}", 7, 50),
    _Column("CACHE", lambda one: size(one.running_bytes + one.prefix_bytes), 9, 60),
    _Column("RESTARTS", lambda one: str(one.restarts), 8, 70),
)

_TENANTS: Sequence[_Column[Tenant]] = (
    _Column("WAITING TENANT", lambda one: one.tenant or "(everybody)", is_number=False),
    _Column("REQUESTS", lambda one: f"{one.requests:,}", 8),
    _Column("SESSIONS", lambda one: f"{one.sessions:,}", 8, 50),
    _Column("OLDEST", lambda one: duration(one.oldest_seconds), 8),
    _Column("SERVICE", lambda one: count(one.service_tokens), 8, 60),
)


def _who(one: Request) -> str:
    return " / ".join(filter(None, (one.tenant, one.session))) or one.id[-8:]


def _share(part: int, one: Request) -> str:
    return f"{100 * part // max(1, one.prompt_tokens)}%"


def _request_state(one: Request) -> str:
    return f"prefill {_share(one.prefilled_tokens, one)}" if one.state == "prefilling" else one.state


_RUNNING: Sequence[_Column[Request]] = (
    _Column("RUNNING", _who, is_number=False),
    _Column("STATE", _request_state, 11, is_number=False),
    _Column("PROMPT", lambda one: f"{one.prompt_tokens:,}", 8, 60),
    _Column("CACHED", lambda one: _share(one.cached_tokens, one), 6, 50),
    # Most requests ask for far more than they use.
    _Column("OUTPUT", lambda one: f"{count(one.output_tokens)}/{count(one.max_tokens)}", 12),
    _Column("AGE", lambda one: duration(one.age_seconds), 7, 40),
)


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
