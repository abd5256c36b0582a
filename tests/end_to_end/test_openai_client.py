"""The official `openai` client against a real server process."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
import trio

from tests.end_to_end.serving import Served, eventually


@pytest.fixture
def client(random_weights: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=random_weights.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_it_completes(client: openai.OpenAI) -> None:
    """The typed object has text, finish reason and usage; repeated, all of the prompt but one token is
    cached."""
    for _ in range(2):
        answer = client.chat.completions.create(
            model="random", messages=[{"role": "user", "content": "hello"}], max_tokens=12
        )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens - 1


def test_it_streams_what_it_completes(client: openai.OpenAI) -> None:
    """Greedy: the deltas join to the whole answer; the usage is in the last chunk."""
    whole = client.chat.completions.create(
        model="random",
        messages=[{"role": "user", "content": "count"}],
        max_tokens=40,
        temperature=0,
    )
    stream = client.chat.completions.create(
        model="random",
        messages=[{"role": "user", "content": "count"}],
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == 40


def test_it_cancels_in_the_middle_of_a_stream(client: openai.OpenAI, random_weights: Served) -> None:
    """Closing the stream frees the slot, although 20,000 more tokens were requested."""
    before = random_weights.metric("penstock_requests_total", 'outcome="cancelled"')
    stream = client.chat.completions.create(
        model="random",
        messages=[{"role": "user", "content": "go on"}],
        max_tokens=20_000,
        stream=True,
    )
    for _, chunk in zip(range(5), stream, strict=False):
        assert chunk.choices
    stream.close()
    eventually(lambda: random_weights.metric("penstock_requests_total", 'outcome="cancelled"') == before + 1)
    eventually(lambda: random_weights.metric("penstock_running_slots") == 0)
    assert random_weights.metric("penstock_kv_bytes") == 0


def test_errors_have_their_types(client: openai.OpenAI) -> None:
    """The client raises its own exception for each status, with code and parameter."""
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(
            model="random", messages=[{"role": "user", "content": "x"}], temperature=5
        )
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="random", messages=[{"role": "user", "content": "word " * 50_000}]
        )
    assert long.value.code == "context_length_exceeded"


# The client leaves its own generators to the garbage collector after a stream.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_async_client_runs_many_at_once_on_trio(random_weights: Served) -> None:
    """As agent frameworks use it: one client, many streams, trio underneath."""

    async def main() -> list[str]:
        answers: list[str] = []
        async with openai.AsyncOpenAI(
            base_url=random_weights.url + "/v1", api_key="unused", max_retries=0
        ) as client:

            async def one(number: int) -> None:
                stream = await client.chat.completions.create(
                    model="random",
                    messages=[{"role": "user", "content": f"agent {number % 4}"}],
                    max_tokens=16,
                    temperature=0,
                    stream=True,
                )
                text = ""
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                answers.append(text)

            async with trio.open_nursery() as nursery:
                for number in range(16):
                    nursery.start_soon(one, number)
        return answers

    answers = trio.run(main)
    assert len(answers) == 16
    assert all(answers.count(text) == 4 for text in set(answers))
