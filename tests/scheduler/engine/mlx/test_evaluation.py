"""What an evaluation harness reads through the API is what the model says of each text alone, with each kind
of cache: log-likelihoods, whether a continuation is the likeliest one, and answers until a text.

Bodies, their order and the reading are those of lm-eval's `local-completions` and `local-chat-completions`
(`lm_eval/models/openai_completions.py`, `api_models.py`), 16 requests at once. The oracle is mlx-lm: one
forward pass of each text, or its loop for one request. All of the server runs in this process, on MLX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import httpx
import mlx.core as mx
import pytest
import trio
from mlx_lm.models.cache import make_prompt_cache
from trio.testing import MockClock

from scheduler.config import EngineConfig
from scheduler.engine.backend import Backend
from scheduler.request import ChatPrompt
from scheduler.shared.messages import Load
from tests.api.client import client_of
from tests.contracts.journal import request
from tests.examples import sampled
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import FOLDER, make_scheduler, running
from tests.scheduler.engine.mlx.families import FAMILIES, ONE_OF_EACH_KIND
from tests.scheduler.engine.mlx.reuse import ReuseEngine, model_of, words
from tests.scheduler.engine.mlx.zoo.alone import Alone

AT_ONCE = 16
CLOSE = 1e-4
"""Bound on the difference of two log-likelihoods, natural logarithms in float32."""
CHUNK = 24
"""Tokens of a prompt in one step: as many as some contexts have, and more than a window of the models."""
CONTEXT_TOKENS = (1, CHUNK, 70)
"""A context of one token is that of a rolling log-likelihood."""
ANSWER_TOKENS = 8
TOKENIZER = ByteTokenizer()

Likelihood = tuple[float, bool]
"""The log-likelihood of a continuation, and whether it is what the model would say."""


@dataclass(frozen=True, slots=True)
class Pair:
    context: tuple[int, ...]
    continuation: tuple[int, ...]

    @property
    def whole(self) -> list[int]:
        return [*self.context, *self.continuation]


class Oracle:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._alone = Alone(model)
        self._known: dict[Pair, Likelihood] = {}

    def likelihood(self, pair: Pair) -> Likelihood:
        if pair not in self._known:
            self._known[pair] = self._measured(pair)
        return self._known[pair]

    def _measured(self, pair: Pair) -> Likelihood:
        begin = len(pair.context) - 1
        logits = self._model(mx.array([pair.whole[:-1]]), cache=make_prompt_cache(self._model))[0, begin:]
        scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        own = mx.take_along_axis(scores, mx.array(pair.continuation)[:, None], axis=-1)[:, 0]
        return float(own.sum()), mx.argmax(logits, axis=-1).tolist() == [*pair.continuation]

    def tokens(self, prompt: list[int]) -> list[int]:
        """Return the likeliest answer. Another one would be as right if two tokens were as likely."""
        answer = self._alone.answer(request(0, prompt, ANSWER_TOKENS))
        assert min(answer.leads) > CLOSE
        return answer.tokens

    def text(self, prompt: list[int], until: Sequence[str]) -> str:
        said = TOKENIZER.decode(self.tokens(prompt))
        return said[: min(said.find(end) if end in said else len(said) for end in until)]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, and what the harness is to read of each choice."""

    path: str
    body: dict[str, Any]
    expected: list[Any]
    read: Callable[[dict[str, Any]], Any] = itemgetter("text")


