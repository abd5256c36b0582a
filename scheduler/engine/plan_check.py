"""Whether a plan fits the batch that it is made for: a pure function, cheap enough for every plan.

A plan that does not is our own mistake, and what a back end would make of it is arrays of the wrong rows, or
an exception that ends the engine for everybody. So the loop fails the requests that the mistake is about, and
plans again without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.prefill_batches import Begun
from scheduler.engine.sequence import EngineSequence, Slots


def contradictions(
    plan: StepPlan, slots: Slots, waiting: Mapping[int, EngineSequence], begun: Begun
) -> dict[int, str]:
    """Return the requests of which the plan says what cannot be, each with its first fault in words. `slots`:
    the running rows. `begun`: the batches in the middle of their prefill, of which a step computes one with
    all of its rows. O(rows)."""
    wrong: dict[int, str] = {}
    left = {row.request_id: row.chunkable_tokens for row in slots}
    """Prompt tokens to compute in chunks, by row."""
    for request_id in plan.preempt:
        if left.pop(request_id, None) is None:
            wrong.setdefault(request_id, "is preempted, and is no row")
    for kept in plan.keep:
        computed = slots[kept.request_id].computed_tokens if kept.request_id in left else 0
        if not 0 < kept.tokens <= computed:
            wrong.setdefault(kept.request_id, f"keeps {kept.tokens} tokens, and has computed {computed}")
    for admit in plan.admit:
        request_id, length = admit.sequence.request_id, admit.sequence.prompt_tokens
        positions = (admit.cached_tokens, *admit.checkpoints, length)
        if request_id not in waiting or request_id in left:
            wrong.setdefault(request_id, "is admitted, and does not wait")
        elif len(left) == slots.limit:
            wrong.setdefault(request_id, "is admitted, and there is no slot")
        elif admit.cached_tokens < 0 or any(one >= other for one, other in pairwise(positions)):
            wrong.setdefault(request_id, f"has its checkpoints not between its hit and its end: {positions}")
        else:
            left[request_id] = length - 1 - admit.cached_tokens
    chunked = {chunk.request_id: chunk.tokens for chunk in plan.chunks}
    for request_id, tokens in chunked.items():
        if not 0 < tokens <= left.get(request_id, 0):
            wrong.setdefault(
                request_id, f"has a chunk of {tokens} tokens, and {left.get(request_id, 0)} are left"
            )
    decode = set(plan.decode)
    for request_id in decode:
        if left.get(request_id) != chunked.get(request_id, 0):
            wrong.setdefault(request_id, "decodes before its prompt is computed, or is no row")
    for draft in plan.drafts:
        request_id = draft.request_id
        if request_id not in decode or request_id not in slots or slots[request_id].prefilling:
            wrong.setdefault(request_id, "has drafts, and does not decode")
    if plan.computes and begun:
        batches = [one for batch in begun if (one := batch.rows & left.keys())]
        in_step = [batch for batch in batches if not batch.isdisjoint(chunked)]
        for batch in in_step if chunked else batches:
            for request_id in batch - chunked.keys():
                wrong.setdefault(request_id, "is in the middle of its prefill, and has no chunk")
        for batch in in_step[1:]:
            for request_id in batch:
                wrong.setdefault(request_id, "has a chunk in a step that computes another batch")
    return wrong
