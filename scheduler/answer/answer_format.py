"""How a model writes reasoning and tool calls: found in its tokenizer's template, or set by the operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from scheduler.answer import harmony
from scheduler.answer.notations.catalog import (
    GENERIC,
    GENERIC_CALL,
    GENERIC_RESULT,
    HARMONY,
    MISTRAL,
    MISTRAL_LIST,
    NOTATIONS,
    sign_of,
    tool_syntax,
)
from scheduler.answer.notations.description import Elements, Layout, Notation, Unheld
from scheduler.errors import OptionError

__all__ = ["GENERIC", "GENERIC_CALL", "GENERIC_RESULT", "Layout", "answer_format", "tool_syntax"]


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The marks around reasoning. `anywhere`: they are control tokens that do not occur in text, so they
    count in the middle of a text, too. `opens`: the answer always begins inside reasoning."""

    start: str
    end: str
    anywhere: bool = False
    opens: bool = False

    @property
    def again(self) -> tuple[str, ...]:
        """Return what a model writes at the beginning of reasoning that the prompt has opened."""
        word = self.start.rpartition(">")[2]
        return (self.start, f"{word}\n") if word and self.anywhere else (self.start,)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One model's format. The default is text only."""

    reasoning: ReasoningSyntax | None = None
    tools: Notation | None = None
    layout: Layout = Layout.MARKS
    hidden_marks: tuple[str, ...] = ()
    """Marks around the answer's text."""

    @property
    def notation(self) -> Notation | None:
        return HARMONY if self.layout is Layout.HARMONY else self.tools

    @property
    def tool_calls(self) -> Literal["native", "generic", "none"]:
        """Return whose notation the calls are in: the model's own template's, or ours
        (`prompt/generic_tools.py`)."""
        if self.notation is None:
            return "none"
        return "generic" if self.notation.name == GENERIC else "native"

    @property
    def call_notation(self) -> str:
        return "none" if self.notation is None else self.notation.name

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

    def with_generic_tools(self) -> AnswerFormat:
        """Return the format of a model whose template writes no tools: what it learned is read, too."""
        generic, own = tool_syntax(GENERIC), self.tools
        learned = () if own is None else (replace(own, also=()), *own.also)
        return replace(self, tools=replace(generic, also=tuple(dict.fromkeys((*generic.also, *learned)))))

    def spelled(self, *, tools: bool) -> frozenset[str]:
        """Return the marks that are found in the text: the control tokens that are parts of them must appear
        in it. Others are dropped."""
        tokens = list(self.hidden_marks)
        if self.layout is not Layout.MARKS:
            tokens += harmony.TOKENS
        if self.reasoning is not None:
            tokens += [self.reasoning.start, self.reasoning.end]
        if tools and self.tools is not None:
            tokens += [token for one in (self.tools, *self.tools.also) for token in one.control]
        return frozenset(tokens)


PLAIN = AnswerFormat()
MODEL_DEFAULTS: dict[str, dict[str, str]] = {
    "muse_spark": {"chat_template_type": "muse_spark", "tool_parser_type": "muse_spark"}
}
"""Tokenizer defaults of mlx-lm's model classes (`models/*.py`, which need MLX), by model_type."""

_HARMONY = {"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"}
_XTML = {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}

