"""Encode stream events as OpenAI's completion chunks and objects. Completions contain text only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from api import sse
from api.errors import ApiError
from api.openai.encode import usage_object
from api.whole_answer import WholeAnswer
from scheduler.events import (
    AnswerPiece,
    Finished,
    FinishReason,
    Logprob,
    Prefilling,
    Progress,
    Queued,
    TextDelta,
    TokenLogprobs,
    Usage,
)

_json = msgspec.json.Encoder()


def logprobs_object(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the logprobs in the completions API's shape: parallel lists. The top logprobs always include the
    chosen token."""
    return {
        "tokens": [_name(entry.chosen) for entry in entries],
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "top_logprobs": [
            {_name(other): other.logprob for other in (*entry.top, entry.chosen)} for entry in entries
        ],
        "text_offset": [entry.offset for entry in entries],
    }


def _name(logprob: Logprob) -> str:
    """Return a token as a key. Tokens that are parts of characters all decode to the same text, so their
    bytes are the key, as OpenAI writes them."""
    try:
        return logprob.data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in logprob.data])


def completion_object(
    public_id: str,
    created: int,
    model: str,
    answer: WholeAnswer,
    echoes: Sequence[str],
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """Return the whole answer to a request that does not stream. `echoes` are the texts before each
    choice."""
    return {
        "id": public_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": index,
                "text": echo + choice.text,
                "logprobs": logprobs_object(choice.logprobs) if logprobs else None,
                "finish_reason": choice.end.reason.value,
            }
            for index, (choice, echo) in enumerate(zip(answer.choices, echoes, strict=True))
        ],
        "usage": usage_object(answer.usage),
    }


class CompletionEncoder:
    """Encodes one stream's chunks as bytes ready for the wire."""

    def __init__(
        self, public_id: str, created: int, model: str, echoes: Sequence[str], *, include_usage: bool
    ) -> None:
        head = {"id": public_id, "object": "text_completion", "created": created, "model": model}
        self._head = b"data: " + _json.encode(head)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._echoes = dict(enumerate(echoes))
        self._include_usage = include_usage

    def start(self, prompt_tokens: int) -> bytes:
        return b""

    def event(self, choice: int, event: AnswerPiece | Finished) -> bytes:
        match event:
            case TextDelta(text=text, logprobs=logprobs):
                return self._chunk(choice, self._echoes.pop(choice, "") + text, None, logprobs)
            case Finished(reason=reason):
                return self._chunk(choice, self._echoes.pop(choice, ""), reason)
            case _:
                raise AssertionError(f"{event!r} in the answer to a text")

    def _chunk(
        self, choice: int, text: str, reason: FinishReason | None, logprobs: Sequence[TokenLogprobs] = ()
    ) -> bytes:
        entry = b'{"index":%d,"text":' % choice + _json.encode(text)
        ended = b"null" if reason is None else _json.encode(reason.value)
        encoded = _json.encode(logprobs_object(logprobs)) if logprobs else b"null"
        return (
            self._head + entry + b',"logprobs":' + encoded + b',"finish_reason":' + ended + b"}]" + self._tail
        )

    def progress(self, progress: Progress) -> bytes:
        match progress:
            case Queued(ahead=ahead):
                return sse.comment(f"queued {ahead}")
            case Prefilling(done=done, total=total):
                return sse.comment(f"prefill {done}/{total}")

    def finish(self, usage: Usage) -> bytes:
        """Return the usage, if requested, and the end mark."""
        if not self._include_usage:
            return sse.DONE
        return self._head + b'],"usage":' + _json.encode(usage_object(usage)) + b"}\n\n" + sse.DONE

    def error(self, error: ApiError) -> bytes:
        return sse.data(_json.encode(error.openai_body())) + sse.DONE
