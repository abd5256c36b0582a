"""The official clients `openai` and `anthropic` against real server processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.end_to_end.serving import Served, eventually, serving

MODEL = "random"
# The newest client has no such argument as `temperature` any more; older ones send it.
GREEDY: dict[str, Any] = {"model": "random", "max_tokens": 40, "extra_body": {"temperature": 0}}


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_it_streams_what_it_completes(gpt: openai.OpenAI) -> None:
    """Greedy: the deltas join to the whole answer, behind a prompt of which all but one token is cached; the
    usage is in the last chunk."""
    asked: Any = {"model": MODEL, "messages": said("count"), "max_tokens": 40, "temperature": 0}
    whole = gpt.chat.completions.create(**asked)
    assert whole.choices[0].finish_reason == "length"
    text, usage = "", None
    for chunk in gpt.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == 40
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_it_cancels_in_the_middle_of_a_stream(gpt: openai.OpenAI, random_weights: Served) -> None:
    """Closing the stream frees the slot, although 20,000 more tokens were requested."""
    before = random_weights.metric("penstock_requests_total", 'outcome="cancelled"')
    stream = gpt.chat.completions.create(model=MODEL, messages=said("go on"), max_tokens=20_000, stream=True)
    for _, chunk in zip(range(5), stream, strict=False):
        assert chunk.choices
    stream.close()
    eventually(lambda: random_weights.metric("penstock_requests_total", 'outcome="cancelled"') == before + 1)
    eventually(lambda: random_weights.metric("penstock_running_slots") == 0)
    assert random_weights.metric("penstock_kv_bytes") == 0


def test_errors_have_their_types(gpt: openai.OpenAI) -> None:
    """The client raises its own exception for each status, with code and parameter."""
    with pytest.raises(openai.NotFoundError) as missing:
        gpt.chat.completions.create(model="gpt-9", messages=said("x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        gpt.chat.completions.create(model=MODEL, messages=said("x"), temperature=5)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        gpt.chat.completions.create(model=MODEL, messages=said("word " * 50_000))
    assert long.value.code == "context_length_exceeded"


def test_completions_of_texts_and_of_their_tokens(gpt: openai.OpenAI) -> None:
    """The same answer, whole and streamed, alone and beside others."""
    tokens = gpt.post("/../tokenize", body={"prompt": "Once upon"}, cast_to=dict)["tokens"]
    assert gpt.post("/../detokenize", body={"tokens": tokens}, cast_to=dict) == {"prompt": "Once upon"}
    asked: Any = {"model": MODEL, "max_tokens": 20, "temperature": 0}
    alone = gpt.completions.create(prompt="Once upon", **asked)
    text = alone.choices[0].text
    assert alone.usage is not None
    assert alone.usage.prompt_tokens == len(tokens)
    both = gpt.completions.create(prompt=[tokens, [1, 2]], echo=True, **asked)
    assert both.choices[0].text == "Once upon" + text
    chunks = gpt.completions.create(prompt=["Once upon", "Never"], stream=True, **asked)
    entries = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in entries if choice.index == 0) == text


def test_responses_go_on_and_stream(gpt: openai.OpenAI) -> None:
    """A second turn continues the first; the stream's last event is the whole response."""
    asked: Any = {"model": MODEL, "max_output_tokens": 12, "temperature": 0}
    first = gpt.responses.create(input="hello", **asked)
    assert (first.status, first.output_text != "") == ("incomplete", True)
    with gpt.responses.stream(input="and?", previous_response_id=first.id, **asked) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    again = gpt.responses.create(input="and?", previous_response_id=first.id, **asked)
    assert again.output_text == "".join(texts)
    assert again.usage is not None
    assert first.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens + 12
    gpt.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        gpt.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"


def test_claude_creates_and_counts_what_is_cached(claude: anthropic.Anthropic) -> None:
    """Cached tokens are not input tokens; together they equal `count_tokens`."""
    counted = claude.messages.count_tokens(model="random", system="Be kind.", messages=said("hello"))
    for first in (True, False):
        message = claude.messages.create(
            model="random", max_tokens=12, system="Be kind.", messages=said("hello")
        )
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
        cached = message.usage.cache_read_input_tokens
        assert cached is not None
        assert message.usage.input_tokens + cached == counted.input_tokens
        if not first:
            assert message.usage.input_tokens == 1


def test_claude_streams_what_it_creates(claude: anthropic.Anthropic) -> None:
    """Greedy: the client's accumulated message equals the whole one. A stop sequence, found in what the model
    says without it, is named."""
    messages: Any = [*said("hello"), {"role": "assistant", "content": "Well"}]
    (block,) = claude.messages.create(messages=messages, **GREEDY).content
    with claude.messages.stream(messages=messages, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert block.type == "text"
    assert block.text == text
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 40)
    stop = text[10:13]
    stopped = claude.messages.create(messages=messages, stop_sequences=["never said", stop], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert stopped.content[0].type == "text"
    assert stopped.content[0].text == text[: text.index(stop)]


def test_claudes_errors_have_their_types(claude: anthropic.Anthropic) -> None:
    """The client raises its own exception for each status; also for the server's own."""
    with pytest.raises(anthropic.NotFoundError, match="'claude-9' does not exist here"):
        claude.messages.create(model="claude-9", max_tokens=5, messages=said("hello"))
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(
            model="random", max_tokens=5, messages=said("hello"), extra_body={"temperature": 1.5}
        )
    huge: Any = {"role": "user", "content": "x" * (17 << 20)}
    with pytest.raises(anthropic.RequestTooLargeError) as large:
        claude.messages.create(model="random", max_tokens=5, messages=[huge])
    assert isinstance(large.value.body, dict)
    assert large.value.body["type"] == "error"


def test_keys_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    """Each client sends its key in its own way; without one every request is refused, and no key is in the
    log."""
    file = tmp_path / "keys"
    file.write_text("farm:sk-from-file\n")
    arguments = ("--engine", "scripted", "--api-keys-file", str(file))
    with serving(*arguments, environment={"PENSTOCK_API_KEY": "ops:sk-from-env admin"}) as served:
        for key in ("sk-from-file", "sk-from-env"):
            with openai.OpenAI(base_url=served.url + "/v1", api_key=key, max_retries=0) as client:
                assert client.completions.create(model=MODEL, prompt="x", max_tokens=2).choices
            with anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0) as other:
                assert other.messages.create(model=MODEL, max_tokens=2, messages=said("x")).content
        with (
            openai.OpenAI(base_url=served.url + "/v1", api_key="sk-no", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
        assert served.get("/v1/models")[0] == 401
        assert served.get("/ready")[0] == 200
    assert "sk-from" not in "".join([*served.lines, *served.log])
