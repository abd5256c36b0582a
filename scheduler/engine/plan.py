"""Plan the next step: a pure function of the waiting and running sequences and the prefix cache.

Three decisions, in this order: which sequences to preempt (`planning/memory.py`), which to admit (below), and
which prompt tokens to compute (`planning/pace.py`, `planning/prefill.py`). Sequences are admitted in order of
arrival, but none computes what another is computing: while a leader prefills a shared prefix, its followers
wait, and are admitted with a prefix hit as soon as it is computed. Nothing waits for a leader that has left:
every step is planned anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import msgspec

from scheduler.engine.budget.policy import Allowance, BudgetChange, Evict
from scheduler.engine.drafts.speculation import Draft, Proposal, chosen
from scheduler.engine.drafts.verify_costs import VerifyCosts
from scheduler.engine.planning.memory import Memory
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS, Chunk, PrefillLimits, padded_tokens, share
from scheduler.engine.planning.prefill_batches import Begun, members_of, next_batch, own_tokens, rows_of
from scheduler.engine.planning.row_sharing import hit_in_place
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.messages import TurnEnded, WaitReason

Restorable: TypeAlias = Literal["anywhere", "at_checkpoints", "never"]
"""Where a cached prefix can be continued: after any token, at a checkpoint, or nowhere (no prefix cache)."""

PATIENCE_SECONDS = 10.0
"""How long smaller sequences may pass one that does not fit yet."""
CHECKPOINT_EVERY_TOKENS = 2048
"""Distance of checkpoints in a long stretch without a boundary: the bound on what a branch inside it
recomputes."""
SCAFFOLD_TOKENS = 16
"""All prompts of one chat template begin alike; a shorter shared prefix is not worth a pause or a wait."""
LEAST_GAP_TOKENS = 256
"""The least distance between two checkpoints. Each ends a chunk early, and a small chunk costs almost what a
full one does."""


@dataclass(frozen=True, slots=True)
class PlanInput:
    """The input of a plan. `waiting`: in order of arrival, sequences whose grammar and disk reads are done.
    `running`: in order of admission; those in the middle of their prefill are in `begun`. `hit_ends`: where
    the segments of a sequence's prefix hit end, in tokens. Without `memory`, only slots bound admission.
    `has_pending`: the back end has sampled tokens that it has not returned yet."""

    waiting: Sequence[EngineSequence]
    running: Sequence[EngineSequence]
    begun: Begun
    free_slots: int
    restorable: Restorable
    hit_ends: Callable[[EngineSequence], Sequence[int]]
    memory: Memory | None
    pace: PrefillPace
    limits: PrefillLimits
    has_pending: bool = False
    group_cost_tokens: int | None = None
    """As in `BackendFacts`."""
    admissions: int = 0
    allowance: Allowance = field(default_factory=Allowance)
    """What memory allows this step."""
    chunk_ceiling: int | None = None
    """The ceiling of this step's prompt tokens, after a device timeout; None is that of the configuration."""
    verified_tokens: int = 0
    """Bound on the rows of a step with drafts times the tokens computed of each; 0: drafts are not
    verified."""
    proposals: Sequence[Proposal] = ()
    """What rows that decode may write next."""
    costs: VerifyCosts = field(default_factory=VerifyCosts)
    """What verifying drafts costs."""


class Keep(msgspec.Struct, frozen=True):
    """Put the first `tokens` tokens of a running row into the prefix cache."""

    request_id: int
    tokens: int


class Admit(msgspec.Struct, frozen=True):
    """Give this sequence a slot. The other fields are its expected prefix hit, how much of that it attends to
    in place at least, and where its prefill pauses."""

    sequence: EngineSequence
    cached_tokens: int = 0
    in_place_tokens: int = 0
    checkpoints: tuple[int, ...] = ()


