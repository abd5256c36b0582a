"""A thinking budget in each dialect, from the body's field to an engine whose words are known."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from api.bodies.unknown_fields import HEADER
from scheduler.answer.answer_format import PLAIN, AnswerFormat, Layout
from scheduler.config import ThinkingConfig
from scheduler.prompt.preparation import Preparation
from tests.api.client import served
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.playback import Playback
from tests.fakes.scheduling import FOLDER
from tests.scheduler.answer.notations import form

SAID = "<think>0123456789</think>" + "and then some more words"
QUESTION = [{"role": "user", "content": "hello"}]
CONFIG = ThinkingConfig(8, {"low": 4, "high": None})
HERMES = form("json_tools", "think")


async def post(
    path: str, said: str = SAID, answer_format: AnswerFormat = HERMES, /, **body: Any
) -> httpx.Response:
    """To a server of an operator's defaults `CONFIG`."""
    preparation = Preparation(ByteTokenizer(answer_format), FOLDER, CONFIG)
    async with served(Playback(said), preparation=preparation) as client:
        return await client.post(path, json={"model": "tiny", **body})


CHATS: list[tuple[dict[str, Any], int]] = [
    ({}, 8),
    ({"reasoning_effort": "low"}, 4),
    ({"reasoning_effort": "medium"}, 8),
    ({"reasoning_effort": "high"}, 10),
    ({"thinking_token_budget": 0}, 0),
    ({"thinking_token_budget": 3}, 3),
    ({"thinking_token_budget": 3, "reasoning_effort": "high"}, 3),
    ({"thinking_token_budget": -1, "reasoning_effort": "low"}, 10),
    ({"thinking_token_budget": 10}, 10),
]


@pytest.mark.parametrize(("body", "tokens"), CHATS, ids=str)
@trio_test
async def test_a_chat_reasons_for_as_long_as_it_may(
    body: dict[str, Any], tokens: int, autojump_clock: MockClock
) -> None:
    """The body's number, its effort by the operator's table, the operator's default; usage agrees."""
    response = await post("/v1/chat/completions", messages=QUESTION, max_tokens=60, **body)
    answer = response.json()
    message = answer["choices"][0]["message"]
    assert message.get("reasoning_content", "") == "0123456789"[:tokens]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == tokens
    assert "and then some" in message["content"]


@pytest.mark.parametrize(("budget", "tokens"), [(1, 1), (6, 6), (4096, 10)])
@trio_test
async def test_anthropic_s_budget_is_kept(budget: int, tokens: int, autojump_clock: MockClock) -> None:
    """Over the effort, too."""
    thinking = {"type": "enabled", "budget_tokens": budget}
    response = await post(
        "/v1/messages", messages=QUESTION, max_tokens=60, thinking=thinking, output_config={"effort": "low"}
    )
    answer = response.json()
    assert answer["content"][0]["thinking"] == "0123456789"[:tokens]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == tokens


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", {"messages": QUESTION, "thinking_token_budget": 4}, "thinking_token_budget"),
        ("/v1/responses", {"input": "hello", "thinking_token_budget": 0}, "thinking_token_budget"),
        ("/v1/completions", {"prompt": ["a", "b"], "thinking_token_budget": 4}, "thinking_token_budget"),
        (
            "/v1/messages",
            {"messages": QUESTION, "max_tokens": 9, "thinking": {"type": "enabled", "budget_tokens": 4}},
            "thinking.budget_tokens",
        ),
    ],
    ids=["chat", "responses", "completions", "anthropic"],
)
@trio_test
async def test_a_budget_that_cannot_be_kept_is_named(
    path: str, body: dict[str, Any], name: str, autojump_clock: MockClock
) -> None:
    """If the model has no marks around reasoning, the header names the budget among the unknown fields,
    and so does the log."""
    with capture_logs() as logs:
        response = await post(path, "words", PLAIN, **body, zebra=1)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == ",".join(sorted((name, "zebra")))
    lines = [line for line in logs if line["event"] == "request"]
    assert {line["ignored"] for line in lines} == {response.headers[HEADER]}


@pytest.mark.parametrize(
    ("answer_format", "body"),
    [(HERMES, {"thinking_token_budget": 4}), (PLAIN, {"thinking_token_budget": -1}), (PLAIN, {})],
    ids=["kept", "unlimited", "the operator's"],
)
@trio_test
async def test_no_other_budget_is_named(
    answer_format: AnswerFormat, body: dict[str, Any], autojump_clock: MockClock
) -> None:
    """Nor one that the client did not send."""
    response = await post("/v1/chat/completions", SAID, answer_format, messages=QUESTION, **body)
    assert response.status_code == 200
    assert HEADER not in response.headers


@trio_test
async def test_harmonys_end_leads_to_its_next_message(autojump_clock: MockClock) -> None:
    """`<|end|>` alone would leave gpt-oss without a turn to go on in. What it would have reasoned further is
    not said."""
    further = "x" * len("<|end|><|start|>assistant")
    said = f"<|channel|>analysis<|message|>0123{further}<|channel|>final<|message|>the answer"
    harmony = AnswerFormat(layout=Layout.HARMONY)
    asked = {"messages": QUESTION, "max_tokens": len(said), "reasoning_effort": "low"}
    answer = (await post("/v1/chat/completions", said, harmony, **asked)).json()
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("0123", "the answer")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
