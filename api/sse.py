"""Server-sent events as bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Without this, nginx buffers proxied responses.
    "x-accel-buffering": "no",
}


def data(payload: bytes) -> bytes:
    """One event. `payload` is JSON, so it holds no line break."""
    return b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients ignore; it keeps proxies and impatient clients from hanging up."""
    return b": " + text.encode() + b"\n\n"


def named(event: bytes, payload: bytes) -> bytes:
    """An event with a name, as Anthropic's messages and OpenAI's responses have them."""
    return b"event: " + event + b"\ndata: " + payload + b"\n\n"
