"""Everything that a grammar allows satisfies the request, in each notation: tested by random walks over
tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from scheduler.answer.answer_format import PLAIN
from scheduler.engine.grammars.constraint import Constraint, allowed_tokens
from scheduler.engine.grammars.grammars import Grammars, grammar_tokenizer
from scheduler.errors import InvalidRequest, UnsupportedParameter
from scheduler.events import TextDelta
from scheduler.grammar.caches import GrammarTexts, content_key
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Reasoning, TextPrompt, Tool, ToolChoice
from scheduler.shared.messages import MAX_GRAMMAR_BYTES
from scheduler.structure import JsonText, OneOf, Pattern, Rules, Structure
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.notation_tokenizer import NotationTokenizer
from tests.fakes.scheduling import FOLDER
from tests.fakes.served_tokenizers import KINDS, tokenizer_of
from tests.scheduler.answer.notations import HARMONY, MUSE, Message, form, pieces_of
from tests.scheduler.grammar.walks import NOTATIONS as WALKED
from tests.scheduler.grammar.walks import Walked, Walker

WEATHER = Tool(
    "get_weather",
    parameters={
        "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    strict=True,
    place="tools.0.parameters",
)
TIME = Tool("get-time", parameters={"additionalProperties": False}, place="tools.1.parameters")
SCHEMAS = {tool.name: {"type": "object", **tool.parameters} for tool in (WEATHER, TIME)}
_HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>")
_THINK = ("<think>", "</think>")
NOTATIONS = {
    "hermes": Walked(form("json_tools", "think"), ("<tool_call>", "</tool_call>", *_THINK)),
    "hermes, its marks mere text": Walked(form("json_tools", "think"), ()),
    "mistral": Walked(form("mistral", "magistral"), ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")),
    "mistral, as a list": Walked(form("mistral"), ("[TOOL_CALLS]",)),
    "kimi": Walked(form("kimi_k2", "think"), (*WALKED["kimi_k2"].marks, *_THINK)),
    "harmony": Walked(HARMONY, _HARMONY),
}
walker = cache(lambda notation: Walker(NOTATIONS[notation]))


def preparation(notation: str) -> Preparation:
    by: Walker = walker(notation)
    return by.prepared_by


def request(structure: Structure | None = None, **prompt: Any) -> GenerationRequest:
    chat = ChatPrompt(({"role": "user", "content": "x"},), **prompt)
    return GenerationRequest("test", chat, structure=structure)


def walks(by: Walker, asked: GenerationRequest, seeds: Iterable[int]) -> list[Message]:
    """The answers of a model that takes any token that it may, where they end."""
    if not by.tokenizer.marks and isinstance(asked.prompt, ChatPrompt):
        # At random nobody spells the end of reasoning in letters.
        asked = replace(asked, prompt=replace(asked.prompt, reasoning=Reasoning(enabled=False)))
    prepared = by.prepared_by.prepare(asked)
    walked = (by.walk(by.matcher(prepared), seed) for seed in seeds)
    return [by.read(tokens, prepared) for tokens in walked if tokens is not None]


@pytest.mark.parametrize("notation", NOTATIONS)
def test_required_calls_are_read_back_as_calls(notation: str) -> None:
    """They are calls of any tool, with arguments of its schema, and no words; reasoning before them is
    allowed."""
    required = request(tools=(WEATHER, TIME), tool_choice=ToolChoice.REQUIRED)
    walked = walks(walker(notation), required, range(12))
    for message in walked:
        assert message.calls
        assert not message.text
        for name, arguments in message.calls:
            jsonschema.validate(arguments, SCHEMAS[name])
    assert {name for message in walked for name in message.names} == set(SCHEMAS)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_text_is_held_and_reasoning_is_not(notation: str) -> None:
    """Thoughts come first or not at all; then a choice, in the section that is the client's."""
    walked = walks(walker(notation), request(OneOf(("left", "right"), "x")), range(12))
    assert {message.text for message in walked} == {"left", "right"}
    if notation not in ("mistral, as a list", "hermes, its marks mere text"):
        assert any(message.reasoning for message in walked)


