"""A whole answer is made as it is sent, however large, and refused if it can become too large."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from api.answers.whole_answer import MAX_HELD_BYTES, WholeAnswer, WholeChoice, held_bytes
from api.bodies.json_pieces import SLICE_BYTES, JsonList, PiecedResponse, json_pieces, json_text
from api.dialects.openai.encode import ChunkEncoder
from scheduler.events import Finished, FinishReason, TextDelta, TokenLogprobs, Usage
from scheduler.request import GenerationRequest, TextPrompt
from tests.api.client import client_of
from tests.examples import examples
from tests.fakes.playback import Playback
from tests.fakes.scheduling import FOLDER, make_scheduler, running

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
TOP = tuple((token, -0.1 * token) for token in range(20))


@given(value=JSON)
def test_pieces_join_to_the_json_text(value: Any) -> None:
    assert json.loads(b"".join(json_pieces(value))) == value


@settings(max_examples=examples(30))
@given(entries=st.lists(JSON))
def test_a_list_that_is_encoded_entry_by_entry_reads_as_a_list(entries: list[Any]) -> None:
    lazy = JsonList(lambda: (json_text(entry) for entry in entries))
    assert json.loads(json_text({"before": 1, "entries": lazy, "after": [lazy]})) == {
        "before": 1,
        "entries": entries,
        "after": [entries],
    }


def answer_of(choices: int, tokens: int) -> WholeAnswer:
    """With twenty alternatives for each token."""
    usage = Usage(1, 0, tokens)

    def choice() -> WholeChoice:
        made = WholeChoice(finished=Finished(FinishReason.LENGTH, usage))
        for _ in range(tokens):
            made.add(TextDelta("x", (TokenLogprobs.of(7, -1.0, TOP, lambda token: b"<%d>" % token),)))
        return made

    return WholeAnswer(tuple(choice() for _ in range(choices)))


async def sent(response: PiecedResponse, on_part: Callable[[bytes], None]) -> dict[bytes, bytes]:
    headers: dict[bytes, bytes] = {}

    async def send(message: Any) -> None:
        headers.update(message.get("headers", ()))
        on_part(message.get("body", b""))

    async def receive() -> Any:
        raise AssertionError("nothing is read")

    await response({"type": "http"}, receive, send)
    return headers


class InPlace:
    def __init__(self) -> None:
        self.slices = 0

    async def __call__(self, work: Callable[[], Any], /, **lane: Any) -> Any:
        self.slices += 1
        return work()


@trio_test
async def test_a_large_answer_is_never_whole_in_memory() -> None:
    """32 choices with log-probabilities come to megabytes of JSON. What is held beside the packed entries
    stays within some slices, and each slice is work for a thread."""
    answer, offload, longest, total = answer_of(32, 100), InPlace(), 0, 0

    def on_part(part: bytes) -> None:
        nonlocal longest, total
        longest, total = max(longest, len(part)), total + len(part)

    response = PiecedResponse(ChunkEncoder("id", 1, "m").whole(answer, logprobs=True), offload, "")
    tracemalloc.start()
    try:
        headers = await sent(response, on_part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > 100 * SLICE_BYTES
    assert longest < 2 * SLICE_BYTES
    assert peak < 40 * SLICE_BYTES
    assert offload.slices >= total // (2 * SLICE_BYTES)
    assert b"content-length" not in headers


def test_what_an_answer_holds_is_within_what_it_is_charged() -> None:
    """The bound on whole answers is one of memory."""
    choices, tokens = 4, 500
    request = GenerationRequest("id", TextPrompt("x"), choices=choices, max_tokens=tokens, top_logprobs=20)
    tracemalloc.start()
    try:
        answer = answer_of(choices, tokens)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(answer.choices) == choices
    charged = held_bytes(request, 4096)
    assert held < 1.3 * charged
    assert charged < 2 * held


ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TOO_LARGE = [
    (
        "/v1/chat/completions",
        {**ASK, "n": 128, "logprobs": True, "top_logprobs": 20, "max_tokens": 4000},
        "top_logprobs",
    ),
    ("/v1/completions", {"prompt": ["x"] * 40, "n": 128, "logprobs": 5, "max_tokens": 1000}, "logprobs"),
]


@pytest.mark.parametrize(("path", "body", "param"), TOO_LARGE, ids=["chat", "completions"])
@trio_test
async def test_an_answer_that_can_become_too_large_is_refused_by_name(
    autojump_clock: MockClock, path: str, body: dict[str, Any], param: str
) -> None:
    """Before anything is queued. Streamed, the same is answered: it is not held."""
    scheduler = make_scheduler(Playback("a"), folder=replace(FOLDER, context_tokens=1 << 14))
    async with running(scheduler), client_of(scheduler) as client:
        refused = await client.post(path, json=body)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == param
    for word in (param, "max_tokens", "stream", f"{MAX_HELD_BYTES >> 20} MiB"):
        assert word in error["message"]


@pytest.mark.parametrize("most", [MAX_HELD_BYTES, 2000], ids=["short", "grown too large"])
@trio_test
async def test_an_answer_whose_length_is_left_to_the_model_is_counted_as_it_grows(
    autojump_clock: MockClock, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context of a million tokens is no reason to refuse a client that sends no `max_tokens`."""
    monkeypatch.setattr("api.answers.whole_answer.MAX_HELD_BYTES", most)
    scheduler = make_scheduler(Playback("a stork " * 10), folder=replace(FOLDER, context_tokens=1 << 20))
    async with running(scheduler), client_of(scheduler) as client:
        answer = await client.post("/v1/chat/completions", json={**ASK, "logprobs": True, "top_logprobs": 2})
    assert answer.status_code == (200 if most == MAX_HELD_BYTES else 400)
    if answer.status_code == 400:
        assert answer.json()["error"]["param"] == "top_logprobs"
