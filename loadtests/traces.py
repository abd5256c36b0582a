"""Traces: recorded requests in common formats, read into sessions that can be replayed.

- `mooncake`: JSON lines of `timestamp` (ms), `input_length`, `output_length` and `hash_ids`, one for each
  512 tokens of the prompt. There is no text; equal ids become equal text, so sharing is as recorded. Each
  line is a session of one request. Tokens beyond the given ids are the request's own.
- `sharegpt`: one JSON list of `{"conversations": [{"from": "human"|"gpt"|"system", "value": text}]}`. The
  replay sends the recorded human turns with the target's own answers, which get the recorded lengths
  (estimated at four characters a token).
- `openai`: JSON lines of `messages`, and optionally `time` (seconds), `session`, `max_tokens`. Every
  request is sent as recorded, recorded answers included. Lines of one session follow each other. The gap
  between two counts from the answer, because the log does not have the answer's time; so a session is never
  faster than recorded. Tool messages become user messages, because servers refuse them without the calls
  and ids that belong to them. Content parts other than text are refused.

Other fields are ignored. Invalid input raises ScenarioError with the file and the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from loadtests.prompts import Prompts
from loadtests.scenario import Replay, ScenarioError

MOONCAKE_BLOCK_TOKENS: Final = 512
CHARACTERS_PER_TOKEN: Final = 4
DEFAULT_MAX_TOKENS: Final = 256
"""Tokens for a logged request without a limit."""


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request. `messages` are what it adds to the conversation, or all of it (RecordedSession.whole)."""

    messages: tuple[dict[str, str], ...]
    max_tokens: int
    exact: bool
    gap_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedSession:
    id: str
    start_seconds: float | None
    """Seconds after the first session of the trace; None if no time was recorded."""
    turns: tuple[RecordedTurn, ...]
    whole: bool = False


def read(replay: Replay, prompts: Prompts, mark: str = "") -> list[RecordedSession]:
    """Return all sessions: those without a time first, the others by their time. `mark` is prepended to every
    recorded text, so that a run can be fresh while its sessions share prefixes as recorded."""
    match replay.format:
        case "mooncake":
            sessions = _mooncake(replay, prompts)
        case "sharegpt":
            sessions = _sharegpt(replay, mark)
        case "openai":
            sessions = _openai(replay, mark)
    if not sessions:
        raise ScenarioError(f"{replay.file}: there is no request in it")
    return sorted(
        sessions, key=lambda session: (session.start_seconds is not None, session.start_seconds or 0)
    )


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[int] = []


def _mooncake(replay: Replay, prompts: Prompts) -> list[RecordedSession]:
    lines = list(_lines(replay.file, _MooncakeLine))
    first = min((line.timestamp for _, line in lines), default=0.0)
    block = MOONCAKE_BLOCK_TOKENS * replay.token_scale
    sessions = []
    for number, line in lines:
        left = line.input_length * replay.token_scale
        texts = []
        for hash_id in line.hash_ids:
            if left > 0:
                texts.append(prompts.text(min(left, block), "block", hash_id))
                left -= block
        if left > 0:
            texts.append(prompts.text(left, "line", number))
        turn = RecordedTurn(
            messages=({"role": "user", "content": " ".join(texts)},),
            max_tokens=_scaled(line.output_length, replay),
            exact=True,
        )
        start = (line.timestamp - first) / 1000 / replay.speed
        sessions.append(RecordedSession(f"line-{number}", start, (turn,)))
    return sessions


class _ShareGptMessage(msgspec.Struct):
    who: Literal["human", "user", "gpt", "chatgpt", "assistant", "bing", "bard", "system"] = msgspec.field(
        name="from"
    )
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_ShareGptMessage]


def _sharegpt(replay: Replay, mark: str) -> list[RecordedSession]:
    data = _bytes(replay.file)
    try:
        conversations = msgspec.json.decode(data, type=list[_Conversation])
    except msgspec.ValidationError as error:
        # The message ends in the place: `$[3].conversations[0].from`.
        raise ScenarioError(f"{replay.file}: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{replay.file}:{_broken_line(data)}: {error}") from error
    sessions = []
    for number, conversation in enumerate(conversations, 1):
        turns = tuple(_turns(conversation, replay, mark))
        if turns:
            sessions.append(RecordedSession(f"conversation-{number}", None, turns))
    return sessions


