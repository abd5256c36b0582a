"""What plans and requests change of the prefix cache, beside what rows put into it."""

from __future__ import annotations

from typing import Any

from scheduler.engine.plan import StepPlan
from scheduler.engine.prefix.holds import NO_CACHE
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.adapter_files import salted


def take_holds(prefixes: PrefixCache[Any, Any] | None, sequence: EngineSequence, tokens: int) -> None:
    """Hold the prefixes that a request asks for, as far as they are within the first `tokens` of its
    sequence, and note a refusal in `hold_refusal`. A longer prefix is left to a later call: the prompt's last
    token is computed apart. Without `prefixes`, all are refused."""
    refusals = list[str]()
    for length, seconds in sequence.submit.holds:
        if prefixes is None:
            refusals.append(NO_CACHE)
        elif length <= tokens:
            refusals.append(prefixes.hold(sequence.tokens[:length], sequence.submit.salt, seconds))
    sequence.hold_refusal = next(filter(None, refusals), "")


def changed(prefixes: PrefixCache[Any, Any], plan: StepPlan) -> int:
    """Carry out the part of a plan that is about the prefix cache, but for what rows put into it. Return the
    bytes freed by `clear`."""
    if plan.budget is not None and plan.budget.kv_bytes is not None:
        prefixes.set_budget(plan.budget.kv_bytes)
    for turn in plan.ended:
        prefixes.ended(salted(turn.adapter, turn.salt), turn.session, turn.kind)
    return prefixes.clear() if plan.clear else 0
