"""Fields of a body that no schema knows: ignored and named; refused where the operator says so."""

from __future__ import annotations

import re
from typing import Any

import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from api.bodies.body import Body
from api.bodies.unknown_fields import HEADER, MAX_NAME_CHARACTERS, MAX_NAMES, MORE, UnknownFields
from api.dialects.anthropic.schema import MessagesRequest
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.responses.schema import CreateResponse
from tests.api.client import chat, client_of
from tests.api.dialects.test_malformed_dialects import TARGETS, Target
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.answer.notations import form

STREAMING = [target for target in TARGETS if "stream" in target.schema.model_fields]
TEXT = {"role": "user", "content": [{"type": "text", "text": "a"}]}

CALLED = {"name": "f", "arguments": '{"own": 1}', "y": 1}
MARK = {"type": "ephemeral", "scope2": 1}


def ignored(schema: type[Body], body: Any) -> tuple[str, ...]:
    unknown = UnknownFields()
    with unknown.noting():
        schema.model_validate(body)
    return unknown.named(body)


def answering() -> Any:
    return make_scheduler(Playback("ok"), answer_format=form("json_tools", "think"))


@pytest.mark.parametrize("target", TARGETS, ids=[target.path for target in TARGETS])
@trio_test
async def test_every_body_may_have_an_unknown_field_which_the_answer_names(
    target: Target, autojump_clock: MockClock
) -> None:
    """A clean body's answer has no such header, and the route alone is counted."""
    scheduler = answering()
    async with running(scheduler), client_of(scheduler) as client:
        clean = await client.post(target.path, json=target.body)
        answer = await client.post(target.path, json={**target.body, "zebra": 1, "a\ufffd,b": {"c": [1]}})
    assert (clean.status_code, answer.status_code) == (200, 200), answer.text
    assert HEADER not in clean.headers
    assert answer.headers[HEADER] == "a??b,zebra"
    value = scheduler.metrics.registry.get_sample_value
    assert value("penstock_bodies_with_ignored_fields_total", {"route": target.path}) == 1


@pytest.mark.parametrize("target", STREAMING, ids=[target.path for target in STREAMING])
@trio_test
async def test_a_stream_names_them_in_its_head(target: Target, autojump_clock: MockClock) -> None:
    """Before its first event."""
    scheduler = answering()
    async with running(scheduler), client_of(scheduler) as client:
        answer = await client.post(target.path, json={**target.body, "stream": True, "zebra": 1})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers[HEADER] == "zebra"


@trio_test
async def test_the_request_is_the_same_without_them(autojump_clock: MockClock) -> None:
    """The engine gets what the clean body asks for, and the request's log line names what was ignored."""
    launcher = Playback("ok")
    scheduler = make_scheduler(launcher)
    turn = {"role": "user", "content": "hello", "cache": True}
    with capture_logs() as logs:
        async with running(scheduler), client_of(scheduler) as client:
            await client.post("/v1/chat/completions", json=chat(seed=1))
            await client.post("/v1/chat/completions", json=chat(seed=1, messages=[turn], provider={"a": 1}))
            await scheduler.wait_idle()
    clean, other = launcher.submits
    assert (clean.prompt, clean.sampling, clean.max_tokens) == (
        other.prompt,
        other.sampling,
        other.max_tokens,
    )
    lines = [line for line in logs if line["event"] == "request"]
    assert ["ignored" in line for line in lines] == [False, True]
    assert lines[1]["ignored"] == "messages[].cache,provider"


@pytest.mark.parametrize(
    ("schema", "body", "names"),
    [
        pytest.param(ChatCompletionRequest, {"messages": [TEXT]}, (), id="a clean body"),
        pytest.param(
            ChatCompletionRequest,
            {"messages": [{"role": "assistant", "tool_calls": [{"function": CALLED, "x": 1}]}]},
            ("messages[].tool_calls[].function.y", "messages[].tool_calls[].x"),
            id="within what is itself within",
        ),
        pytest.param(
            ChatCompletionRequest,
            {"messages": [TEXT], "tool_choice": {"type": "function", "function": {"name": "f", "x": 1}}},
            ("*.x",),
            id="in what is put together anew",
        ),
        pytest.param(
            ChatCompletionRequest,
            {"messages": [TEXT], "metadata": {"own": 1}, "x": None},
            (),
            id="an object of the client's own has no unknown members",
        ),
        pytest.param(
            MessagesRequest,
            {
                "max_tokens": 1,
                "thinking": {"type": "disabled", "x": 1},
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": MARK}]}
                ],
            },
            ("messages[].content[].cache_control.scope2", "thinking.x"),
            id="anthropic's",
        ),
        pytest.param(
            CreateResponse,
            {"input": [{"role": "user", "content": "a", "x": 1}], "tools": [{"type": "web_search", "x": 1}]},
            ("input[].x", "tools[].type:web_search"),
            id="responses",
        ),
    ],
)
def test_they_are_named_by_their_places(schema: type[Body], body: Any, names: tuple[str, ...]) -> None:
    """Sorted, and each once."""
    assert ignored(schema, body) == names


def test_what_is_named_is_bounded_and_fits_a_header() -> None:
    """A hundred thousand names, a megabyte of one, line breaks, other scripts, lone surrogates."""
    many: dict[str, Any] = {"messages": [TEXT, *({**TEXT, f"k{n}": 1} for n in range(1000))]}
    many |= {f"x{n}": n for n in range(100_000)}
    found = ignored(ChatCompletionRequest, many)
    assert (len(found), found[-1]) == (MAX_NAMES + 1, MORE)
    strange = {"a\r\nset-cookie: b": 1, "é🦊\ud800": 1, "y" * (1 << 20): 1, "": 1, "two, three": 1}
    found = ignored(ChatCompletionRequest, {"messages": [TEXT], **strange})
    assert len(found) == len(strange)
    long = {"messages": [TEXT], **{"x" * 1000 + str(n): 1 for n in range(100)}}
    assert len(",".join(ignored(ChatCompletionRequest, long))) < 2048, "what servers in front of us take"
    for name in found:
        assert len(name) <= MAX_NAME_CHARACTERS
        assert re.fullmatch(r"[!-+\--~]+", name), name


def test_a_wish_that_is_not_met_is_named() -> None:
    """Codex asks for a verbosity under each model name that it knows: it is answered, and told."""
    text = {"format": {"type": "text"}}
    for value in ("low", "next-year", 5):
        assert ignored(ChatCompletionRequest, {"messages": [TEXT], "verbosity": value}) == ("verbosity",)
        body = {"input": "x", "text": {**text, "verbosity": value}}
        assert ignored(CreateResponse, body) == ("text.verbosity",)
    for met in ("medium", None):
        assert not ignored(ChatCompletionRequest, {"messages": [TEXT], "verbosity": met})
        assert not ignored(CreateResponse, {"input": "x", "text": {**text, "verbosity": met}})
