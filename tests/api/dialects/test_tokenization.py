"""`POST /tokenize` and `POST /detokenize`, as vLLM's clients use them."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from scheduler.prompt.preparation import Preparation
from tests.api.client import served
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.fakes.scheduling import FOLDER


@pytest.mark.parametrize("base", ["", "/v1"])
@trio_test
async def test_a_text_goes_to_ids_and_back(base: str) -> None:
    """With the model's context length beside them; under vLLM's path and under SGLang's."""
    async with served(LoopbackLauncher()) as client:
        there = (await client.post(f"{base}/tokenize", json={"prompt": "Hé", "model": "tiny"})).json()
        back = (await client.post(f"{base}/detokenize", json={"tokens": [*there["tokens"], 8000]})).json()
    ids = list("Hé".encode())
    assert there == {"count": 3, "max_model_len": 40960, "tokens": ids, "token_strs": None}
    assert back == {"prompt": "Hé<eos>"}


@trio_test
async def test_a_long_text_is_answered_in_slices(autojump_clock: MockClock) -> None:
    """Its ids are a list in which no run of them is lost or joined to the next."""
    text = "abcde" * 10_000
    async with served(LoopbackLauncher()) as client:
        found = await client.post("/tokenize", json={"prompt": text})
        empty = await client.post("/detokenize", json={"tokens": []})
    assert "content-length" not in found.headers
    assert found.json()["tokens"] == list(text.encode())
    assert empty.json() == {"prompt": ""}


@trio_test
async def test_messages_are_counted_as_chat_counts_them(autojump_clock: MockClock) -> None:
    """Through the same template, with the same text for a prefill."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    prefill = {"continue_final_message": True, "add_generation_prompt": False}
    async with served(LoopbackLauncher()) as client:
        for fields in ({}, prefill):
            body: dict[str, Any] = {"messages": messages, **fields}
            there = (await client.post("/tokenize", json=body)).json()
            chat = await client.post("/v1/chat/completions", json={**body, "max_tokens": 1})
            assert there["count"] == chat.json()["usage"]["prompt_tokens"]


class BeginningTokenizer(ByteTokenizer):
    """Puts `<eos>` before a text, as GPT-2's and Llama's families do with their BOS."""

    def encode_whole(self, text: str) -> list[int]:
        return [EOS, *self.encode(text)]

    def encode(self, text: str) -> list[int]:
        first, *rest = text.split("<eos>")
        return [*first.encode(), *(byte for part in rest for byte in (EOS, *part.encode()))]


@trio_test
async def test_a_text_counts_with_its_special_tokens(autojump_clock: MockClock) -> None:
    """As vLLM's `add_special_tokens`, true by default, and equally in completions, echoes and
    `/tokenize`; messages have what their template writes."""
    launcher, preparation = Playback("ab"), Preparation(BeginningTokenizer(), FOLDER)
    ask = {"prompt": "Hi", "max_tokens": 2, "echo": True, "logprobs": 0}
    messages = [{"role": "user", "content": "a"}]
    async with served(launcher, preparation=preparation) as client:
        for fields, before in (
            ({}, [EOS]),
            ({"add_special_tokens": True}, [EOS]),
            ({"add_special_tokens": False}, []),
        ):
            there = (await client.post("/tokenize", json={"prompt": "Hi", **fields})).json()
            assert there["tokens"] == [*before, *b"Hi"]
            body = (await client.post("/v1/completions", json={**ask, **fields})).json()
            assert body["usage"]["prompt_tokens"] == len(before) + 2
            assert launcher.submits[-1].prompt.tolist() == [*before, *b"Hi"]
            (choice,) = body["choices"]
            names, places = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
            assert choice["text"] == "Hiab"
            assert names == [*["<eos>"] * len(before), "H", "i", "a", "b"]
            assert places == [*[0] * len(before), 0, 1, 2, 3]
        begun = (await client.post("/tokenize", json={"prompt": "<eos>Hi"})).json()
        assert begun["tokens"] == [EOS, *b"Hi"]
        chat = (await client.post("/tokenize", json={"messages": messages})).json()
        same = {"messages": messages, "add_special_tokens": False}
        assert (await client.post("/tokenize", json=same)).json() == chat
        empty = await client.post("/v1/completions", json={"prompt": "", "max_tokens": 2})
    assert EOS not in chat["tokens"]
    assert empty.json()["usage"]["prompt_tokens"] == 1
