"""How an answer ends in every dialect: at a stop string, in a repetition, at a limit of its grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from api.options.options import load
from scheduler.answer.detokenizer import ByteTable, Detokenizer
from scheduler.prompt.preparation import Preparation
from scheduler.repetition import Repetition
from scheduler.service import Scheduler
from tests.api.client import client_of, served
from tests.api.transcripts import answers_of
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher, faulty
from tests.fakes.playback import Playback
from tests.fakes.scheduling import FOLDER, make_scheduler, running

ASK = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 500, "n": 2},
    "/v1/completions": {"prompt": "x", "max_tokens": 500, "n": 2},
    "/v1/messages": {"model": "tiny", "messages": ASK, "max_tokens": 500},
    "/v1/responses": {"input": "x", "max_output_tokens": 500},
}
LOGPROBS = {"/v1/chat/completions": True, "/v1/completions": 1}
ANYWHERE = pytest.mark.parametrize("path", BODIES)
EITHER = pytest.mark.parametrize("streams", [False, True])

TURN = "<|turn|>"
CODE = 1
"""The turn mark's token: a control character in the text that is played."""
ANSWER = "one \x01two\x01\nthree"


class _Table(ByteTable):
    def __init__(self) -> None:
        super().__init__(lambda token_id: None)

    def __getitem__(self, token_id: int) -> bytes:
        return bytes([token_id]) if CODE < token_id < 256 else b""


class TurnTokenizer(ByteTokenizer):
    """Its turn mark is a special token, without text."""

    special_token_ids = ByteTokenizer.special_token_ids | {CODE}

    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace(TURN, chr(CODE)))

    def token_bytes(self, token_id: int) -> bytes:
        return TURN.encode() if token_id == CODE else super().token_bytes(token_id)

    def detokenizer(self, spelled: frozenset[str] = frozenset(), *, begun: bool = False) -> Detokenizer:
        return Detokenizer(_Table())


STOPS = {
    "two": "one ",
    TURN: "one ",
    f"{TURN}\n": "one two",
    f"two{TURN}": "one ",
    f"one{TURN}": "one two\nthree",
    f"{TURN}{TURN}": "one two\nthree",
}
"""Each stop string with the answer that it leaves."""


@EITHER
@ANYWHERE
@trio_test
async def test_the_answer_ends_before_the_stop_string(
    autojump_clock: MockClock, path: str, streams: bool
) -> None:
    """A special token's own text is sent only where the client wants the stop string in the answer."""
    is_message = path == "/v1/messages"
    name = "stop_sequences" if is_message else "stop"
    scored = {"logprobs": LOGPROBS[path]} if path in LOGPROBS else {}
    async with served(Playback(ANSWER), preparation=Preparation(TurnTokenizer(), FOLDER)) as client:
        for stop, text in STOPS.items():
            ask = {**BODIES[path], **scored, name: ["never", stop], "stream": streams}
            found = text != ANSWER.replace("\x01", "")
            response = await client.post(path, json=ask)
            for answer in answers_of(path, response.text, streams=streams):
                assert (answer.text, answer.stop_string) == (text, stop if found and is_message else None)
                assert (answer.reason == "stop_sequence") == (found and is_message)
            if not is_message:
                response = await client.post(path, json={**ask, "include_stop_str_in_output": True})
                whole = text + stop if found else text
                assert {one.text for one in answers_of(path, response.text, streams=streams)} == {whole}


PHRASES = "Well, " + "so on and " * 100
ENDED = len("Well, ") + 64 + 10
"""After the 64 tokens of the rule, at the next look."""
MARK = {"repetition": True}
REASONS = {"/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}


def repeating() -> Scheduler:
    # Ten copies of a phrase of ten letters are a hundred tokens: the span decides.
    rule = Repetition(64, copies=2)
    preparation = Preparation(ByteTokenizer(), FOLDER, repetition=rule)
    return make_scheduler(Playback(PHRASES), preparation=preparation)


@EITHER
@ANYWHERE
@trio_test
async def test_an_answer_that_repeats_itself_ends_as_if_cut_and_names_the_cause(
    autojump_clock: MockClock, path: str, streams: bool
) -> None:
    """Its row ends in the engine, too."""
    scheduler, reason = repeating(), REASONS.get(path, "length")
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post(path, json={**BODIES[path], "stream": streams})
        for answer in answers_of(path, response.text, streams=streams):
            assert (answer.text, answer.reason, answer.mark) == (PHRASES[:ENDED], reason, MARK)
        await scheduler.wait_idle()
        metrics = (await client.get("/metrics")).text
    assert f'outcome="repetition"}} {BODIES[path].get("n", 1)}.0' in metrics


@pytest.mark.parametrize("path", LOGPROBS)
@trio_test
async def test_a_request_decides_when_it_repeats(autojump_clock: MockClock, path: str) -> None:
    """vLLM's field sets the rule, or turns it off; so does a wish for tokens behind every end."""
    cases: list[tuple[dict[str, Any], int]] = [
        ({"repetition_detection": {"max_pattern_size": 10, "min_count": 3}}, 48),
        ({"repetition_detection": {"max_pattern_size": 0}}, 500),
        ({"repetition_detection": {"max_pattern_size": 9, "min_count": 2}}, 500),
        ({"repetition_detection": None}, ENDED),
        ({"ignore_eos": True}, 500),
        ({"min_tokens": 300}, 304),
    ]
    async with running(scheduler := repeating()), client_of(scheduler) as client:
        for fields, tokens in cases:
            response = await client.post(path, json={**BODIES[path], "n": 1, **fields})
            (answer,) = answers_of(path, response.text, streams=False)
            assert (len(answer.text), answer.reason) == (tokens, "length"), fields
            assert answer.mark == (None if tokens == 500 else MARK), fields
            assert response.json()["usage"]["completion_tokens"] == tokens


def test_the_operator_sets_the_span_or_turns_it_off() -> None:
    assert load({}).repetition() == Repetition(1024)
    assert load({"repetition_tokens": "300"}).repetition() == Repetition(300)
    assert load({"repetition_tokens": "0"}).repetition() is None


@ANYWHERE
@trio_test
async def test_a_limit_of_its_grammar_is_the_clients_error_that_names_it(
    path: str, autojump_clock: MockClock
) -> None:
    """400, or the dialect's error event where the stream has begun."""
    says = "tools: it met a limit on purpose"
    body = json.loads(json.dumps(BODIES[path]).replace('"x"', '"#"'))
    async with served(LoopbackLauncher(faulty(grammar_limit_token=ord("#")))) as client:
        whole = await client.post(path, json=body)
        streamed = await client.post(path, json={**body, "stream": True})
    assert whole.status_code == 400
    error = whole.json()["error"]
    assert (error["type"], error["message"]) == ("invalid_request_error", says)
    if path != "/v1/messages":
        assert (error["code"], error["param"]) == ("grammar_limit", "tools")
    datas = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    last = json.loads([data for data in datas if data != "[DONE]"][-1])
    if path == "/v1/responses":
        assert last["type"] == "response.failed"
        assert last["response"]["error"] == {"code": "invalid_prompt", "message": says}
    else:
        assert (last["error"]["type"], last["error"]["message"]) == ("invalid_request_error", says)
