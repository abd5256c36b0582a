"""Random walks through the masks of random schemas, in each notation.

A walker takes any token that it may. It likes to spell what could confuse a reader: the notation's own marks,
line breaks, quotes, words that look like other types. After a while it looks for the end. Each finished walk
is read by mlx-lm's own parser and validated against the tool's schema.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema
import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from scheduler.answer.answer_format import AnswerFormat, notation_of
from scheduler.answer.notations.description import NAME, Braced, Notation, Tagged
from scheduler.grammar.answer_grammar import HoldCalls
from scheduler.prepared import Prepared
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest, Reasoning, Tool, ToolChoice
from scheduler.shared.grammar_limits import parser_limits
from tests.fakes.byte_tokenizer import EOS, VOCABULARY
from tests.fakes.grammar_library import library_of
from tests.fakes.notation_tokenizer import NotationTokenizer
from tests.fakes.scheduling import FOLDER
from tests.scheduler.answer.notations import KIMI_K3, Message, form, pieces_of
from tests.scheduler.answer.oracle import PARSERS, can_carry, judged
from tests.scheduler.grammar.random_schemas import RandomSchemas

_LONG = 80
"""Tokens after which a walker looks for the end."""
_LONGEST = 800
_CONFUSING = (
    *("\n", "\n\n", " ", "  ", '"', "'", "\\", "<", ">", "</", "&", "&lt;"),
    *("{", "}", ",", ":", "=", "\0", "\t"),
    *("[1]", "null", "None", "123", "true", "1e5", "01", "é", "🦊", '{"a": 1}', "(1, 2)", "\x85", "\u2028"),
    *("<tool_call>", "<div>\n</div>", "]]>", "<![CDATA[", "\r\n"),
)


@dataclass(frozen=True)
class Walked:
    """`marks`: the notation's texts that are tokens of their own."""

    form: AnswerFormat
    marks: tuple[str, ...]


_KIMI_K2 = " ".join(
    f"<|tool_{part}|>"
    for part in ("calls_section_begin", "calls_section_end", "call_begin", "call_argument_begin", "call_end")
)
NOTATIONS = {
    name: Walked(KIMI_K3 if name == "kimi_k3" else form(name.split(",")[0]), tuple(marks.split()))
    for name, marks in {
        "json_tools": "<tool_call> </tool_call>",
        "qwen3_coder": "<tool_call> </tool_call>",
        "qwen3_coder, its marks mere text": "",
        "glm47": "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value>",
        "laguna, its marks mere text": "",
        "longcat": "<longcat_tool_call> </longcat_tool_call>",
        "minimax_m2": "<minimax:tool_call> </minimax:tool_call>",
        "dsml": "｜DSML｜",
        "kimi_k2": _KIMI_K2,
        "kimi_k3": "<|open|> <|close|> <|sep|>",
        "gemma4": '<|tool_call> <tool_call|> <|"|>',
        "function_gemma": "<start_function_call> <end_function_call> <escape>",
        "pythonic": "<|tool_call_start|> <|tool_call_end|>",
        "mistral": "[TOOL_CALLS] [ARGS]",
        **dict.fromkeys(
            (
                *(
                    "minicpm5",
                    "seed_oss",
                    "dsml4",
                    "dsml41",
                    "hy_v3",
                    "deepseek_v3",
                    "deepseek_v31",
                    "cohere",
                ),
                *("apertus", "granite", "hunyuan", "nemotron_nano", "internlm2", "gigachat3", "llama3_json"),
                *("olmo3", "phi4_mini"),
            ),
            "",
        ),
    }.items()
}


