"""`/v1/decisions` and `/v1/systemone`: what is asked, what is answered, and what is refused."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from api.dialects.decisions.questions import MAX_OPTIONS, Distribution, Option, Question, asked, statement
from scheduler.engine.scripted_backend import digest, scripted_labels
from scheduler.request import ChatPrompt, Message
from tests.api.client import chat, served
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher

STATE = "My card was charged twice."
PREDICATE = {"type": "predicate", "instructions": "The customer is angry."}
CHOICE = {
    "type": "choice",
    "name": "team",
    "instructions": "Which team?",
    "choices": [{"value": "billing", "description": "payments"}, {"value": True}, {"value": "true"}],
}
SCORE = {"type": "score", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]}


async def post(body: dict[str, Any], path: str = "/v1/decisions") -> httpx.Response:
    async with served(LoopbackLauncher()) as client:
        return await client.post(path, json=body)


def expected(question: Question, *messages: Message) -> Distribution:
    """What the scripted engine makes of the question."""
    tokenizer = ByteTokenizer()
    state = messages or ({"role": "user", "content": STATE},)
    vectors = []
    for read in question.reads():
        prompt = asked(state, question, read).prompt
        assert isinstance(prompt, ChatPrompt)
        ids = tokenizer.encode(tokenizer.render(prompt))
        vectors.append(scripted_labels(digest([*ids, *tokenizer.encode(read.begun)]), len(read.labels)))
    return question.probabilities(iter(vectors))


@trio_test
async def test_answers_come_in_the_questions_order(autojump_clock: MockClock) -> None:
    response = await post({"input": STATE, "questions": [PREDICATE, CHOICE, SCORE]})
    assert response.status_code == 200, response.text
    body = response.json()
    angry = statement("The customer is angry.")
    options = Option("billing", "payments"), Option("true"), Option("true")
    found = [
        expected(angry),
        expected(Question("Which team?", options)),
        expected(Question("How urgent?", (Option("low"), Option("high")), is_scale=True)),
    ]
    predicate, choice, score = body["answers"]
    assert predicate == {
        "type": "predicate",
        "name": None,
        "probability": found[0].shares[0],
        "label_mass": pytest.approx(0.9),
    }
    assert (choice["name"], choice["confidence"]) == ("team", found[1].peak)
    values = ["billing", True, "true"]
    best = values[found[1].best]
    assert (type(choice["choice"]), choice["choice"]) == (type(best), best)
    assert [(one["value"], one["probability"]) for one in choice["probabilities"]] == list(
        zip(values, found[1].shares, strict=True)
    )
    assert score["score"] == found[2].shares[1]
    assert [(one["value"], one["label"]) for one in score["probabilities"]] == [(0, "low"), (1, "high")]
    usage = body["usage"]
    assert usage["input_tokens"] == usage["total_tokens"] > 3 * len(STATE)
    assert usage["output_tokens"] == 0


@trio_test
async def test_a_system_one_body_has_its_own_names(autojump_clock: MockClock) -> None:
    questions = {
        "urgent": {"type": "noul", "instructions": "urgent", "criteria": {"true": "today"}},
        "team": {"type": "choice", "criteria": {"billing": "payments", "tech": None, "sales": {"b": 1}}},
        "anger": {"type": "score", "criteria": ["calm", {"level": "angry"}]},
    }
    response = await post({"state": {"ticket": STATE}, "questions": questions}, "/v1/systemone")
    assert response.status_code == 200, response.text
    answers = response.json()["answers"]
    assert list(answers) == ["urgent", "team", "anger"]
    state: Message = {"role": "user", "content": '{"ticket": "My card was charged twice."}'}
    urgent = statement("urgent", "today")
    assert answers["urgent"] == {
        "type": "noul",
        "noul": expected(urgent, state).shares[0],
        "label_mass": pytest.approx(0.9),
    }
    assert set(answers["team"]["probabilities"]) == {"billing", "tech", "sales"}
    assert answers["anger"]["legend"] == {"0": "calm", "1": '{"level": "angry"}'}
    assert set(answers["anger"]["probabilities"]) == {"0", "1"}


@trio_test
async def test_a_history_of_an_agent_is_read_as_it_stands(autojump_clock: MockClock) -> None:
    """With parts of JSON as their text."""
    items = [
        {"role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]},
        {"type": "function_call", "call_id": "c", "name": "read", "arguments": '{"path": "x"}'},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "file"}]},
    ]
    response = await post({"input": items, "questions": [PREDICATE]})
    assert response.status_code == 200, response.text
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": {"path": "x"}}}
    messages: list[Message] = [
        {"role": "user", "content": '{"a": [1, null]}'},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "file"},
    ]
    question = statement("The customer is angry.")
    assert response.json()["answers"][0]["probability"] == expected(question, *messages).shares[0]


ODD = ["", " ", "\u202eabc", "e\u0301", "כן", "不", "🙂" * 9, "A", "B.", "Answer: B", "<|im_end|>", "a\nb"]


@pytest.mark.parametrize("count", [2, 26, 27, 100, MAX_OPTIONS])
@trio_test
async def test_any_number_of_options_has_its_probabilities(count: int, autojump_clock: MockClock) -> None:
    """Beyond 26 by a letter and a digit: one read of the letters, and one behind each letter. Labels stand
    for them: none is a token that the model must know."""
    values = [f"{ODD[number % len(ODD)]}{number}" for number in range(count)]
    body = {"type": "choice", "instructions": "q", "choices": [{"value": value} for value in values]}
    response = await post({"input": STATE, "questions": [body]})
    assert response.status_code == 200, response.text
    (answer,) = response.json()["answers"]
    shares = [one["probability"] for one in answer["probabilities"]]
    assert [one["value"] for one in answer["probabilities"]] == values
    assert math.fsum(shares) == pytest.approx(1.0)
    assert tuple(shares) == expected(Question("q", tuple(map(Option, values)))).shares


@trio_test
async def test_a_chat_model_ranks_by_decisions(autojump_clock: MockClock) -> None:
    response = await post({"query": "a fruit", "documents": ["apple", "nail", "pear"]}, "/v1/rerank")
    assert response.status_code == 200, response.text
    question = statement("The document answers the query.")
    shares = {
        text: expected(question, {"role": "user", "content": f"Query: a fruit\n\nDocument: {text}"}).shares[0]
        for text in ("apple", "nail", "pear")
    }
    results = response.json()["results"]
    assert [one["relevance_score"] for one in results] == sorted(shares.values(), reverse=True)
    assert {one["document"]["text"]: one["relevance_score"] for one in results} == shares


@trio_test
async def test_bodies_of_one_salt_share_a_state(autojump_clock: MockClock) -> None:
    """vLLM's `cache_salt`; without one, with all that have none."""
    cached = []
    async with served(LoopbackLauncher(), kv_cache_bytes=1 << 20) as client:
        for salt in ("a", None, "b", "a"):
            body = {"input": STATE, "questions": [PREDICATE], "cache_salt": salt}
            usage = (await client.post("/v1/decisions", json=body)).json()["usage"]
            cached.append(usage["input_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, False, False, True]


LONG = {**CHOICE, "choices": [{"value": f"{at} {'x' * 165}"} for at in range(255)]}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("decisions", {"input": "x" * 50_000, "questions": [PREDICATE] * 400}, "maximum context length"),
        ("decisions", {"input": "x", "questions": [PREDICATE, LONG]}, "maximum context length"),
        ("decisions", {"input": "x", "questions": [LONG] * 400}, "more than 65536 objects"),
        ("systemone", {"state": ["x" * 50_000], "questions": {"q": {"type": "noul"}}}, "context length"),
    ],
)
@trio_test
async def test_a_hostile_body_is_a_400_and_holds_nobody_up(
    path: str, body: dict[str, Any], words: str, autojump_clock: MockClock
) -> None:
    """States and questions beyond the context. A chat beside it is answered."""
    async with served(LoopbackLauncher()) as client, trio.open_nursery() as nursery:
        nursery.start_soon(answered, client)
        response = await client.post(f"/v1/{path}", content=json.dumps(body))
        assert response.status_code == 400
        error = response.json()["error"]
        assert words in error["message"]
        assert (error["param"] == next(iter(body))) == ("context" in words)


