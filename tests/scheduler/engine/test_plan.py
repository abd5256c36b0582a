"""The step plan: which sequences are preempted, admitted or wait, which prompt tokens are computed, and
why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.engine.plan import (
    CHECKPOINT_EVERY_TOKENS,
    LEAST_GAP_TOKENS,
    SCAFFOLD_TOKENS,
    Admit,
    PlanInput,
    Restorable,
    StepPlan,
    checkpoints_of,
    plan,
)
from scheduler.engine.planning.memory import Memory, charged_bytes
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS, PrefillLimits, padded_tokens
from scheduler.engine.planning.prefill_batches import Begun, BegunBatch, rows_of
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import prompt_of, request
from tests.examples import examples

SHARED_PREFIX = prompt_of(100, 1)


def together(rows: Iterable[EngineSequence]) -> Begun:
    """These rows in the middle of their prefill, as one batch."""
    begun = frozenset(row.request_id for row in rows)
    return [BegunBatch(begun)] if begun else ()


def _behind_prefix(request_id: int, shared: int = 100, other: bool = False, own: int = 30) -> EngineSequence:
    """`other`: under another salt."""
    submit = request(request_id, SHARED_PREFIX[:shared] + [600 + request_id] * own)
    return EngineSequence.of(msgspec.structs.replace(submit, salt="other" if other else ""))


def state_of(
    waiting: list[EngineSequence],
    running: list[EngineSequence] | None = None,
    free: int = 8,
    restorable: Restorable = "anywhere",
    cached_tokens: Callable[[EngineSequence], int] = lambda sequence: 0,
    memory: Memory | None = None,
    pace: PrefillPace | None = None,
    limits: PrefillLimits | None = None,
    begun: Begun = (),
    has_pending: bool = False,
) -> PlanInput:
    return PlanInput(
        waiting,
        running or [],
        begun,
        free,
        restorable,
        lambda row: (tokens,) if (tokens := cached_tokens(row)) else (),
        memory,
        pace or PrefillPace(2048),
        limits or PrefillLimits(8, 2048),
        has_pending,
        admissions=1000,
    )


def _plan(
    waiting: list[EngineSequence],
    running: list[EngineSequence] | None = None,
    free: int = 8,
    restorable: Restorable = "anywhere",
    known: int = 0,
) -> StepPlan:
    return plan(state_of(waiting, running, free, restorable, lambda sequence: known), now=0.0)


def _ids(todo: StepPlan) -> list[int]:
    return [admit.sequence.request_id for admit in todo.admit]


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(0, 99), unique=True, max_size=40),
    free=st.integers(-2, 40),
    restorable=st.sampled_from(["anywhere", "at_checkpoints", "never"]),
)
def test_admits_as_many_as_fit_in_order_of_arrival(ids: list[int], free: int, restorable: Restorable) -> None:
    """min(waiting, free) requests that share nothing, the oldest first; none where no slot is free."""
    waiting = [EngineSequence.of(request(request_id, prompt_of(20, request_id))) for request_id in ids]
    assert _ids(_plan(waiting, free=free, restorable=restorable)) == ids[: min(len(ids), max(0, free))]


behind = st.tuples(st.sampled_from([0, 15, 16, 60, 100]), st.booleans())
"""How much of SHARED_PREFIX a prompt begins with, and whether under another salt."""


@settings(deadline=None, max_examples=examples(200))
@given(
    reading=st.lists(st.tuples(behind, st.integers(0, 130)), max_size=4),
    waiting=st.lists(behind, min_size=1, max_size=8),
    cached=st.sampled_from([0, 50, 100]),
)
@example([((100, False), 110)], [(100, False), (60, False)], 0)  # One leader keeps what most of them share.
def test_nothing_is_computed_twice_and_nobody_waits_for_nothing(
    reading: list[tuple[tuple[int, bool], int]], waiting: list[tuple[int, bool]], cached: int
) -> None:
    """What a prompt in prefill computes, others wait for, until it is there and the leader keeps it: from 16
    tokens on, with which all prompts of a template begin. Tenants that share no prefixes do not wait for each
    other, nor does anybody for a row that decodes."""
    shares = dict(enumerate([one for one, _ in reading] + waiting))
    rows = [_behind_prefix(number, shared, other) for number, (shared, other) in shares.items()]
    running, queue = rows[: len(reading)], rows[len(reading) :]
    for row, (_, computed) in zip(running, reading, strict=True):
        row.computed_tokens = min(computed, row.prompt_tokens)

    def known(row: EngineSequence) -> int:
        shared, other = shares[row.request_id]
        return 0 if other else min(cached, shared)

    todo = plan(state_of(queue, running, cached_tokens=known), 0.0)
    leaders = {row.request_id: row.computed_tokens for row in running if row.prefilling}
    admitted = {admit.sequence.request_id: admit.cached_tokens for admit in todo.admit}
    kept = {keep.request_id: keep.tokens for keep in todo.keep}
    for row in queue:
        number, (own, salt) = row.request_id, shares[row.request_id]
        common = {one: min(own, shares[one][0]) for one in leaders if shares[one][1] == salt}
        most = max(common.values(), default=0)
        best = [one for one, shared in common.items() if shared == most]
        if number not in admitted:
            assert todo.waits[number] == "prefix"
            assert most >= known(row) + SCAFFOLD_TOKENS
            assert any(leaders[one] < most for one in best)
            continue
        if most >= known(row) + SCAFFOLD_TOKENS:
            assert any(leaders[one] >= most and kept.get(one, 0) >= most for one in best)
            assert admitted[number] == most
        leaders[number] = admitted[number]


def test_where_layers_keep_states_a_leader_pauses_for_its_followers() -> None:
    """It pauses where they diverge; they wait for that checkpoint, and for none beyond it."""
    waiting = [_behind_prefix(number) for number in range(4)]
    todo = _plan(waiting, restorable="at_checkpoints")
    leader = waiting[0]
    assert todo.admit == (Admit(leader, checkpoints=(100,)),)
    leader.checkpoints = (100,)
    leader.computed_tokens = 64
    todo = _plan(waiting[1:], [leader], restorable="at_checkpoints")
    assert (todo.keep, todo.admit) == ((), ())
    leader.computed_tokens = 100
    todo = _plan(waiting[1:], [leader], restorable="at_checkpoints", known=100)
    assert (todo.keep, _ids(todo)) == ((), [1, 2, 3])


def test_where_the_leader_does_not_pause_nobody_waits() -> None:
    """A sequence that arrives after the leader got its checkpoints has nothing to wait for."""
    leader = _behind_prefix(0)
    leader.checkpoints = (120,)
    assert _ids(_plan([_behind_prefix(1)], [leader], restorable="at_checkpoints")) == [1]


def test_pending_tokens_are_returned_before_prompts_are_prefilled() -> None:
    """They would wait for the chunk; with nothing to prefill the step goes on, and overlaps."""
    talker = _decoding(1)
    newcomer = _behind_prefix(2)
    todo = plan(state_of([newcomer], [talker], has_pending=True), 0.0)
    assert todo == StepPlan(admit=(Admit(newcomer),), emit_pending=True)
    todo = plan(state_of([], [talker], has_pending=True), 0.0)
    assert (todo.emit_pending, todo.decode) == (False, (1,))


def test_a_prompt_that_ends_in_this_step_decodes_in_it() -> None:
    """Its last token is computed with the rows that decode; a fully cached prompt has no chunk at all."""
    short, cached = _behind_prefix(1, own=5), _behind_prefix(2, own=5)
    todo = plan(state_of([short], [_decoding(3)]), 0.0)
    assert ([chunk.tokens for chunk in todo.chunks], todo.decode) == ([64], (3,))
    cached.computed_tokens = 104
    todo = plan(state_of([], [cached, _decoding(3)]), 0.0)
    assert (todo.chunks, todo.decode) == ((), (2, 3))


def _decoding(number: int, prompt: int = 20, answer: int = 1) -> EngineSequence:
    sequence = EngineSequence.of(request(number, prompt_of(prompt, number), 10_000))
    sequence.tokens.extend([5] * answer)
    sequence.computed_tokens = len(sequence.tokens) - 1
    return sequence


def _prefilling(number: int, prompt: int, computed: int, *, labels: bool = False) -> EngineSequence:
    submit = request(number, prompt_of(prompt, number), 10_000)
    sequence = EngineSequence.of(msgspec.structs.replace(submit, labels=(1, 2) if labels else ()))
    sequence.computed_tokens, sequence.admission = min(computed, prompt - 1), number
    return sequence


def _taught(target: float | None) -> PrefillPace:
    pace = PrefillPace(2048, target)
    for rows in (1, 8, 32):
        pace.observe_decode(0.010 + 0.0005 * rows, rows)
    for tokens in (16, 128, 512):
        for context in (0, 1000, 8000):
            pace.observe_prefill(0.002 + tokens * (0.0003 + 2e-8 * context), tokens, context)
    return pace


@settings(deadline=None, max_examples=examples(200))
@given(
    prompts=st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 3000), st.booleans()), max_size=12),
    decoding=st.integers(0, 32),
    waiting=st.lists(st.tuples(st.integers(1, 900), st.booleans()), max_size=6),
    target=st.one_of(st.none(), st.floats(0.02, 0.5)),
    rows=st.integers(1, 8),
    padded=st.booleans(),
)
def test_a_step_stays_within_its_target_or_computes_the_least(
    prompts: list[tuple[int, int, bool]],
    decoding: int,
    waiting: list[tuple[int, bool]],
    target: float | None,
    rows: int,
    padded: bool,
) -> None:
    """The predicted time is within the inter-token target, or no token waits; while there are prompts some
    are prefilled; rows in the middle of their prefill all have a chunk; every row either decodes, or is a
    prompt. Prompts that are only read, for the numbers of labels, will not decode: they count as one."""
    running = [_decoding(number) for number in range(decoding)]
    reading = [
        _prefilling(100 + at, length, done, labels=asked) for at, (length, done, asked) in enumerate(prompts)
    ]
    begun = [row for row in reading[:rows] if row.chunkable_tokens]
    queue = [_prefilling(200 + at, length, 0, labels=asked) for at, (length, asked) in enumerate(waiting)]
    limits = PrefillLimits(rows, 2048, padded)
    todo = plan(
        state_of(
            queue, running + reading, 64, "never", pace=_taught(target), limits=limits, begun=together(begun)
        ),
        0.0,
    )
    chunked = {chunk.request_id for chunk in todo.chunks}
    assert rows_of(together(begun)) <= chunked or chunked.isdisjoint(rows_of(together(begun)))
    whole = {row.request_id for row in running + reading + queue if not row.chunkable_tokens}
    assert whole <= set(todo.decode)
    assert bool(chunked) == any(row.chunkable_tokens for row in reading + queue)
    assert not padded_tokens(todo.chunks) or len({chunk.tokens for chunk in todo.chunks}) == 1 or padded
    assert todo.predicted_seconds is not None
    # Now and then a chunk at the floor is twice as large (pace.py).
    least = max(2 * LEAST_CHUNK_TOKENS, len(chunked) * LEAST_CHUNK_TOKENS)
    if decoding and padded_tokens(todo.chunks) > least:
        coming = sum(row.prefilling and not row.submit.labels for row in reading + queue)
        within = _taught(target).step_target_seconds(decoding + max(1, coming))
        assert within is not None
        # The rows whose prompt ends in this step decode in it, too; the budget did not count them.
        joining = len(todo.decode) - decoding
        assert todo.predicted_seconds <= within * 1.001 + 0.0006 * joining


@settings(deadline=None, max_examples=examples(100))
@given(
    answers=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 3)), min_size=1, max_size=12),
    budget=st.integers(1, 4000),
    pinned=st.integers(0, 300),
)
def test_the_fewest_are_preempted_until_the_rest_fits(
    answers: list[tuple[int, int]], budget: int, pinned: int
) -> None:
    """Those with the fewest generated tokens, none more than is needed, never all, and nobody for a fourth
    time."""
    rows = [_decoding(number, answer=answer) for number, (answer, _) in enumerate(answers)]
    for row, (_, preemptions) in zip(rows, answers, strict=True):
        row.preemptions = preemptions
    memory = Memory(budget, RowBytes(token_bytes=1), budget, lambda: pinned)
    todo = plan(state_of([], rows, memory=memory), 0.0)
    assert todo == plan(state_of([], rows, memory=memory), 0.0), "a plan changes nothing"
    gone = [rows[request_id] for request_id in todo.preempt]
    stay = [row for row in rows if row not in gone]
    assert stay
    held = [charged_bytes(row, memory.row_bytes) for row in stay]
    fits = sum(held) + pinned <= budget
    assert fits or len(stay) == 1 or all(row.preemptions >= 3 for row in stay)
    if gone:
        last = gone[-1]
        assert sum(held) + charged_bytes(last, memory.row_bytes) + pinned > budget, "one too many"
        assert all(row.preemptions < 3 for row in gone)
        movable = [row.generated_tokens for row in stay if row.preemptions < 3]
        assert last.generated_tokens <= min(movable, default=last.generated_tokens)


_positions = st.lists(st.integers(0, 12_000), max_size=40)


@settings(deadline=None)
@given(boundaries=_positions, shared=_positions, start=st.integers(0, 6000), rest=st.integers(1, 6000))
def test_stops_lie_inside_in_order_and_never_far_apart(
    boundaries: list[int], shared: list[int], start: int, rest: int
) -> None:
    """For any request: ascending, after the cached prefix, before the end, no stretch without one."""
    length = start + rest
    stops = checkpoints_of(boundaries, shared, start, length)
    assert list(stops) == sorted(set(stops))
    assert all(start < stop < length for stop in stops)
    edges = [start, *stops, length]
    assert all(right - left <= CHECKPOINT_EVERY_TOKENS for left, right in pairwise(edges))
    inside = [position for position in boundaries if start < position < length]
    if inside:
        assert {min(inside), max(inside)} <= set(stops)


def test_a_conversation_stops_at_its_ends_and_now_and_then() -> None:
    """Two hundred short turns do not make two hundred short chunks."""
    turns = range(100, 4100, 20)
    stops = checkpoints_of(tuple(turns), [], 0, 4100)
    assert stops[0] == 100
    assert stops[-1] == turns[-1]
    assert len(stops) <= 2 + 4100 // LEAST_GAP_TOKENS


def test_who_shares_the_whole_prompt_continues_from_the_state_before_its_last_token() -> None:
    """That state is kept of every row; the one behind the last token is the answer's."""
    assert checkpoints_of((), [1000, 1003, 400], 0, 1000) == (400, 999)
    assert checkpoints_of((), [503, 500, 501, 900], 0, 1000) == (500, 900), "they part within a few tokens"
    asked = EngineSequence.of(request(1, prompt_of(60, 1)))
    longer = EngineSequence.of(request(2, [*prompt_of(60, 1), 7, 8]))
    todo = _plan([asked, longer], restorable="at_checkpoints")
    assert todo.admit == (Admit(asked, checkpoints=(59,)),)
    assert todo.waits == {2: "prefix"}