class StepPlan(msgspec.Struct, frozen=True):
    """All that a back end does in a step, in the order of its fields. The model runs if there are chunks or
    rows that decode.

    `emit_pending`: the model does not run; the step returns the tokens that are already sampled, so that they
    do not wait for the prefill of the next step. `predicted_seconds` is None while unknown.
    """

    release: tuple[int, ...] = ()
    """Rows that were cancelled. What they computed goes to the prefix cache."""
    budget: BudgetChange | None = None
    ended: tuple[TurnEnded, ...] = ()
    """Sessions that wait from now on: the gaps until they return decide what is evicted."""
    clear: bool = False
    """Evict all prefixes that are not in use."""
    forget: tuple[int, ...] = ()
    """Waiting sequences that were cancelled or refused."""
    saving: bool | None = None
    """Memory-saving mode: never copy a cached prefix, even where a copy would be faster. None leaves it as
    before."""
    preempt: tuple[int, ...] = ()
    """Rows that leave the batch, and wait again."""
    keep: tuple[Keep, ...] = ()
    admit: tuple[Admit, ...] = ()
    evict: Evict | None = None
    emit_pending: bool = False
    chunks: tuple[Chunk, ...] = ()
    decode: tuple[int, ...] = ()
    drafts: tuple[Draft, ...] = ()
    """Tokens to verify behind the next ones of rows that decode: they are computed in the same model call,
    and each row keeps those that it would have drawn. Such a step returns all of its tokens."""
    foresee: bool = False
    """Return what the grammars of rows force next, for drafts."""
    predicted_seconds: float | None = None
    context_tokens: int = 0
    """Computed tokens of the prompt in prefill that has most of them."""
    step_bytes: int = 0
    """What the step takes of memory at most, beyond what is held; 0 where nothing bounds it."""
    waits: dict[int, WaitReason] = msgspec.field(default_factory=dict)
    """Why a waiting sequence is not admitted, by request id."""

    @property
    def computes(self) -> bool:
        """Return whether the model runs, if there are rows."""
        return bool(self.chunks or self.decode)

    @property
    def drafted(self) -> int:
        """Return the most drafts of a row: each row is computed with as many, padding included."""
        return max((len(draft.tokens) for draft in self.drafts), default=0)


def with_changes(plan: StepPlan, **changes: object) -> StepPlan:
    """Return the plan with other values of these fields, in a tenth of a dataclass's time."""
    changed: StepPlan = msgspec.structs.replace(plan, **changes)
    return changed


def plan(state: PlanInput, now: float) -> StepPlan:
    """Return the next step's plan. Changes nothing."""
    preempt = [] if state.memory is None else state.memory.victims(state.running)
    running = [row for row in state.running if row not in preempt]
    admissions = _admissions(state, running, state.free_slots + len(preempt), now)
    room = state.allowance.room
    membership = StepPlan(
        saving=None if room is None else room.saving,
        preempt=tuple(row.request_id for row in preempt),
        keep=admissions.kept,
        admit=tuple(admissions.admit),
        foresee=state.verified_tokens > 0,
        waits=admissions.waits,
    )
    prompts = [row for row in admissions.rows if row.prefilling]
    drafts = _drafts(state, admissions.rows, preempt)
    if state.has_pending and (prompts or drafts):
        return with_changes(membership, emit_pending=True)
    step, left_tokens = _Prefill(), [row for row in prompts if row.chunkable_tokens]
    if left_tokens:
        step = _prefill(state, admissions.rows, left_tokens)
        begun = [row for rows in members_of(state.begun, left_tokens) for row in rows]
        if begun and not step.chunks:
            # There is no room for a batch to begin: what has begun goes on.
            step = _prefill(state, admissions.rows, begun)
    elif room is not None:  # As most steps: there is no chunk to fit, and no budget to find for it.
        taken = room.taken_bytes((), admissions.rows, (), ()) + room.peak.needed_bytes(0, 0)
        step = _Prefill(taken_bytes=taken)
    chunks = step.chunks
    left = {chunk.request_id: -chunk.tokens for chunk in chunks}
    decode = tuple(
        row.request_id for row in admissions.rows if row.chunkable_tokens + left.get(row.request_id, 0) == 0
    )
    return with_changes(
        membership,
        chunks=chunks,
        decode=decode,
        drafts=drafts,
        predicted_seconds=state.pace.step_seconds(len(decode), padded_tokens(chunks), step.context_tokens),
        context_tokens=step.context_tokens,
        step_bytes=step.taken_bytes,
    )


def _drafts(
    state: PlanInput, rows: Sequence[EngineSequence], gone: Sequence[EngineSequence]
) -> tuple[Draft, ...]:
    """Return what the decoding ones of `rows` verify. `gone`: rows that leave. While memory is short nothing
    is verified, as drafts take activations."""
    left = {row.request_id for row in gone}
    proposals = [one for one in state.proposals if one.draft.request_id not in left]
    if not proposals:
        return ()
    decoding, most = [row for row in rows if not row.prefilling], state.verified_tokens
    if (room := state.allowance.room) is not None:
        context = max(row.computed_tokens for row in decoding)
        free_bytes = room.room_bytes - room.taken_bytes((), decoding, (), ())
        most = 0 if room.saving else min(most, room.peak.fitting_tokens(free_bytes, context))
    return chosen(proposals, len(decoding), state.costs, most)


