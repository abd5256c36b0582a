"""What a conversation becomes for the chat template, and a body for the engine: a table for each dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from api.access.identity import Caller
from api.bodies.unknown_fields import HEADER
from api.dialects.anthropic.decode import chat_prompt, generation_request
from api.dialects.anthropic.schema import CountTokensRequest, MessagesRequest
from api.dialects.foreign import MAX_LINE_CHARACTERS
from api.dialects.volatile_headers import stable
from scheduler.request import Hold, ToolChoice
from tests.api.client import served
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.dialects.test_histories import ASKED, read_items, read_messages, read_turns
from tests.fakes.playback import Playback


def said(text: str, *calls: tuple[str, str, dict[str, Any]], thoughts: str = "") -> dict[str, Any]:
    """The assistant's message, with calls by id, name and arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in calls
        ]
    return message


def result(text: str, call_id: str = "c", **more: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id, **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(*blocks: Any, **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks) if blocks else None, **members}


def called(kind: str, **members: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": "c", **members}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def found(*blocks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c", "content": list(blocks)}


BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=abc;"
SHELL = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
PATCH = "apply_patch"
DELETED = {"type": "delete_file", "path": "a"}
READ = {"name": "f", "arguments": '{"a": 1}'}
FOUND = {"type": "web_search_result", "title": "Penstocks", "url": "https://a", "encrypted_content": "QUJD"}
SEARCH = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [FOUND]}
REFERENCE = {"type": "tool_reference", "name": "f"}
USED = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}
HIDDEN = {"type": "redacted_thinking", "data": "..."}
YES = assistant(text("yes"))
LINES: list[tuple[dict[str, Any], str]] = [
    (
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}},
        '[server_tool_use web_search {"query": "a"}]',
    ),
    ({"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}}, "[mcp_tool_use f]"),
    ({"type": "mcp_tool_result", "tool_use_id": "m", "content": [text("a\nb")]}, "[mcp_tool_result a b]"),
    (SEARCH, "[web_search_tool_result Penstocks https://a]"),
    ({"type": "compaction", "content": "They said\nhello."}, "They said\nhello."),
    ({"type": "compaction", "content": None}, ""),
    ({**text("cited"), "citations": [{"cited_text": "x"}]}, "cited"),
    ({"type": "container_upload", "file_id": "file_1"}, "[container_upload]"),
    ({"type": "next_year", "text": "x" * 9000}, f"[next_year {'x' * (MAX_LINE_CHARACTERS - 10)}]"),
]
CALLS = [
    {"id": "1", "type": "custom", "custom": {"name": "edit", "input": "a\nb"}},
    {"id": "2", "type": "function", "name": "f", "arguments": '{"a": 1}'},
    {"id": "3", "type": "function", "function": {"name": "f", "arguments": None}},
    {"id": "4", "type": "next_year", "next_year": {"name": "g", "speed": 2}},
]
HISTORIES: dict[Callable[[list[Any]], list[Any]], list[tuple[list[Any], list[Any]]]] = {
    read_messages: [
        ([{"role": "developer", "content": "be brief"}], [system("be brief")]),
        ([system(BILLING), system([text(BILLING), text("Be kind.")])], [system("Be kind.")]),
        ([user(BILLING)], [user(BILLING)]),
        ([user([text("a"), text("b")])], [user("ab")]),
        (
            [assistant(reasoning="hm", tool_calls=[{"id": "c", "function": READ}])],
            [said("", ("c", "f", {"a": 1}), thoughts="hm")],
        ),
        ([{"role": "tool", "tool_call_id": "c", "name": "f", "content": "2"}], [result("2", name="f")]),
        (
            [assistant(tool_calls=CALLS[:2]), {"role": "function", "name": "h", "content": "r"}],
            [
                said("", ("1", "edit", {"input": "a\nb"}), ("2", "f", {"a": 1})),
                {"role": "tool", "content": "r", "name": "h"},
            ],
        ),
        ([assistant(tool_calls=CALLS[2:])], [said("", ("3", "f", {}), ("4", "g", {"speed": 2}))]),
        # Pydantic AI, in a session that comes from Responses.
        ([assistant(rs_1="hm")], [said("", thoughts="hm")]),
        ([assistant(rs_1="hm", rs_2="so", zebra=1)], [said("", thoughts="hm\n\nso")]),
        ([assistant(reasoning="hm", rs_1="so")], [said("", thoughts="hm")]),
        ([assistant(rs_1=["hm"])], [said("")]),
    ],
    read_items: [
        (
            [
                called("custom_tool_call", name="edit", input="*** Begin"),
                called("custom_tool_call_output", output="Done"),
            ],
            [said("", ("c", "edit", {"input": "*** Begin"})), result("Done")],
        ),
        (
            [
                called("local_shell_call", action={"type": "exec", "command": ["ls"], "env": {}}),
                {"type": "local_shell_call_output", "id": "c", "output": '{"output": "a"}'},
            ],
            [said("", ("c", "local_shell", {"command": ["ls"]})), result('{"output": "a"}')],
        ),
        (
            [called("shell_call", action={"commands": ["ls"]}), called("shell_call_output", output=SHELL)],
            [said("", ("c", "shell", {"commands": ["ls"]})), result(json.dumps(SHELL))],
        ),
        (
            [called(f"{PATCH}_call", operation=DELETED), called(f"{PATCH}_call_output", status="failed")],
            [said("", ("c", PATCH, DELETED)), result("failed")],
        ),
        (
            [{"type": "mcp_call", "id": "c", "server_label": "s", **READ, "output": "r"}],
            [said("", ("c", "s__f", {"a": 1})), result("r")],
        ),
        (
            [called("function_call", name="f", arguments=None), called("function_call_output", output=None)],
            [said("", ("c", "f", {})), result("")],
        ),
        (
            [called("function_call", name="f"), called("function_call_output", output={"a": [1]})],
            [said("", ("c", "f", {})), result('{"a": [1]}')],
        ),
        (
            [
                called("function_call", name="f", arguments="[" * 1000),
                called("function_call_output", output=[text("a"), text("b")]),
            ],
            [said("", ("c", "f", {"not_json": "[" * 1000})), result("ab")],
        ),
        # Others are a line, or nothing.
        (
            [
                {
                    "type": "web_search_call",
                    "id": "ws_1",
                    "status": "completed",
                    "action": {"query": "herons"},
                },
                {"type": "image_generation_call", "id": "ig_1", "result": "iVBORw0KGgo" * 10_000},
                {"type": "mcp_list_tools", "tools": []},
                {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"},
                assistant(text("Grey ones.")),
            ],
            [said('[web_search_call {"query": "herons"}][image_generation_call]Grey ones.')],
        ),
    ],
    read_turns: [
        ([user("one"), user([text("two")]), assistant(text("yes"))], [user("one\n\ntwo"), said("yes")]),
        (
            [
                user("x"),
                assistant(THOUGHT, HIDDEN, text("I look."), USED),
            ],
            [user("x"), said("I look.", ("c", "f", {"a": 1}), thoughts="hm")],
        ),
        (
            [assistant(USED), user([found(text("r")), text("one"), {**found(), "tool_use_id": "d"}]), YES],
            [said("", ("c", "f", {"a": 1})), result("r"), user("one"), result("", "d"), said("yes")],
        ),
        # Claude Code's tool search.
        (
            [assistant(USED), user([found(REFERENCE)]), YES],
            [said("", ("c", "f", {"a": 1})), result("[tool_reference f]"), said("yes")],
        ),
        (
            [user("x"), system([{"type": "tool_addition", "tool": REFERENCE}]), YES],
            [user("x"), system("[tool_addition f]"), said("yes")],
        ),
        *(([user("x"), assistant(block)], [user("x"), said(line)]) for block, line in LINES),
    ],
}
CASES = [
    pytest.param(read, history, messages, id=f"{read.__name__}-{number}")
    for read, rows in HISTORIES.items()
    for number, (history, messages) in enumerate(rows)
]


@pytest.mark.parametrize(("read", "history", "messages"), CASES)
def test_a_conversation_is_what_templates_take(read: Any, history: list[Any], messages: list[Any]) -> None:
    """Texts joined, `developer` as `system`, thoughts beside the text, calls and results of every type as
    calls and results, with the names under which the prompt offers tools; what no template has is a line of
    text, or nothing, and absent fields stay absent."""
    assert read(history) == [*messages, ASKED]


@pytest.mark.parametrize(
    "block",
    [
        "",
        "x-anthropic-",
        "x-anthropic-: nameless",
        "x-anthropic-billing-header without a colon",
        "x-anthropic-two words: no header",
        " x-anthropic-billing-header: not at the beginning",
        "You are Claude Code.\nx-anthropic-billing-header: quoted",
        "X-Other: a",
        "x-anthropic-billing-header: a\nYou are Claude Code.",
        "x-anthropic-billing-header: a; " + "You are Claude Code. " * 30,
    ],
)
def test_no_other_block_is_dropped_from_a_system_prompt(block: str) -> None:
    """A prompt may speak of headers that change with each request."""
    volatile = ("x-anthropic-anything:", "x-anthropic-billing-header: a\n", BILLING)
    assert stable(["a", *volatile, block]) == ["a", block]


EMPTY = {"type": "object", "properties": {}}
TOOLS: list[dict[str, Any]] = [{"name": "get_time", "description": "The time", "input_schema": EMPTY}]


def message_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 1000, "messages": [user("hello")], **fields}


def prompt_of(**fields: Any) -> Any:
    return chat_prompt(CountTokensRequest.model_validate(message_body(**fields)))


def test_tools_choices_and_thinking_of_anthropics_become_neutral() -> None:
    """As far as the neutral request has them; a last assistant message is continued: its prefill."""
    assert prompt_of(messages=[user("one"), assistant(text("{"))]).continue_final
    chosen = prompt_of(tools=TOOLS, tool_choice={"type": "none"}, thinking={"type": "disabled"})
    assert (chosen.tool_choice, chosen.offered_tools) == (ToolChoice.NONE, ())
    assert (chosen.reasoning.enabled, chosen.continue_final) == (False, False)
    one = prompt_of(
        tools=TOOLS,
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "high"},
    )
    assert not one.parallel_tool_calls
    assert (one.reasoning.enabled, one.reasoning.effort) == (True, "high")
    (tool,) = one.offered_tools
    assert (tool.name, tool.description, tool.parameters) == tuple(TOOLS[0].values())
    one = prompt_of(tools=TOOLS, tool_choice={"type": "tool", "name": "get_time"})
    assert (one.tool_choice, one.only_tool) == (ToolChoice.REQUIRED, "get_time")


