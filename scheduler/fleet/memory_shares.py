"""How much of one memory budget each engine may use. Pure arithmetic.

    share = floor (weights, process, a chunk's peak) + KV (rows, and the prefix cache)

Floors come first. KV is divided by activity, so that a busy model takes an idle one's part, but no engine
gets less than its running rows need. What an engine does not use of its part goes to those that have more
cached than theirs, or fill it: an idle model's prefixes are evicted when another needs their room, and no
sooner.

Shares are carried out in two phases (`granted`): those that shrink are sent first, and others grow by what
has been reported as given back, so that the engines together never use more than the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LEAST_WEIGHT = 1e-3
"""The weight of an idle engine, beside one that is busy all the time."""
_GROWTH_PART = 4
"""An engine that computes wants a quarter of its part beyond what it uses: it may fill that before shares are
computed again."""
_MOVED_PART = 16
"""Shares move only if one changes by a sixteenth: each move may evict."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What is known of one engine, in bytes. `floor_bytes`: the least limit with which it runs;
    `least_bytes`: with its rows; `kept_bytes`: with its prefixes, too. `limit_bytes`: its share until now;
    0: it has none. `activity`: the part of the time that it computes, or any measure that all have in
    common. `fixed`: it is being loaded with its share, which cannot change meanwhile."""

    engine: str
    floor_bytes: int
    least_bytes: int = 0
    kept_bytes: int = 0
    limit_bytes: int = 0
    activity: float = 0.0
    fixed: bool = False

    @property
    def rows_bytes(self) -> int:
        return max(0, self.least_bytes - self.floor_bytes)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of KV in use: rows and prefixes."""
        return max(self.rows_bytes, self.kept_bytes - self.floor_bytes)


@dataclass(frozen=True, slots=True)
class Shares:
    """`limits`: by engine, together no more than the budget. `unplaced`: those that do not fit beside the
    others, whatever these give back; they have no limit."""

    limits: Mapping[str, int] = field(default_factory=dict)
    unplaced: tuple[str, ...] = ()


def shares(budget_bytes: int, engines: Sequence[EngineMemory]) -> Shares:
    """Return what each engine should have. If they do not fit together, those that have a share come first,
    then the others; of both the most active first."""
    fixed = {one.engine: one.limit_bytes for one in engines if one.fixed}
    left_bytes = max(0, budget_bytes - sum(fixed.values()))
    free = [one for one in engines if not one.fixed]
    placed, unplaced = _placed(left_bytes, free, alone=not fixed)
    kv = _kv(max(0, left_bytes - sum(one.floor_bytes for one in placed)), placed)
    limits = {one.engine: one.floor_bytes + kv[one.engine] for one in placed}
    if len(limits) == 1 and not fixed:
        limits = dict.fromkeys(limits, left_bytes)
    elif _is_near(limits, placed, left_bytes):
        limits = {one.engine: one.limit_bytes for one in placed}
    return Shares(fixed | limits, tuple(one.engine for one in unplaced))


def _placed(
    budget_bytes: int, engines: Sequence[EngineMemory], alone: bool
) -> tuple[list[EngineMemory], list[EngineMemory]]:
    """Return those whose floors fit together, and the others. `alone`: the first is placed also if it does
    not fit, and runs with what there is."""
    placed: list[EngineMemory] = []
    unplaced: list[EngineMemory] = []
    left_bytes = budget_bytes
    for one in sorted(engines, key=lambda one: (one.limit_bytes == 0, -one.activity)):
        if one.floor_bytes <= left_bytes or (alone and not placed):
            placed.append(one)
            left_bytes -= one.floor_bytes
        else:
            unplaced.append(one)
    return placed, unplaced


