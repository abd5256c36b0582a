"""Raw answers of models in each notation, and the message that each means."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from scheduler.answer.answer_format import (
    REASONING_SYNTAXES,
    AnswerFormat,
    Layout,
    ReasoningSyntax,
    tool_syntax,
)
from scheduler.answer.assembly import Assembly
from scheduler.answer.detokenizer import ByteTable, Detokenizer
from scheduler.answer.pipeline import AnswerPipeline
from scheduler.answer.text_stream import Heavy
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.events import (
    AnswerPiece,
    FinishReason,
    MalformedCall,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallStarted,
)
from scheduler.request import Tool
from scheduler.shared.messages import LogprobsOut
from tests.scheduler.answer.templates import FAMILIES, Template

WEATHER = Tool(
    "get_weather",
    "The weather at a place",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
)
TIME = Tool("get_time", "The time", {"type": "object", "properties": {"zone": {"type": "string"}}})
TOOLS = (WEATHER, TIME)

PARIS: dict[str, Any] = {"city": 'Paris, "FR" é🦊', "days": 3}
ZONE: dict[str, Any] = {"zone": "UTC"}
WEATHER_CALL = ("get_weather", PARIS)
TIME_CALL = ("get_time", ZONE)


def form(tools: str | None, reasoning: str | None = None) -> AnswerFormat:
    return AnswerFormat(
        reasoning=None if reasoning is None else REASONING_SYNTAXES[reasoning],
        tools=None if tools is None else tool_syntax(tools),
    )


MUSE = AnswerFormat(
    tools=tool_syntax("muse_spark"),
    layout=Layout.MUSE_SPARK,
)
KIMI_K3 = AnswerFormat(
    reasoning=REASONING_SYNTAXES["kimi_k3"],
    tools=tool_syntax("kimi_k3"),
    hidden_marks=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
)
HARMONY = AnswerFormat(layout=Layout.HARMONY)


@dataclass(frozen=True)
class Written:
    """`raw` is the model's text, up to its end of turn; the rest is what a client must get. `malformed`: how
    many calls cannot be read."""

    name: str
    form: AnswerFormat
    raw: str
    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    in_reasoning: bool = False
    malformed: int = 0
    tools: tuple[Tool, ...] = TOOLS

    def __str__(self) -> str:
        return f"{self.name}: {self.raw[:40]!r}"


def _of(template: Template) -> AnswerFormat:
    if template.parser in ("harmony", "kimi_k3"):
        return HARMONY if template.parser == "harmony" else KIMI_K3
    start, end = map(str.strip, template.thoughts or ("", ""))
    known = (one for one in REASONING_SYNTAXES.values() if one.start == start and not one.opens)
    reasoning = next(known, ReasoningSyntax(start, end)) if start else None
    hidden = tuple(mark for mark in template.text if mark)
    return AnswerFormat(reasoning, tool_syntax(template.parser), hidden_marks=hidden)


def _written(family: str, template: Template) -> Written:
    """Thoughts, text and two calls, as the family's template has them."""
    calls = (WEATHER_CALL, TIME_CALL) if template.parallel else (WEATHER_CALL,)
    thoughts = "Let me see." if template.thoughts else ""
    raw = template.render(calls, content="I look.", reasoning_content=thoughts)
    return Written(family, _of(template), raw, "I look.", thoughts, calls)


