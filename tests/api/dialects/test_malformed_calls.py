"""A tool call that cannot be read, in each dialect: the answer ends well, and the session goes on."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from pydantic import TypeAdapter
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from api.admin.live import snapshot
from api.dialects.openai.messages import CalledFunction
from tests.api.client import client_of, served
from tests.api.dialects.test_chat_tools import HERMES, ask, joined
from tests.api.test_agents import captured
from tests.api.transcripts import named_events, response_of
from tests.fakes.playback import Playback
from tests.fakes.samples import sample
from tests.fakes.scheduling import make_scheduler, running

UNKNOWN = "<tool_call>get the time</tool_call>"
"""Nothing of it can be read."""
STARTED = '<tool_call>{"name": "get_time", "arguments": {"zone": "UTC", "at": noon}}</tool_call>'
"""Its name and its first argument can."""
GOOD = '<tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call>'
HALF = '<tool_call>{"name": "get_time", "arguments": {"zone": "U'
MARK = {"malformed_tool_call": True}
PARAMETERS = {"type": "object", "properties": {"zone": {"type": "string"}}}


TOOL = {"name": "get_time", "input_schema": PARAMETERS}
FUNCTION = {"type": "function", "name": "get_time", "parameters": PARAMETERS}
ASKED = [{"role": "user", "content": "What time is it?"}]


async def both(path: str, text: str, **body: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The whole answer, and the events of the streamed one."""
    async with served(Playback(text), answer_format=HERMES) as client:
        whole = await client.post(path, json=body)
        streamed = await client.post(path, json={**body, "stream": True})
    assert (whole.status_code, streamed.status_code) == (200, 200)
    return whole.json(), named_events(streamed.text)


@trio_test
async def test_a_good_call_beside_a_bad_one_can_be_run(autojump_clock: MockClock) -> None:
    """The reason is the good one's."""
    said = f"{UNKNOWN}\n{GOOD}"
    whole, found = await both("/v1/messages", said, max_tokens=500, messages=ASKED, tools=[TOOL])
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]
    (last,) = (event for event in found if event["type"] == "message_delta")
    assert whole["stop_reason"] == last["delta"]["stop_reason"] == "tool_use"
    assert whole["penstock"] == last["penstock"] == MARK
    whole, found = await both("/v1/responses", said, input=ASKED, tools=[FUNCTION])
    for response in (whole, response_of(found)):
        assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    _, body = await ask(said)
    _, chunks = await ask(said, stream=True)
    for message in (body["choices"][0]["message"], joined(chunks[:-1])):
        assert (message["content"].strip(), len(message["tool_calls"])) == (UNKNOWN, 1)


@trio_test
async def test_codex_goes_on_with_its_session(autojump_clock: MockClock) -> None:
    """It sends the call back with its complaint, in the next request and by previous_response_id."""
    sent = captured("codex")
    call = STARTED.replace("get_time", "exec_command")
    async with served(Playback(call, "Sorry.", "Sorry."), answer_format=HERMES) as client:

        async def ask(**changed: Any) -> Any:
            body = {**sent["body"], "stream": False, **changed}
            response = await client.post(sent["path"], headers=sent["headers"], json=body)
            assert response.status_code == 200, response.text
            return response.json()

        first = await ask(store=True)
        (item,) = first["output"]
        output = "failed to parse function arguments"
        complaint = {"type": "function_call_output", "call_id": item["call_id"], "output": output}
        again = await ask(input=[*sent["body"]["input"], item, complaint])
        stored = await ask(input=[complaint], previous_response_id=first["id"])
    assert again["output"][0]["content"][0]["text"] == "Sorry."
    assert stored["output"][0]["content"][0]["text"] == "Sorry."


PIECES = [
    *'[]{}",: -0.1e+\\u/a\x01\ud800\ufeff',
    "NaN",
    "-Infinity",
    "1e999",
    '"a":',
    "1" + 20 * "0",
    "\\ud83d",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def as_python_reads(text: str) -> str:
    """Texts of values, because NaN equals nothing and 1 equals 1.0."""
    if not text.strip():
        return "{}"
    try:
        read = json.loads(text, strict=False)
    except ValueError:
        return repr({"not_json": text})
    if isinstance(read, str):
        return repr({"not_json": read})
    if read == []:
        return "{}"  # PHP's empty object.
    return repr(read if isinstance(read, dict) else {"not_json": text})


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map(lambda pieces: '{"a":' + "".join(pieces) + "}")
    | st.builds(json.dumps, VALUES | st.dictionaries(st.text(), VALUES), ensure_ascii=st.booleans())
    | st.sampled_from(["", " \n", json.dumps('{"a": b}')])
)
def test_arguments_are_what_pythons_own_parser_reads(sent: str) -> None:
    """JSON, and what some clients write in its place: NaN, control characters, half of a character."""
    called = TypeAdapter(CalledFunction).validate_python({"name": "f", "arguments": sent})
    assert repr(called.arguments) == as_python_reads(sent)


@trio_test
async def test_operators_see_a_model_that_drifts(autojump_clock: MockClock) -> None:
    """Each call is counted once, by the model's notation and by what is wrong, also on the live page; the
    first of a kind is logged. A good call is none, and no request has failed."""
    scheduler = make_scheduler(Playback(f"{UNKNOWN}{STARTED}{UNKNOWN}{GOOD}{HALF}"), answer_format=HERMES)
    body = {"max_tokens": 500, "messages": ASKED, "tools": [TOOL]}
    expected = {"no_call": 4, "arguments": 2, "unfinished": 2}
    async with running(scheduler), client_of(scheduler) as client:
        with capture_logs() as logs:
            for _ in range(2):
                await client.post("/v1/messages", json=body)
            await scheduler.wait_idle()
        shown = snapshot(scheduler)["malformed_calls"]
        registry = scheduler.metrics.registry
    labels = [{"notation": "json_tools", "kind": kind} for kind in expected]
    name = "penstock_malformed_tool_calls_total"
    assert [sample(registry, name, **each) for each in labels] == list(expected.values())
    assert shown == [{**each, "value": value} for each, value in zip(labels, expected.values(), strict=True)]
    lines = [log for log in logs if log["event"] == "malformed_tool_call"]
    assert [{name: log[name] for name in ("notation", "kind")} for log in lines] == labels
    assert sample(registry, "penstock_requests_total", outcome="tool_calls") == 2
