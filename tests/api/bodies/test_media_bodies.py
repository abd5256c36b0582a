"""Media in each dialect's bodies: one line in the prompt, in messages and in tools' results."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Iterator
from copy import copy
from typing import Any

import pytest
import trio
import trio.testing
from starlette.types import Message
from trio.testing import trio_test

from api.served_models import ServedModels
from tests.api.bodies.test_malformed_requests import JUNK
from tests.api.bodies.test_media import PNG, encoded, url
from tests.api.client import MODEL, app_of, chat, client_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.test_agents import SAID, captured
from tests.examples import some
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

IMAGE = f"[image, {len(PNG)} bytes: this model reads text only]"
BY_URL = "[image by URL: this model reads text only]"
WAV = bytes(48)
SOUND = "[audio, 48 bytes: this model reads text only]"
REPORT = '[document "report.pdf", 12 bytes: this model reads text only]'
PDF = b"%PDF-1.7 ..."


async def prompt_of(path: str, body: dict[str, Any]) -> tuple[int, Any, str]:
    """Status, answer, and the prompt that the engine got."""
    launcher = Playback(SAID)
    scheduler = make_scheduler(launcher, answer_format=HERMES)
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post(path, json=body)
        await scheduler.wait_idle()
    prompts = [bytes(submit.prompt.tolist()).decode() for submit in launcher.submits]
    return response.status_code, response.json(), "".join(prompts)


CHAT: dict[str, Any] = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": url(PNG), "detail": "high"}},
                {"type": "image_url", "image_url": "https://example.org/x.png"},
                {"type": "input_audio", "input_audio": {"data": encoded(WAV), "format": "wav"}},
                {"type": "file", "file": {"file_data": url(PDF), "filename": "report.pdf"}},
                {"type": "video_url", "video_url": {"url": "https://example.org/x.mp4"}},
                {"type": "text", "text": "And why?"},
            ],
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "shot", "arguments": "{}"}}],
        },
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [
                {"type": "text", "text": "taken\n"},
                {"type": "image_url", "image_url": {"url": url(PNG, "image/jpeg")}},
            ],
        },
    ]
}
CHAT_PROMPT = (
    f"<user>What is this?\n{IMAGE}\n{BY_URL}\n{SOUND}\n{REPORT}\n"
    "[video by URL: this model reads text only]\nAnd why?\n"
    f"<assistant>\n<tool>taken\n{IMAGE}\n<assistant>"
)
RESPONSES: dict[str, Any] = {
    "input": [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": url(PNG), "detail": "auto"},
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_file", "file_data": encoded(PDF), "filename": "report.pdf"},
                {"type": "input_image", "file_id": "file-1"},
            ],
        },
        {"type": "function_call", "call_id": "1", "name": "shot", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "1",
            "output": [
                {"type": "input_text", "text": "taken"},
                {"type": "input_image", "image_url": url(PNG)},
            ],
        },
    ],
    "store": False,
}
RESPONSES_PROMPT = (
    f"<user>{IMAGE}\nWhat is this?\n{REPORT}\n[image: this model reads text only]\n"
    f"<assistant>\n<tool>taken\n{IMAGE}\n<assistant>"
)
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(PNG)}}
ANTHROPIC: dict[str, Any] = {
    "max_tokens": 99,
    "messages": [
        {
            "role": "user",
            "content": [
                PICTURE,
                {"type": "text", "text": "What is this?"},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/x.png"}},
                {
                    "type": "document",
                    "title": "report.pdf",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": encoded(PDF)},
                },
                {
                    "type": "document",
                    "title": "notes",
                    "source": {"type": "text", "media_type": "text/plain", "data": "the heron"},
                    "citations": {"enabled": False},
                },
                {
                    "type": "document",
                    "source": {"type": "content", "content": [{"type": "text", "text": "reeds"}, PICTURE]},
                },
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "1", "name": "shot", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "1",
                    "content": [
                        {"type": "text", "text": "taken"},
                        PICTURE,
                        {
                            "type": "search_result",
                            "source": "https://example.org",
                            "title": "Herons",
                            "content": [{"type": "text", "text": "They stand."}],
                        },
                    ],
                }
            ],
        },
    ],
}
ANTHROPIC_PROMPT = (
    f"<user>{IMAGE}\n\nWhat is this?\n\n{BY_URL}\n\n{REPORT}\n\nnotes\n\nthe heron\n\nreeds\n\n{IMAGE}\n"
    f"<assistant>\n<tool>taken\n\n{IMAGE}\n\nHerons\n\nhttps://example.org\n\nThey stand.\n<assistant>"
)
GOLDEN = {
    "/v1/chat/completions": (CHAT, CHAT_PROMPT),
    "/v1/responses": (RESPONSES, RESPONSES_PROMPT),
    "/v1/messages": (ANTHROPIC, ANTHROPIC_PROMPT),
}


@pytest.mark.parametrize("path", GOLDEN)
def test_each_part_is_a_line_of_its_own(path: str) -> None:
    """In its place, between the words around it; a document of text is its text."""

    @trio_test
    async def check(clock: trio.testing.MockClock) -> None:
        body, prompt = GOLDEN[path]
        status, answer, got = await prompt_of(path, body)
        assert status == 200, answer
        assert got == prompt

    check(clock=trio.testing.MockClock(autojump_threshold=0))


def with_junk(value: Any) -> Iterator[Any]:
    """`value` with each part of it replaced by each piece of junk."""
    yield from some(JUNK)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        for changed in with_junk(inner):
            copied = copy(value)
            copied[name] = changed
            yield copied


@pytest.mark.parametrize("path", GOLDEN)
def test_junk_in_a_part_is_accepted_or_refused(path: str) -> None:
    """By its dialect's error, and nothing breaks."""
    parts = {
        "/v1/chat/completions": CHAT["messages"][0]["content"],
        "/v1/responses": RESPONSES["input"][0]["content"],
        "/v1/messages": ANTHROPIC["messages"][0]["content"],
    }[path]
    field = "input" if path == "/v1/responses" else "messages"

    @trio_test
    async def check(clock: trio.testing.MockClock) -> None:
        scheduler = make_scheduler(Playback(""), answer_format=HERMES)
        async with running(scheduler), client_of(scheduler) as client:
            for part in parts:
                for junk in with_junk(part):
                    body = {"max_tokens": 9, field: [{"role": "user", "content": [junk]}]}
                    if path == "/v1/responses":
                        body["max_output_tokens"] = body.pop("max_tokens")
                    content = json.dumps(body).encode()
                    headers = {"content-type": "application/json"}
                    response = await client.post(path, content=content, headers=headers)
                    assert response.status_code in (200, 400), response.text

    check(clock=trio.testing.MockClock(autojump_threshold=0))