def test_sampling_of_anthropics_is_the_bodys() -> None:
    sent = message_body(temperature=0, top_p=0.5, top_k=7, stop_sequences=["x"])
    made = generation_request(MessagesRequest.model_validate(sent), caller=Caller("farm"))
    assert (made.sampling.temperature, made.sampling.top_p, made.sampling.top_k) == (0, 0.5, 7)
    assert (made.max_tokens, made.stop, made.tenant) == (1000, ("x",), "farm")


def test_a_time_to_live_is_a_hold_up_to_its_message() -> None:
    """Each time counts up to its last place. A mark in the system prompt or on a tool counts to the first
    message, one on the body for all of it, and one without a ttl for nothing."""

    def marked(block: dict[str, Any], ttl: str | None = None) -> dict[str, Any]:
        return {**block, "cache_control": {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}}

    def holds(**fields: Any) -> tuple[Hold, ...]:
        return generation_request(MessagesRequest.model_validate(message_body(**fields))).holds

    turns = [
        user([marked(text("one"), "5m")]),
        assistant(USED, {**USED, "id": "d"}),
        user([marked(found(text("r")), "5m"), {**found(), "tool_use_id": "d"}]),
        assistant(text("done")),
        user([marked(text("plain"))]),
    ]
    assert holds(messages=turns) == (Hold(4, 300.0),)
    first = (Hold(1, 3600.0), Hold(5, 300.0))
    assert holds(messages=turns, system=[marked(text("be kind"), "1h")]) == first
    assert holds(messages=turns[-1:]) == ()
    inner = user([found(marked(text("r"), "5m"))])
    assert holds(messages=[turns[1], inner]) == (Hold(2, 300.0),)
    assert holds(messages=turns[-1:], **marked({}, "1h")) == (Hold(None, 3600.0),)


