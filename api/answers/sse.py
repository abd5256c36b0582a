"""Server-sent events as bytes (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

from scheduler.events import Prefilling, Progress, Queued

DONE = b"data: [DONE]\n\n"
BEFORE_NAME, BEFORE_DATA, AFTER_DATA = b"event: ", b"\ndata: ", b"\n\n"
"""What stands around the name and the data of an event that has both."""
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Without this, nginx buffers proxied responses.
    "x-accel-buffering": "no",
}


def data(payload: bytes) -> bytes:
    """Return one event. `payload` is JSON, so it contains no line break."""
    return b"data: " + payload + b"\n\n"


def comment(text: str) -> bytes:
    """Return a comment, which clients ignore; it prevents idle timeouts of proxies and clients."""
    return b": " + text.encode() + b"\n\n"


def progress(news: Progress) -> bytes:
    """Return a comment with the progress of the request, for OpenAI's dialects, which have no event for
    it."""
    match news:
        case Queued(ahead=ahead, waits_for=""):
            return comment(f"queued {ahead}")
        case Queued(ahead=ahead, waits_for=waits_for):
            return comment(f"queued {ahead}, waits for: {waits_for}")
        case Prefilling(done=done, total=total):
            return comment(f"prefill {done}/{total}")


def named(event: bytes, payload: bytes) -> bytes:
    """Return an event with a name, as Anthropic's messages and OpenAI's responses use."""
    return BEFORE_NAME + event + BEFORE_DATA + payload + AFTER_DATA
