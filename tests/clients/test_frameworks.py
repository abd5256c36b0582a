"""Agent frameworks: chat, stream, and a loop with a tool, each by its own API.

They are installed in an environment of their own (`requirements.txt`), which `make test-all` builds;
elsewhere `CLIENTS_PYTHON` may name its interpreter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from api.answers.errors import WRONG_KEY, ApiError, from_scheduler
from scheduler.errors import ModelNotFound, PromptTooLong, QueueFull, SchedulerError, TenantLimit
from tests.api.dialects.test_chat_tools import HERMES, SAID
from tests.clients.library_sessions import PYTHON, LibrarySession, told_by
from tests.fakes.played_server import PlayedServer, playing

NOON = '{"zone": "UTC", "hour": 12}'

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="the clients' environment is not there; 'make test-all' builds it"
)


def choose(number: int, prompt: str) -> str:
    """A model that greets, calls the clock's tool if it may, and answers with an object on request: by the
    tool that it must call, in words, or in nothing but JSON, as a grammar would require."""
    if "<tool>12:00" in prompt:
        return "It is noon."
    if "<tool>get_time" in prompt:
        return SAID
    if tool := re.search(r"<tool>(\w+)", prompt):
        return f'<tool_call>\n{{"name": "{tool[1]}", "arguments": {NOON}}}\n</tool_call>'
    if "json" in prompt.lower():
        return f"Here:\n```json\n{NOON}\n```"
    return NOON if "What time" in prompt else "Hello there."


@pytest.fixture(scope="module")
def served() -> Iterator[PlayedServer]:
    with playing(choose, HERMES) as played:
        yield played


def run(program: str, given: str) -> list[Any]:
    """Return the printed lines of JSON. `given`: the server's URL, or what else the program reads."""
    return told_by(LibrarySession(f"{program}.py"), [given])


def test_litellm_chats_streams_calls_a_tool_and_decides(served: PlayedServer) -> None:
    """The tool gets the model's arguments, and the model its result. Decisions, for which LangChain asks too,
    come by the questions' types, or by their names. `test_sessions.py` has others."""
    said = {
        "chat": "Hello there.",
        "stream": "Hello there.",
        "called": {"zone": "UTC"},
        "answer": "It is noon.",
    }
    assert run("use_litellm", served.url) == [
        *({"way": way, **said} for way in ("openai", "anthropic")),
        ["predicate", "choice", "score"],
        ["angry", "team", "urgent"],
    ]


def test_instructor_gets_its_object(served: PlayedServer) -> None:
    """Whole, and from a stream; at the first try. Unless it asks in words, the request constrains the
    answer."""
    before = served.submitted
    ways = [f"{way}{how}" for way in ("default", "schema", "words") for how in ("", ", streamed")]
    assert run("use_instructor", served.url) == [{"way": way, "object": json.loads(NOON)} for way in ways]
    grammars = [bool(submit.grammar) for submit in served.engine.submits[before:]]
    assert grammars == [True] * 4 + [False] * 2


READ: dict[str, tuple[ApiError | SchedulerError, tuple[str | None, ...], tuple[str | None, ...]]] = {
    "the prompt is too long": (
        PromptTooLong(41_000, None, 40_960, param="messages"),
        ("BadRequestError", "ContextWindowExceededError", "context_overflow"),
        ("BadRequestError", "ContextWindowExceededError"),
    ),
    "too many tokens are asked for": (
        PromptTooLong(7_000, 65_536, 65_536, param="max_tokens"),
        ("BadRequestError", "ContextWindowExceededError", "context_overflow"),
        ("BadRequestError", "ContextWindowExceededError"),
    ),
    "one tenant's requests": (
        TenantLimit("64 requests of this tenant are waiting", retry_after_seconds=2),
        ("RateLimitError", "RateLimitError", "throttling"),
        ("RateLimitError", "RateLimitError"),
    ),
    "the queue is full": (
        QueueFull("The server is overloaded: the queue is full", retry_after_seconds=2),
        ("InternalServerError", "ServiceUnavailableError", None),
        ("OverloadedError", "InternalServerError"),
    ),
    "no such model": (
        ModelNotFound("The model 'gpt-9' does not exist here: this server has 'tiny'"),
        ("NotFoundError", "NotFoundError", None),
        ("NotFoundError", "NotFoundError"),
    ),
    "a wrong key": (
        WRONG_KEY,
        ("AuthenticationError", "AuthenticationError", None),
        ("AuthenticationError", "AuthenticationError"),
    ),
}
"""Error -> what openai, litellm and Strands make of it, and anthropic and litellm of Anthropic's form."""


def test_litellm_and_strands_know_errors_by_their_own_functions() -> None:
    sent, expected = [], []
    for name, (error, of_openai, of_anthropic) in READ.items():
        api = error if isinstance(error, ApiError) else from_scheduler(error)
        sent.append([name, api.status, api.openai_body(), api.anthropic_status, api.anthropic_body()])
        keys = ("error", "openai", "litellm", "strands", "anthropic", "litellm, anthropic")
        expected.append(dict(zip(keys, (name, *of_openai, *of_anthropic), strict=True)))
    assert run("read_errors", json.dumps(sent)) == expected
