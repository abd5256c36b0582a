"""Calls are held to their schema in the model's own notation: what its template writes is allowed, and what
no reader could read is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.errors import InvalidRequest
from scheduler.grammar.answer_grammar import HoldCalls
from scheduler.request import Tool, ToolChoice
from tests.examples import examples
from tests.scheduler.answer.templates import TEMPLATES
from tests.scheduler.grammar.walks import NOTATIONS, Walker, walker_of, walks

CODE = (
    "def f(a):\n\tif a < 1 and a > '0':\n        return '<tool_call>\\n' & \"<parameter=x>\"\n\n"
    "# é🦊 <arg_key> <invoke name="
)
EDIT = Tool(
    "edit",
    parameters={
        "type": "object",
        "properties": {
            "count": {"type": "integer", "minimum": 0, "maximum": 12},
            "new": {"type": "string"},
            "number": {"type": "string", "enum": ["1", "01", "true"]},
            "rate": {"type": "number"},
            "where": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["new"],
        "additionalProperties": False,
    },
    strict=True,
    place="tools.0.parameters",
)
NESTED = Tool(
    "replace",
    parameters={
        "type": "object",
        "properties": {
            "edits": {"type": "array", "items": {"$ref": "#/$defs/edit"}, "minItems": 1},
            "tree": {"$ref": "#/$defs/node"},
        },
        "required": ["edits"],
        "$defs": {
            "edit": {
                "type": "object",
                "properties": {
                    "old": {"type": "string"},
                    "size": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
                "required": ["old"],
                "additionalProperties": False,
            },
            "node": {
                "type": "object",
                "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "additionalProperties": False,
            },
        },
    },
    strict=True,
    place="tools.1.parameters",
)
STOP = Tool("stop", parameters={"type": "object", "properties": {}, "additionalProperties": False})
NAMED = Tool(
    "maps.get-weather",
    parameters={
        "type": "object",
        "properties": {"$top": {"type": "integer"}, "city-name": {"type": "string"}},
    },
    strict=True,
)
EDITED = {"count": 3, "new": CODE, "number": "01", "rate": 0.5, "where": "a b"}
REPLACED = {"edits": [{"old": "<b>x</b>", "size": None}, {"old": ""}], "tree": {"kids": [{}, {"kids": []}]}}
XML = ("qwen3_coder", "glm47", "longcat", "minimax_m2", "minicpm5", "dsml", "kimi_k3")
_WALKED = {name: name for name in NOTATIONS} | {"glm45": "glm47", "laguna": "laguna, its marks mere text"}


def accepts(walker: Walker, text: str, *tools: Tool, **asked: Any) -> bool:
    """Whether an answer can be this, whole."""
    matcher = walker.matcher(walker.prepare(tools, **asked))
    before, code, after = text.partition(CODE if CODE in text else json.dumps(CODE, ensure_ascii=False)[1:-1])
    # A mark in a text is spelled: it is no token there.
    tokens = [*walker.tokens(before), *code.encode(), *walker.tokens(after)]
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


def begins(walker: Walker, text: str, *tools: Tool) -> bool:
    """Whether an answer can begin with this."""
    matcher = walker.matcher(walker.prepare(tools))
    tokens = walker.tokens(text)
    return int(matcher.try_consume_tokens(tokens)) == len(tokens)


def rendered(name: str, *calls: tuple[str, dict[str, Any]]) -> str:
    return TEMPLATES[name].render(calls)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_random_walks_are_read_by_mlx_lm_and_fit_their_schema(notation: str) -> None:
    """And by this server's own reader, character for character."""
    texts = list(walks(notation, schemas=examples(6), each=5))
    assert sum(text is not None for text in texts) > len(texts) * 2 / 3


@pytest.mark.parametrize("name", sorted(_WALKED.keys() & TEMPLATES.keys()))
def test_what_the_models_template_writes_for_a_call_is_allowed(name: str) -> None:
    """Code in a string, nested values, a recursive schema, enums that look like numbers, no parameters, names
    with dots, hyphens and dollars, and two calls."""
    walker, template = walker_of(_WALKED[name]), TEMPLATES[name]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("edit", EDITED),
        ("edit", {"new": "x", "where": None}),
        (NAMED.name, {"$top": 3, "city-name": "x"}),
    ]
    if template.nests:
        calls.append(("replace", REPLACED))
    if name != "longcat":
        calls.append(("stop", {}))
    tools = (EDIT, STOP, NAMED, NESTED) if template.nests else (EDIT, STOP, NAMED)
    for call in calls:
        assert accepts(walker, rendered(name, call), *tools), rendered(name, call)
    several = rendered(name, calls[0], calls[-1])
    assert accepts(walker, several, *tools, parallel_tool_calls=True)
    assert not accepts(walker, several, *tools, parallel_tool_calls=False)


@pytest.mark.parametrize("name", ["json_tools", "qwen3_coder", "glm47"])
def test_a_newline_after_a_call_does_not_force_another_one(name: str) -> None:
    """SmolLM2 ends its lines: held to required calls, it wrote the same call until the bound or max_tokens,
    as after its newline nothing but another call was allowed."""
    walker, call = walker_of(name), rendered(name, ("stop", {}))
    for end in ("", "\n", "\n\n"):
        assert accepts(walker, call + end, STOP), end
    for wrong in ("\n\n\n", " ", "\nand"):
        assert not accepts(walker, call + wrong, STOP), wrong


AUTO: dict[str, Any] = {"tool_choice": ToolChoice.AUTO, "parallel_tool_calls": True}


