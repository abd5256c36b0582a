"""`POST /v1/completions`: texts and token ids continued, without a chat template."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from tests.api.client import events, served
from tests.fakes.playback import Playback


async def ask(*texts: str, **fields: Any) -> tuple[Playback, Any]:
    """Return the answer of an engine that writes `texts`, one for each prompt and choice: an object or
    chunks."""
    body = {"prompt": "Once", "max_tokens": 1000, "temperature": 0, **fields}
    async with served(launcher := Playback(*texts), max_slots=1) as client:
        response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return launcher, events(response.text) if body.get("stream") else response.json()


def said(chunks: list[Any]) -> dict[int, tuple[str, str | None]]:
    """Return each choice's text and finish reason."""
    found: dict[int, tuple[str, str | None]] = {}
    for chunk in chunks:
        assert chunk["object"] == "text_completion"
        for choice in chunk["choices"]:
            text, reason = found.get(choice["index"], ("", None))
            assert reason is None, "text after the end"
            found[choice["index"]] = (text + choice["text"], choice["finish_reason"])
    return found


@trio_test
async def test_a_text_is_continued_as_it_stands(autojump_clock: MockClock) -> None:
    """No template; every field that the API reference names."""
    launcher, body = await ask(" upon a time")
    assert body["id"].startswith("cmpl-")
    assert (body["object"], body["model"]) == ("text_completion", "tiny")
    assert body["choices"] == [
        {"index": 0, "text": " upon a time", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"]["prompt_tokens"] == len("Once")
    assert launcher.submits[0].prompt.tolist() == list(b"Once")


@trio_test
async def test_each_of_several_prompts_has_its_choices(autojump_clock: MockClock) -> None:
    """Choice i of prompt p is number p * n + i, and the usage is the sum."""
    texts = ("a1", "a2", "b1", "b2")
    _, whole = await ask(*texts, prompt=["A", "Bb"], n=2)
    assert [choice["text"] for choice in whole["choices"]] == list(texts)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    # Each answer has its end-of-sequence token.
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (3, 12)
    _, streamed = await ask(
        *texts, prompt=["A", "Bb"], n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last, done = streamed
    assert done == "[DONE]"
    assert said(chunks) == {index: (text, "stop") for index, text in enumerate(texts)}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    counted = {"include_usage": True, "continuous_usage_stats": True}
    _, streamed = await ask(*texts, prompt=["A", "Bb"], n=2, stream=True, stream_options=counted)
    *chunks, last, _ = streamed
    ends = {chunk["choices"][0]["index"]: chunk["usage"]["total_tokens"] for chunk in chunks}
    assert ends == {0: 4, 1: 4, 2: 5, 3: 5}, "each choice's own prompt and answer"
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([72, 105], [[72, 105]]),
        ([[72], [105, 33]], [[72], [105, 33]]),
        (["H", [105]], [[72], [105]]),
    ],
)
@trio_test
async def test_token_ids_reach_the_engine_as_they_are(
    prompt: Any, expected: list[list[int]], autojump_clock: MockClock
) -> None:
    """One list is one prompt; lists of lists are several."""
    launcher, _ = await ask("x", prompt=prompt)
    assert [submit.prompt.tolist() for submit in launcher.submits] == expected


@trio_test
async def test_the_prompt_is_echoed_where_asked(autojump_clock: MockClock) -> None:
    """Also if it was sent as token ids, whole and streamed."""
    for prompt in ("Hé", list("Hé".encode())):
        _, whole = await ask("!", prompt=prompt, echo=True)
        _, streamed = await ask("!", prompt=prompt, echo=True, stream=True)
        assert whole["choices"][0]["text"] == "Hé!"
        assert said(streamed[:-1]) == {0: ("Hé!", "stop")}