REASONING_SYNTAXES = {
    "think": ReasoningSyntax("<think>", "</think>"),
    "deepseek_r1": ReasoningSyntax("<think>", "</think>", opens=True),
    "longcat": ReasoningSyntax("<longcat_think>", "</longcat_think>"),
    "think_colon": ReasoningSyntax("<|think:start|>", "<|think:end|>", anywhere=True),
    "gemma4": ReasoningSyntax("<|channel>thought", "<channel|>", anywhere=True),
    "kimi_k3": ReasoningSyntax("<|open|>think<|sep|>", "<|close|>think<|sep|>", anywhere=True),
    "magistral": ReasoningSyntax("[THINK]", "[/THINK]"),
    "cohere": ReasoningSyntax("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True),
    "apertus": ReasoningSyntax("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True),
    "seed": ReasoningSyntax("<seed:think>", "</seed:think>"),
    "minimax_m3": ReasoningSyntax("<mm:think>", "</mm:think>"),
    "granite": ReasoningSyntax("Here is my thought process:", "Here is my response:"),
    "apriel": ReasoningSyntax("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
}
REASONING_PARSERS = ("auto", "none", "harmony", *REASONING_SYNTAXES)
"""Values of `--reasoning-parser`."""
_TAGS = re.compile(r"</([\w:]*think(?:ing)?(?::\w+)?)>")
"""The closing tag of a template's own word for thoughts."""
_AROUND_TEXT = (
    *("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    *("<|begin_of_box|>", "<|end_of_box|>", "<answer>", "</answer>"),
    *("<|channel>", *(f"<|channel>{word}\n" for word in ("response", "content", "final", "answer"))),
)
"""What families write around an answer's text."""


TOOL_PARSERS = ("auto", "none", "harmony", *NOTATIONS)
"""Values of `--tool-parser`."""


def answer_format(
    tokenizer: Any, model_type: str, *, tool_parser: str = "auto", reasoning_parser: str = "auto"
) -> AnswerFormat:
    for option, name, known in (
        ("tool-parser", tool_parser, TOOL_PARSERS),
        ("reasoning-parser", reasoning_parser, REASONING_PARSERS),
    ):
        if name not in known:
            raise OptionError(f"--{option}: {name!r} is none of {', '.join(known)}")
    vocabulary = tokenizer.get_vocab()
    if "harmony" in (tool_parser, reasoning_parser) or (
        (tool_parser, reasoning_parser) == ("auto", "auto") and vocabulary.keys() >= _HARMONY
    ):
        return AnswerFormat(layout=Layout.HARMONY)
    program = template_type(tokenizer, model_type)
    template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else ""
    tools = _tools(tokenizer, model_type, tool_parser, program, template)
    is_muse = "muse_spark" in (program, tools and tools.name)
    return AnswerFormat(
        reasoning=_reasoning(template, vocabulary, reasoning_parser),
        tools=tools,
        layout=Layout.MUSE_SPARK if is_muse else Layout.MARKS,
        hidden_marks=_around_text(template, vocabulary),
    )


def notation_of(form: AnswerFormat, has_token: Callable[[str], bool]) -> Notation | Unheld | None:
    """Return the notation of a model's calls, as its template writes it; None if the model has none.
    `has_token`: whether a text is a special token of the model."""
    notation = form.notation
    if notation is None:
        return None
    if form.layout is Layout.MUSE_SPARK:
        return Unheld(notation.name, "names the tool both in a message header and in the call")
    if isinstance(notation.arguments, Elements):
        return Unheld(notation.name, "writes objects and arrays as elements")
    if notation is MISTRAL and not has_token("[ARGS]"):
        return MISTRAL_LIST
    return notation


def template_type(tokenizer: Any, model_type: str) -> str | None:
    defaults = MODEL_DEFAULTS.get(model_type, {})
    name = tokenizer.init_kwargs.get("chat_template_type", defaults.get("chat_template_type"))
    return None if name is None else str(name)


def _around_text(template: str, vocabulary: Mapping[str, int]) -> tuple[str, ...]:
    xtml = vocabulary.keys() >= _XTML
    # Granite 3.3; others write tools' results in such tags.
    tagged = ("<response>", "</response>") if "<response></response>" in template else ()
    return tagged + tuple(
        mark
        for mark in _AROUND_TEXT
        if mark in template
        or mark in vocabulary
        or (xtml and mark.startswith(("<|open|>", "<|close|>")))
        or (mark.startswith("<|channel>") and "<|channel>" in vocabulary)
    )


def _reasoning(template: str, vocabulary: Mapping[str, int], name: str) -> ReasoningSyntax | None:
    """Return the marks that the template writes, or else those that are in the vocabulary."""
    if name == "none":
        return None
    if name != "auto":
        return REASONING_SYNTAXES[name]
    if vocabulary.keys() >= _XTML:
        return REASONING_SYNTAXES["kimi_k3"]
    for has in (template.__contains__, vocabulary.__contains__):
        for one in REASONING_SYNTAXES.values():
            if not one.opens and has(one.end) and has(one.start.removesuffix("thought")):
                return one
    filled = template.replace("{}", ":opensource")
    if (found := _TAGS.search(filled)) is not None:
        return ReasoningSyntax(f"<{found[1]}>", f"</{found[1]}>")
    return None


def _tools(tokenizer: Any, model_type: str, name: str, program: str | None, template: str) -> Notation | None:
    if name == "auto":
        defaults = MODEL_DEFAULTS.get(model_type, {})
        given = tokenizer.init_kwargs.get("tool_parser_type", defaults.get("tool_parser_type"))
        found = "dsml" if program == "deepseek_v32" else sign_of(template)
        vocabulary = tokenizer.get_vocab()
        if vocabulary.keys() >= _XTML:
            found = found or "kimi_k3"
        elif {"<|tool_call_start|>", "<|tool_call_end|>"} <= vocabulary.keys():
            found = found or "pythonic"
        name = given or found or "none"
        if name not in TOOL_PARSERS:
            raise OptionError(f"--tool-parser: the model asks for {name!r}, which is not known")
    return None if name == "none" else tool_syntax(name)