@pytest.mark.parametrize(
    "name", sorted({*XML, "json_tools", "gemma4", "pythonic", "qwen3_coder, its marks mere text"})
)
def test_in_auto_mode_text_is_free_and_a_call_is_held_from_its_mark_on(name: str) -> None:
    """Any text, text and a call, and text again; but no call that does not fit."""
    walker = walker_of(name, "auto")
    template = TEMPLATES[name.split(",")[0]]
    call = template.render([("edit", {"new": "x"})])
    text = "Look: a <b> & {c}\n"
    assert accepts(walker, text, EDIT, **AUTO)
    assert accepts(walker, text + call, EDIT, **AUTO)
    assert accepts(walker, call, EDIT, **AUTO)
    wrong = template.render([("edit", {"old": "x"})])
    assert not accepts(walker, text + wrong, EDIT, **AUTO)
    if name != "kimi_k3":
        assert accepts(walker, text + call + text + call, EDIT, **AUTO)
        assert not accepts(walker, call + text + call, EDIT, **{**AUTO, "parallel_tool_calls": False})


def test_whose_calls_are_held_is_the_operators_choice() -> None:
    """Those of requests with a strict tool, all, or none; a call that is required is held in any case."""
    loose = Tool("edit", parameters=EDIT.parameters)
    expected: dict[HoldCalls, tuple[bool, bool]] = {
        "strict": (True, False),
        "auto": (True, True),
        "off": (False, False),
    }
    for hold, held in expected.items():
        walker = walker_of("qwen3_coder", hold)
        assert tuple(walker.prepare((tool,), **AUTO).submit.grammar != "" for tool in (EDIT, loose)) == held
        assert walker.prepare((loose,)).submit.grammar != ""


def _faulty(schema: dict[str, Any], *, strict: bool = True) -> Tool:
    return Tool("edit", parameters=schema, strict=strict, place="tools.0.parameters")


def test_what_no_rule_can_say_is_refused_by_its_place() -> None:
    """In a strict tool: a keyword, an overlap, a value or a name that the notation cannot write, and a schema
    that is none."""
    word = {"type": "string"}
    refused: list[tuple[str, dict[str, Any], str, str]] = [
        ("qwen3_coder", {"properties": {"a": {"not": word}}}, "properties.a.not", "cannot be held"),
        ("qwen3_coder", {"properties": {"a": {"$ref": "#/properties/a"}}}, "properties.a.$ref", "nothing"),
        ("qwen3_coder", {"properties": {"a": {"oneOf": [word, {}]}}}, "properties.a.oneOf", "more than one"),
        ("qwen3_coder", {"properties": {"a": {**word, "pattern": "(?=x)"}}}, "properties.a.pattern", "look"),
        ("qwen3_coder", {"properties": {"a": {"$ref": "#/$defs/x"}}}, "properties.a.$ref", "#/$defs/x"),
        ("qwen3_coder", {"properties": {"a": {**word, "minLength": "x"}}}, "properties.a.minLength", "'x'"),
        ("glm47", {"properties": {"a": {"const": "</arg_value>"}}, "required": ["a"]}, "properties.a", ""),
        ("qwen3_coder", {"properties": {"a b": word}, "required": ["a b"]}, "properties.a b", "'a b'"),
        ("gemma4", {"properties": {"-A": word}, "required": ["-A"]}, "properties.-A", "'-A'"),
        ("function_gemma", {"properties": {"a": {"items": {}}}, "required": ["a"]}, "properties.a", "array"),
        ("pythonic", {"properties": {"from": word}, "required": ["from"]}, "properties.from", "'from'"),
    ]  # fmt: skip
    for name, schema, place, words in refused:
        with pytest.raises(InvalidRequest) as error:
            walker_of(name).prepare((_faulty(schema),))
        assert error.value.param == f"tools.0.parameters.{place}", schema
        assert words in error.value.message


def test_a_loose_tool_is_held_as_far_as_rules_can_say_it() -> None:
    """Nobody promised more, and the call must come all the same."""
    word = {"type": "string"}
    for schema in (
        {"properties": {"new": {**word, "not": {}}}, "required": ["new"]},
        {"properties": {"new": {**word, "minLength": "x"}}, "required": ["new"]},
        {"properties": {"new": word, "a b": word}, "required": ["new"]},
        {},
    ):
        assert accepts(
            walker_of("qwen3_coder"),
            rendered("qwen3_coder", ("edit", {"new": "x"})),
            _faulty(schema, strict=False),
        ), schema


def test_a_tool_whose_name_the_notation_cannot_write_is_refused_where_it_must_be_called() -> None:
    """And where it need not be, nothing is held."""
    dashed = Tool("get time", parameters={}, place="tools.0.parameters")
    with pytest.raises(InvalidRequest, match="named 'get time'"):
        walker_of("pythonic").prepare((dashed,))
    assert walker_of("pythonic", "auto").prepare((dashed,), **AUTO).submit.grammar == ""


def test_sixty_four_tools_are_one_grammar_and_written_once() -> None:
    """Tools with the same parameters share their rules; the second request gets the first one's text."""
    walker = walker_of("qwen3_coder")
    tools = tuple(Tool(f"tool_{number}", parameters=EDIT.parameters, strict=True) for number in range(64))
    first, second = walker.prepare(tools).submit.grammar, walker.prepare(tools).submit.grammar
    assert first is second
    one = walker.prepare(tools[:1]).submit.grammar
    assert len(first) < 8 * len(one)
    call = rendered("qwen3_coder", ("tool_63", {"new": CODE}))
    assert accepts(walker, call, *tools)