@trio_test
async def test_what_only_the_provider_runs_is_named(autojump_clock: MockClock) -> None:
    """A tool whose loading is deferred is offered, and one with a type that its client runs; what only
    Anthropic runs, or its code calls, is not, nor are edits of the context made."""
    tools = [
        {"name": "f", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1},
        {"name": "g", "input_schema": {}, "allowed_callers": ["code_execution_20260120"]},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "edit", "max_characters": 5},
        {"type": "memory_20250818", "name": "memory"},
        {"name": "h", "input_schema": [], "allowed_callers": ["direct", "x"], "input_examples": [{"a": 1}]},
    ]
    edits = [
        {"type": "clear_thinking_20251015", "keep": "all"},
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 1}},
    ]
    turns = [user("hello"), assistant(SEARCH, SEARCH), user("and now?")]
    body = message_body(messages=turns, tools=tools, context_management={"edits": edits})
    async with served(Playback("ok"), answer_format=HERMES) as client:
        answer = await client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER].split(",") == [
        "context_management.edits[].type:clear_tool_uses_20250919",
        "messages[].content[].type:web_search_tool_result",
        "tools[].allowed_callers:code_execution_20260120",
        "tools[].input_examples",
        "tools[].type:computer_20250124",
        "tools[].type:tool_search_tool_regex_20251119",
        "tools[].type:web_search_20250305",
    ]
    offered = prompt_of(tools=tools).offered_tools
    assert [tool.name for tool in offered] == ["f", "bash", "edit", "memory", "h"]
    assert all("command" in tool.parameters["properties"] for tool in offered[1:4])
