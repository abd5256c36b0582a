"""Encode stream events as OpenAI's completion chunks and objects. Completions contain text only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from api import sse
from api.errors import ApiError
from api.openai.encode import prompt_logprobs_list, usage_object
from api.whole_answer import WholeAnswer, WholeChoice
from scheduler.events import (
    AnswerPiece,
    Finished,
    FinishReason,
    Progress,
    PromptToken,
    TextDelta,
    TokenLogprobs,
    Usage,
)

_json = msgspec.json.Encoder()


def logprobs_object(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the logprobs in the completions API's shape: parallel lists. The top logprobs always include the
    chosen token."""
    return {
        "tokens": [_name(entry.chosen.data) for entry in entries],
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "top_logprobs": [_likeliest(entry, len(entry.top)) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def _likeliest(entry: TokenLogprobs, top: int) -> dict[str, float]:
    return {_name(other.data): other.logprob for other in (*entry.top[:top], entry.chosen)}


def echoed_logprobs(
    prompt: Sequence[PromptToken], choice: WholeChoice, echo: str, top: int
) -> dict[str, Any]:
    """Of the prompt's tokens, where nothing is known of the first, and of the answer's, with the token that
    ended it: evaluation harnesses drop as many last entries as they asked for tokens."""
    answer = [*choice.logprobs, *([] if choice.end.end_token is None else [choice.end.end_token])]
    written = logprobs_object([replace(entry, offset=entry.offset + len(echo)) for entry in answer])
    known = [token.logprobs for token in prompt]
    echoed: dict[str, list[Any]] = {
        "tokens": [_name(token.data) for token in prompt],
        "token_logprobs": [None if entry is None else entry.chosen.logprob for entry in known],
        "top_logprobs": [None if entry is None else _likeliest(entry, top) for entry in known],
        "text_offset": [token.offset for token in prompt],
    }
    return {name: [*values, *written[name]] for name, values in echoed.items()}


def _name(data: bytes) -> str:
    """A token as a key: parts of characters, which all read the same, by their bytes, as OpenAI has them."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])


def completion_object(
    public_id: str,
    created: int,
    model: str,
    answer: WholeAnswer,
    echoes: Sequence[str],
    *,
    echo_logprobs: bool = False,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> dict[str, Any]:
    """The whole answer to a request that does not stream. `echoes`: what is said before each choice, with
    `echo_logprobs` with its log-probabilities. `logprobs` and `prompt_logprobs`: alternatives asked for;
    None: no log-probabilities."""
    each = len(answer.choices) // answer.prompts
    choices: list[dict[str, Any]] = []
    for index, (choice, echo) in enumerate(zip(answer.choices, echoes, strict=True)):
        scores = answer.choices[index - index % each].end.prompt
        said: dict[str, Any] = {"index": index, "text": echo + choice.text, "logprobs": None}
        if logprobs is not None and echo_logprobs and scores is not None:
            said["logprobs"] = echoed_logprobs(scores.spelled(), choice, echo, logprobs)
        elif logprobs is not None:
            said["logprobs"] = logprobs_object(choice.logprobs)
        said["finish_reason"] = choice.end.reason.value
        if prompt_logprobs is not None and scores is not None:
            said["prompt_logprobs"] = prompt_logprobs_list(scores, prompt_logprobs)
        choices.append(said)
    return {
        "id": public_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "choices": choices,
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

    def meter(self, usage: Usage) -> None:
        self._tail = b',"usage":' + _json.encode(usage_object(usage)) + b"}\n\n"

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
        return sse.progress(progress)

    def finish(self, usage: Usage) -> bytes:
        """Return the usage, if requested, and the end mark."""
        if not self._include_usage:
            return sse.DONE
        return self._head + b'],"usage":' + _json.encode(usage_object(usage)) + b"}\n\n" + sse.DONE

    def error(self, error: ApiError) -> bytes:
        return sse.data(_json.encode(error.openai_body())) + sse.DONE
