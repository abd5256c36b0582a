"""One grammar for a whole answer: free reasoning first, if the model reasons, then the requested structure.

The grammar covers both, so the engine need not know about reasoning, and a resumed answer is matched from its
first token. vLLM enables its mask after the end of reasoning; here a model that begins without reasoning is
constrained from its first token, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from scheduler.answer.answer_format import PLAIN, AnswerFormat, Layout, notation_of
from scheduler.answer.notations.description import Notation, Unheld
from scheduler.errors import InvalidRequest, UnsupportedParameter
from scheduler.grammar.caches import GrammarTexts, UnknownGrammar, content_key
from scheduler.grammar.call_rules import CallRules
from scheduler.grammar.part import Parts, short_complaint
from scheduler.grammar.plain_schema import plain_schema
from scheduler.grammar.rule_book import RuleBook
from scheduler.grammar.schema_forms import Inexpressible
from scheduler.grammar.vocabulary import GrammarVocabulary
from scheduler.grammar.white_space import json_options
from scheduler.request import ChatPrompt, GenerationRequest, TextPrompt, Tool, ToolChoice
from scheduler.shared.messages import MAX_GRAMMAR_BYTES
from scheduler.structure import ANY_OBJECT, JsonText

HoldCalls: TypeAlias = Literal["auto", "strict", "off"]
"""Which requests' calls are constrained to the tools' schemas where the model chooses whether to call:
"auto": all, "strict": those with a strict tool, "off": none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a grammar is written for: a request, without the text of its prompt."""

    request: GenerationRequest
    place: str
    """The request field that asks for a grammar."""
    in_reasoning: bool
    """Whether the prompt has opened reasoning."""

    @property
    def is_optional(self) -> bool:
        """Return whether the answer may also be without it."""
        return self.place == _ALL_TOOLS


@dataclass(frozen=True, slots=True)
class Written:
    """A grammar, or why there is none."""

    text: str = ""
    unheld: tuple[str, ...] = ()
    refusal: InvalidRequest | None = None

    def __len__(self) -> int:
        return sum(map(len, (self.text, *self.unheld, "" if self.refusal is None else self.refusal.message)))


class GrammarWriter:
    """Writes and checks the grammars of one model. What a client asks for may take it any time and memory, or
    end its process: a server has it in another one (`trials.py`)."""

    def __init__(
        self, answer_format: AnswerFormat, tokenizer_json: str, vocabulary: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._answer_format = answer_format
        self.vocabulary: GrammarVocabulary | None = None
        """None if the library cannot use the tokenizer."""
        with suppress(Exception):  # The library raises various exceptions for an unsupported tokenizer.
            self.vocabulary = GrammarVocabulary(tokenizer_json, vocabulary, eos_token_ids)

    def __call__(self, asked: Asked) -> Written:
        parts, text, refusal = Parts(self._complaint), "", None
        try:
            text = self._text(asked, parts)
        except InvalidRequest as error:
            # Another one: an exception keeps the frames in which it was raised.
            refusal = type(error)(error.message, param=error.param)
        except RecursionError:
            if not asked.is_optional:
                refusal = InvalidRequest(f"{asked.place}: it is nested too deeply", param=asked.place)
        return Written(text, parts.unheld, refusal)

    def _text(self, asked: Asked, parts: Parts) -> str:
        request, place = asked.request, asked.place
        prompt = request.prompt if isinstance(request.prompt, ChatPrompt) else None
        if (vocabulary := self.vocabulary) is None:
            raise UnsupportedParameter(
                f"{place}: the grammar library does not support this model's tokenizer", param=place
            )
        if prompt is not None and self._answer_format.layout is Layout.MUSE_SPARK:
            raise _unheld(place, notation_of(self._answer_format, vocabulary.has_special))
        form = PLAIN if prompt is None else self._answer_format
        draft = _Draft(form, vocabulary, parts, RuleBook(vocabulary))
        if not draft.write(request, prompt, place, asked.in_reasoning):
            return ""
        text = draft.text()
        why = parts.verdict(text) if len(text.encode()) <= MAX_GRAMMAR_BYTES else _TOO_LARGE
        if why is None:
            return text
        if asked.is_optional:
            return ""
        raise InvalidRequest(f"{place}: {why}", param=place)

    def _complaint(self, grammar: str) -> str | None:
        assert self.vocabulary is not None
        return short_complaint(self.vocabulary.complaint(grammar))


class AnswerGrammars:
    """The grammars of requests for one model, kept by what they are written for. Thread-safe."""

    def __init__(
        self, writer: Callable[[], Callable[[Asked], Written]], hold_calls: HoldCalls = "strict"
    ) -> None:
        """`writer` is called for the first request with a grammar: it may take a second."""
        self._writer = writer
        self._hold_calls = hold_calls
        self._texts = GrammarTexts[Written]()

    @cached_property
    def write(self) -> Callable[[Asked], Written]:
        return self._writer()

    def grammar(self, request: GenerationRequest, *, in_reasoning: bool, known_only: bool = False) -> str:
        """Return the grammar of the answer, or an empty string without one. `in_reasoning`: the prompt has
        opened reasoning.

        Raise InvalidRequest with the request field at fault; UnknownGrammar if it is not kept and
        `known_only` forbids to write it: up to seconds.
        """
        if (asked := _asked(request, self._hold_calls)) is None:
            return ""
        place, must = asked
        if (obstacle := _obstacle(request, place)) is not None:
            if must:
                raise obstacle
            return ""
        prompt = request.prompt if isinstance(request.prompt, ChatPrompt) else None
        key = _content_key(request, prompt, in_reasoning)
        if (written := self._texts.get(key)) is None:
            if known_only:
                raise UnknownGrammar
            bare = TextPrompt("") if prompt is None else replace(prompt, messages=())
            written = self.write(Asked(replace(request, prompt=bare), place, in_reasoning))
            self._texts.put(key, written)
        if (refused := written.refusal) is None:
            return written.text
        if isinstance(refused, UnsupportedParameter) and not must:
            return ""
        raise type(refused)(refused.message, param=refused.param)

    def unheld(self, request: GenerationRequest, *, in_reasoning: bool) -> tuple[str, ...]:
        """Return what the schema of a request with a grammar loses in it, as `field#/JSON/pointer`; nothing
        for one that is exact."""
        if not isinstance(request.structure, JsonText) or request.structure.exact:
            return ()
        prompt = request.prompt if isinstance(request.prompt, ChatPrompt) else None
        written = self._texts.get(_content_key(request, prompt, in_reasoning))
        return () if written is None else written.unheld


def _obstacle(request: GenerationRequest, place: str) -> UnsupportedParameter | None:
    """Return why no grammar can be used for this request, whatever its model, or None if one can."""
    if request.ignore_eos:
        return UnsupportedParameter(
            f"ignore_eos: nothing can follow the end of the structure of {place}", param="ignore_eos"
        )
    if isinstance(request.prompt, ChatPrompt) and request.prompt.continue_final:
        return UnsupportedParameter(f"{place}: not supported when continuing a given message", param=place)
    return None


_TOO_LARGE = f"it is larger than {MAX_GRAMMAR_BYTES} bytes"
_ALL_TOOLS = "tools"
"""The place of a grammar that only the operator asked for: if it fails, the answer has none."""


def _asked(request: GenerationRequest, hold_calls: HoldCalls) -> tuple[str, bool] | None:
    """Return the request field that needs a grammar, and whether a grammar is mandatory, or None if no field
    needs one. It is not mandatory for strict tools: many clients set `strict` by default and do not expect an
    error."""
    prompt = request.prompt if isinstance(request.prompt, ChatPrompt) else None
    if prompt is not None and prompt.tool_choice is ToolChoice.REQUIRED:
        return "tool_choice", True
    if request.structure is not None:
        return request.structure.place, True
    if prompt is None or hold_calls == "off" or not prompt.offered_tools:
        return None
    strict = next((tool.place for tool in prompt.offered_tools if tool.strict), None)
    if strict is None and hold_calls == "strict":
        return None
    return strict or _ALL_TOOLS, False


def _content_key(request: GenerationRequest, prompt: ChatPrompt | None, in_reasoning: bool) -> bytes:
    if prompt is None:
        return content_key(request.structure)
    tools = [
        (tool.name, tool.place, tool.strict, tool.parameters, tool.text) for tool in prompt.offered_tools
    ]
    choice = (prompt.tool_choice, prompt.only_tool, prompt.parallel_tool_calls)
    thinks = (in_reasoning, prompt.reasoning.enabled, prompt.template_options.get("enable_thinking"))
    return content_key(request.structure, tools, choice, thinks)


@dataclass(slots=True)
class _Draft:
    """Collects the rules of one answer."""

    form: AnswerFormat
    vocabulary: GrammarVocabulary
    parts: Parts
    book: RuleBook
    rules: list[str] = field(default_factory=list)
    inner: list[dict[str, Any]] = field(default_factory=list)
    """Nested grammars, which the rules reference as `@name`."""

    def text(self) -> str:
        rules = "\n".join(
            [*self.rules, *self.book.lines(), "TEXT: /(.|\\n)*/", "SPACE: /[ \\t\\r\\n]{0,8}/", ""]
        )
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
        must = prompt.tool_choice is ToolChoice.REQUIRED
        notation = notation_of(self.form, self.vocabulary.has_special)
        if not isinstance(notation, Notation):
            if must or body is not None:
                raise _unheld(place, notation)
            return None
        if notation.bare and not must and body is None:
            # Any text may begin as a call does.
            return None
        rules = CallRules(notation, notation.start, self.book, self.parts.complaint, self._json_arguments)
        several = prompt.parallel_tool_calls and not prompt.only_tool
        try:
            if must:
                chosen = [tool for tool in tools if prompt.only_tool in (None, tool.name)]
                return rules.calls(chosen, several=several)
            if body is not None:
                return f"({body} | {rules.calls(tools, several=several)})"
            if self.form.layout is Layout.HARMONY:
                return self._harmony_text(rules.calls(tools, several=False))
            return rules.text_with_calls(tools, several=several)
        except Inexpressible as fault:
            if must or body is not None or any(tool.strict and tool.place == fault.path[0] for tool in tools):
                exact = ".".join(fault.path)
                raise InvalidRequest(f"{exact}: {fault.why}", param=exact) from None
            return None

    def _harmony_text(self, calls: str) -> str:
        """Return the rule of messages to the user, then a call or the final message."""
        literal = self.vocabulary.literal
        ended = f"TEXT {literal('<|end|><|start|>assistant')}"
        begun = " | ".join(
            f"{literal(f'<|channel|>{channel}<|message|>')} {ended}" for channel in ("commentary", "analysis")
        )
        return f"({begun})* ({calls} | {literal('<|channel|>final<|message|>')} TEXT)"

    def _json_arguments(self, number: int, tool: Tool) -> str:
        self.inner.append({"name": f"arguments_{number}", "json_schema": self._arguments(tool)})
        return f"@arguments_{number}"

    def _arguments(self, tool: Tool) -> dict[str, Any]:
        """Return the schema of a tool's arguments: the whole schema for a strict tool; otherwise as much of
        it as the library supports, or any object."""
        schema = {**ANY_OBJECT, **tool.parameters}
        inner: dict[str, Any]
        if tool.strict:
            inner = self.parts.checked(JsonText(schema, tool.place))["json_schema"]
            return inner
        with suppress(Inexpressible):
            plain = plain_schema(schema).schema
            if plain is not False:
                loose, _ = self.parts.loosened(plain, json_options(plain))
                if loose is not None:
                    inner = loose["json_schema"]
                    return inner
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


def _unheld(place: str, notation: Notation | Unheld | None) -> UnsupportedParameter:
    why = "writes no tool calls"
    if isinstance(notation, Unheld):
        why = f"writes tool calls in {notation.name}, which {notation.why}"
    return UnsupportedParameter(f"{place}: this model {why}, so no grammar can hold them", param=place)