class Walker:
    """Walks in one notation."""

    def __init__(self, walked: Walked, hold_calls: HoldCalls = "strict") -> None:
        self.form = walked.form
        self.tokenizer = NotationTokenizer(walked.form, walked.marks)
        self.prepared_by = Preparation(self.tokenizer, FOLDER, hold_calls=hold_calls)
        described = notation_of(walked.form, lambda text: text in walked.marks)
        assert isinstance(described, Notation)
        self.notation = described
        self._closings = _closings(described)
        self._confusing = [*_CONFUSING, *self._closings, *walked.marks]

    def prepare(self, tools: Sequence[Tool], **asked: Any) -> Prepared:
        chat = ChatPrompt(
            ({"role": "user", "content": "x"},),
            tools=tuple(tools),
            reasoning=Reasoning(enabled=False),
            **{"tool_choice": ToolChoice.REQUIRED, "parallel_tool_calls": False, **asked},
        )
        return self.prepared_by.prepare(GenerationRequest("walk", chat))

    def matcher(self, prepared: Prepared) -> LLMatcher:
        vocabulary = library_of(self.prepared_by)
        return LLMatcher(vocabulary._tokenizer, prepared.submit.grammar, log_level=0, limits=parser_limits())

    def walk(self, matcher: LLMatcher, seed: int) -> list[int] | None:
        """The tokens of one walk; None if it found no end."""
        some, tokens = random.Random(seed), list[int]()
        plan: list[int] = []
        while len(tokens) < _LONGEST:
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(bits, count=VOCABULARY, bitorder="little").view(np.bool_)
            token = self._choose(some, allowed, plan, len(tokens) > _LONG)
            if token == EOS:
                return tokens
            assert matcher.consume_token(token), matcher.get_error()
            tokens.append(token)
        return None

    def _choose(self, some: random.Random, allowed: NDArray[np.bool_], plan: list[int], ending: bool) -> int:
        if plan and allowed[plan[0]]:
            return plan.pop(0)
        plan.clear()
        if allowed[EOS] and (ending or some.random() < 0.5):
            return EOS
        marks = [token for token in self.tokenizer.marks if allowed[token]]
        if marks and some.random() < (0.9 if ending else 0.3):
            return some.choice(marks)
        if some.random() < (0.95 if ending else 0.5):
            spelled = some.choice(self._closings if ending else self._confusing)
            plan += self.tokens(spelled) if some.random() < 0.7 else spelled.encode()
            if plan and allowed[plan[0]]:
                return plan.pop(0)
            plan.clear()
        ends = [byte for byte in b'"]})' if allowed[byte]]
        if ends and some.random() < (0.9 if ending else 0.3):
            return some.choice(ends)
        return int(some.choice(np.flatnonzero(allowed)))

    def tokens(self, text: str) -> list[int]:
        """With marks as tokens."""
        by_mark = {mark: token for token, mark in self.tokenizer.marks.items()}
        parts = re.split("(" + "|".join(map(re.escape, by_mark)) + ")", text) if by_mark else [text]
        return [
            token for part in parts for token in ([by_mark[part]] if part in by_mark else list(part.encode()))
        ]

    def text(self, tokens: Sequence[int]) -> str:
        written = b"".join(
            self.tokenizer.marks[token].encode()
            if token in self.tokenizer.marks
            else self.tokenizer.plain_bytes(token)
            for token in tokens
        )
        return written.decode()

    def read(self, tokens: list[int], prepared: Prepared) -> Message:
        """What a client gets."""
        (pipeline,) = prepared.pipelines()
        message = Message()
        for piece in pieces_of(pipeline, tokens):
            message.add(piece)
        assert not message.malformed, message.malformed
        return message

    def check(self, tokens: list[int], prepared: Prepared, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        """Raises if the walk is not what its schema asks for, or not read as it was written."""
        written = self.text(tokens)
        schemas = {tool.name: {"type": "object", **tool.parameters} for tool in tools}
        fits = {name: jsonschema.Draft202012Validator(schema).validate for name, schema in schemas.items()}
        read = list(self.read(tokens, prepared).calls)
        assert self.form.tools is not None
        parser = self.form.tools.name
        can_judge = parser in PARSERS and can_carry(parser, read)
        by_mlx_lm = judged(parser, written, tools) if can_judge else read
        assert read, "no call"
        assert [name for name, _ in by_mlx_lm] == [name for name, _ in read]
        for name, arguments in [*by_mlx_lm, *read]:
            fits[name](arguments)
        for tool, arguments in read:
            for name, value in arguments.items():
                # Of a parameter that its schema does not name, nobody knows whether it is text.
                if isinstance(value, str) and name in schemas[tool].get("properties", {}):
                    assert self.is_written(name, value, written), f"{value!r} is not what was written"
        return read

    def is_written(self, name: str, value: str, text: str) -> bool:
        """Whether a string stands in `text`, character for character."""
        match self.notation.arguments:
            case Tagged() as form:
                start, end = form.quoted or ("", "")
                opening = form.opening.replace(NAME, name).split("{break}")[-1]
                bare = f"{opening}{value}{form.closing}", f"{opening}{start}{value}{end}{form.closing}"
                return any(one in text for one in bare)
            case Braced(string_mark=mark):
                return f"{name}:{mark}{value}{mark}" in text
            case _:
                return True


@cache
def walker_of(notation: str, hold_calls: HoldCalls = "strict") -> Walker:
    """Return the walker that tests share: the library takes 50 ms to read its tokenizer."""
    return Walker(NOTATIONS[notation], hold_calls)


def _closings(notation: Notation) -> list[str]:
    form = notation.arguments
    own = (
        [form.closing] if isinstance(form, Tagged) else [form.string_mark] if isinstance(form, Braced) else []
    )
    return [text for text in (*own, *own, *own, notation.tail, notation.closing, '"', "}") if text]


def walks(notation: str, schemas: int, each: int, seed: int = 0) -> Iterator[str | None]:
    """The texts of checked walks; None for one that found no end."""
    walker = walker_of(notation)
    nests = not isinstance(walker.notation.arguments, Braced) or walker.notation.arguments.nests
    for number in range(seed, seed + schemas):
        tools = RandomSchemas(number, nests=nests).tools()
        prepared = walker.prepare(tools)
        compiled = walker.matcher(prepared)
        assert not compiled.is_error(), compiled.get_error()
        for step in range(each):
            tokens = walker.walk(compiled.deep_copy(), number * each + step)
            text = None if tokens is None else walker.text(tokens)
            try:
                if tokens is not None:
                    walker.check(tokens, prepared, tools)
            except Exception as error:
                schemas_text = json.dumps([tool.parameters for tool in tools])
                raise AssertionError(
                    f"{notation}, schema {number}, walk {step}: {error}\n{text!r}\n{schemas_text}"
                ) from error
            yield text