def groups(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def scored(
    oracle: Oracle, pairs: Sequence[Pair], batch: int, as_text: bool, max_tokens: int
) -> Iterator[Exchange]:
    """`as_text`: `tokenized_requests=False`, which sends one text where the batch is 1. `max_tokens`: 1 is
    lm-eval's, 0 is that of others."""
    for some in groups(sorted(pairs, key=lambda pair: (-len(pair.whole), pair.whole)), batch):
        prompt: Any = [TOKENIZER.decode(pair.whole) if as_text else pair.whole for pair in some]
        body = {
            "model": "tiny",
            "prompt": prompt[0] if as_text and batch == 1 else prompt,
            "temperature": 0,
            "max_tokens": max_tokens,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }

        def read(choice: dict[str, Any], some: Sequence[Pair] = some) -> Likelihood:
            """It drops as many entries as it asked for tokens."""
            pair, logprobs = some[choice["index"]], choice["logprobs"]
            part = slice(len(pair.context), len(pair.whole))
            assert len(logprobs["token_logprobs"]) == part.stop + max_tokens
            values, tops = logprobs["token_logprobs"][part], logprobs["top_logprobs"][part]
            return sum(values), all(own == max(top.values()) for own, top in zip(values, tops, strict=True))

        expected = [pytest.approx(oracle.likelihood(pair), abs=CLOSE) for pair in some]
        yield Exchange("/v1/completions", body, expected, read)


def generated(oracle: Oracle, prompts: Sequence[list[int]], batch: int, as_text: bool) -> Iterator[Exchange]:
    for some in groups(prompts, batch):
        until = ends(oracle.tokens(some[0]))
        prompt: Any = [TOKENIZER.decode(ids) if as_text else ids for ids in some]
        body = {
            "prompt": prompt[0] if as_text and batch == 1 else prompt,
            "model": "tiny",
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stop": until,
            "seed": 1234,
        }
        yield Exchange("/v1/completions", body, [oracle.text(ids, until) for ids in some])


def chats(oracle: Oracle, texts: Sequence[str]) -> Iterator[Exchange]:
    for text in texts:
        messages = [{"role": "user", "content": text}]
        prompt = TOKENIZER.encode(TOKENIZER.render(ChatPrompt(tuple(messages))))
        until = ends(oracle.tokens(prompt))
        body = {
            "messages": messages,
            "model": "tiny",
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stop": until,
            "seed": 1234,
        }
        expected = [oracle.text(prompt, until)]
        yield Exchange("/v1/chat/completions", body, expected, lambda choice: choice["message"]["content"])


def ends(tokens: list[int]) -> list[str]:
    """Return a text that an answer has, if it can in its second half, among others that it has not."""
    said = TOKENIZER.decode(tokens)
    found = next(letter for letter in said[len(said) // 2 :] + said if letter != "\ufffd")
    return ["\n\nQ:", found, "</s>"]


def letters(count: int, seed: int) -> tuple[int, ...]:
    return tuple(32 + token % 90 for token in words(count, seed))


def exchanges(oracle: Oracle) -> Iterator[Exchange]:
    """Several continuations of each context, of which some are what the model says, and answers."""
    contexts = [letters(count, 3) for count in CONTEXT_TOKENS]
    others = [Pair(context, letters(count, count)) for context in contexts for count in (1, 4)]
    said = {context: tuple(oracle.tokens([*context])) for context in contexts}
    likeliest = [Pair(context, said[context][:count]) for context in contexts for count in (1, 3)]
    assert {oracle.likelihood(pair)[1] for pair in likeliest} == {True}
    yield from scored(oracle, others + likeliest, 1, False, 1)
    yield from scored(oracle, others + likeliest, 4, False, 0)
    yield from scored(oracle, others, 1, True, 1)
    yield from scored(oracle, others, 4, True, 1)
    prompts = [[*context] for context in reversed(contexts)]
    yield from generated(oracle, prompts, 1, False)
    yield from generated(oracle, prompts, 4, True)
    yield from chats(oracle, [TOKENIZER.decode(ids) for ids in prompts])


def make_backend(family: str) -> Callable[[Load], Backend]:
    def make(load: Load) -> Backend:
        changes: dict[str, Any] = {
            "max_slots": load.max_slots,
            "prefill_chunk_tokens": load.prefill_chunk_tokens,
        }
        return ReuseEngine(model_of(family), family, **changes).backend

    return make


@pytest.mark.parametrize("family", sampled(FAMILIES, ONE_OF_EACH_KIND))
def test_a_harness_reads_what_the_model_says_alone(family: str) -> None:
    asked = list(exchanges(Oracle(model_of(family))))
    found: dict[int, list[Any]] = {}
    launcher = LoopbackLauncher(make_backend(family))
    engine = EngineConfig("mlx", "none", max_slots=8, prefill_chunk_tokens=CHUNK)

    async def evaluate() -> None:
        scheduler = make_scheduler(launcher, folder=replace(FOLDER, vocabulary=300), engine=engine)
        at_once = trio.CapacityLimiter(AT_ONCE)
        async with running(scheduler), client_of(scheduler) as client, trio.open_nursery() as nursery:
            for number, exchange in enumerate(asked):
                nursery.start_soon(ask, client, at_once, number, exchange)
        assert sample(scheduler.metrics.registry, "penstock_engine_deaths_total") == 0

    async def ask(
        client: httpx.AsyncClient, at_once: trio.CapacityLimiter, number: int, exchange: Exchange
    ) -> None:
        async with at_once:
            answer = await client.post(exchange.path, json=exchange.body)
        assert answer.status_code == 200, answer.text
        choices = sorted(answer.json()["choices"], key=itemgetter("index"))
        found[number] = [exchange.read(choice) for choice in choices]

    trio.run(evaluate, clock=MockClock(autojump_threshold=0))
    assert launcher.starts == 1
    for number, exchange in enumerate(asked):
        assert found[number] == exchange.expected, exchange.body
