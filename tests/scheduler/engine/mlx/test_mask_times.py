"""A grammar whose masks are slow ends its own row: by the library's limits, and by a clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

from scheduler.engine.grammars.constraint import MAX_SLOW_MASKS, SLOW_MASK_SECONDS, Constraint, allowed_tokens
from scheduler.engine.grammars.grammars import Grammars
from scheduler.engine.sequence import EngineSequence
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.shared import grammar_limits
from scheduler.structure import Pattern, Rules
from tests.scheduler.engine.mlx.grammar_engine import PERSON, SHAPE, GrammarModel, asked

_LETTERS = Pattern("[a-z]{200}", "x")


class _Masks:
    """The library, with matchers whose time is that of a clock which only they advance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slow: list[LLMatcher] = []
        self.now, self.seconds = 0.0, 2 * SLOW_MASK_SECONDS
        filling = "scheduler.engine.grammars.constraint.fill_next_token_bitmask"
        monkeypatch.setattr(filling, self._one)
        monkeypatch.setattr(f"{filling}_par", self._together)

    def clock(self) -> float:
        return self.now

    def _one(self, matcher: LLMatcher, masks: Any, row: int) -> None:
        self._fill(matcher, masks, row)

    def _together(self, _: Any, rows: Sequence[tuple[LLMatcher, int]], masks: Any) -> None:
        for matcher, row in rows:
            self._fill(matcher, masks, row)

    def _fill(self, matcher: LLMatcher, masks: Any, row: int) -> None:
        if any(matcher is slow for slow in self.slow):
            self.now += self.seconds
        fill_next_token_bitmask(matcher, masks, row)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> _Masks:
    return _Masks(monkeypatch)


def _constraints(model: GrammarModel, masks: _Masks, count: int) -> list[Constraint]:
    grammars = Grammars(model.tokenizer, clock=masks.clock)
    submit = model.engine().submit(asked(_LETTERS, 1))[1]
    made = [grammars.constraint(EngineSequence.of(submit)) for _ in range(count)]
    return [constraint for constraint in made if constraint is not None]


def _masks_until_failure(constraints: list[Constraint], masks: _Masks, steps: int) -> list[int | None]:
    """Return, for each row, the number of masks before it failed."""
    failed: list[int | None] = [None] * len(constraints)
    for step in range(steps):
        allowed_tokens(constraints, SHAPE.vocabulary, masks.clock)
        for row, constraint in enumerate(constraints):
            if constraint.failure is not None and failed[row] is None:
                failed[row] = step + 1
    return failed


@pytest.mark.parametrize(("rows", "unnoticed"), [(1, 0), (2, 1), (5, 1)])
def test_the_slow_row_fails_alone(rows: int, unnoticed: int, model: GrammarModel, masks: _Masks) -> None:
    """After its eighth slow mask. In a batch the first is attributed to no row, the next ones to it."""
    constraints = _constraints(model, masks, rows)
    masks.slow = [constraints[-1].matcher]
    failed = _masks_until_failure(constraints, masks, 30)
    assert failed == [*[None] * (rows - 1), MAX_SLOW_MASKS + unnoticed]
    assert constraints[-1].failure == "the grammar is too slow: 8 tokens took over 50 ms each"


class _Matcher:
    """Forces three tokens; each call takes `seconds`, and may fail."""

    def __init__(self, masks: _Masks, seconds: float, error: Exception | None = None) -> None:
        self._masks, self._seconds, self._error = masks, seconds, error
        self.calls = 0

    def compute_ff_tokens(self) -> list[int]:
        self.calls += 1
        self._masks.now += self._seconds
        if self._error is not None:
            raise self._error
        return [1, 2, 3]


@pytest.mark.parametrize(
    ("seconds", "error", "calls"),
    [(SLOW_MASK_SECONDS / 2, None, 5), (2 * SLOW_MASK_SECONDS, None, 1), (0.0, RuntimeError("broken"), 1)],
    ids=["fast", "slow", "broken"],
)
def test_a_grammar_that_foresees_badly_is_not_asked_again(
    seconds: float, error: Exception | None, calls: int, masks: _Masks
) -> None:
    """Forced tokens only save time: no row fails for them, and no row waits for them twice."""
    matcher: Any = _Matcher(masks, seconds, error)
    constraint = Constraint(matcher, clock=masks.clock)
    forced = [constraint.forced_from(0) for _ in range(5)]
    assert matcher.calls == calls
    assert forced[1:] == [(1, 2, 3) if calls == 5 else ()] * 4
    assert constraint.failure is None


def test_an_ambiguous_grammar_ends_itself(model: GrammarModel) -> None:
    """Thirty bytes whose masks grow with the cube of the answer: the limit on items ends the row before one
    takes long, and its neighbours have what they have without it."""
    neighbours = [asked(None, 1, 60), asked(PERSON, 2, 300)]
    expected = [answer.tokens for answer in model.engine().run(*neighbours)]
    ambiguous = asked(Rules("start: s\ns: s s s | s s | /./\n", "x"), 3, 400)
    answers = model.engine().run(*neighbours, dataclasses.replace(ambiguous, min_tokens=300))
    assert [answer.tokens for answer in answers[:2]] == expected
    retired = answers[2].retired
    assert retired is not None
    assert (retired.reason, "(limit 5000;" in retired.detail) == ("grammar", True)
    assert len(answers[2].tokens) < 60


def test_both_processes_have_the_same_limits(model: GrammarModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another limit, both judge the same grammar by it: what the parent accepts, the engine compiles."""
    monkeypatch.setattr(grammar_limits, "STEP_MAX_ITEMS", 2)
    _, submit = model.engine().submit(asked(None, 1))
    grammar = '{"grammars": [{"json_schema": {"type": "object"}}]}'
    tokenizer = model.preparation.tokenizer
    vocabulary = GrammarVocabulary(tokenizer.to_json(), SHAPE.vocabulary, sorted(tokenizer.eos_token_ids))
    assert "Too many items" in str(vocabulary.complaint(grammar))
    constraint = Grammars(model.tokenizer).constraint(
        EngineSequence.of(msgspec.structs.replace(submit, grammar=grammar))
    )
    assert constraint is not None
    allowed_tokens([constraint], SHAPE.vocabulary)
    assert "Too many items" in str(constraint.failure)
