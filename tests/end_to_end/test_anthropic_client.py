"""The official `anthropic` client against a real server process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.end_to_end.serving import Served

# The newest client has no such argument any more; older ones send it.
GREEDY = {"temperature": 0}
ASK: Any = {"role": "user", "content": "hello"}


@pytest.fixture
def client(random_weights: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=random_weights.url, api_key="unused", max_retries=0) as client:
        yield client


def test_it_creates_and_counts_what_is_cached(client: anthropic.Anthropic) -> None:
    """Cached tokens are not input tokens; together they equal `count_tokens`."""
    counted = client.messages.count_tokens(model="random", system="Be kind.", messages=[ASK])
    for first in (True, False):
        message = client.messages.create(model="random", max_tokens=12, system="Be kind.", messages=[ASK])
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
        cached = message.usage.cache_read_input_tokens
        assert cached is not None
        assert message.usage.input_tokens + cached == counted.input_tokens
        if not first:
            assert message.usage.input_tokens == 1


def test_it_streams_what_it_creates(client: anthropic.Anthropic) -> None:
    """Greedy: the client's accumulated message equals the whole one."""
    ask: dict[str, Any] = {
        "model": "random",
        "max_tokens": 40,
        "messages": [ASK, {"role": "assistant", "content": "Well"}],
        "extra_body": GREEDY,
    }
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.text for block in whole.content if block.type == "text"] == [text]
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, 40)


def test_the_stop_sequence_is_named(client: anthropic.Anthropic) -> None:
    """Found in what the model says without it."""
    ask: dict[str, Any] = {
        "model": "random",
        "max_tokens": 40,
        "messages": [ASK],
        "extra_body": GREEDY,
    }
    (block,) = client.messages.create(**ask).content
    assert block.type == "text"
    stop = block.text[10:13]
    stopped = client.messages.create(**ask, stop_sequences=["never said", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].type == "text"
    assert stopped.content[0].text == block.text[: block.text.index(stop)]


def test_errors_have_their_types(client: anthropic.Anthropic) -> None:
    """The client raises its own exception for each status; also for the server's own."""
    with pytest.raises(anthropic.NotFoundError, match="'claude-9' does not exist here"):
        client.messages.create(model="claude-9", max_tokens=5, messages=[ASK])
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(model="random", max_tokens=5, messages=[ASK], extra_body={"temperature": 1.5})
    huge: Any = {"role": "user", "content": "x" * (17 << 20)}
    with pytest.raises(anthropic.RequestTooLargeError) as large:
        client.messages.create(model="random", max_tokens=5, messages=[huge])
    assert isinstance(large.value.body, dict)
    assert large.value.body["type"] == "error"
