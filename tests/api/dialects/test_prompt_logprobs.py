"""Log-probabilities of prompts: OpenAI's echo, as harnesses read it."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest
from trio.testing import MockClock, trio_test

from api.bodies.json_pieces import json_text
from api.dialects.completions.encode import logprobs_object
from scheduler.events import TokenLogprobs
from scheduler.shared.messages import Submit
from tests.api.client import events, served
from tests.fakes.playback import Playback

HALF = -math.log(2)
TEXT = "héy €!"
"""With characters of two and three tokens."""


async def post(path: str, *texts: str, **body: Any) -> tuple[list[Submit], httpx.Response]:
    async with served(launcher := Playback(*texts)) as client:
        response = await client.post(path, json=body)
    return launcher.submits, response


async def complete(*texts: str, **fields: Any) -> tuple[list[Submit], Any]:
    submits, response = await post(
        "/v1/completions", *texts, **{"prompt": TEXT, "max_tokens": 1, "temperature": 0, **fields}
    )
    assert response.status_code == 200, response.text
    return submits, response.json()


def value(position: int) -> float:
    """What the scripted engine says of the token at this position."""
    return HALF * (position % 4 + 1)


@trio_test
async def test_an_echo_has_the_prompts_log_probabilities(autojump_clock: MockClock) -> None:
    """Lists side by side, null for the first token, then the answer's; every token has its place."""
    _, body = await complete("x", echo=True, logprobs=1)
    (choice,) = body["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == TEXT + "x"
    data = [*TEXT.encode(), ord("x")]
    assert [len(values) for values in logprobs.values()] == [len(data)] * 4
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:-1] == pytest.approx([value(at) for at in range(1, len(data) - 1)])
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset] == token
    for token, own, top in zip(*list(logprobs.values())[:3], strict=True):
        if own is not None:
            assert top[token] == own
            assert len(top) <= 2
    assert logprobs["text_offset"] == [0, 1, 1, 2, 3, 4, 4, 4, 5, 6]


@pytest.mark.parametrize("said", ["", "x", "xyz"])
@trio_test
async def test_a_harness_reads_its_continuation(said: str, autojump_clock: MockClock) -> None:
    """As lm-eval does: token ids in batches, and one token more, which it drops, whatever that is."""
    context, continuation = list(b"2+2="), list(b"4.")
    whole = context + continuation
    _, body = await complete(said, said, prompt=[whole, context], echo=True, logprobs=1)
    first, second = sorted(body["choices"], key=lambda choice: choice["index"])
    assert first["logprobs"]["token_logprobs"][len(context) : -1] == pytest.approx([value(4), value(5)])
    assert first["logprobs"]["tokens"][len(context) : -1] == ["4", "."]
    assert len(second["logprobs"]["token_logprobs"]) == len(context) + 1


def test_of_tokens_with_one_text_the_likeliest_has_its_name() -> None:
    """The byte of a letter beside the letter, in vocabularies of pieces with bytes. A harness takes a token
    for the likeliest where nothing under any name is likelier."""
    entry = TokenLogprobs.of(65, -7.5, [(300, -0.5), (66, -2.0)], lambda token: b"B" if token == 66 else b"A")
    body = json.loads(json_text(logprobs_object([entry])))
    assert body["token_logprobs"] == [-7.5]
    assert body["top_logprobs"] == [{"A": -0.5, "B": -2.0}]


@pytest.mark.parametrize("said", ["", "xyz"])
@trio_test
async def test_a_prompt_is_scored_without_an_answer(said: str, autojump_clock: MockClock) -> None:
    """`max_tokens` 0, as OpenAI's and vLLM's completions have it: nothing of the model's own is in it,
    whether it would have ended at once or gone on."""
    submits, body = await complete(said, echo=True, logprobs=1, max_tokens=0)
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
    assert [len(values) for values in choice["logprobs"].values()] == [len(TEXT.encode())] * 4
    assert submits[0].max_tokens == 1, "the prompt's last token is read with the next one"
    tokens = len(submits[0].prompt)
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (tokens, 0, tokens)


@trio_test
async def test_nothing_but_the_echo_is_streamed(autojump_clock: MockClock) -> None:
    """Each choice is one chunk, and the usage counts no token of an answer."""
    fields = {"prompt": ["ab", "c"], "n": 2, "max_tokens": 0, "echo": True, "stream": True}
    _, response = await post("/v1/completions", "x", stream_options={"include_usage": True}, **fields)
    *chunks, last, _ = events(response.text)
    choices = sorted(
        (choice for chunk in chunks for choice in chunk["choices"]), key=lambda one: one["index"]
    )
    assert [choice["text"] for choice in choices] == ["ab", "ab", "c", "c"]
    assert {choice["finish_reason"] for choice in choices} == {"length"}
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (3, 0)


@trio_test
async def test_choices_share_their_prompts(autojump_clock: MockClock) -> None:
    """It is computed once for all of them; every one has it."""
    submits, body = await complete(*"abcdef", prompt=["one", "two!"], n=3, echo=True, logprobs=0)
    assert sorted(submit.prompt_logprobs is not None for submit in submits) == [False] * 4 + [True] * 2
    prompts = ["one"] * 3 + ["two!"] * 3
    for prompt, choice in zip(prompts, body["choices"], strict=True):
        assert choice["logprobs"]["tokens"][: len(prompt)] == list(prompt)
        assert len(choice["logprobs"]["tokens"]) == len(prompt) + 1


@trio_test
async def test_without_an_echo_nothing_is_computed(autojump_clock: MockClock) -> None:
    """Nor with an echo and no log-probabilities."""
    for fields in ({"logprobs": 2}, {"echo": True}, {}):
        submits, body = await complete("x", **fields)
        assert [submit.prompt_logprobs for submit in submits] == [None]
        assert len((body["choices"][0]["logprobs"] or {"tokens": [1]})["tokens"]) == 1