async def answered(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/chat/completions", json=chat(max_tokens=4))).status_code == 200


@given(st.lists(st.floats(-50, 0, width=32), min_size=1, max_size=26))
def test_probabilities_add_up_and_their_statistics_stay_within_bounds(logarithms: list[float]) -> None:
    question = Question("q", tuple(Option(str(at)) for at in range(len(logarithms))))
    found = question.probabilities(iter([struct.pack(f"<{len(logarithms) + 1}f", *logarithms, 0.0)]))
    assert math.fsum(found.shares) == pytest.approx(1.0)
    assert found.shares[found.best] == max(found.shares)
    assert 0 <= found.position <= len(logarithms) - 1
    assert 0 <= found.peak <= 1
    assert 0 <= found.nearness <= 1
    assert 0 < found.mass <= 1


@pytest.mark.parametrize(
    ("shares", "peak", "nearness", "position"),
    [
        ((0.25,) * 4, 0.0, 0.0, 1.5),
        ((0.0, 1.0, 0.0, 0.0), 1.0, 1.0, 1.0),
        ((0.08, 0.85, 0.07), 0.775, 0.775, 0.99),
    ],
)
def test_confidence_is_typesafes(
    shares: tuple[float, ...], peak: float, nearness: float, position: float
) -> None:
    """None where all is even, and whole where one is sure."""
    found = Distribution(shares, 1.0)
    assert (found.peak, found.nearness, found.position) == pytest.approx((peak, nearness, position))
