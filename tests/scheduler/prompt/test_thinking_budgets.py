"""How many tokens a request may reason for, and by which ids its marks are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from scheduler.answer.answer_format import PLAIN, AnswerFormat, Layout
from scheduler.config import ThinkingConfig
from scheduler.prompt.thinking_budgets import ThinkingBudgets
from scheduler.request import (
    UNLIMITED_THINKING,
    ChatPrompt,
    GenerationRequest,
    Reasoning,
    TextPrompt,
)
from scheduler.shared.messages import ThinkingBudget
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.scheduler.answer.notations import KIMI_K3, MUSE, TOOLS, form

HERMES = form("json_tools", "think")
OWN_LAYOUT = replace(MUSE, reasoning=HERMES.reasoning)


def request(
    tokens: int | None = None, reasoning: Reasoning | None = None, **prompt: object
) -> GenerationRequest:
    chat = ChatPrompt(({"role": "user", "content": "x"},), reasoning=reasoning or Reasoning(), **prompt)  # type: ignore[arg-type]
    return GenerationRequest("test", chat, thinking_tokens=tokens)


def budget_of(
    answer_format: AnswerFormat, asked: GenerationRequest | None = None, config: ThinkingConfig | None = None
) -> ThinkingBudget | None:
    budgets = ThinkingBudgets(ByteTokenizer(answer_format), 8192, config or ThinkingConfig())
    return budgets.of(asked or request(5), opens=False)


def test_the_request_s_number_then_its_effort_then_the_operator_s_default() -> None:
    """In this order, in every combination; "unlimited" is an answer as any number is. Reasoning that is
    turned off is the effort none, which has no tokens unless the operator names another number."""
    for named, effort, table, default in product(
        (None, UNLIMITED_THINKING, 0, 7), (None, "low", "high"), ({}, {"low": 3, "high": None}), (None, 11)
    ):
        budget = budget_of(HERMES, request(named, Reasoning(effort=effort)), ThinkingConfig(default, table))
        assert budget is not None
        if named is not None:
            assert budget.tokens == (None if named == UNLIMITED_THINKING else named)
        elif effort in table:
            assert budget.tokens == table[effort]
        else:
            assert budget.tokens == default
    for config, tokens in ((ThinkingConfig(9, {"low": 3, "none": 2}), 2), (ThinkingConfig(9, {"low": 3}), 0)):
        budget = budget_of(HERMES, request(None, Reasoning(enabled=False, effort="low")), config)
        assert budget is not None
        assert budget.tokens == tokens


def test_marks_are_the_format_s() -> None:
    """A call ends reasoning only where there are tools."""
    plain, with_tools = budget_of(HERMES), budget_of(HERMES, request(5, tools=TOOLS))
    always = budget_of(form(None, "deepseek_r1"))
    assert plain is not None
    assert with_tools is not None
    assert always is not None
    assert (bytes(plain.start), bytes(plain.end)) == (b"<think>", b"</think>")
    assert (plain.call_end, plain.anywhere, plain.opens, always.opens) == ((), False, False, True)
    assert (bytes(with_tools.call_start), bytes(with_tools.call_end)) == (b"<tool_call>", b"</tool_call>")
    assert budget_of(KIMI_K3) is not None


@pytest.mark.parametrize("answer_format", [PLAIN, form("json_tools"), OWN_LAYOUT])
def test_without_reasoning_a_budget_has_no_effect(answer_format: AnswerFormat) -> None:
    """Anthropic's clients send one to every model."""
    assert budget_of(answer_format) is None
    assert budget_of(HERMES, GenerationRequest("test", TextPrompt("x"), thinking_tokens=5)) is None


class Merging(ByteTokenizer):
    """Writes `>` and a line feed as one token, as vocabularies without the marks do."""

    def encode(self, text: str) -> list[int]:
        return [*text.replace(">\n", "\x00").encode()]


def test_marks_that_depend_on_their_context_are_not_looked_for() -> None:
    """They would be missed, and the end forced into the answer."""
    assert ThinkingBudgets(Merging(HERMES), 8192, ThinkingConfig()).of(request(5), opens=False) is None
    small = ThinkingBudgets(ByteTokenizer(HERMES), 64, ThinkingConfig())
    assert small.of(request(5), opens=False) is None


class Channels(ByteTokenizer):
    """With gpt-oss's marks as tokens of their own."""

    _MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    special_token_ids = frozenset(range(256, 260))

    def encode(self, text: str) -> list[int]:
        for number, mark in enumerate(self._MARKS):
            text = text.replace(mark, chr(256 + number))
        return [ord(letter) for letter in text]

    def token_bytes(self, token_id: int) -> bytes:
        return self._MARKS[token_id - 256].encode() if token_id >= 256 else bytes([token_id])


def test_of_marks_with_a_common_beginning_what_follows_it_is_held_back() -> None:
    """After `<|channel|>` gpt-oss may still say "final". Its end leads to the next message."""
    found = ThinkingBudgets(Channels(AnswerFormat(layout=Layout.HARMONY)), 8192, ThinkingConfig())
    budget = found.of(request(5), opens=False)
    assert budget is not None
    assert budget.start == (256, *b"analysis", 257)
    assert budget.held == 1
    assert (budget.end, budget.anywhere) == ((258, 259, *b"assistant"), True)
