"""Stop strings that name special tokens, in every dialect, streamed and whole."""

from __future__ import annotations

from typing import Any

import pytest
import trio.testing
from trio.testing import trio_test

from scheduler.answer.detokenizer import ByteTable, Detokenizer
from scheduler.prompt.preparation import Preparation
from scheduler.service import Scheduler
from tests.api.client import client_of
from tests.api.transcripts import answers_of
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.playback import Playback
from tests.fakes.scheduling import FOLDER, make_scheduler, running

TURN = "<|turn|>"
CODE = 1
"""The turn mark's token: a control character in the text that is played."""
ANSWER = "one \x01two\x01\nthree"
ASK = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK, "max_tokens": 50, "n": 2, "logprobs": True},
    "/v1/completions": {"prompt": "x", "max_tokens": 50, "n": 2, "logprobs": 1},
    "/v1/messages": {"model": "tiny", "messages": ASK, "max_tokens": 50},
    "/v1/responses": {"input": "x", "max_output_tokens": 50},
}


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


def scheduler_of() -> Scheduler:
    return make_scheduler(Playback(ANSWER), preparation=Preparation(TurnTokenizer(), FOLDER))


STOPS = {
    "two": "one ",
    TURN: "one ",
    f"{TURN}\n": "one two",
    f"two{TURN}": "one ",
    f"one{TURN}": "one two\nthree",
    f"{TURN}{TURN}": "one two\nthree",
}
"""Each stop string with the answer that it leaves."""


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("path", BODIES)
@trio_test
async def test_the_answer_ends_before_the_stop_string(
    autojump_clock: trio.testing.MockClock, path: str, streams: bool
) -> None:
    """The token's own text is sent only where the client wants the stop string in the answer."""
    is_message = path == "/v1/messages"
    name = "stop_sequences" if is_message else "stop"
    scheduler = scheduler_of()
    async with running(scheduler), client_of(scheduler) as client:
        for stop, text in STOPS.items():
            ask = {**BODIES[path], name: ["never", stop], "stream": streams}
            found = text != ANSWER.replace("\x01", "")
            response = await client.post(path, json=ask)
            for answer in answers_of(path, response.text, streams=streams):
                assert (answer.text, answer.stop_string) == (text, stop if found and is_message else None)
                assert (answer.reason == "stop_sequence") == (found and is_message)
            if not is_message:
                response = await client.post(path, json={**ask, "include_stop_str_in_output": True})
                whole = text + stop if found else text
                assert {one.text for one in answers_of(path, response.text, streams=streams)} == {whole}
        await scheduler.wait_idle()