def _kv(kv_bytes: int, engines: Sequence[EngineMemory]) -> dict[str, int]:
    """Return each engine's part of `kv_bytes`, which their floors leave."""
    needs = {one.engine: one.rows_bytes for one in engines}
    if sum(needs.values()) > kv_bytes:
        # Rows will be preempted, or admitted later: the smallest needs are met first.
        return leveled(kv_bytes, needs)
    parts = _by_activity(kv_bytes, engines)
    wishes = {one.engine: _wish(one, parts[one.engine]) for one in engines}
    spare = {name: max(0, part - wishes[name]) for name, part in parts.items()}
    excess = {name: max(0, wishes[name] - part) for name, part in parts.items()}
    unused_bytes, wanted_bytes = sum(spare.values()), sum(excess.values())
    moved_bytes = min(unused_bytes, wanted_bytes)
    for one in parts if moved_bytes else ():
        parts[one] += excess[one] * moved_bytes // wanted_bytes
        parts[one] -= -(-spare[one] * moved_bytes // unused_bytes)
    return parts


def _wish(one: EngineMemory, part_bytes: int) -> int:
    """Return the bytes of KV that it uses, or will use soon."""
    return one.held_bytes + (part_bytes // _GROWTH_PART if one.activity > 0 else 0)


def _by_activity(kv_bytes: int, engines: Sequence[EngineMemory]) -> dict[str, int]:
    """Return parts in proportion to activity, but none below what its rows need."""
    parts: dict[str, int] = {}
    weights = {one.engine: max(0.0, one.activity) + _LEAST_WEIGHT for one in engines}
    left_bytes, left_weight = kv_bytes, sum(weights.values())
    # The engine with the most bytes of rows for its weight is next: if it needs no more than its part, no
    # other does.
    for one in sorted(engines, key=lambda one: one.rows_bytes / weights[one.engine], reverse=True):
        weight = weights[one.engine]
        fair_bytes = int(left_bytes * min(1.0, weight / left_weight))
        parts[one.engine] = min(left_bytes, max(one.rows_bytes, fair_bytes))
        left_bytes -= parts[one.engine]
        left_weight = max(left_weight - weight, _LEAST_WEIGHT / 2)
    return parts


def leveled(total_bytes: int, wants: Mapping[str, int]) -> dict[str, int]:
    """Return equal parts of the total: each gets no more than it wants, and the others get the rest."""
    parts: dict[str, int] = {}
    left_bytes, others = max(0, total_bytes), len(wants)
    for name, wanted_bytes in sorted(wants.items(), key=lambda item: item[1]):
        parts[name] = min(max(0, wanted_bytes), left_bytes // others)
        left_bytes -= parts[name]
        others -= 1
    return parts


def _is_near(limits: Mapping[str, int], engines: Sequence[EngineMemory], budget_bytes: int) -> bool:
    """Return whether the present shares will do: each engine has one, its rows fit, and none would change
    much."""
    if sum(one.limit_bytes for one in engines) > budget_bytes:
        return False
    for one in engines:
        target_bytes = limits[one.engine]
        if one.limit_bytes < min(target_bytes, max(one.least_bytes, one.floor_bytes)):
            return False
        if abs(target_bytes - one.limit_bytes) * _MOVED_PART >= max(1, one.limit_bytes):
            return False
    return True


def granted(
    budget_bytes: int, targets: Mapping[str, int], held: Mapping[str, int], least: Mapping[str, int]
) -> dict[str, int]:
    """Return the limits to set now. `held`: what each engine, of `targets` and others, may be using at this
    moment: the largest of its limit, of one that it has not confirmed yet, and of its use. An engine with a
    target below what it holds gets it at once; the others grow by what none holds, up to `least` (what their
    rows need) first."""
    free_bytes = max(0, budget_bytes - sum(held.values()))
    growing = [name for name, target_bytes in targets.items() if target_bytes > held.get(name, 0)]
    limits = {name: min(target_bytes, held.get(name, 0)) for name, target_bytes in targets.items()}
    for bounds in (least, targets):
        wants = {name: min(bounds.get(name, 0), targets[name]) - limits[name] for name in growing}
        for name, more_bytes in leveled(free_bytes, wants).items():
            limits[name] += more_bytes
            free_bytes -= more_bytes
    return limits
