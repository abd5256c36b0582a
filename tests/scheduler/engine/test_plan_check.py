"""A plan that contradicts the batch costs the requests that it is wrong about, and nobody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler.engine import loop as engine_loop
from scheduler.engine.drafts.speculation import Draft
from scheduler.engine.plan import Admit, Keep, PlanInput, StepPlan, plan, with_changes
from scheduler.engine.plan_check import contradictions
from scheduler.engine.planning.prefill import Chunk
from scheduler.engine.planning.prefill_batches import BegunBatch
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.engine.sequence import EngineSequence, Slots
from scheduler.shared.messages import ScriptedPlan
from tests.contracts.journal import alone, prompt_of, request
from tests.scheduler.engine.heard import HeardLoop

_PLAN = ScriptedPlan(prefill_tokens_per_step=16)
_READS, _BEGUN, _WRITES, _WAITS, _BESIDE, _RESTS = 1, 2, 3, 4, 5, 6
_BATCHES = (BegunBatch(frozenset({_BEGUN, _BESIDE})), BegunBatch(frozenset({_RESTS})))
_PROMPT_TOKENS = 20


def _sequence(request_id: int, computed: int = 0) -> EngineSequence:
    sequence = EngineSequence.of(request(request_id, prompt_of(_PROMPT_TOKENS, request_id), 9))
    sequence.computed_tokens = computed
    return sequence


def _scene() -> tuple[Slots, dict[int, EngineSequence]]:
    """A row whose prompt waits for its turn, two in the middle of their prefill in one batch and one in
    another, one that decodes; and one that waits for the last slot."""
    slots = Slots(6)
    computed_tokens = {_READS: 0, _BEGUN: 7, _BESIDE: 7, _RESTS: 3, _WRITES: _PROMPT_TOKENS}
    for request_id, computed in computed_tokens.items():
        slots.take(_sequence(request_id, computed))
    return slots, {_WAITS: _sequence(_WAITS)}


_ADMIT = Admit(_sequence(_WAITS), 4, 0, (5, 19))
_RIGHT = StepPlan(
    keep=(Keep(_BEGUN, 7),),
    admit=(_ADMIT,),
    chunks=(Chunk(_BEGUN, 12), Chunk(_BESIDE, 10), Chunk(_WAITS, 15)),
    decode=(_WRITES, _BEGUN, _WAITS),
    drafts=(Draft(_WRITES, (1,), "long_match"),),
)


def test_what_fits_has_no_contradiction() -> None:
    slots, waiting = _scene()
    assert contradictions(_RIGHT, slots, waiting, _BATCHES) == {}
    preempting = with_changes(_RIGHT, preempt=(_READS,), emit_pending=True, chunks=(), decode=(), drafts=())
    assert contradictions(preempting, slots, waiting, _BATCHES) == {}


_ADMITTED: dict[str, Admit] = {
    "a hit of the whole prompt": Admit(_sequence(_WAITS), _PROMPT_TOKENS),
    "a hit below nothing": Admit(_sequence(_WAITS), -1),
    "a checkpoint at its end": Admit(_sequence(_WAITS), 4, 0, (5, _PROMPT_TOKENS)),
    "a checkpoint at its hit": Admit(_sequence(_WAITS), 4, 0, (4, 9)),
    "checkpoints out of order": Admit(_sequence(_WAITS), 4, 0, (9, 5)),
}


@pytest.mark.parametrize(
    ("wrong", "changes"),
    [
        pytest.param(9, {"preempt": (9,)}, id="who is no row is preempted"),
        pytest.param(_WAITS, {"keep": (Keep(_WAITS, 1),)}, id="who is no row is kept"),
        pytest.param(_BEGUN, {"keep": (Keep(_BEGUN, 8),)}, id="more is kept than is computed"),
        pytest.param(_BEGUN, {"keep": (Keep(_BEGUN, 0),)}, id="nothing is kept"),
        pytest.param(9, {"admit": (Admit(_sequence(9)), _ADMIT)}, id="who does not wait is admitted"),
        pytest.param(_WRITES, {"admit": (Admit(_sequence(_WRITES)), _ADMIT)}, id="a row is admitted"),
        *(pytest.param(_WAITS, {"admit": (one,)}, id=name) for name, one in _ADMITTED.items()),
        pytest.param(_BEGUN, {"chunks": (Chunk(_BEGUN, 13),)}, id="a chunk of the last token"),
        pytest.param(_RESTS, {"chunks": (*_RIGHT.chunks, Chunk(_RESTS, 1))}, id="a chunk of another batch"),
        pytest.param(_RESTS, {"chunks": ()}, id="no batch is computed"),
        pytest.param(_READS, {"chunks": (*_RIGHT.chunks, Chunk(_READS, 0))}, id="a chunk of nothing"),
        pytest.param(_WRITES, {"chunks": (*_RIGHT.chunks, Chunk(_WRITES, 1))}, id="a chunk of no prompt"),
        pytest.param(_BEGUN, {"chunks": _RIGHT.chunks[1:]}, id="a prompt in prefill has no chunk"),
        pytest.param(_READS, {"decode": (_READS,)}, id="a prompt decodes"),
        pytest.param(_BEGUN, {"chunks": (Chunk(_BEGUN, 11),), "decode": (_BEGUN,)}, id="it decodes early"),
        pytest.param(9, {"decode": (9,)}, id="who is no row decodes"),
        pytest.param(_READS, {"drafts": (Draft(_READS, (1,), "grammar"),)}, id="a prompt has drafts"),
        pytest.param(_WRITES, {"preempt": (_WRITES,)}, id="who leaves decodes"),
        pytest.param(_WAITS, {"drafts": (Draft(_WAITS, (1,), "grammar"),)}, id="who is admitted has drafts"),
    ],
)
def test_what_does_not_fit_names_its_request(wrong: int, changes: dict[str, object]) -> None:
    slots, waiting = _scene()
    assert wrong in contradictions(with_changes(_RIGHT, **changes), slots, waiting, _BATCHES)


def test_more_are_not_admitted_than_there_are_slots() -> None:
    slots, waiting = _scene()
    waiting[9] = _sequence(9)
    todo = StepPlan(admit=(_ADMIT, Admit(waiting[9])))
    assert contradictions(todo, slots, waiting, ()).keys() == {9}
    assert contradictions(with_changes(todo, preempt=(_WRITES,)), slots, waiting, ()) == {}


_SUBMITS = [request(number, prompt_of(_PROMPT_TOKENS, number), 9) for number in (1, 2, 3)]


def _behind_its_end(todo: StepPlan) -> StepPlan:
    """As if `checkpoints_of` did not cut what two prompts share."""
    admit = (
        Admit(one.sequence, one.cached_tokens, 0, (_PROMPT_TOKENS,)) if one.sequence.request_id == 2 else one
        for one in todo.admit
    )
    return with_changes(todo, admit=tuple(admit))


def _decodes_too_early(todo: StepPlan) -> StepPlan:
    return with_changes(todo, decode=tuple({*todo.decode, 2})) if todo.chunks else todo


@pytest.mark.parametrize("mistake", [_behind_its_end, _decodes_too_early])
def test_a_wrong_plan_fails_its_request_and_no_other(
    mistake: Callable[[StepPlan], StepPlan],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whether it waits or runs: its client and the operator get the reason, and the others their tokens."""

    def wrong(state: PlanInput, now: float) -> StepPlan:
        here = {one.request_id for one in (*state.waiting, *state.running)}
        found = plan(state, now)
        return mistake(found) if 2 in here else found

    monkeypatch.setattr(engine_loop, "plan", wrong)
    run = HeardLoop(ScriptedBackend(_PLAN, kv_cache_bytes=1 << 20), 4, 16)
    run.iterate(*_SUBMITS)
    run.finish()
    assert run.retired[2].reason == "failed"
    assert run.retired[2].detail.startswith("the engine's plan was wrong: this request ")
    assert "request 2 fails: the engine's plan was wrong" in capsys.readouterr().err
    for submit in _SUBMITS[::2]:
        assert run.retired[submit.request_id].reason == "length"
        assert run.tokens[submit.request_id] == alone(ScriptedBackend(_PLAN), submit)
