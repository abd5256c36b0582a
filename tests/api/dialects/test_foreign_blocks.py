"""Anthropic's blocks of a history that another server wrote: never a 400, and nothing readable is lost."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from trio.testing import trio_test

from api.bodies.unknown_fields import HEADER, UnknownFields
from api.dialects.anthropic.decode import generation_request
from api.dialects.anthropic.schema import MessagesRequest
from api.dialects.foreign import MAX_LINE_CHARACTERS
from scheduler.request import ChatPrompt
from tests.api.client import client_of
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.answer.notations import form

SEARCH = {
    "type": "web_search_tool_result",
    "tool_use_id": "s1",
    "content": [
        {"type": "web_search_result", "title": "Penstocks", "url": "https://a", "encrypted_content": "QUJD"}
    ],
}
CITED = [{"type": "web_search_result_location", "url": "https://a", "cited_text": "x"}]
REFERENCE = {"type": "tool_reference", "name": "f"}
BLOCKS: list[tuple[str, dict[str, Any], str]] = [
    (
        "assistant",
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "a"}},
        '[server_tool_use web_search {"query": "a"}]',
    ),
    (
        "assistant",
        {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}},
        "[mcp_tool_use f]",
    ),
    ("assistant", SEARCH, "[web_search_tool_result Penstocks https://a]"),
    (
        "assistant",
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "a\nb"}]},
        "[mcp_tool_result a b]",
    ),
    ("assistant", {"type": "compaction", "content": "They said\nhello."}, "They said\nhello."),
    ("assistant", {"type": "compaction", "content": None}, ""),
    ("assistant", {"type": "text", "text": "cited", "citations": CITED}, "cited"),
    (
        "system",
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
        "[tool_addition f]",
    ),
    ("system", {"type": "tool_removal", "tool": REFERENCE}, "[tool_removal f]"),
    ("user", {"type": "container_upload", "file_id": "file_1"}, "[container_upload]"),
    ("user", {"type": "next_year", "text": "x" * 9000}, f"[next_year {'x' * (MAX_LINE_CHARACTERS - 10)}]"),
]


def prompt_of(**fields: Any) -> ChatPrompt:
    body = {"max_tokens": 4, **fields}
    with UnknownFields().noting():
        prompt = generation_request(MessagesRequest.model_validate(body)).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def turns(role: str, content: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "hello"},
        {"role": role, "content": content},
        {"role": "user", "content": "and now?"},
    ]


@pytest.mark.parametrize(("role", "block", "text"), BLOCKS, ids=[block["type"] for _, block, _ in BLOCKS])
def test_a_block_of_another_server_is_a_line_of_text(role: str, block: dict[str, Any], text: str) -> None:
    text_of_all = "\n".join(
        message["content"] for message in prompt_of(messages=turns(role, [block])).messages
    )
    assert text in text_of_all
    assert "QUJD" not in text_of_all


def test_a_reference_in_a_tools_result_is_a_line_of_text() -> None:
    """Claude Code's tool search."""
    call = {"type": "tool_use", "id": "1", "name": "ToolSearch", "input": {}}
    found = {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [{"type": "tool_reference", "tool_name": "f"}],
    }
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [found]}]
    result = prompt_of(messages=[{"role": "user", "content": "a"}, *messages]).messages[-1]
    assert (result["role"], result["content"]) == ("tool", "[tool_reference f]")


@trio_test
async def test_they_and_the_servers_own_tools_are_named(autojump_clock: trio.testing.MockClock) -> None:
    """A tool whose loading is deferred is offered, and one with a type that its client runs; what only
    Anthropic runs, or its code calls, is not, nor are edits of the context made."""
    scheduler = make_scheduler(Playback("ok"), answer_format=form("json_tools", "think"))
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
    body = {"max_tokens": 4, "messages": turns("assistant", [SEARCH, SEARCH]), "tools": tools}
    async with running(scheduler), client_of(scheduler) as client:
        answer = await client.post("/v1/messages", json={**body, "context_management": {"edits": edits}})
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
    offered = prompt_of(messages=body["messages"], tools=tools).offered_tools
    assert [tool.name for tool in offered] == ["f", "bash", "edit", "memory", "h"]
    assert all("command" in tool.parameters["properties"] for tool in offered[1:4])
