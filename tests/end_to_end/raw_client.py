"""A client on bytes: the test decides what it sends, what it reads, and when it disconnects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio


def request_bytes(text: str = "hello", **fields: Any) -> bytes:
    """A streamed chat request on a connection of its own."""
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 16,
            "temperature": 0,
            "stream": True,
            **fields,
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@dataclass
class Answer:
    """A whole streamed answer as received."""

    status: int = 0
    body: bytes = b""
    stamps: list[float] = field(default_factory=list)
    """When each piece arrived (trio's clock)."""

    @property
    def events(self) -> list[Any]:
        """Decoded data of the stream's events."""
        text = self.body.decode()
        payloads = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    @property
    def text(self) -> str:
        chunks = [event for event in self.events if isinstance(event, dict) and event.get("choices")]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [event["error"] for event in self.events if isinstance(event, dict) and "error" in event]

    @property
    def finish_reason(self) -> str | None:
        reasons = [
            event["choices"][0]["finish_reason"]
            for event in self.events
            if isinstance(event, dict) and event.get("choices")
        ]
        return next((str(reason) for reason in reasons if reason is not None), None)


async def ask(port: int, text: str = "hello", **fields: Any) -> Answer:
    """One streamed answer, read to the end of its chunked body (or the server's close)."""
    answer = Answer()
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request_bytes(text, **fields))
        received = b""
        with suppress(trio.BrokenResourceError):
            while not received.endswith(b"0\r\n\r\n") and (data := await stream.receive_some()):
                received += data
                answer.stamps.append(trio.current_time())
                if answer.status == 0 and b"\r\n\r\n" in received:
                    answer.status = int(received.split(b" ", 2)[1])
                    if answer.status != 200:
                        break
    head, _, rest = received.partition(b"\r\n\r\n")
    answer.body = _unchunked(rest) if b"chunked" in head.lower() else rest
    return answer


def answers(
    port: int,
    asked: Sequence[tuple[str, Mapping[str, Any]]],
    meanwhile: Callable[[], object] = lambda: None,
) -> list[Answer]:
    """Return the answer to each text with its fields, in their order; all are asked at once, each on a
    connection of its own. `meanwhile` runs in a thread beside them."""
    found = [Answer() for _ in asked]

    async def one(number: int, text: str, fields: Mapping[str, Any]) -> None:
        found[number] = await ask(port, text, **fields)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number, (text, fields) in enumerate(asked):
                nursery.start_soon(one, number, text, fields)
            nursery.start_soon(trio.to_thread.run_sync, meanwhile)

    trio.run(main)
    return found


def check_the_same(answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Each is whole, sent once, and to the byte the expected one."""
    for number, (answer, wanted) in enumerate(zip(answers, expected, strict=True)):
        assert (answer.status, answer.errors) == (200, []), f"stream {number}"
        assert answer.text == wanted.text, f"stream {number}"
        assert answer.finish_reason == wanted.finish_reason
        assert answer.events.count("[DONE]") == 1
        assert answer.events[-1] == "[DONE]"


def _unchunked(body: bytes) -> bytes:
    pieces: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            break
        pieces.append(body[:length])
        body = body[length + 2 :]
    return b"".join(pieces)
