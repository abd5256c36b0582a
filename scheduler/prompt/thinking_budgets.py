"""A request's thinking budget: how many tokens, and the model's marks around reasoning as token ids.

Marks are found in an answer by their ids, so they must always have the same ones: most are control tokens, or
begin with one. Marks whose ids depend on the text around them (`>` and a line feed may be one token) cannot
be found this way, and a budget has no effect on such a model. Each mark is tokenized in several contexts to
find out which kind it is.
"""

from __future__ import annotations

from functools import cache

import msgspec

from scheduler.answer.answer_format import Layout, ReasoningSyntax
from scheduler.config import ThinkingConfig
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import UNLIMITED_THINKING, ChatPrompt, GenerationRequest, Prompt, Reasoning
from scheduler.shared.messages import ThinkingBudget

_CONTEXTS = (
    *(("", ""), ("a", "b"), ("a.", "\n"), (".\n", "\n\n")),
    *(("a ", " b"), ("\n\n", "{"), ("(", ".\n"), ("\t", "\t")),
)
_BLANKS = ("\n", "\n\n", "\n\n\n", " ", "  ", " \n", "\t", "\r\n")


_HARMONY = ReasoningSyntax("<|channel|>analysis<|message|>", "<|end|><|start|>assistant", anywhere=True)


class ThinkingBudgets:
    """The thinking budgets of one model. Thread-safe."""

    def __init__(self, tokenizer: HubTokenizer, vocabulary: int, config: ThinkingConfig) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._config = config
        self._budget = cache(self._new_budget)

    def of(self, request: GenerationRequest, *, opens: bool) -> ThinkingBudget | None:
        """Return the request's budget, or None if there is no reasoning, or it cannot be found by token ids.
        `opens`: whether the prompt has opened reasoning."""
        if (marks := self._of_prompt(request.prompt)) is None:
            return None
        return msgspec.structs.replace(marks, tokens=self.tokens(request), opens=opens or marks.opens)

    def keeps(self, request: GenerationRequest) -> bool:
        """Return whether a budget that the request itself names can be enforced; True if it names none."""
        named = request.thinking_tokens
        return named in (None, UNLIMITED_THINKING) or self._of_prompt(request.prompt) is not None

    def _of_prompt(self, prompt: Prompt) -> ThinkingBudget | None:
        """Return a budget with the marks for this prompt, without a number of tokens yet; None as in `of`."""
        if not isinstance(prompt, ChatPrompt):
            return None
        return self._budget(bool(prompt.offered_tools))

    def tokens(self, request: GenerationRequest) -> int | None:
        """Return the most tokens of reasoning, or None for no bound. A number in the request wins over its
        effort, and that over the operator's default. Where thinking is off there is none, also with a
        template that has no switch."""
        if (named := request.thinking_tokens) is not None:
            return None if named == UNLIMITED_THINKING else named
        reasoning = request.prompt.reasoning if isinstance(request.prompt, ChatPrompt) else Reasoning()
        if reasoning.enabled is False:
            return self._config.effort_tokens.get("none", 0)
        effort = reasoning.effort
        if effort is not None and effort in self._config.effort_tokens:
            return self._config.effort_tokens[effort]
        return self._config.default_tokens

    def _new_budget(self, tools: bool) -> ThinkingBudget | None:
        """Return a budget with the format's marks, without a number of tokens yet; None if there are none, or
        their ids are not certain."""
        form = self._tokenizer.answer_format
        marks = _HARMONY if form.layout is Layout.HARMONY else form.reasoning
        if marks is None or form.layout is Layout.MUSE_SPARK:
            return None
        start, end = self._ids(marks.start), self._ids(marks.end)
        if start is None or end is None:
            return None
        # A call within reasoning ends it. Without an end mark of its own the call is part of the reasoning.
        syntax = form.tools if tools and form.layout is Layout.MARKS else None
        call = (self._ids(syntax.start), self._ids(syntax.end)) if syntax and syntax.end else ((), ())
        # Marks of several tokens begin with a control token that others begin with, too.
        shared = len(start) > 1 and start[0] in self._tokenizer.special_token_ids
        blanks = [self._tokenizer.encode(text) for text in _BLANKS]
        return ThinkingBudget(
            tokens=None,
            start=start,
            end=end,
            opens=marks.opens,
            anywhere=marks.anywhere,
            call_start=(call[1] and call[0]) or (),
            call_end=(call[0] and call[1]) or (),
            blanks=tuple(ids[0] for ids in blanks if len(ids) == 1),
            held=1 if shared else len(start) - 1,
        )

    def _ids(self, mark: str) -> tuple[int, ...] | None:
        """Return a mark's ids; None if they depend on the text around it."""
        ids = tuple(self._tokenizer.encode(mark))
        spelled = b"".join(map(self._tokenizer.token_bytes, ids))
        if not ids or spelled != mark.encode() or max(ids) >= self._vocabulary:
            return None
        written = (self._tokenizer.encode(before + mark + after) for before, after in _CONTEXTS)
        size = len(ids)
        whole = all(any(tuple(one[at : at + size]) == ids for at in range(len(one))) for one in written)
        return ids if whole else None