@trio_test
async def test_tokenize_counts_the_line(autojump_clock: trio.testing.MockClock) -> None:
    """As the completion does."""
    scheduler = make_scheduler(Playback(SAID))
    async with running(scheduler), client_of(scheduler) as client:
        counted = await client.post("/tokenize", json={"messages": CHAT["messages"][:1]})
    assert counted.json()["count"] == len(CHAT_PROMPT.split("<assistant>")[0].encode() + b"<assistant>")


def with_screenshot(agent: str) -> Any:
    """The agent's own body, whose tool's result is a screenshot, as its API has one."""
    body = captured(agent)["body"]
    match agent:
        case "claude_code":
            body["messages"][-1]["content"][0]["content"] = [PICTURE]
        case "codex":
            body["input"][-1]["output"] = [{"type": "input_image", "image_url": url(PNG)}]
        case _:
            body["messages"][-1]["content"] = [{"type": "image_url", "image_url": {"url": url(PNG)}}]
    return body


AFTER: dict[str, list[dict[str, Any]]] = {
    "claude_code": [
        {"role": "assistant", "content": [{"type": "text", "text": SAID}]},
        {"role": "user", "content": "Thank you."},
    ],
    "codex": [{"role": "assistant", "content": SAID}, {"role": "user", "content": "Thank you."}],
}


def cached_tokens(usage: dict[str, Any]) -> int:
    """In any dialect."""
    if "cache_read_input_tokens" in usage:
        return int(usage["cache_read_input_tokens"])
    details = usage.get("prompt_tokens_details") or usage["input_tokens_details"]
    return int(details["cached_tokens"])


@pytest.mark.parametrize("agent", ["claude_code", "codex", "opencode", "qwen_code"])
def test_an_agent_goes_on_after_a_screenshot(agent: str) -> None:
    """Its turn is answered, and so is the next one, which finds all of the first in the prefix cache."""

    @trio_test
    async def check(clock: trio.testing.MockClock) -> None:
        sent, body = captured(agent), with_screenshot(agent)
        launcher = Playback(SAID)
        scheduler = make_scheduler(launcher, answer_format=HERMES, kv_cache_bytes=1 << 30)
        async with running(scheduler), client_of(scheduler) as client:
            field = "input" if "input" in body else "messages"
            body["stream"] = False
            body.pop("stream_options", None)
            for more in ([], AFTER.get(agent, AFTER["codex"])):
                body[field].extend(more)
                response = await client.post(sent["path"], headers=sent["headers"], json=body)
                assert response.status_code == 200, response.text
            await scheduler.wait_idle()
        first, second = (bytes(submit.prompt.tolist()) for submit in launcher.submits)
        assert IMAGE in first.decode()
        assert second.startswith(first)
        assert cached_tokens(response.json()["usage"]) >= len(first)

    check(clock=trio.testing.MockClock(autojump_threshold=0))


@trio_test
async def test_nothing_holds_a_screenshot_while_its_answer_is_made(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nothing of a body of megabytes is left when the engine gets the prompt."""
    size = 4 << 20
    held: list[int] = []

    def choose(number: int, prompt: str) -> str:
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
        return SAID

    scheduler = make_scheduler(Playback(choose=choose))
    app = app_of(ServedModels.of(scheduler, MODEL))
    tracemalloc.start()
    picture = {"type": "image_url", "image_url": {"url": url(PNG)[:-1] + "A" * size}}
    message = {"role": "user", "content": [{"type": "text", "text": "x"}, picture]}
    sent = [json.dumps({**chat(), "messages": [message]}).encode()]
    del picture, message

    async def receive() -> Message:
        if sent:
            return {"type": "http.request", "body": sent.pop(), "more_body": False}
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        pass

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {},
    }
    try:
        async with running(scheduler):
            before = tracemalloc.get_traced_memory()[0]
            assert before > size, "the body itself"
            await app(scope, receive, send)
    finally:
        tracemalloc.stop()
    assert held[0] < before - 3 * size // 4
