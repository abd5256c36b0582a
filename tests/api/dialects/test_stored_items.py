"""The items of stored responses, tokens that are counted, tools that items add, and compactions."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseInputItemParam
from trio.testing import trio_test

from api.bodies.unknown_fields import HEADER
from api.dialects.responses.input_items import PAGE_BYTES, Page, kept
from api.dialects.responses.items import compaction_item
from tests.api.client import client_of
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.api.dialects.test_official_dialects import gpt
from tests.api.histories import samples
from tests.api.transcripts import named_events
from tests.examples import examples
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

TIME: Any = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
PICTURE = "data:image/png;base64," + "iVBORw0KGgo" * 1000


def prompts(launcher: Playback) -> list[str]:
    return [bytes(submit.prompt.tolist()).decode() for submit in launcher.submits]


@trio_test
async def test_the_official_client_lists_items(autojump_clock: trio.testing.MockClock) -> None:
    """Those of the whole conversation up to the response, as they were sent, each with an id of its own; in
    pages, the last first. An id is a reference to its item."""
    launcher = Playback("one", "two", "three")
    image: Any = {"type": "input_image", "image_url": PICTURE, "detail": "auto"}
    asked: Any = [{"role": "user", "content": [{"type": "input_text", "text": "a"}, image]}]
    async with running(scheduler := make_scheduler(launcher)), gpt(scheduler) as client:
        first = await client.responses.create(model="tiny", input=asked)
        referring: Any = [
            {"role": "developer", "content": "b"},
            {"type": "item_reference", "id": first.output[0].id},
        ]
        second = await client.responses.create(model="tiny", input=referring, previous_response_id=first.id)
        page = await client.responses.input_items.list(second.id, order="asc", limit=3)
        found: list[Any] = [item async for item in page]
        newest: list[Any] = [item async for item in client.responses.input_items.list(second.id, limit=1)]
        again = await client.responses.create(
            model="tiny", input=[{"type": "item_reference", "id": found[0].id}], store=False
        )
    assert [(item.type, item.role) for item in found] == [
        ("message", "user"),
        ("message", "assistant"),
        ("message", "developer"),
        ("message", "assistant"),
    ]
    assert [item.content[0].text for item in found] == ["a", "one", "b", "one"]
    assert found[0].content[1].image_url is None, "the server keeps no data"
    assert found[1].id == first.output[0].id
    assert newest == found[::-1]
    assert len({item.id for item in found}) == 4
    assert "<user>a" in prompts(launcher)[2]
    assert again.output_text == "three"


@given(
    order=st.sampled_from(["asc", "desc"]),
    lengths=st.lists(st.sampled_from([0, 20, PAGE_BYTES // 3, PAGE_BYTES + 1]), max_size=12),
    limit=st.integers(1, 5),
)
@settings(max_examples=examples(50), deadline=None)
def test_pages_are_the_list(order: Any, lengths: list[int], limit: int) -> None:
    """Each item once, in order, whatever the page's size. A page ends behind the item with which it is a
    mebibyte: readers hold copies."""
    items = [{"id": f"msg_{number}", "type": "message", "a": "a" * n} for number, n in enumerate(lengths)]
    read: list[str] = []
    after = None
    for _ in range(len(lengths) + 1):
        text = Page(order, after, limit).json_of(items)
        page = msgspec.json.decode(text)
        assert len(text) < PAGE_BYTES + 1000 + max(lengths, default=0)
        read += [item["id"] for item in page["data"]]
        assert len(page["data"]) <= limit
        if not page["has_more"]:
            break
        after = page["last_id"]
    ids = [item["id"] for item in items]
    assert read == (ids if order == "asc" else ids[::-1])


def test_kept_items_have_no_media() -> None:
    """Whatever the item: a store of screenshots would hold nothing else."""
    for item in samples(ResponseInputItemParam):
        filled = re.sub(r'"(image_url|file_data|data)": "[^"]*"', rf'"\1": "{PICTURE}"', json.dumps(item))
        assert len(json.dumps(kept([json.loads(filled)]))) < len(PICTURE)
    assert kept("hello") == [{"role": "user", "content": "hello"}]
    assert kept([{"type": "compaction_trigger"}]) == []


@trio_test
async def test_listing_refuses_by_name(autojump_clock: trio.testing.MockClock) -> None:
    async with running(scheduler := make_scheduler(Playback("ok"))), client_of(scheduler) as client:
        made = (await client.post("/v1/responses", json={"input": "a"})).json()["id"]
        path = f"/v1/responses/{made}/input_items"
        for query, words in (
            ("?limit=0", "limit"),
            ("?limit=101", "limit"),
            ("?order=up", "order"),
            ("?after=msg_none", "not found in the list"),
        ):
            answer = await client.get(path + query)
            assert (answer.status_code, words in answer.text) == (400, True), answer.text
        assert (await client.get("/v1/responses/resp_no/input_items")).status_code == 404


@trio_test
async def test_tokens_are_counted_as_they_are_used(autojump_clock: trio.testing.MockClock) -> None:
    """With tools, instructions and what is stored; nothing is generated."""
    launcher = Playback("one", "two")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        first = await client.responses.create(model="tiny", input="a")
        body: Any = {"input": "b", "tools": [TIME], "instructions": "c", "previous_response_id": first.id}
        counted = await client.responses.input_tokens.count(model="tiny", **body)
        assert len(launcher.submits) == 1
        used = await client.responses.create(model="tiny", **body)
    assert counted.object == "response.input_tokens"
    assert used.usage is not None
    assert counted.input_tokens == used.usage.input_tokens


ADDED: Any = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {"type": "custom", "name": "exec", "description": "Run code."},
        {"type": "namespace", "name": "agents", "tools": [{**TIME, "name": "wait"}]},
        {"type": "function"},
        {"type": "web_search"},
    ],
}


@trio_test
async def test_tools_of_items_are_offered(autojump_clock: trio.testing.MockClock) -> None:
    """Codex sends all of its tools so. They are called under the client's names, stay with a stored
    conversation, and a later one of a name takes the place of the earlier. What cannot be read is named."""
    call = '<tool_call>\n{"name": "exec", "arguments": {"input": "ls"}}\n</tool_call>'
    launcher = Playback(call, "ok")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
        body: Any = {"input": [ADDED, {"role": "user", "content": "a"}], "tools": [TIME]}
        answer = await client.post("/v1/responses", json=body)
        first = answer.json()
        chosen = {"type": "function", "name": "wait"}
        body = {"input": "b", "previous_response_id": first["id"], "tool_choice": chosen}
        counted = await client.post("/v1/responses/input_tokens", json=body)
        found: Any = {"type": "tool_search_output", "call_id": "c", "tools": [TIME]}
        later = {**ADDED, "tools": [{"type": "function", "name": "exec"}]}
        body = {
            "input": [found, later, {"role": "user", "content": "c"}],
            "previous_response_id": first["id"],
        }
        await client.post("/v1/responses", json=body)
    called = first["output"][0]
    assert (called["type"], called["name"], called["input"]) == ("custom_tool_call", "exec", "ls")
    assert answer.headers[HEADER] == "input[].tools[].type:function,input[].tools[].type:web_search"
    assert counted.status_code == 200, counted.text
    asked, after = prompts(launcher)
    assert re.findall(r"<tool>(\w+)", asked.partition("<user>")[0]) == ["get_time", "exec", "agents__wait"]
    assert re.findall(r"<tool>(\w+)", after.partition("<user>")[0]) == ["exec", "agents__wait", "get_time"]
    assert "Found: get_time" in after


CONVERSATION: list[Any] = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "What time?"},
    {"type": "function_call", "call_id": "c", "name": "get_time", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "12"},
    {"role": "assistant", "content": "Noon."},
]


@trio_test
async def test_the_official_client_compacts(autojump_clock: trio.testing.MockClock) -> None:
    """User's messages and instructions stay, and one item stands for the rest, which this server reads."""
    launcher = Playback("<think>hm</think>They asked the time.", "ok")
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), gpt(scheduler) as client:
        short = await client.responses.compact(model="tiny", input=CONVERSATION)
        after: Any = [item.to_dict(warnings=False) for item in short.output]
        asked: Any = {"role": "user", "content": "And now?"}
        await client.responses.create(model="tiny", input=[*after, asked], store=False)
    assert short.object == "response.compaction"
    assert [item.type for item in short.output] == ["message", "message", "compaction"]
    assert short.usage.output_tokens > 0
    first, second = prompts(launcher)
    assert "Summarize this conversation" in first
    assert first.startswith("<system>Be kind.\n<user>What time?\n<assistant>")
    assert second == (
        "<system>Be kind.\n<user>What time?\n<assistant>Summary of the conversation before this:\n"
        "They asked the time.\n<user>And now?\n<assistant>"
    )


