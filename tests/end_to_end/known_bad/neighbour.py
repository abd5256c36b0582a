"""A well-behaved client beside the bad ones: its tokens must equal those that it gets alone, at about the
same pace.

Seconds of one request on a shared machine are noise. So a pace is only compared with the same request alone,
repeated right after it if the two differ, and a scenario has several tries to show a good one
(`test_known_bad.py`). Tokens are compared exactly, every time.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.client import HTTPConnection

from tests.end_to_end.known_bad.asking import Outcome, judged
from tests.end_to_end.raw_client import Answer

TOKENS = 60
_TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Heard:
    """One whole answer: its text, its finish reason, and its seconds from request to end."""

    text: str
    finish_reason: str | None
    seconds: float
    complaint: str | None = None


class Neighbour:
    """A greedy stream of a fixed number of tokens, in a thread of its own."""

    def __init__(self, port: int, headers: dict[str, str] | None = None) -> None:
        self.first_token = threading.Event()
        """Also set if there will be none."""
        self._heard: Heard | None = None
        self._port = port
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def heard(self) -> Heard:
        self._thread.join(2 * _TIMEOUT_SECONDS)
        return self._heard or Heard("", None, 2 * _TIMEOUT_SECONDS, "no answer")

    def _run(self) -> None:
        began = time.monotonic()
        try:
            content, status = self._read()
        except OSError as error:
            self._heard = Heard("", None, time.monotonic() - began, repr(error))
            return
        finally:
            self.first_token.set()
        seconds = time.monotonic() - began
        answer = Answer(status, content)
        reply = judged("openai", status, content)
        complaint = None if reply.outcome is Outcome.ANSWERED else str(reply)
        if complaint is None:
            self._heard = Heard(_text(answer), answer.events[-2]["choices"][0]["finish_reason"], seconds)
        else:
            self._heard = Heard("", None, seconds, complaint)

    def _read(self) -> tuple[bytes, int]:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request("POST", "/v1/completions", _BODY, self._headers)
            answer = connection.getresponse()
            pieces: list[bytes] = []
            while line := answer.readline():
                pieces.append(line)
                if line.startswith(b"data: "):
                    self.first_token.set()
            return b"".join(pieces), answer.status
        finally:
            connection.close()


def alone(port: int, headers: dict[str, str] | None = None) -> Heard:
    heard = Neighbour(port, headers).heard()
    assert heard.complaint is None, heard.complaint
    return heard


_BODY = (
    b'{"prompt": "Count from 1 to 40: 1, 2, 3,", "max_tokens": %d, "temperature": 0, "stream": true,'
    # The penalty prevents repetition, in which a wrong cache would not show.
    b' "repetition_penalty": 1.5, "ignore_eos": true}' % TOKENS
)


def _text(answer: Answer) -> str:
    return "".join(
        choice["text"]
        for event in answer.events
        if isinstance(event, dict)
        for choice in event.get("choices", [])
    )
