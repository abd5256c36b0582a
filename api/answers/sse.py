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


PROGRESS_HEADER = b"x-penstock-progress"
"""A request with this header gets comments about its progress. Others get none: openai-go before 3.43,
SGLang's load tester and langchaingo end a stream at one, or at the empty line behind it."""
COMMENT = b":\n"
"""An empty comment without an empty line behind it, which would be an event without data to openai-go."""


def comment(text: str) -> bytes:
    """Return a comment."""
    return b": " + text.encode() + b"\n"


def progress(news: Progress) -> bytes:
    """Return a comment with the progress of the request."""
    match news:
        case Queued(waits_for=""):
            return comment("queued")
        case Queued(waits_for=waits_for):
            return comment(f"queued, waits for: {waits_for}")
        case Prefilling(done=done, total=total):
            return comment(f"prefill {done}/{total}")


def named(event: bytes, payload: bytes) -> bytes:
    """Return an event with a name, as Anthropic's messages and OpenAI's responses use."""
    return BEFORE_NAME + event + BEFORE_DATA + payload + AFTER_DATA
