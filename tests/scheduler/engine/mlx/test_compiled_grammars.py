"""Grammars in the engine: a failing one fails its request only; which ones are compiled and cached."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance.numpy import fill_next_token_bitmask

from scheduler.engine.grammars.grammars import Grammars
from scheduler.structure import OneOf
from tests.contracts.journal import kv_bytes
from tests.scheduler.engine.mlx.grammar_engine import PERSON, GrammarModel, asked


class _Broken:
    """A matcher that breaks at its third token."""

    def __init__(self, matcher: Any, panics: bool) -> None:
        self._matcher, self._panics, self._left = matcher, panics, 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        self._left -= 1
        if self._left:
            return int(self._matcher.try_consume_tokens(tokens))
        if self._panics:
            raise BaseException("index out of bounds")
        return int(self._matcher.try_consume_tokens([0]))

    def consume_tokens(self, tokens: list[int]) -> bool:
        return self.try_consume_tokens(tokens) == len(tokens)


@pytest.mark.parametrize("panics", [False, True])
def test_where_the_library_fails_one_request_fails(
    panics: bool, model: GrammarModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the reason after the tokens up to there; its neighbours' answers do not change."""
    engine = model.engine()
    requests = [asked(PERSON, seed, 400) for seed in range(4)]
    healthy = [answer.tokens for answer in model.engine().run(*requests)]
    given = Grammars.constraint

    def constraint(self: Grammars, submit: Any) -> Any:
        made: Any = given(self, submit)
        if submit.request_id == 2 and made is not None:
            made.matcher = _Broken(made.matcher, panics)
        return made

    monkeypatch.setattr(Grammars, "constraint", constraint)

    def fill(matcher: Any, *rest: Any) -> None:
        fill_next_token_bitmask(getattr(matcher, "_matcher", matcher), *rest)

    monkeypatch.setattr("scheduler.engine.grammars.constraint.fill_next_token_bitmask", fill)
    answers = engine.run(*requests)
    broken = answers[1]
    assert broken.retired is not None
    assert broken.retired.reason == ("grammar" if panics else "failed")
    assert ("index out of bounds" in broken.retired.detail) == panics
    assert broken.tokens == healthy[1][: len(broken.tokens)]
    assert len(broken.tokens) == 3
    assert [answers[row].tokens for row in (0, 2, 3)] == [healthy[row] for row in (0, 2, 3)]
    assert kv_bytes(engine.backend) == 0


@pytest.mark.parametrize("error", [MemoryError("no room"), BaseException("a panic of the library")], ids=repr)
def test_a_compilation_that_raises_refuses_its_request_alone(
    error: BaseException, model: GrammarModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what was raised; its neighbours have their tokens, and the same grammar may be tried again."""
    neighbours = [asked(None, 1, 20), asked(PERSON, 2, 200)]
    expected = [answer.tokens for answer in model.engine().run(*neighbours)]
    engine = model.engine()
    grammars = engine.backend._grammars
    compile_one = grammars._compile
    word = OneOf(("left",), "x")

    def raising(grammar: str) -> Any:
        if "left" in grammar:
            raise error
        return compile_one(grammar)

    with monkeypatch.context() as patched:
        patched.setattr(grammars, "_compile", raising)
        answers = engine.run(neighbours[0], asked(word, 3), neighbours[1])
    assert [answers[0].tokens, answers[2].tokens] == expected
    retired = answers[1].retired
    assert retired is not None
    assert retired.reason == "refused"
    assert str(error) in retired.detail
    (again,) = engine.run(asked(word, 4))
    assert engine.text(again) == "left"
