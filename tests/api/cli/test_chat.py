"""The stream that `penstock chat` follows: what it takes, and what it says of one that fails."""

from __future__ import annotations

import json
import os
from typing import Any

import click
import httpx
import pytest

from api.cli.chat import _question, stream
from api.cli.errors import OperatorError
from api.cli.running_server import ListedModel, RunningServer

SERVER = RunningServer("http://127.0.0.1:9", "k", (ListedModel("tiny"),), is_penstock=True)
ASK = [{"role": "user", "content": "hi"}]


def chunk(reason: str | None = None, **delta: Any) -> bytes:
    body = {"choices": [{"delta": delta, "finish_reason": reason}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def streamed(body: bytes, status: int = 200) -> list[tuple[str, str]]:
    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content) == {"seed": 1, "stream": True}
        assert request.headers["authorization"] == "Bearer k"
        return httpx.Response(status, content=body)

    return list(stream(SERVER, {"seed": 1}, httpx.MockTransport(answer)))


def test_text_and_thinking_come_in_their_order() -> None:
    """Comments, unknown fields and what comes behind the end are skipped."""
    body = b": queued 3\n\n" + chunk(role="assistant", content="") + chunk(reasoning_content="hm")
    body += (
        chunk(reasoning="vLLM")
        + chunk(content="Grüße")
        + chunk("length")
        + b"data: [DONE]\n\n"
        + b"data: {\n"
    )
    assert streamed(body) == [
        ("thought", "hm"),
        ("thought", "vLLM"),
        ("text", "Grüße"),
        ("end", "length"),
    ]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, b'{"error": {"message": "full"}}', "503: full"),
        (200, b'data: {"error": {"message": "no engine"}}\n\n', "no engine"),
        (200, b"data: {\n\n", "no chat completion"),
        (200, b"data: 3\n\n", "no chat completion"),
        (200, chunk(content="half"), "closed the connection in mid-answer"),
    ],
)
def test_a_failure_is_an_error_of_the_command(status: int, body: bytes, says: str) -> None:
    with pytest.raises(OperatorError, match=says):
        streamed(body, status)


@pytest.mark.parametrize(
    ("piped", "words", "asked"),
    [
        (b"a\n", "", "a"),
        (b"a\n", "what?", "what?\n\na"),
        (b"", "what?", "what?"),
        (b"", "", "no question"),
        (b"", "caf\udce9", "not text"),
        (b"\xff", "", "not text"),
    ],
)
def test_the_question_is_the_argument_and_the_input(
    piped: bytes, words: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that are no text are refused: in the C locale Python reads them as half characters."""
    reading, writing = os.pipe()
    os.write(writing, piped)
    os.close(writing)
    with open(reading, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        if asked.startswith("no"):
            with pytest.raises(click.UsageError, match=asked):
                _question(words)
        else:
            assert _question(words) == asked
