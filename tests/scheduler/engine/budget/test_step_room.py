"""What a step takes of memory is counted before it runs, and a step that would not fit is not planned."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.budget.learned import ChunkPeak
from scheduler.engine.budget.policy import Allowance
from scheduler.engine.budget.room import StepRoom
from scheduler.engine.plan import StepPlan, plan
from scheduler.engine.planning.memory import Memory
from scheduler.engine.planning.prefill import LEAST_CHUNK_TOKENS, padded_tokens
from scheduler.engine.planning.prefill_batches import Begun
from scheduler.engine.sequence import EngineSequence
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.test_plan import state_of, together

_HELD = RowBytes(token_bytes=10)
_MOST_TOKENS = 2048
_PLENTY = 1 << 40


def _row(request_id: int, prompt_tokens: int, computed: int = 0, in_place: int = 0) -> EngineSequence:
    row = EngineSequence.of(request(request_id, prompt_of(prompt_tokens, request_id), 50))
    row.computed_tokens, row.in_place_tokens = computed, in_place
    return row


def _room(room_bytes: int, held_bytes: int = 0, chunk_bytes: int = 0) -> StepRoom:
    """`chunk_bytes`: of the largest chunk."""
    return StepRoom(room_bytes, held_bytes, 1.0, _HELD, ChunkPeak(chunk_bytes, _MOST_TOKENS))


def _plan(
    room: StepRoom,
    running: list[EngineSequence],
    waiting: list[EngineSequence] | None = None,
    begun: Begun = (),
    known: int = 0,
) -> StepPlan:
    memory = Memory(_PLENTY, _HELD, 0, lambda: 0)
    state = state_of(waiting or [], running, 8, cached_tokens=lambda row: known, memory=memory, begun=begun)
    return plan(replace(state, allowance=Allowance(room=room), group_cost_tokens=1 << 20), now=0.0)


def _ids(todo: StepPlan) -> set[int]:
    return {chunk.request_id for chunk in todo.chunks}


rows = st.lists(
    st.tuples(st.integers(2, 3000), st.sampled_from(("waiting", "joining", "begun", "decoding"))),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=examples(200))
@given(rows, st.integers(0, 400_000), st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_step_fits_or_computes_as_little_as_it_can(
    asked: list[tuple[int, str]], room_bytes: int, held_bytes: int, chunk_bytes: int
) -> None:
    """And it always goes on: what has begun does, and where nothing has, somebody begins."""
    running: list[EngineSequence] = []
    waiting: list[EngineSequence] = []
    begun = set[int]()
    for number, (tokens, stage) in enumerate(asked):
        done = {"begun": tokens // 2, "decoding": tokens}.get(stage, 0)
        (waiting if stage == "waiting" else running).append(_row(number, tokens, done))
        if stage == "begun" and done < tokens - 1:
            begun.add(number)
    batches = together(row for row in running if row.request_id in begun)
    todo = _plan(_room(room_bytes, held_bytes, chunk_bytes), running, waiting, batches)
    chunked = _ids(todo)
    joined = chunked - begun
    if todo.step_bytes > room_bytes:
        alone = len(chunked) == 1 and set(todo.decode) <= chunked and not begun
        assert not joined or alone
        assert padded_tokens(todo.chunks) <= LEAST_CHUNK_TOKENS * len(chunked)
    assert begun <= chunked or (chunked and begun.isdisjoint(chunked))
    assert chunked or todo.decode


def test_second_turns_of_agents_join_as_they_fit() -> None:
    """All at once, behind copied prefixes, they would take more than any step before."""
    agents = [_row(number, 1100, computed=1000) for number in range(8)]
    assert _ids(_plan(_room(_PLENTY), agents)) == set(range(8))
    # Arrays of three with a spare place for their prompts, then for their answers; copies while they are
    # written; and what of them is cached.
    arrays = _HELD.batch([1000] * 3, 99) + _HELD.batch([1099] * 3, 1)
    fits = 2 * arrays + 3 * 1099 * 14
    some = _plan(_room(fits), agents)
    assert len(_ids(some)) == 3
    assert some.step_bytes == fits


def test_nobody_joins_while_there_is_no_room_beside_rows_that_decode() -> None:
    todo = _plan(_room(500), [_row(0, 2000), _row(1, 10, computed=10)])
    assert todo.chunks == ()
    assert todo.decode == (1,)


def test_what_was_admitted_and_has_not_joined_is_counted_at_the_next_admission() -> None:
    held = _HELD.held(1000)
    for admitted in range(4):
        running = [_row(number, 1000) for number in range(admitted)]
        todo = _plan(_room(3 * held + 200 * 14), running, [_row(9, 1000 - 50)])
        assert len(todo.admit) == (admitted < 3)


def test_a_cached_prefix_costs_little_where_it_stays_in_place() -> None:
    """Saving memory, a follow-up of a long conversation is admitted with what it adds."""
    beside = [_row(0, 100, computed=100)]
    follow_up = _row(1, 2100)
    room = _room(20_000)
    assert not _plan(room, beside, [follow_up], known=2000).admit
    (admit,) = _plan(replace(room, room_bytes=40_000, saving=True), beside, [follow_up], known=2000).admit
    assert admit.in_place_tokens == 2000


def test_one_prompt_that_goes_on_copies_nothing() -> None:
    """A long one alone would otherwise be read in the smallest chunks where its copy would not fit."""
    row = _row(0, 10_000, computed=6000)
    arrays = _HELD.batch([6000], 3999)
    todo = _plan(_room(20_000, held_bytes=arrays), [row], begun=together([row]))
    assert todo.step_bytes == 0
    assert padded_tokens(todo.chunks) == _MOST_TOKENS


def test_what_a_batch_takes_is_not_made_of_another_that_rests() -> None:
    """The rows of both are held; only what is computed can grow into its own."""
    read, resting = _row(0, 9000, computed=1000), _row(1, 9000, computed=8000)
    arrays = [_HELD.batch([row.computed_tokens], 0) for row in (read, resting)]
    alone = _room(_PLENTY, arrays[0]).taken_bytes([[read]], (), (), {0})
    beside = _room(_PLENTY, sum(arrays)).taken_bytes([[read]], (), (), {0, 1}, [[resting]])
    assert beside == alone


def test_a_prompt_is_read_up_to_its_end_where_there_is_no_room_for_it_to_end() -> None:
    """Not in the smallest chunks: its copy for the prefix cache is made in its last step."""
    rows = [_row(number, 6500, computed=6000) for number in range(2)]
    begun = together(rows)
    arrays = _HELD.batch([6000] * 2, 499)
    todo = _plan(_room(arrays + 100, held_bytes=arrays), rows, begun=begun)
    assert [chunk.tokens for chunk in todo.chunks] == [498, 498]
    assert todo.step_bytes <= arrays + 100
    for row in rows:
        row.computed_tokens = 6498
    last = _plan(_room(arrays + 100, held_bytes=arrays), rows, begun=begun)
    assert [chunk.tokens for chunk in last.chunks] == [1, 1]