def _turns(conversation: _Conversation, replay: Replay, mark: str) -> Iterator[RecordedTurn]:
    """Group messages into turns. Either side may begin: the messages since the last answer are one question;
    an answer to nothing, or a question without a recorded answer, is omitted."""
    asked: list[dict[str, str]] = []
    for message in conversation.conversations:
        if message.who in ("human", "user", "system"):
            role = "system" if message.who == "system" else "user"
            content = _resized(message.value, replay)
            if asked and asked[-1]["role"] == role:
                asked[-1]["content"] += "\n" + content
            else:
                asked.append({"role": role, "content": content})
        elif asked and asked[-1]["role"] == "user":
            tokens = _scaled(len(message.value) / CHARACTERS_PER_TOKEN, replay)
            yield RecordedTurn(tuple(_marked(asked, mark)), tokens, exact=True)
            asked, mark = [], ""


class _Part(msgspec.Struct):
    type: Literal["text"]
    text: str


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[_Part] | None = None

    def plain(self, replay: Replay) -> dict[str, str]:
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = {"developer": "system", "tool": "user", "function": "user"}.get(self.role, self.role)
        return {"role": role, "content": _resized(content, replay)}


class _Logged(msgspec.Struct):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    time: float | None = None
    session: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


def _openai(replay: Replay, mark: str) -> list[RecordedSession]:
    sessions: dict[str, list[_Logged]] = {}
    for number, logged in _lines(replay.file, _Logged):
        sessions.setdefault(logged.session or f"line-{number}", []).append(logged)
    first = min((one.time for all_ in sessions.values() for one in all_ if one.time is not None), default=0.0)
    recorded = []
    for name, requests in sessions.items():
        start = requests[0].time
        turns = []
        before: float | None = None
        for one in requests:
            gap = one.time - before if one.time is not None and before is not None else 0.0
            before = one.time
            turns.append(
                RecordedTurn(
                    messages=tuple(_marked([message.plain(replay) for message in one.messages], mark)),
                    max_tokens=_scaled(one.max_tokens or DEFAULT_MAX_TOKENS, replay),
                    exact=one.max_tokens is not None,
                    gap_seconds=max(0.0, gap) / replay.speed,
                )
            )
        offset = None if start is None else (start - first) / replay.speed
        recorded.append(RecordedSession(name, offset, tuple(turns), whole=True))
    return recorded


Line = TypeVar("Line")


def _lines(file: str, kind: type[Line]) -> Iterator[tuple[int, Line]]:
    """Return the lines that are not blank, with their numbers from 1."""
    for number, line in enumerate(_bytes(file).split(b"\n"), 1):
        if line.strip():
            try:
                yield number, msgspec.json.decode(line, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise ScenarioError(f"{file}:{number}: {error}") from error


def _bytes(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise ScenarioError(f"{file}: {error.strerror}") from error


def _broken_line(data: bytes) -> int:
    """Return the line where the JSON is malformed: msgspec counts bytes, readers count lines."""
    try:
        json.loads(data)
    except json.JSONDecodeError as error:
        return error.lineno
    except UnicodeDecodeError as error:
        return data.count(b"\n", 0, error.start) + 1
    return 1


def _scaled(tokens: float, replay: Replay) -> int:
    return max(1, round(tokens * replay.token_scale))


def _resized(text: str, replay: Replay) -> str:
    """Return the text at the trace's scale: fewer of its words, or all of them, repeated from the first."""
    if replay.token_scale == 1.0 or not text:
        return text
    words = text.split(" ")
    return " ".join(islice(cycle(words), max(1, round(len(words) * replay.token_scale))))


def _marked(messages: list[dict[str, str]], mark: str) -> list[dict[str, str]]:
    if not mark:
        return messages
    first, *others = messages
    return [{**first, "content": f"{mark}\n{first['content']}"}, *others]