WRITTEN = (
    *(_written(family, template) for family, template in FAMILIES.items()),
    Written("plain", form(None), " some <text> \n", text=" some <text> \n"),
    Written(
        "a-tag-in-a-text-is-text",
        form("json_tools", "think"),
        "Use <think> and </think> or <tool_cal> so.",
        text="Use <think> and </think> or <tool_cal> so.",
    ),
    Written(
        "laguna",
        form("laguna"),
        "<tool_call>get_time<arg_key>zone</arg_key><arg_value>UTC</arg_value></tool_call>",
        calls=(TIME_CALL,),
    ),
    Written(
        "muse_spark",
        MUSE,
        "to=self<|message|>why<|eom|><|start|>assistant to=get_time<|message|><atem:function_calls>"
        '<atem:invoke name="get_time"><atem:parameter name="zone">"UTC"</atem:parameter></atem:invoke>'
        "</atem:function_calls><|eom|><|start|>assistant to=user<|message|>ok<|eot|>",
        text="ok",
        reasoning="why",
        calls=(TIME_CALL,),
    ),
    Written(
        "harmony-several",
        HARMONY,
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get_time<|channel|>"
        'commentary <|constrain|>json<|message|>{"zone":"UTC"}<|call|><|start|>assistant<|channel|>final'
        "<|message|> Done.",
        text="I look. Done.",
        calls=(TIME_CALL,),
    ),
)


@dataclass
class Message:
    """The message that a client assembles from the pieces."""

    text: str = ""
    reasoning: str = ""
    malformed: list[MalformedCall] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def add(self, piece: AnswerPiece | Heavy) -> None:
        match piece:
            case Heavy():
                pass
            case TextDelta(text=text):
                self.text += text
            case ReasoningDelta(text=text):
                self.reasoning += text
            case ToolCallStarted(index=index, call_id=call_id, name=name):
                assert index == len(self.names)
                self.names.append(name)
                self.ids.append(call_id)
                self.arguments.append("")
            case ToolCallArguments(index=index, text=text):
                assert index == len(self.names) - 1, "a piece of a call that is over"
                self.arguments[index] += text
            case MalformedCall(index=index, rest=rest):
                self.malformed.append(piece)
                if index is not None:
                    assert index == len(self.names) - 1, "a failure of a call that is over"
                    self.arguments[index] += rest

    @property
    def calls(self) -> tuple[tuple[str, Any], ...]:
        return tuple((name, json.loads(text)) for name, text in zip(self.names, self.arguments, strict=True))


class Chunks(Detokenizer):
    """A detokenizer whose tokens are any pieces of bytes."""

    def __init__(self) -> None:
        super().__init__(ByteTable(lambda token_id: None))
        self.chunk = b""

    def feed(self, token_id: int) -> str:
        return self._decoder.decode(self.chunk)


def fed(answer: AnswerPipeline, chunk: bytes) -> Iterator[AnswerPiece | Heavy]:
    """What comes of a chunk as one token."""
    assert isinstance(answer._detokenizer, Chunks)
    answer._detokenizer.chunk = chunk
    return answer.read(0)


def pipeline(
    form: AnswerFormat,
    *,
    in_reasoning: bool = False,
    stop: Sequence[str] = (),
    parallel: bool = True,
    tools: Sequence[Tool] = TOOLS,
    min_tokens: int = 0,
) -> AnswerPipeline:
    assembly = Assembly(
        form,
        OfferedTools(tools),
        lambda index: f"call_{index}",
        in_reasoning=in_reasoning,
        parallel_calls=parallel,
    )
    return AnswerPipeline(Chunks(), stop, assembly, min_tokens=min_tokens)


def message_of(
    answer: AnswerPipeline, chunks: Iterable[bytes], end: FinishReason = FinishReason.STOP
) -> tuple[Message, FinishReason]:
    """Feed tokens as the multiplexer does, until the pipeline stops, then finish it."""
    message = Message()
    for chunk in chunks:
        for piece in fed(answer, chunk):
            message.add(piece)
        if answer.stopped:
            end = FinishReason.STOP
            break
    for piece in answer.end(end):
        message.add(piece)
    return message, answer.finish_reason(end)


def pieces_of(
    answer: AnswerPipeline,
    token_ids: Sequence[int],
    logprobs: Sequence[LogprobsOut] = (),
    end: FinishReason = FinishReason.STOP,
) -> list[AnswerPiece | Heavy]:
    """All that comes of an answer's tokens and of its end."""
    pieces: list[AnswerPiece | Heavy] = []
    for token_id, entry in zip_longest(token_ids, logprobs):
        if not answer.stopped:
            pieces += answer.read(token_id, entry)
    return [*pieces, *answer.end(end)]