@dataclass(frozen=True, slots=True)
class _Prefill:
    """A step's chunks, the computed tokens of the prompt in their batch that has most of them, and what the
    step takes of memory."""

    chunks: tuple[Chunk, ...] = ()
    context_tokens: int = 0
    taken_bytes: int = 0


def _prefill(state: PlanInput, rows: Sequence[EngineSequence], prompts: Sequence[EngineSequence]) -> _Prefill:
    """Return the chunks of one of the batches that these prompts form. Where they take too much memory, the
    longest prompts join later, and then chunks are smaller; prompts that have begun continue, and a single
    prompt is always computed."""
    batch = next_batch(prompts, state.begun, state.limits.rows)
    context = max((row.computed_tokens for row in batch.rows), default=0)
    reading = [row for row in rows if row.prefilling]
    # Questions, which are only read, will not decode: all together lengthen a step by no more than a prompt.
    coming = sum(not row.submit.labels for row in reading)
    budget = state.pace.budget(len(rows) - len(reading), max(1, coming), context)
    ceilings = (state.allowance.chunk_tokens, state.chunk_ceiling)
    budget = min([budget, *(one for one in ceilings if one is not None)])
    chunks = share(batch, budget, state.limits)
    if (room := state.allowance.room) is None:
        return _Prefill(chunks, context)
    begun, decoding = rows_of(state.begun), [row for row in rows if not row.chunkable_tokens]
    resting = [others for others in members_of(state.begun, rows) if others != batch.begun]
    while True:
        in_batch = {chunk.request_id for chunk in chunks}
        batch = replace(batch, coming=[row for row in batch.coming if row.request_id in in_batch])
        prompts = batch.rows
        longest = max((chunk.tokens for chunk in chunks), default=0)
        context = max((row.computed_tokens for row in prompts), default=0)
        whole = [row for row in prompts if row.chunkable_tokens <= longest]
        taken = room.taken_bytes([prompts], decoding, whole, begun, resting)
        tokens = min(budget, room.peak.fitting_tokens(room.room_bytes - taken, context))
        unfinished = min((row.chunkable_tokens for row in whole), default=0) - 1
        if not batch.coming and tokens < longest * len(prompts) and unfinished >= LEAST_CHUNK_TOKENS:
            # There is no room for them to end. Until then they need not be computed in the smallest chunks.
            less = room.taken_bytes([prompts], decoding, (), begun, resting)
            fitting = room.peak.fitting_tokens(room.room_bytes - less, context)
            if (shorter := min(budget, unfinished * len(prompts), fitting)) > tokens:
                taken, tokens = less, shorter
        enough = tokens >= len(prompts) * LEAST_CHUNK_TOKENS
        if enough or not batch.coming or not (decoding or len(prompts) > 1 or any(resting)):
            chunks = share(batch, tokens, state.limits)
            taken += room.peak.needed_bytes(padded_tokens(chunks), context)
            return _Prefill(chunks, context, taken)
        batch.coming.remove(max(batch.coming, key=lambda row: row.chunkable_tokens))
        chunks = share(batch, budget, state.limits)


def _as_admitted(admit: Admit, admission: int) -> EngineSequence:
    """Return a copy of the sequence as it will be after admission, for arithmetic."""
    return replace(
        admit.sequence,
        computed_tokens=admit.cached_tokens,
        in_place_tokens=admit.in_place_tokens,
        checkpoints=admit.checkpoints,
        admission=admission,
    )


@dataclass(slots=True)
class _Admissions:
    """`rows`: running rows, then the admitted ones as they will be. `keep`: tokens by request id. `waits`:
    why the others are not admitted."""

    rows: list[EngineSequence]
    admit: list[Admit] = field(default_factory=list)
    keep: dict[int, int] = field(default_factory=dict)
    waits: dict[int, WaitReason] = field(default_factory=dict)

    @property
    def kept(self) -> tuple[Keep, ...]:
        return tuple(Keep(*item) for item in self.keep.items())


