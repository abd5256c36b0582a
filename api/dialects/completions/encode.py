"""Encode stream events as OpenAI's completion chunks and objects. Completions contain text only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from api.answers.whole_answer import WholeAnswer, WholeChoice
from api.bodies.json_pieces import JsonList, json_text
from api.dialects.openai.encode import ChunkStream, marked
from scheduler.events import (
    AnswerPiece,
    Finished,
    Progress,
    PromptScores,
    PromptToken,
    TextDelta,
    TokenLogprobs,
)

_json = msgspec.json.Encoder()


def logprobs_object(entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the logprobs in the completions API's shape: parallel lists. The top logprobs always include the
    chosen token."""
    return _parallel(lambda: (PromptToken(b"", entry.offset, entry) for entry in entries))


def echoed_logprobs(prompt: PromptScores, choice: WholeChoice, echo: str) -> dict[str, Any]:
    """Return the log-probabilities of the prompt's tokens (null for the first) and of the answer's, including
    the token that ended it: evaluation harnesses drop as many last entries as they asked for tokens."""
    answer = [*choice.logprobs, *([] if choice.end.end_token is None else [choice.end.end_token])]

    def tokens() -> Iterator[PromptToken]:
        yield from prompt()
        for entry in answer:
            yield PromptToken(b"", len(echo) + entry.offset, entry)

    return _parallel(tokens)


def _parallel(tokens: Callable[[], Iterable[PromptToken]]) -> dict[str, Any]:
    each: dict[str, Callable[[PromptToken], Any]] = {
        "tokens": lambda token: _name(token.data if token.logprobs is None else _own(token.logprobs)),
        "token_logprobs": lambda token: None if token.logprobs is None else token.logprobs.values[0],
        "top_logprobs": lambda token: None if token.logprobs is None else _likeliest(token.logprobs),
        "text_offset": lambda token: token.offset,
    }
    return {name: JsonList(partial(_encoded, tokens, entry)) for name, entry in each.items()}


def _encoded(
    tokens: Callable[[], Iterable[PromptToken]], entry: Callable[[PromptToken], Any]
) -> Iterator[bytes]:
    return (_json.encode(entry(token)) for token in tokens())


def _own(entry: TokenLogprobs) -> bytes:
    return entry.spelling(entry.ids[0])


def _likeliest(entry: TokenLogprobs) -> dict[str, float]:
    """Return the alternatives, best first, and the token itself. Of tokens with one text the likeliest is
    there: a reader compares the token's own value with the largest."""
    found: dict[str, float] = {}
    for place in (*range(1, len(entry.ids)), 0):
        found.setdefault(_name(entry.spelling(entry.ids[place])), entry.values[place])
    return found


def _name(data: bytes) -> str:
    """Return a token's text as a key. A part of a character, which all would decode alike, is named by its
    bytes, as in OpenAI's API."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in data])


class CompletionEncoder(ChunkStream):
    """Encodes one answer, whole or as chunks that are bytes ready for the wire."""

    kind = "text_completion"

    def __init__(
        self, public_id: str, created: int, model: str, echoes: Sequence[str], include_usage: bool = False
    ) -> None:
        """`echoes`: the texts before each choice."""
        super().__init__(public_id, created, model, include_usage)
        self._echoes = dict(enumerate(echoes))

    def whole(
        self, answer: WholeAnswer, *, logprobs: bool = False, echo_logprobs: bool = False
    ) -> dict[str, Any]:
        """`echo_logprobs` adds the echoes' log-probabilities to the answer's, if `logprobs` wants these."""
        each = len(answer.choices) // answer.prompts
        choices: list[dict[str, Any]] = []
        for index, choice in enumerate(answer.choices):
            echo = self._echoes[index]
            scores = answer.choices[index - index % each].end.prompt
            body: dict[str, Any] = {"index": index, "text": echo + choice.text, "logprobs": None}
            if logprobs and echo_logprobs and scores is not None:
                body["logprobs"] = echoed_logprobs(scores, choice, echo)
            elif logprobs:
                body["logprobs"] = logprobs_object(choice.logprobs)
            choices.append({**body, "finish_reason": choice.end.reason.value, **marked(choice.end)})
        return self._whole(choices, answer.usage)

    def event(self, choice: int, event: AnswerPiece | Finished) -> bytes:
        match event:
            case TextDelta(text=text, logprobs=logprobs):
                return self._chunk(choice, self._echoes.pop(choice, "") + text, None, logprobs)
            case Finished():
                self._ended.add(choice)
                return self._chunk(choice, self._echoes.pop(choice, ""), event)
            case _:
                raise AssertionError(f"{event!r} in the answer to a text")

    def _chunk(
        self, choice: int, text: str, end: Finished | None, logprobs: Sequence[TokenLogprobs] = ()
    ) -> bytes:
        entry = b'{"index":%d,"text":' % choice + _json.encode(text)
        rest = b',"finish_reason":null}]'
        if end is not None:
            ended = {"finish_reason": end.reason.value, **marked(end)}
            rest = b"," + _json.encode(ended)[1:] + b"]"
        encoded = json_text(logprobs_object(logprobs)) if logprobs else b"null"
        return self._head + entry + b',"logprobs":' + encoded + rest + self._tail

    def progress(self, progress: Progress) -> bytes:
        """Return a chunk without text, of a choice that goes on: some readers end at a comment."""
        return self._chunk(self._going_on, "", None)
