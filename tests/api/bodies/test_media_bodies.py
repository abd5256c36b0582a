"""Media in each dialect's bodies: one line in the prompt, in messages and in tools' results."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest
import trio
import trio.testing
from starlette.types import Message
from trio.testing import trio_test

from api.served_models import ServedModels
from tests.api.bodies.test_media import PNG, encoded, url
from tests.api.client import MODEL, app_of, chat, client_of
from tests.api.dialects.test_chat_tools import HERMES
from tests.api.test_agents import SAID
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


@trio_test
async def test_tokenize_counts_the_line(autojump_clock: trio.testing.MockClock) -> None:
    """As the completion does."""
    scheduler = make_scheduler(Playback(SAID))
    async with running(scheduler), client_of(scheduler) as client:
        counted = await client.post("/tokenize", json={"messages": CHAT["messages"][:1]})
    assert counted.json()["count"] == len(CHAT_PROMPT.split("<assistant>")[0].encode() + b"<assistant>")


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
