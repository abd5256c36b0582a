"""How a model writes reasoning and tool calls: inferred from its tokenizer, or set by the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Literal

from scheduler.answer import dsml, harmony, mlx_lm_parts
from scheduler.answer.harmony import HarmonySplitter
from scheduler.answer.splitter import (
    CALL,
    CALL_IN_REASONING,
    HIDDEN,
    REASONING,
    TEXT,
    Edge,
    MarkSplitter,
    Section,
    Splitter,
)
from scheduler.errors import OptionError


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The marks around reasoning. `anywhere`: they are control tokens that do not occur in text, so they
    count in the middle of a text, too. `opens`: the answer always begins inside reasoning."""

    start: str
    end: str
    anywhere: bool = False
    opens: bool = False


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """The marks around tool calls, and mlx-lm's parser of the text between them.

    `tokens`: control tokens that the parser needs in the text. `call_mark` occurs once in every call.
    `streams`: the inside is `{"name": ..., "arguments": {...}}`, which can be parsed as it is written.
    """

    name: str
    start: str
    end: str
    parse: Callable[[str, list[dict[str, Any]] | None], Any]
    tokens: tuple[str, ...] = ()
    call_mark: str = ""
    streams: bool = False
    string_mark: str = ""
    """The mark around strings, in syntaxes with braces. Braces outside strings must match: otherwise mlx-lm's
    parser takes quadratic time, and every stream waits for it."""
    guesses: bool = False
    """Its parser returns text that it cannot parse as an argument called `raw`."""
    short_ids: bool = False
    """Mistral's templates accept only ids of nine letters and digits."""
    result_mark: str = ""
    """The start of a tool's result. A model that does not stop after its calls continues with this: the
    answer ends before it."""


