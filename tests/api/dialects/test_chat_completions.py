"""`POST /v1/chat/completions`: whole and streamed answers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.bodies.unknown_fields import UnknownFields
from api.dialects.openai.decode import generation_request
from api.dialects.openai.schema import ChatCompletionRequest
from scheduler.events import TextDelta
from scheduler.request import ChatPrompt
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import ASKS_PROGRESS, chat, client_of, comments, events
from tests.fakes.byte_tokenizer import EOS
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.scheduling import make_scheduler, running


@trio_test
async def test_a_whole_answer_has_text_reason_and_usage(autojump_clock: trio.testing.MockClock) -> None:
    """Without `stream` the client gets one object with every field that the API reference names."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat())
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert len(choice["message"]["content"].split()) == 8
    assert choice["finish_reason"] == "length"
    prompt = len("<user>hello\n<assistant>")
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 8,
        "total_tokens": prompt + 8,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@trio_test
async def test_a_streamed_answer_is_the_same_text_in_chunks(autojump_clock: trio.testing.MockClock) -> None:
    """Role first, text in deltas, the finish reason in a chunk of its own, then the end mark."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        whole = (await client.post("/v1/chat/completions", json=chat())).json()
        response = await client.post("/v1/chat/completions", json=chat(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]


@trio_test
async def test_a_prewarm_reads_the_prompt_alone(autojump_clock: trio.testing.MockClock) -> None:
    """As Anthropic's clients ask for it; a whole answer was made and stored."""
    path, body = "/v1/messages", {**chat(), "max_tokens": 0}
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        whole = (await client.post(path, json=body)).json()
        streamed = await client.post(path, json={**body, "stream": True})
    usage = whole["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 0
    assert usage.get("prompt_tokens", usage.get("input_tokens")) > 0
    assert streamed.status_code == 200
    assert not re.search(r"w\d+ ", f"{whole}{streamed.text}")


@trio_test
async def test_usage_comes_last_where_the_client_asks(autojump_clock: trio.testing.MockClock) -> None:
    """With include_usage every chunk has null, and one more, without choices, has the counts."""
    scheduler = make_scheduler(LoopbackLauncher())
    body = chat(stream=True, stream_options={"include_usage": True})
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=body)
    *chunks, last, done = events(response.text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@trio_test
async def test_every_chunk_has_the_usage_where_the_client_asks(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As vLLM's continuous_usage_stats: each choice's own so far, all choices' at the end; not without
    include_usage."""
    scheduler = make_scheduler(LoopbackLauncher())
    asked = {"include_usage": True, "continuous_usage_stats": True}
    async with running(scheduler), client_of(scheduler) as client:
        body = chat(stream=True, n=2, stream_options=asked)
        response = await client.post("/v1/chat/completions", json=body)
        body = chat(stream=True, stream_options={"continuous_usage_stats": True})
        without = await client.post("/v1/chat/completions", json=body)
    *chunks, last, _ = events(response.text)
    for index in range(2):
        own = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["index"] == index]
        counts = [usage["completion_tokens"] for usage in own]
        assert counts == sorted(counts)
        assert (counts[0], counts[-1], len(set(counts))) == (1, 8, 8)
        assert {usage["total_tokens"] - usage["completion_tokens"] for usage in own} == {
            last["usage"]["prompt_tokens"]
        }
    assert last["usage"]["completion_tokens"] == 16
    assert all("usage" not in chunk for chunk in events(without.text)[:-1])


@trio_test
async def test_text_with_every_kind_of_character_survives_framing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Quotes, line breaks and characters beyond the BMP in ids and names are escaped as JSON requires."""
    from api.dialects.openai.encode import ChunkEncoder

    encoder = ChunkEncoder('id"\n', 1, "名/😀\\", include_usage=False)
    _, chunk = events(encoder.event(0, TextDelta('"\n\r\u2028 \\ 😀 é')).decode())
    assert chunk["id"] == 'id"\n'
    assert chunk["model"] == "名/😀\\"
    assert chunk["choices"][0]["delta"]["content"] == '"\n\r\u2028 \\ 😀 é'


@trio_test
async def test_a_stop_token_ends_with_stop_and_is_not_text(autojump_clock: trio.testing.MockClock) -> None:
    """The end-of-sequence token counts as output and is never visible."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01, stop_after=3))
    async with running(scheduler), client_of(scheduler) as client:
        body = (await client.post("/v1/chat/completions", json=chat())).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 3
    assert len(body["choices"][0]["message"]["content"].split()) == 2
    assert str(EOS) not in body["choices"][0]["message"]["content"]


@trio_test
async def test_ignore_eos_goes_on_to_max_tokens(autojump_clock: trio.testing.MockClock) -> None:
    """vLLM's field of that name: for load tests with answers of known length."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01, stop_after=3))
    async with running(scheduler), client_of(scheduler) as client:
        body = (await client.post("/v1/chat/completions", json=chat(ignore_eos=True))).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 8


@trio_test
async def test_a_stop_string_ends_the_answer_before_it(autojump_clock: trio.testing.MockClock) -> None:
    """A string or a list of them; nothing of it is sent, and the finish reason is "stop"."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        whole = (await client.post("/v1/chat/completions", json=chat())).json()
        words = whole["choices"][0]["message"]["content"].split(" ")
        stopped = (await client.post("/v1/chat/completions", json=chat(stop=words[2]))).json()
        listed = (await client.post("/v1/chat/completions", json=chat(stop=["never", words[2]]))).json()
        ending = chat(stop=words[2], include_stop_str_in_output=True)
        included = (await client.post("/v1/chat/completions", json=ending)).json()
        await scheduler.wait_idle()
    expected = " ".join(words[:2]) + " "
    for body in (stopped, listed):
        assert body["choices"][0]["message"]["content"] == expected
        assert body["choices"][0]["finish_reason"] == "stop"
    assert included["choices"][0]["message"]["content"] == expected + words[2], "vLLM's field asks for it"


@trio_test
async def test_who_asks_gets_the_progress_in_comments(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """From the first moment: the queue, then the prefill progress."""
    plan = ScriptedPlan(step_seconds=1.0, prefill_tokens_per_step=10)
    scheduler = make_scheduler(LoopbackLauncher(), plan, max_slots=1, lookahead=0)
    async with running(scheduler) as nursery, client_of(scheduler, keep_alive_seconds=2.0) as client:
        nursery.start_soon(_post, client, chat("first"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(_post, client, chat("second"))
        await trio.testing.wait_all_tasks_blocked()
        body = chat("third, and long", stream=True)
        response = await client.post("/v1/chat/completions", json=body, headers=ASKS_PROGRESS)
    said = comments(response.text)
    assert said[0] == "queued"
    total = len("<user>third, and long\n<assistant>")
    # The step that prefills the rest gives the first token, too.
    assert [line for line in said if line.startswith("prefill")][-1] == f"prefill 26/{total}"
    # A comment at least every two seconds without other events: 2 requests x (2 + 8) steps before.
    assert said.count("queued") >= 4


@trio_test
async def test_a_stream_is_kept_alive_while_the_engine_restarts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It reports the prompt's progress, never less than before, and ends as it would have; so does a whole
    answer."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=1.0, prefill_tokens_per_step=10))
    async with running(scheduler) as nursery, client_of(scheduler, keep_alive_seconds=0.02) as client:
        undisturbed = (await client.post("/v1/chat/completions", json=chat())).json()["choices"][0]

        async def kill() -> None:
            await trio.sleep(6.5)
            launcher.kill()

        for stream in (True, False):
            nursery.start_soon(kill)
            body = chat(stream=stream)
            response = await client.post("/v1/chat/completions", json=body, headers=ASKS_PROGRESS)
            assert response.status_code == 200
            if stream:
                *chunks, done = events(response.text)
                assert done == "[DONE]"
                choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
                text = "".join(choice["delta"].get("content") or "" for choice in choices)
                assert (text, choices[-1]["finish_reason"]) == (undisturbed["message"]["content"], "length")
                reports = comments(response.text)
                assert "queued, waits for: an engine that resumes it: its own died" in reports
                prefills = [line.split()[1] for line in reports if line.startswith("prefill")]
                prefilled = [int(done.split("/")[0]) for done in prefills]
                # The restart alone takes 0.1 s, and the second prefill some steps of a second.
                assert len(prefilled) > 50
                assert prefilled == sorted(prefilled)
            else:
                assert response.json()["choices"][0] == undisturbed
    assert launcher.starts == 3


async def _post(client: object, body: object) -> None:
    import httpx

    assert isinstance(client, httpx.AsyncClient)
    await client.post("/v1/chat/completions", json=body)


@trio_test
async def test_an_engine_death_is_one_error_event_in_the_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """If the request is to blame and cannot be resumed: the stream ends with an OpenAI error object and the
    end mark, never silently."""
    scheduler = make_scheduler(LoopbackLauncher(faulty(die_at_step=4)))
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat(stream=True, max_tokens=100))
    assert response.status_code == 200
    *_, error, done = events(response.text)
    assert done == "[DONE]"
    assert error["error"]["code"] == "poisonous_request"
    assert error["error"]["type"] == "server_error"


@trio_test
async def test_a_request_that_kills_engines_is_a_500_where_nothing_was_streamed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The status of a client that waits for the whole answer does not invite a retry."""
    scheduler = make_scheduler(LoopbackLauncher(faulty(die_at_step=4)))
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat(max_tokens=100))
    assert response.status_code == 500
    assert "retry-after" not in response.headers
    assert response.json()["error"]["code"] == "poisonous_request"


@trio_test
async def test_messages_reach_the_template_as_it_expects_them(autojump_clock: trio.testing.MockClock) -> None:
    """Parts are joined, `developer` is `system`, absent fields stay absent."""
    body = ChatCompletionRequest.model_validate(
        {
            "messages": [
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "reasoning": "hm",
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}],
                },
                {"role": "tool", "tool_call_id": "1", "name": "f", "content": "2"},
            ]
        }
    )
    prompt = generation_request(body).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "name": "f", "tool_call_id": "1"},
    )


@pytest.mark.parametrize(
    ("sent", "thoughts", "named"),
    [
        ({"rs_1": "hm"}, "hm", ()),
        ({"rs_1": "hm", "rs_2": "so", "zebra": 1}, "hm\n\nso", ("*.zebra",)),
        ({"reasoning": "hm", "rs_1": "so"}, "hm", ("messages[].rs_1",)),
        ({"rs_1": ["hm"]}, None, ("messages[].rs_1",)),
    ],
)
def test_a_thought_may_have_its_items_id_for_a_name(
    sent: dict[str, Any], thoughts: str | None, named: tuple[str, ...]
) -> None:
    body = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", **sent}]}
    unknown = UnknownFields()
    with unknown.noting():
        prompt = generation_request(ChatCompletionRequest.model_validate(body)).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages[1].get("reasoning_content") == thoughts
    assert unknown.named(body) == named
