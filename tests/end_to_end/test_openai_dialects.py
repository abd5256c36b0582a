"""OpenAI's completions and responses, keys and tokenization, against real server processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.end_to_end.serving import Served, eventually, serving

MODEL = "random"


@pytest.fixture
def client(random_weights: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=random_weights.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_completions_of_texts_and_of_their_tokens(client: openai.OpenAI, random_weights: Served) -> None:
    """The same answer, whole and streamed, alone and beside others."""
    tokens = client.post("/../tokenize", body={"prompt": "Once upon"}, cast_to=dict)["tokens"]
    assert client.post("/../detokenize", body={"tokens": tokens}, cast_to=dict) == {"prompt": "Once upon"}
    alone = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=20, temperature=0)
    text = alone.choices[0].text
    assert alone.usage is not None
    assert alone.usage.prompt_tokens == len(tokens)
    both = client.completions.create(
        model=MODEL, prompt=[tokens, [1, 2]], max_tokens=20, temperature=0, echo=True
    )
    assert both.choices[0].text == "Once upon" + text
    stream = client.completions.create(
        model=MODEL, prompt=["Once upon", "Never"], max_tokens=20, temperature=0, stream=True
    )
    streamed = ""
    for chunk in stream:
        streamed += "".join(choice.text for choice in chunk.choices if choice.index == 0)
    assert streamed == text


def test_responses_go_on_and_stream(client: openai.OpenAI) -> None:
    """A second turn continues the first; the stream's last event is the whole response."""
    first = client.responses.create(model=MODEL, input="hello", max_output_tokens=12, temperature=0)
    assert (first.status, first.output_text != "") == ("incomplete", True)
    with client.responses.stream(
        model=MODEL, input="and?", previous_response_id=first.id, max_output_tokens=12, temperature=0
    ) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    again = client.responses.create(
        model=MODEL, input="and?", previous_response_id=first.id, max_output_tokens=12, temperature=0
    )
    assert again.output_text == "".join(texts)
    assert again.usage is not None
    assert first.usage is not None
    assert again.usage.input_tokens > first.usage.input_tokens + 12
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError) as gone:
        client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert gone.value.code == "previous_response_not_found"


def test_a_stream_is_cancelled_by_its_id(client: openai.OpenAI, random_weights: Served) -> None:
    """From another connection; the stream then ends by itself."""
    stream = client.responses.create(model=MODEL, input="go on", max_output_tokens=20_000, stream=True)
    kinds = []
    for event in stream:
        kinds.append(event.type)
        if event.type == "response.created":
            response_id = event.response.id
        if kinds.count("response.output_text.delta") == 3 and event.type == "response.output_text.delta":
            assert client.responses.cancel(response_id).status == "cancelled"
    assert kinds[-1] == "response.incomplete"
    assert client.responses.retrieve(response_id).status == "cancelled"
    eventually(lambda: random_weights.metric("penstock_running_slots") == 0)


def test_keys_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    """Each client sends its key in its own way; without one every request is refused, and no key is in the
    log."""
    file = tmp_path / "keys"
    file.write_text("farm:sk-from-file\n")
    arguments = ("--engine", "scripted", "--api-keys-file", str(file))
    with serving(*arguments, environment={"PENSTOCK_API_KEY": "ops:sk-from-env admin"}) as served:
        for key in ("sk-from-file", "sk-from-env"):
            with openai.OpenAI(base_url=served.url + "/v1", api_key=key, max_retries=0) as gpt:
                assert gpt.completions.create(model=MODEL, prompt="x", max_tokens=2).choices
            with anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0) as claude:
                ask: Any = {"role": "user", "content": "x"}
                assert claude.messages.create(model=MODEL, max_tokens=2, messages=[ask]).content
        with (
            openai.OpenAI(base_url=served.url + "/v1", api_key="sk-no", max_retries=0) as stranger,
            pytest.raises(openai.AuthenticationError),
        ):
            stranger.models.list()
        assert served.get("/v1/models")[0] == 401
        assert served.get("/ready")[0] == 200
    assert "sk-from" not in "".join([*served.lines, *served.log])