def test_what_asks_for_nothing_has_no_grammar() -> None:
    """A strict tool asks for its calls to be held, in every notation that can be; else it is read as ever."""
    assert preparation("hermes").prepare(request()).submit.grammar == ""
    assert preparation("hermes").prepare(request(tools=(TIME,))).submit.grammar == ""
    assert preparation("hermes").prepare(request(tools=(WEATHER,))).submit.grammar != ""
    other = Preparation(NotationTokenizer(form("qwen3_coder"), ()), FOLDER)
    assert other.prepare(request(tools=(WEATHER,))).submit.grammar != ""
    unheld = Preparation(NotationTokenizer(MUSE, ()), FOLDER, hold_calls="auto")
    assert unheld.prepare(request(tools=(WEATHER,))).submit.grammar == ""


def test_a_loose_schema_that_cannot_be_used_is_some_object() -> None:
    """Its tool is not strict, so nobody promised more; the call must come all the same."""
    loose = Tool("get-time", parameters={"properties": {"a": {"type": "strin"}}}, place="tools.0.parameters")
    required = request(tools=(loose,), tool_choice=ToolChoice.REQUIRED, parallel_tool_calls=False)
    for message in walks(walker("hermes"), required, range(3)):
        ((name, arguments),) = message.calls
        assert (name, type(arguments)) == ("get-time", dict)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"anyOf": [schema]}
    return schema


REFUSED: list[tuple[GenerationRequest, str, str]] = [
    (request(JsonText({"type": "objekt"}, "p")), "p.type", "objekt"),
    (request(JsonText({"items": [{"minimum": "x"}]}, "p")), "p.items", ""),
    (
        request(JsonText({"anyOf": [{"type": "null"}, {"pattern": "(", "type": "string"}]}, "p")),
        "p.anyOf.1.pattern",
        "",
    ),
    (
        request(JsonText({"$ref": "#/$defs/x", "$defs": {"x": {"contains": {"const": 1}}}}, "p")),
        "p.$defs.x.contains",
        "contains",
    ),
    (request(JsonText({"$ref": "http://example.com/s"}, "p")), "p.$ref", "http://example.com/s"),
    (request(JsonText({"description": "x" * MAX_GRAMMAR_BYTES}, "p")), "p", "larger than"),
    (request(JsonText(_nested(400), "p", exact=False)), "p", "nested too deeply"),
    (request(Pattern("a(b", "guided_regex")), "guided_regex", "unclosed group"),
    (request(Rules("start: x", "guided_grammar")), "guided_grammar", "unknown name"),
    (request(Rules('root ::= "a', "guided_grammar")), "guided_grammar", ""),
    (request(Rules(f'root ::= {"(" * 60_000}"a"', "guided_grammar")), "guided_grammar", "nested too deeply"),
    (request(tools=(Tool("f", parameters={"type": 5}, strict=True, place="t"),)), "t.type", ""),
    (request(tool_choice=ToolChoice.REQUIRED), "tool_choice", "no tools"),
    (request(tools=(TIME,), tool_choice=ToolChoice.REQUIRED, only_tool="g"), "tool_choice", "'g' is none"),
    (request(OneOf(("a",), "p"), continue_final=True), "p", "continuing a given message"),
]


@pytest.mark.parametrize(("asked", "param", "words"), REFUSED)
def test_what_cannot_be_held_to_is_refused_by_its_place(
    asked: GenerationRequest, param: str, words: str
) -> None:
    """Down to the keyword, where a schema is wrong; in one line."""
    with pytest.raises(InvalidRequest) as refused:
        preparation("hermes").prepare(asked)
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")
    assert words in refused.value.message
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 1000


def test_a_notation_that_cannot_be_held_is_refused_by_its_name_and_the_reason() -> None:
    """Where a call must be made; so is a text that is held to something, in an answer format with headers."""
    other = Preparation(NotationTokenizer(MUSE, ()), FOLDER)
    with pytest.raises(UnsupportedParameter, match=r"tool_choice: .* muse_spark, which names the tool both"):
        other.prepare(request(tools=(TIME,), tool_choice=ToolChoice.REQUIRED))
    with pytest.raises(UnsupportedParameter, match=r"guided_choice: .* muse_spark"):
        other.prepare(request(OneOf(("a",), "guided_choice"), tools=(TIME,)))


