"""One grammar for a whole answer: free reasoning first, if the model reasons, then the requested structure.

The grammar covers both, so the engine need not know about reasoning, and a resumed answer is matched from its
first token. vLLM enables its mask after the end of reasoning; here a model that begins without reasoning is
constrained from its first token, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import Any, Protocol

from scheduler.answer.answer_format import PLAIN, AnswerFormat, Layout
from scheduler.errors import InvalidRequest, UnsupportedParameter
from scheduler.grammar.call_syntax import NUMBER, CallSyntax, call_syntax
from scheduler.grammar.part import Parts, short_complaint
from scheduler.grammar.verdicts import UnknownVerdict, Verdicts
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.grammar.white_space import json_options
from scheduler.link.messages import MAX_GRAMMAR_BYTES
from scheduler.request import ChatPrompt, GenerationRequest, Tool, ToolChoice
from scheduler.structure import ANY_OBJECT, JsonText

MAX_CALLS = 16
"""The bound in one answer: otherwise a weak model that must call a tool would call until max_tokens."""


class GrammarTokenizer(Protocol):
    """The part of the tokenizer that grammars need."""

    @property
    def answer_format(self) -> AnswerFormat: ...
    def to_json(self) -> str: ...


class AnswerGrammars:
    """Builds and checks the grammars of requests for one model. Thread-safe."""

    def __init__(self, tokenizer: GrammarTokenizer, vocabulary: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._size = vocabulary
        self._eos_token_ids = eos_token_ids
        self._verdicts = Verdicts(self._complaint)
        self._is_loaded = Event()

    @cached_property
    def _vocabulary(self) -> GrammarVocabulary | None:
        """Built for the first request with a grammar; None if the library cannot use the tokenizer."""
        try:
            return GrammarVocabulary(self._tokenizer.to_json(), self._size, self._eos_token_ids)
        except Exception:  # The library raises various exceptions for an unsupported tokenizer.
            return None

    def _complaint(self, grammar: str) -> str | None:
        assert self._vocabulary is not None
        return short_complaint(self._vocabulary.complaint(grammar))

    def grammar(self, request: GenerationRequest, *, in_reasoning: bool, known_only: bool = False) -> str:
        """The grammar of the answer; empty: none. `in_reasoning`: the prompt has opened reasoning.

        Raises InvalidRequest with the request field at fault; UnknownVerdict if a grammar must be compiled to
        check it and `known_only` forbids that.
        """
        if (asked := _asked(request)) is None:
            return ""
        if known_only and not self._is_loaded.is_set():
            raise UnknownVerdict
        parts = Parts(self._verdicts.known if known_only else self._verdicts.of)
        place, must = asked
        obstacle = self._obstacle(request, place)
        self._is_loaded.set()
        if obstacle is not None:
            if must:
                raise obstacle
            return ""
        assert self._vocabulary is not None
        prompt = request.prompt if isinstance(request.prompt, ChatPrompt) else None
        form = PLAIN if prompt is None else self._tokenizer.answer_format
        draft = _Draft(form, self._vocabulary, parts)
        if not draft.write(request, prompt, place, in_reasoning):
            return ""
        text = draft.text()
        if len(text.encode()) > MAX_GRAMMAR_BYTES:
            raise InvalidRequest(f"{place}: it is larger than {MAX_GRAMMAR_BYTES} bytes", param=place)
        if (complaint := parts.verdict(text)) is not None:
            raise InvalidRequest(f"{place}: {complaint}", param=place)
        return text

    def _obstacle(self, request: GenerationRequest, place: str) -> UnsupportedParameter | None:
        """Return why no grammar can be used for this request; None: one can."""
        if self._vocabulary is None:
            return UnsupportedParameter(
                f"{place}: the grammar library does not support this model's tokenizer", param=place
            )
        if request.ignore_eos:
            return UnsupportedParameter(
                f"ignore_eos: nothing can follow the end of the structure of {place}", param="ignore_eos"
            )
        if not isinstance(request.prompt, ChatPrompt):
            return None
        if request.prompt.continue_final:
            return UnsupportedParameter(
                f"{place}: not supported when continuing a given message", param=place
            )
        if self._tokenizer.answer_format.layout is Layout.MUSE_SPARK:
            return UnsupportedParameter(
                f"{place}: no grammar is available for this model's answer format", param=place
            )
        return None


def _asked(request: GenerationRequest) -> tuple[str, bool] | None:
    """Return the request field that needs a grammar, and whether a grammar is mandatory. It is not for strict
    tools: many clients set `strict` by default and do not expect an error."""
    if isinstance(request.prompt, ChatPrompt) and request.prompt.tool_choice is ToolChoice.REQUIRED:
        return "tool_choice", True
    if request.structure is not None:
        return request.structure.place, True
    if isinstance(request.prompt, ChatPrompt):
        return next(((tool.place, False) for tool in request.prompt.offered_tools if tool.strict), None)
    return None


@dataclass(slots=True)
class _Draft:
    """Collects the rules of one answer."""

    form: AnswerFormat
    vocabulary: GrammarVocabulary
    parts: Parts
    rules: list[str] = field(default_factory=list)
    inner: list[dict[str, Any]] = field(default_factory=list)
    """Nested grammars, which the rules reference as `@name`."""

    def text(self) -> str:
        rules = "\n".join([*self.rules, "TEXT: /(.|\\n)*/", "SPACE: /[ \\t\\r\\n]{0,8}/", ""])
        return json.dumps(
            {"grammars": [{"name": "answer", "lark_grammar": rules}, *self.inner]}, ensure_ascii=False
        )

    def write(
        self, request: GenerationRequest, prompt: ChatPrompt | None, place: str, in_reasoning: bool
    ) -> bool:
        """Write the rules. Return whether the answer is constrained at all."""
        body = None
        if request.structure is not None:
            self.inner.append({"name": "body", **self.parts.checked(request.structure)})
            body = "@body"
            if self.form.layout is Layout.HARMONY:
                body = f"{self.vocabulary.literal('<|channel|>final<|message|>')} @body"
        if prompt is None:
            self.rules.append(f"start: {body}")
            return True
        answer = self._answer(prompt, body, place)
        if answer is None:
            return False
        self.rules.append(f"start: {self._reasoning(prompt, in_reasoning)} {answer}")
        return True

    def _answer(self, prompt: ChatPrompt, body: str | None, place: str) -> str | None:
        tools = prompt.offered_tools
        if not tools:
            return body
        syntax = call_syntax(self.form, self.vocabulary.has_special)
        if prompt.tool_choice is ToolChoice.REQUIRED:
            chosen = [tool for tool in tools if prompt.only_tool in (None, tool.name)]
            if syntax is None:
                raise _not_json(place)
            return self._calls(syntax, chosen, several=prompt.parallel_tool_calls and not prompt.only_tool)
        if body is not None:
            if syntax is None:
                raise _not_json(place)
            return f"({body} | {self._calls(syntax, tools, several=prompt.parallel_tool_calls)})"
        if syntax is None or not self.vocabulary.begins_special(syntax.start) or not syntax.parallel:
            return None
        calls = self._calls(syntax, tools, several=prompt.parallel_tool_calls)
        # Text with calls in between: a call's first token cannot occur in text.
        return f"TEXT? ({calls} TEXT?)*"

    def _calls(self, syntax: CallSyntax, tools: Sequence[Tool], *, several: bool) -> str:
        literal = self.vocabulary.literal
        for number, tool in enumerate(tools):
            before, numbered, after = syntax.head(tool.name).partition(NUMBER)
            head = f"{literal(before)} NUMBER {literal(after)}" if numbered else literal(before)
            self.rules.append(f"call_{number}: {head} @arguments_{number} {literal(syntax.tail)}")
            self.inner.append({"name": f"arguments_{number}", "json_schema": self._arguments(tool)})
            if numbered and number == 0:
                self.rules.append("NUMBER: /[0-9]{1,2}/")
        self.rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        more = ""
        if several and syntax.parallel:
            more = f"({literal(syntax.separator)} call){{0,{MAX_CALLS - 1}}}"
        self.rules.append(f"calls: {literal(syntax.opening)} call {more} {literal(syntax.closing)}")
        return "calls"

    def _arguments(self, tool: Tool) -> dict[str, Any]:
        """Return the schema of a tool's arguments: the whole schema for a strict tool; otherwise as much of
        it as the library supports, or any object."""
        schema = {**ANY_OBJECT, **tool.parameters}
        if tool.strict:
            inner: dict[str, Any] = self.parts.checked(JsonText(schema, tool.place))["json_schema"]
            return inner
        lenient = {**schema, "x-guidance": {**json_options(schema), "lenient": True}}
        if self.parts.complaint({"json_schema": lenient}) is None:
            return lenient
        return {**ANY_OBJECT, "x-guidance": json_options(ANY_OBJECT)}

    def _reasoning(self, prompt: ChatPrompt, in_reasoning: bool) -> str:
        literal = self.vocabulary.literal
        if self.form.layout is Layout.HARMONY:
            start, end = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
            self.rules.append(f"reasoning: {literal(start)} TEXT {literal(end)}")
            return "reasoning?"
        if (syntax := self.form.reasoning) is None:
            return ""
        if self.vocabulary.begins_special(syntax.end):
            self.rules.append(f"thoughts: TEXT {literal(syntax.end)} SPACE")
        else:
            # Lazy: the first occurrence of the mark is the end.
            self.rules += [f"until_end[lazy]: TEXT {literal(syntax.end)}", "thoughts: until_end SPACE"]
        if in_reasoning or syntax.opens:
            return "thoughts"
        if prompt.reasoning.enabled is False or prompt.template_options.get("enable_thinking") is False:
            return ""
        self.rules.append(f"reasoning: {literal(syntax.start)} thoughts")
        return "reasoning?"


def _not_json(place: str) -> UnsupportedParameter:
    return UnsupportedParameter(
        f"{place}: this model does not write tool calls as JSON, so a grammar cannot constrain them",
        param=place,
    )