class Layout(Enum):
    """What decides where sections begin."""

    MARKS = auto()
    MUSE_SPARK = auto()
    HARMONY = auto()


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One model's format. The default is text only."""

    reasoning: ReasoningSyntax | None = None
    tools: ToolSyntax | None = None
    layout: Layout = Layout.MARKS
    hidden_marks: tuple[str, ...] = ()
    transitions: Mapping[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Transitions as in mlx-lm's RESPONSE_FORMAT."""

    @property
    def has_tool_calls(self) -> bool:
        return self.tools is not None or self.layout is Layout.HARMONY

    @property
    def tool_calls(self) -> Literal["native", "generic", "none"]:
        """Return whose notation the calls are in: the model's own template's, or ours
        (`prompt/generic_tools.py`)."""
        if not self.has_tool_calls:
            return "none"
        return "generic" if self.tools is not None and self.tools.name == GENERIC else "native"

    @property
    def call_notation(self) -> str:
        """Return the name for metrics."""
        return "harmony" if self.tools is None else self.tools.name

    @property
    def reasoning_notation(self) -> str:
        """Return the name that `--reasoning-parser` gives it, for an operator; `none` where the model writes
        no reasoning."""
        if self.layout is not Layout.MARKS:
            return self.layout.name.lower()
        if self.reasoning is None:
            return "none"
        known = (name for name, syntax in REASONING_SYNTAXES.items() if syntax == self.reasoning)
        return next(known, self.reasoning.start)

    def without_tools(self) -> AnswerFormat:
        return replace(self, tools=None)

    def spelled(self, *, tools: bool) -> frozenset[str]:
        """Return the control tokens that must appear in the text so that the marks are found. Others are
        dropped."""
        tokens = list(self.hidden_marks)
        if self.layout is Layout.HARMONY:
            tokens += harmony.TOKENS
        if self.layout is Layout.MUSE_SPARK:
            tokens += ["<|message|>", "<|eom|>", "<|eot|>", "<|start|>"]
        if self.reasoning is not None:
            tokens += [self.reasoning.start, self.reasoning.end, *_REASONING_TOKENS]
        if tools and self.tools is not None:
            tokens += [self.tools.start, self.tools.end, *self.tools.tokens]
        return frozenset(tokens)

    def splitter(self, *, tools: bool, in_reasoning: bool) -> Splitter:
        """Return the splitter of one answer. `tools`: whether any were offered. `in_reasoning`: the prompt
        opened it."""
        if self.layout is Layout.HARMONY:
            return HarmonySplitter(calls=tools)
        edges = self._edges(tools)
        if self.layout is Layout.MUSE_SPARK:
            return MarkSplitter(edges, HIDDEN)
        opens = self.reasoning is not None and (in_reasoning or self.reasoning.opens)
        return MarkSplitter(edges, REASONING if opens else TEXT)

    def _edges(self, tools: bool) -> dict[Section, list[Edge]]:
        edges: dict[Section, list[Edge]] = {
            section: [] for section in (TEXT, REASONING, CALL, CALL_IN_REASONING, HIDDEN)
        }
        if (reasoning := self.reasoning) is not None:
            edges[TEXT].append(Edge(reasoning.start, REASONING, only_first=not reasoning.anywhere))
            edges[REASONING] += [
                Edge(reasoning.end, TEXT),
                # The prompt opened it already, and the model repeats the mark.
                Edge(reasoning.start, REASONING, only_first=True),
            ]
            edges[CALL_IN_REASONING].append(Edge(reasoning.end, TEXT))
        if tools and self.tools is not None:
            self._add_tool_edges(edges, self.tools)
        edges[TEXT] += [Edge(mark, TEXT) for mark in self.hidden_marks]
        for source, pairs in self.transitions.items():
            edges[_SECTIONS[source]] += [
                Edge(mark, _SECTIONS[target])
                for mark, target in pairs
                if tools or _SECTIONS[target] is not CALL
            ]
        return edges

    def _add_tool_edges(self, edges: dict[Section, list[Edge]], syntax: ToolSyntax) -> None:
        if syntax.result_mark:
            edges[TEXT].append(Edge(syntax.result_mark, HIDDEN))
        if self.layout is Layout.MARKS:
            edges[TEXT].append(Edge(syntax.start, CALL))
        edges[REASONING].append(Edge(syntax.start, CALL_IN_REASONING))
        if syntax.end:
            after = HIDDEN if self.layout is Layout.MUSE_SPARK else TEXT
            edges[CALL].append(Edge(syntax.end, after))
            edges[CALL_IN_REASONING].append(Edge(syntax.end, after))
        else:
            # Only the next call's start mark ends a call.
            edges[CALL].append(Edge(syntax.start, CALL))


PLAIN = AnswerFormat()

GENERIC = "generic"
"""The name of the notation of models whose template has no tools."""
GENERIC_CALL = ("<tool_call>", "</tool_call>")
GENERIC_RESULT = "<tool_response>"

_SECTIONS = {"header": HIDDEN, "reasoning": REASONING, "normal": TEXT, "tool": CALL}
"""Sections by mlx-lm's names of states."""

_REASONING_TOKENS = ("<|channel>", "<channel|>", "<|open|>", "<|close|>", "<|sep|>")
"""Control tokens in reasoning marks of more than one token."""

_K2_CALL = "<|tool_call_begin|>"
_TOOL_TRAITS: dict[str, dict[str, Any]] = {
    "json_tools": {"streams": True},
    "glm47": {"guesses": True},
    "laguna": {"guesses": True},
    "gemma4": {"tokens": ('<|"|>',), "string_mark": '<|"|>'},
    "function_gemma": {"tokens": ("<escape>",), "string_mark": "<escape>"},
    "kimi_k2": {
        "tokens": (_K2_CALL, "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        "call_mark": _K2_CALL,
    },
    "kimi_k3": {"tokens": ("<|open|>", "<|close|>", "<|sep|>"), "call_mark": "<|open|>call"},
    "mistral": {"tokens": ("[ARGS]",), "short_ids": True},
}

REASONING_SYNTAXES = {
    "think": ReasoningSyntax("<think>", "</think>"),
    "deepseek_r1": ReasoningSyntax("<think>", "</think>", opens=True),
    "longcat": ReasoningSyntax("<longcat_think>", "</longcat_think>"),
    "think_colon": ReasoningSyntax("<|think:start|>", "<|think:end|>", anywhere=True),
    "gemma4": ReasoningSyntax("<|channel>thought", "<channel|>", anywhere=True),
    "kimi_k3": ReasoningSyntax("<|open|>think<|sep|>", "<|close|>think<|sep|>", anywhere=True),
    "magistral": ReasoningSyntax("[THINK]", "[/THINK]"),
}
REASONING_PARSERS = ("auto", "none", "harmony", *REASONING_SYNTAXES)
"""Values of `--reasoning-parser`."""


def tool_parsers() -> tuple[str, ...]:
    """Return values of `--tool-parser`."""
    return ("auto", "none", "harmony", GENERIC, "dsml", *mlx_lm_parts.tool_parser_names())


def tool_syntax(name: str) -> ToolSyntax:
    if name == GENERIC:
        json_tools = mlx_lm_parts.tool_parser("json_tools")
        return ToolSyntax(
            GENERIC, *GENERIC_CALL, json_tools.parse_tool_call, streams=True, result_mark=GENERIC_RESULT
        )
    module = dsml if name == "dsml" else mlx_lm_parts.tool_parser(name)
    start, end = module.tool_call_start, module.tool_call_end
    return ToolSyntax(name, start, end, module.parse_tool_call, **_TOOL_TRAITS.get(name, {}))


def answer_format(
    tokenizer: Any, model_type: str, *, tool_parser: str = "auto", reasoning_parser: str = "auto"
) -> AnswerFormat:
    """Return the format of a transformers tokenizer's model. Raise OptionError for unknown names."""
    _check("tool-parser", tool_parser, tool_parsers())
    _check("reasoning-parser", reasoning_parser, REASONING_PARSERS)
    if "harmony" in (tool_parser, reasoning_parser) or (
        (tool_parser, reasoning_parser) == ("auto", "auto") and _writes_harmony(tokenizer)
    ):
        return AnswerFormat(layout=Layout.HARMONY)
    template = template_type(tokenizer, model_type)
    response_format = _response_format(template)
    return AnswerFormat(
        reasoning=_reasoning(tokenizer, reasoning_parser),
        tools=_tools(tokenizer, model_type, tool_parser, template),
        layout=Layout.MUSE_SPARK if response_format else Layout.MARKS,
        hidden_marks=mlx_lm_parts.inferred_structural_markers(tokenizer),
        transitions=response_format,
    )


def template_type(tokenizer: Any, model_type: str) -> str | None:
    """Return the name of mlx-lm's template program, if the model's folder asks for one."""
    defaults = mlx_lm_parts.MODEL_DEFAULTS.get(model_type, {})
    name = tokenizer.init_kwargs.get("chat_template_type", defaults.get("chat_template_type"))
    return None if name is None else str(name)


def _check(option: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise OptionError(f"--{option}: {name!r} is none of {', '.join(known)}")


def _writes_harmony(tokenizer: Any) -> bool:
    vocabulary = tokenizer.get_vocab()
    return all(token in vocabulary for token in ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"))


def _response_format(template: str | None) -> Mapping[str, list[tuple[str, str]]]:
    if template is None:
        return {}
    module = mlx_lm_parts.chat_template(template)
    transitions: dict[str, list[tuple[str, str]]] = getattr(module, "RESPONSE_FORMAT", {}).get(
        "transitions", {}
    )
    return transitions


def _reasoning(tokenizer: Any, name: str) -> ReasoningSyntax | None:
    if name == "none":
        return None
    if name != "auto":
        return REASONING_SYNTAXES[name]
    marks = mlx_lm_parts.inferred_thinking(tokenizer)
    if marks is None:
        vocabulary = tokenizer.get_vocab()
        return REASONING_SYNTAXES["magistral"] if "[THINK]" in vocabulary else None
    known = (syntax for syntax in REASONING_SYNTAXES.values() if (syntax.start, syntax.end) == marks)
    return next(known, ReasoningSyntax(*marks))


def _tools(tokenizer: Any, model_type: str, name: str, template: str | None) -> ToolSyntax | None:
    if name == "auto":
        defaults = mlx_lm_parts.MODEL_DEFAULTS.get(model_type, {})
        given = tokenizer.init_kwargs.get("tool_parser_type", defaults.get("tool_parser_type"))
        inferred = "dsml" if template == "deepseek_v32" else mlx_lm_parts.inferred_tool_parser(tokenizer)
        name = given or inferred or "none"
        if name not in tool_parsers():
            raise OptionError(f"--tool-parser: the model asks for {name!r}, which mlx-lm does not have")
    return None if name == "none" else tool_syntax(name)