def _admissions(state: PlanInput, running: list[EngineSequence], free_slots: int, now: float) -> _Admissions:
    """Return which sequences to admit beside these rows, and what the rows must put into the prefix cache
    before."""
    found = _Admissions(list(running))
    rest: WaitReason = "slot"
    """What the sequences wait for that the loop below does not reach."""
    if free_slots <= 0 or not state.waiting:
        found.waits.update((sequence.request_id, rest) for sequence in state.waiting)
        return found
    restorable, memory, rows = state.restorable, state.memory, found.rows
    room_bytes = 0 if memory is None else memory.room_bytes(rows)
    room = state.allowance.room
    saving = room is not None and room.saving
    scarce: WaitReason = "kv_cache"
    if room is not None and (guarded := room.for_admission(rows, state.begun)) < room_bytes:
        room_bytes, scarce = guarded, "memory"
    for sequence in state.waiting:
        if len(found.admit) == free_slots:
            break
        if rows and not state.allowance.admits:
            rest = "memory"
            break
        known = in_place = 0
        if restorable != "never" and not sequence.unscored:
            ends = state.hit_ends(sequence)
            known = ends[-1] if ends else 0
            leader, shared = _best_leader(sequence, rows, restorable)
            if leader is not None and shared >= known + SCAFFOLD_TOKENS:
                if leader.computed_tokens < shared:
                    found.waits[sequence.request_id] = "prefix"
                    continue
                if restorable == "anywhere":
                    found.keep[leader.request_id] = max(shared, found.keep.get(leader.request_id, 0))
                    known = shared
            if known and state.group_cost_tokens is not None:
                alike = [sequence.shared_with(row) for row in rows]
                own = [own_tokens(row) for row in rows]
                in_place = hit_in_place((*ends, known), alike, own, state.group_cost_tokens, saving)
        if memory is not None:
            coming_bytes = memory.coming_bytes(sequence, in_place, rows)
            # A row alone always runs: its prompt was checked on arrival, and everything else can be evicted.
            if rows and coming_bytes > room_bytes:
                if now - sequence.arrived_at > PATIENCE_SECONDS:
                    rest = scarce
                    break  # Smaller ones have passed it for long enough: reserve what becomes free for it.
                found.waits[sequence.request_id] = scarce
                continue
            room_bytes -= coming_bytes
        checkpoints = _checkpoints(sequence, state.waiting, known) if restorable == "at_checkpoints" else ()
        admit = Admit(sequence, known, in_place, checkpoints)
        rows.append(_as_admitted(admit, state.admissions + len(found.admit)))
        found.admit.append(admit)
    reached = {*found.waits, *(admit.sequence.request_id for admit in found.admit)}
    for sequence in state.waiting:
        if sequence.request_id not in reached:
            found.waits[sequence.request_id] = rest
    return found


def _checkpoints(sequence: EngineSequence, waiting: Iterable[EngineSequence], known: int) -> tuple[int, ...]:
    followed = [other.shared_with(sequence) for other in waiting if other is not sequence]
    return checkpoints_of(sequence.submit.boundaries, followed, known, sequence.prompt_tokens)


def checkpoints_of(
    boundaries: Sequence[int], shared: Iterable[int], start: int, length: int
) -> tuple[int, ...]:
    """Return where the prefill of a model with states pauses to keep the state (SGLang, too, calls such Mamba
    states checkpoints): positions in (start, length), ascending.

    They always include the first boundary (the end of the system prompt), the last (where the next turn
    continues) and the known ends of shared prefixes; other boundaries only LEAST_GAP_TOKENS apart. The
    position before the last token needs none: every row's state is kept there. What shares the whole prompt
    continues from there.
    """

    def within(positions: Iterable[int]) -> list[int]:
        return sorted({position for position in positions if start < position < length})

    inside = within(boundaries)
    sure = {*inside[:1], *inside[-1:], *_clusters(within(min(position, length - 1) for position in shared))}
    chosen: list[int] = []
    previous = start
    for position in sorted({*inside, *sure}):
        if position not in sure and position - previous < LEAST_GAP_TOKENS:
            continue
        chosen += range(previous + CHECKPOINT_EVERY_TOKENS, position, CHECKPOINT_EVERY_TOKENS)
        chosen.append(position)
        previous = position
    return (*chosen, *range(previous + CHECKPOINT_EVERY_TOKENS, length, CHECKPOINT_EVERY_TOKENS))


def _clusters(positions: Sequence[int]) -> set[int]:
    """Return the first of each group of close positions, which ascend: behind one prefix, prompts diverge
    within some tokens."""
    firsts: list[int] = []
    for position in positions:
        if not firsts or position - firsts[-1] >= SCAFFOLD_TOKENS:
            firsts.append(position)
    return set(firsts)


def _best_leader(
    sequence: EngineSequence, rows: Iterable[EngineSequence], restorable: Restorable
) -> tuple[EngineSequence | None, int]:
    """Return the row in prefill that shares most of this prompt, and how much of that can be continued."""
    best: EngineSequence | None = None
    most = 0
    for row in rows:
        if not row.prefilling:
            continue
        shared = sequence.shared_with(row)
        if restorable == "at_checkpoints":
            shared = max((position for position in row.checkpoints if position <= shared), default=0)
        if best is None or shared > most:
            best, most = row, shared
    return best, most
