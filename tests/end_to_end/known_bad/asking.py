"""One request of a scenario, sent over a connection of its own, and its outcome."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any


class Outcome(Enum):
    """How a request ended, as its client sees it."""

    ANSWERED = "200, with a finish reason where one belongs"
    REFUSED = "4xx in the client's own dialect"
    BUSY = "429, 503 or 529 in the client's own dialect"
    FAILED = "500 in the client's own dialect, or 200 with an error in the stream: this request alone"
    WRONG = "anything else: another status, a body of another shape, no answer"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. `body` is JSON, or bytes that are sent unchanged; without one it is a GET."""

    path: str
    body: dict[str, Any] | bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def dialect(self) -> str:
        return "anthropic" if self.path.startswith("/v1/messages") else "openai"


@dataclass(frozen=True, slots=True)
class Reply:
    outcome: Outcome
    status: int
    body: Any
    """Decoded JSON, or the text if it is not JSON."""

    def __str__(self) -> str:
        return f"{self.outcome.name} {self.status} {str(self.body)[:300]}"


class Asking:
    """A request in flight, in a thread of its own."""

    def __init__(self, port: int, ask: Ask, timeout_seconds: float) -> None:
        self.ask = ask
        self.sent = threading.Event()
        """Set when the server's kernel has the whole request, or it could not be sent."""
        self.events = 0
        """The number of events of a stream so far."""
        self.reply: Reply | None = None
        self.seconds = timeout_seconds
        """From the request to the end of its answer."""
        self._has_left = False
        self._body = json.dumps(ask.body).encode() if isinstance(ask.body, dict) else ask.body
        self._connection = HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> Reply:
        self._thread.join(seconds)
        return self.reply or Reply(Outcome.WRONG, 0, f"no answer within {seconds:g} s")

    def has_begun(self, events: int) -> bool:
        """Whether `events` events have arrived, or the answer is over."""
        return self.events >= events or not self._thread.is_alive()

    def hang_up(self) -> None:
        """Disconnect, whether or not there is an answer."""
        self._has_left = True
        if (sock := self._connection.sock) is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def _run(self) -> None:
        headers = {"content-type": "application/json", **self.ask.headers}
        method = "GET" if self._body is None else "POST"
        began = time.monotonic()
        try:
            try:
                self._connection.request(method, self.ask.path, self._body, headers)
            finally:
                self.sent.set()
            answer = self._connection.getresponse()
            reply = judged(self.ask.dialect, answer.status, b"".join(self._lines(answer)))
            # The answer ends where its client left: that is none.
            cut = self._has_left and reply.outcome is Outcome.WRONG
            self.reply = Reply(Outcome.WRONG, 0, "left in the middle of the answer") if cut else reply
        except (OSError, HTTPException) as error:
            self.reply = Reply(Outcome.WRONG, 0, repr(error))
        finally:
            self.seconds = time.monotonic() - began
            self._connection.close()

    def _lines(self, answer: HTTPResponse) -> Iterator[bytes]:
        while line := answer.readline():
            self.events += line.startswith(b"data: ")
            yield line


def judged(dialect: str, status: int, content: bytes) -> Reply:
    text = content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    return Reply(_outcome(dialect, status, body), status, body)


def _outcome(dialect: str, status: int, body: Any) -> Outcome:
    if status == 200:
        return _of_success(body)
    if not _SHAPES[dialect](body):
        return Outcome.WRONG
    if status in (429, 503, 529):
        return Outcome.BUSY
    if 400 <= status < 500:
        return Outcome.REFUSED
    return Outcome.FAILED if status == 500 else Outcome.WRONG


def _of_success(body: Any) -> Outcome:
    if isinstance(body, str):
        ended = any(mark in body for mark in ("[DONE]", "message_stop", "response.completed"))
        failed = '"error"' in body or "response.failed" in body
        return Outcome.FAILED if failed else Outcome.ANSWERED if ended else Outcome.WRONG
    if isinstance(body, dict) and body.get("status") == "failed":
        return Outcome.FAILED
    choices = body.get("choices", []) if isinstance(body, dict) else []
    whole = all(choice.get("finish_reason") for choice in choices)
    return Outcome.ANSWERED if whole else Outcome.WRONG


def _is_openais(body: Any) -> bool:
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and {"message", "type", "param", "code"} <= error.keys()


def _is_anthropics(body: Any) -> bool:
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and body["type"] == "error" and {"message", "type"} <= error.keys()


_SHAPES: dict[str, Callable[[Any], bool]] = {"openai": _is_openais, "anthropic": _is_anthropics}