@trio_test
async def test_a_trigger_is_answered_by_one_compaction(autojump_clock: trio.testing.MockClock) -> None:
    """As Codex sends it, whole and streamed. What goes on from the response has the summary in place of the
    conversation, with its tools."""
    for stream in (False, True):
        launcher = Playback("first", "They asked the time.", "ok")
        scheduler = make_scheduler(launcher, answer_format=HERMES)
        async with running(scheduler), client_of(scheduler) as client:
            body: dict[str, Any] = {"input": [ADDED, *CONVERSATION[:2]]}
            before = (await client.post("/v1/responses", json=body)).json()["id"]
            body = {
                "input": [*CONVERSATION[2:], {"type": "compaction_trigger"}],
                "previous_response_id": before,
                "text": {"format": {"type": "json_object"}},
                "stream": stream,
            }
            answer = await client.post("/v1/responses", json=body)
            made = named_events(answer.text)[-1]["response"] if stream else answer.json()
            body = {"input": "And now?", "previous_response_id": made["id"]}
            await client.post("/v1/responses", json=body)
            listed = await client.get(f"/v1/responses/{made['id']}")
        assert listed.json() == made
        item = compaction_item(made["output"][0]["id"], "They asked the time.")
        assert (made["status"], made["output"]) == ("completed", [item])
        if stream:
            names = [event["type"] for event in named_events(answer.text)]
            assert names[2:] == [
                "response.output_item.added",
                "response.output_item.done",
                "response.completed",
            ]
        last = prompts(launcher)[2]
        assert re.findall(r"<tool>(\w+)", last) == ["exec", "agents__wait"]
        assert last.endswith(
            "<system>Be kind.\n<user>What time?\n<assistant>Summary of the conversation before this:\n"
            "They asked the time.\n<user>And now?\n<assistant>"
        )


@trio_test
async def test_a_model_that_writes_no_text_is_compacted_by_what_it_did(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scheduler = make_scheduler(Playback(SAID.replace("I look.", "")), answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
        answer = await client.post("/v1/responses/compact", json={"input": CONVERSATION, "tools": [TIME]})
    assert answer.status_code == 200, answer.text
    assert "get_time" in answer.json()["output"][-1]["encrypted_content"]


@trio_test
async def test_another_providers_compaction_is_named(autojump_clock: trio.testing.MockClock) -> None:
    launcher = Playback("ok")
    async with running(scheduler := make_scheduler(launcher)), client_of(scheduler) as client:
        item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA"}
        answer = await client.post("/v1/responses", json={"input": [item, {"role": "user", "content": "a"}]})
    assert answer.headers[HEADER] == "input[].type:compaction"
    assert prompts(launcher) == ["<user>a\n<assistant>"]
