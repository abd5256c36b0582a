"""`penstock bench MODEL`: its figures, from a server whose every token has a known time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from click.testing import CliRunner

from api.cli.command_line import penstock
from api.cli.errors import OperatorError
from api.cli.models.bench import STREAMS, SelfTest, Streams, measure, refuse, tokens_for
from api.cli.models.disk_models import DiskModel
from api.cli.running_server import RunningServer

SERVER = RunningServer("http://127.0.0.1:9", None, (), is_penstock=True)
MODEL = DiskModel(
    "m", Path("m"), "folder", dtype="bfloat16", context_tokens=32768, chat_template=True, task="chat"
)


@dataclass
class PlayedStreams(httpx.AsyncBaseTransport):
    """Answers after `prompt_seconds`, then a token every `gap_seconds`; as many at a time as are sent."""

    prompt_seconds: float = 0.02
    gap_seconds: float = 0.02
    status: int = 200
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(await request.aread()))
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "no"}})
        return httpx.Response(200, stream=_Tokens(self, self.bodies[-1]["max_tokens"]))


@dataclass
class _Tokens(httpx.AsyncByteStream):
    played: PlayedStreams
    tokens: int

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number in range(self.tokens):
            await trio.sleep(self.played.gap_seconds if number else self.played.prompt_seconds)
            usage = {"prompt_tokens": 500, "completion_tokens": number + 1}
            yield _event({"choices": [{"delta": {"content": "a"}}], "usage": usage})
        usage = {"prompt_tokens": 500, "completion_tokens": self.tokens}
        yield _event({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": usage})
        yield b"data: [DONE]\n\n"


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def measured(played: PlayedStreams) -> SelfTest:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(measure, SERVER, MODEL, played, clock=clock)


def test_figures_are_the_streams_own() -> None:
    """50 tokens a second each, eight times that together; prompts are timed apart."""
    found = measured(PlayedStreams())
    assert found.prompt_tokens == 500
    assert found.ttft_seconds == pytest.approx(0.02)
    assert found.alone.tokens_per_second == pytest.approx(50)
    assert found.together.tokens_per_second == pytest.approx(8 * 50)
    assert found.alone.gap_p99_ms == pytest.approx(20)
    assert found.figure == ("m (bfloat16): first token after 0.02 s, 50 tokens/s alone, 400 with 8 streams")
    assert found.table[1].split() == ["prompt", "500", "0.02", "25000"]
    assert found.as_json()["together"]["tokens_per_second"] == 400


@pytest.mark.parametrize(
    ("prompt_seconds", "gap_seconds", "most_seconds"), [(0.01, 0.01, 20), (0.5, 0.02, 25), (9.0, 0.5, 50)]
)
def test_it_takes_seconds_whatever_the_machine(
    prompt_seconds: float, gap_seconds: float, most_seconds: float
) -> None:
    """A slow one gets fewer tokens and one prompt; one whose tokens take long is cut, and has figures."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    played = PlayedStreams(prompt_seconds, gap_seconds)

    async def timed() -> float:
        began = trio.current_time()
        found = await measure(SERVER, MODEL, played)
        assert 0 < found.alone.tokens_per_second < 1.01 / gap_seconds
        return trio.current_time() - began

    assert trio.run(timed, clock=clock) < most_seconds


def test_no_prompt_is_cached_and_no_answer_ends_early() -> None:
    """Each begins with another word; the model's end of sequence does not count."""
    played = PlayedStreams()
    measured(played)
    first_words = [body["messages"][0]["content"].split()[0] for body in played.bodies]
    assert len(set(first_words)) == len(first_words)
    assert all(
        body["min_tokens"] == body["max_tokens"] and body["temperature"] == 0 for body in played.bodies
    )
    assert len(played.bodies) >= STREAMS


def test_a_server_that_refuses_is_named() -> None:
    """The test ends at once."""
    with pytest.raises(OperatorError, match="failed in the self-test"):
        measured(PlayedStreams(status=500))


@pytest.mark.parametrize(("rate", "tokens"), [(0.0, 16), (1.0, 16), (50.0, 200), (10_000.0, 1024)])
def test_tokens_follow_the_speed(rate: float, tokens: int) -> None:
    """Within bounds."""
    assert tokens_for(rate, 4.0) == tokens


def test_slow_rates_keep_a_digit() -> None:
    """0.5 tokens a second are not 0."""
    slow = Streams(1, 8, 16.0, 2000.0)
    found = SelfTest("m", "4-bit", 500, 9.0, slow, Streams(8, 32, 16.0, 4000.0))
    assert "0.5 tokens/s alone, 2.0 with 8 streams" in found.figure
    assert all(len(line) < 78 for line in found.table)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (DiskModel("m", Path("m"), "folder", reason="it is half"), "cannot be served: it is half"),
        (DiskModel("m", Path("m"), "folder", task="embedding", chat_template=True), "is for embedding"),
        (DiskModel("m", Path("m"), "folder"), "has no chat template"),
    ],
)
def test_what_has_no_streams_is_refused(model: DiskModel, words: str) -> None:
    """Before a server is started."""
    with pytest.raises(OperatorError, match=words):
        refuse(model)


def test_what_has_come_in_time_counts() -> None:
    """A stream that the clock cuts in its middle has its tokens and its gaps, and none that came later."""
    found = measured(PlayedStreams(prompt_seconds=4.0, gap_seconds=2.5))
    assert found.alone.tokens == 3
    assert found.alone.seconds == pytest.approx(9.0)
    assert found.alone.gap_p99_ms == pytest.approx(2500)


def test_load_tests_keep_their_commands() -> None:
    """What is no command is a model, or neither."""
    assert "prefix" in CliRunner().invoke(penstock, ["bench", "scenarios"]).output
    for line in (["bench", "scenarois"], ["bench", "--json", "scenarois"]):
        with pytest.raises(OperatorError, match="nor is it a command of `penstock bench`"):
            CliRunner().invoke(penstock, line, catch_exceptions=False)
