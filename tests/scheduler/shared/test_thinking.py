"""The thinking budget is exact, by position in the answer's ids, whatever the model would say."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import RequestRefused
from scheduler.shared.messages import ThinkingBudget
from scheduler.shared.thinking import ThinkingLimit, check_marks
from tests.examples import examples

THINK, END, BLANK = 1, 2, 3
QWEN = ThinkingBudget(tokens=4, start=(THINK,), end=(END,), blanks=(BLANK,))
"""One token each, and reasoning at the beginning only."""
HARMONY = ThinkingBudget(tokens=4, start=(1, 2, 3), end=(4, 5, 6), anywhere=True, held=1)
REPEATING = ThinkingBudget(
    tokens=3, start=(1, 1, 2), end=(4, 4, 5), call_start=(6,), call_end=(7, 4), anywhere=True, held=2
)
"""Marks that overlap with themselves, and calls."""
TOKENS = 9
_replace = msgspec.structs.replace


def steered(budget: ThinkingBudget, wishes: Sequence[int]) -> list[int]:
    """The answer of a model with these wishes, one a position: what is forced is taken, what is held is
    not."""
    limit, answer = ThinkingLimit(budget), list[int]()
    for wish in wishes:
        answer.append(allowed(limit, wish))
        limit.accept(answer[-1])
    return answer


def allowed(limit: ThinkingLimit, wish: int) -> int:
    held = limit.held(0)
    if limit.forced is not None:
        return limit.forced
    return TOKENS if held is not None and held.token == wish else wish


def reasoning_of(budget: ThinkingBudget, answer: Sequence[int]) -> list[list[int]]:
    """Read by the definition, from left to right: the tokens between each pair of marks."""
    found, at, opened = list[list[int]](), 0, budget.opens
    while True:
        if not opened:
            at = _after_start(budget, answer, at)
            if at < 0:
                return found
        call = _place(budget.call_start, answer, at) if budget.call_start else len(answer)
        ends = [
            (place + len(mark), place)
            for mark, begin in ((budget.end, at), (budget.call_end, call + len(budget.call_start)))
            if (place := _place(mark, answer, begin)) < len(answer)
        ]
        if not ends:
            return [*found, list(answer[at:])]
        after, place = min(ends)
        found.append(list(answer[at:place]))
        at, opened = after, False


def _place(mark: Sequence[int], answer: Sequence[int], at: int) -> int:
    """Where it is next; the answer's length where it is not."""
    places = range(at, len(answer) - len(mark) + 1)
    return next((n for n in places if tuple(answer[n : n + len(mark)]) == tuple(mark)), len(answer))


def _after_start(budget: ThinkingBudget, answer: Sequence[int], at: int) -> int:
    size = len(budget.start)
    for place in range(at, len(answer) - size + 1):
        if tuple(answer[place : place + size]) == budget.start:
            return place + size
        if not budget.anywhere and answer[place] not in budget.blanks:
            return -1
    return -1


budgets = st.builds(
    lambda budget, tokens, opens: _replace(budget, tokens=tokens, opens=opens),
    st.sampled_from([QWEN, HARMONY, REPEATING]),
    st.integers(0, 7),
    st.booleans(),
)
answers = st.lists(st.integers(1, TOKENS - 1), max_size=40)


@settings(deadline=None, max_examples=examples(400))
@given(budget=budgets, wishes=answers)
def test_reasoning_is_never_longer_than_its_budget(budget: ThinkingBudget, wishes: list[int]) -> None:
    """All of it together, counted between complete marks; and the count that is reported is this one."""
    answer = steered(budget, wishes)
    found = reasoning_of(budget, answer)
    limit = ThinkingLimit(budget, answer)
    assert budget.tokens is not None
    assert limit.reasoning_tokens == sum(map(len, found))
    if limit.forced is None:
        assert limit.reasoning_tokens <= budget.tokens
    else:
        # The answer breaks off within a forced mark, whose beginning is not known for one yet.
        assert limit.reasoning_tokens < budget.tokens + len(budget.end)