def test_a_tokenizer_that_the_library_cannot_use_is_no_end() -> None:
    """What needs a grammar is refused by name, and all else goes on."""

    class Odd(ByteTokenizer):
        def to_json(self) -> str:
            return "{}"

    odd = Preparation(Odd(PLAIN), FOLDER)
    assert odd.prepare(request()).submit.grammar == ""
    with pytest.raises(UnsupportedParameter, match="guided_choice: "):
        odd.prepare(request(OneOf(("a",), "guided_choice")))


@cache
def served(kind: str) -> tuple[HubTokenizer, Preparation, Grammars]:
    """A tokenizer, and both processes' sides of it."""
    tokenizer = HubTokenizer(EMBEDDED_FOLDER) if kind == "embedded" else tokenizer_of(kind)[0]
    ends, vocabulary = tokenizer.eos_token_ids, tokenizer.vocabulary
    folder = replace(FOLDER, vocabulary=vocabulary, eos_token_ids=ends)
    engines = grammar_tokenizer(tokenizer.for_grammars(), vocabulary, {})
    return tokenizer, Preparation(tokenizer, folder), Grammars(engines)


def answered(kind: str, asked: GenerationRequest, *, drafted: bool) -> str:
    """The answer of an engine whose model takes the last token that it may, or what is drafted for it."""
    tokenizer, prepared_by, grammars = served(kind)
    prepared = prepared_by.prepare(asked)
    constraint = Constraint(grammars._compile(prepared.submit.grammar))
    tokens: list[int] = []
    while len(tokens) < 200:
        forced = constraint.forced_from(len(tokens)) if drafted else ()
        (allowed,) = allowed_tokens([constraint], tokenizer.vocabulary)
        assert constraint.failure is None
        assert not forced or allowed[forced[0]]
        token = forced[0] if forced else int(np.flatnonzero(allowed)[-1])
        if token in prepared.submit.stop_token_ids:
            break
        constraint.accept_at(len(tokens), token)
        tokens.append(token)
    (pipeline,) = prepared.pipelines()
    return "".join(piece.text for piece in pieces_of(pipeline, tokens) if isinstance(piece, TextDelta))


def _object(**value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": value}, "required": ["a"], "additionalProperties": False}


FORCING: dict[str, Callable[[str], Any]] = {
    "const": lambda text: JsonText(_object(const=text), "x"),
    "enum": lambda text: JsonText(_object(enum=[text]), "x"),
    "regex": lambda text: Pattern(re.escape(text), "x"),
    "choice": lambda text: OneOf((text,), "x"),
    "rules": lambda text: Rules(f"start: {json.dumps(text)}", "x"),
}


@pytest.mark.parametrize("kind", [*KINDS, "embedded"])
@pytest.mark.parametrize("drafted", [False, True], ids=["masked", "drafted"])
def test_a_grammar_forces_the_text_of_a_special_token_as_text(kind: str, drafted: bool) -> None:
    """`<|im_end|>` in an agent's schema is these letters, not the end of the answer, wherever it stands."""
    tokenizer, _, _ = served(kind)
    marks = [tokenizer.decode([token]) for token in sorted(tokenizer.special_token_ids)]
    assert len(marks) >= 3
    for mark in [*marks, "<think>"]:
        for text in (mark, f"see {mark} ok"):
            for way, forcing in FORCING.items():
                asked = GenerationRequest("test", TextPrompt("The"), structure=forcing(text))
                found = answered(kind, asked, drafted=drafted)
                if way in ("const", "enum"):
                    found = json.loads(found)["a"]
                assert found == text, (way, text)


def test_the_written_grammar_used_least_recently_goes_first() -> None:
    """By number and by bytes; an entry that is put again counts once."""
    texts = GrammarTexts[str](max_entries=2, max_bytes=100)
    for key in (b"a", b"b"):
        texts.put(key, "x" * 10)
    assert texts.get(b"a") is not None
    texts.put(b"c", "x" * 10)
    assert (texts.get(b"a"), texts.get(b"b"), texts.held_bytes) == ("x" * 10, None, 20)
    texts.put(b"a", "y" * 95)
    assert (texts.get(b"c"), texts.get(b"a"), texts.held_bytes) == (None, "y" * 95, 95)


def test_the_order_of_members_tells_written_grammars_apart() -> None:
    """It is the order in which parameters are written."""
    assert content_key({"a": 1, "b": 2}) != content_key({"b": 2, "a": 1})
    assert content_key({"a": 1, "b": 2}) == content_key({"a": 1, "b": 2})