@settings(deadline=None, max_examples=examples(400))
@given(budget=budgets, wishes=answers)
def test_a_spent_budget_ends_reasoning_for_good(budget: ThinkingBudget, wishes: list[int]) -> None:
    """As many tokens after the last as the end mark may have, reasoning is over, and none comes again."""
    answer = steered(budget, wishes)
    assert budget.tokens is not None
    spent = next(
        (n for n in range(len(answer)) if ThinkingLimit(budget, answer[:n]).forced is not None), None
    )
    if spent is not None and spent + len(budget.end) <= len(answer):
        whole = reasoning_of(budget, answer)
        assert sum(map(len, whole)) <= budget.tokens
        assert reasoning_of(budget, answer[: spent + len(budget.end)]) == whole


@settings(deadline=None, max_examples=examples(200))
@given(budget=budgets, wishes=answers)
def test_the_state_is_a_function_of_the_ids(budget: ThinkingBudget, wishes: list[int]) -> None:
    """Built anew from the answer so far before each token, it makes the same answer. A token that comes
    twice, before the next draw and when it is emitted, counts once."""
    answer: list[int] = []
    for wish in wishes:
        answer.append(allowed(ThinkingLimit(budget, answer), wish))
    assert answer == steered(budget, wishes)
    limit = ThinkingLimit(budget, answer[:3])
    for position, token in enumerate(answer):
        limit.accept_at(position, token)
        limit.accept_at(position, token)
        assert limit.seen == max(position + 1, min(3, len(answer)))
    assert limit.reasoning_tokens == ThinkingLimit(budget, answer).reasoning_tokens


@settings(deadline=None, max_examples=examples(600))
@given(budget=budgets, wishes=answers, unknown=st.integers(1, TOKENS - 1))
def test_one_unknown_token_is_waited_for_only_where_it_matters(
    budget: ThinkingBudget, wishes: list[int], unknown: int
) -> None:
    """Where no token may be forced after an unknown one, none is, whichever it was; and what is held back
    after it is known without it."""
    answer = steered(budget, wishes)
    limit = ThinkingLimit(budget, answer)
    known = ThinkingLimit(budget, [*answer, allowed(limit, unknown)])
    assert limit.may_act_after(0) == (limit.forced is not None)
    if limit.may_act_after(1):
        return
    assert known.forced is None
    held, expected = limit.held(1), known.held(0)
    if held is not None and held.after not in (None, allowed(limit, unknown)):
        held = None
    assert (held and held.token) == (expected and expected.token)


def test_the_middle_of_reasoning_and_what_follows_it_wait_for_nothing() -> None:
    """Only the last step before the end and the end itself do; of a text none."""
    random_words = [random.Random(1).randrange(4, 9) for _ in range(30)]
    waits = [
        ThinkingLimit(_replace(QWEN, tokens=20, opens=True), random_words[:known]).may_act_after(1)
        for known in range(20)
    ]
    assert waits == [False] * 19 + [True]
    after = [*random_words[:20], END]
    assert not any(
        ThinkingLimit(_replace(QWEN, tokens=20, opens=True), [*after, *random_words[:n]]).may_act_after(1)
        for n in range(5)
    )


def test_marks_that_cannot_be_used_are_refused() -> None:
    """Outside the vocabulary they would index outside an array on the device."""
    check_marks(None, 9)
    check_marks(QWEN, 9)
    outside = ({"end": (9,)}, {"start": (-1,)}, {"call_start": (1,), "call_end": (9,)})
    for bad in ({"start": ()}, {"end": ()}, {"call_start": (4,)}, {"held": 1}, *outside):
        with pytest.raises(RequestRefused, match="mark"):
            check_marks(_replace(QWEN, **bad), 9)
