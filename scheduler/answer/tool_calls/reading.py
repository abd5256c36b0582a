"""Parse the text between tool call marks into call events.

The parsers are mlx-lm's; on malformed text they raise various exceptions, and some skip it. Here that becomes
one exception, raised where the block ends.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from json import loads
from threading import Lock
from typing import Any, Protocol

from scheduler.answer.answer_format import ToolSyntax
from scheduler.answer.bounded_regex import time_limit
from scheduler.answer.notations.catalog import writes_bare_text
from scheduler.answer.notations.parameter_kind import read_bare
from scheduler.answer.schema_check import StepBudget
from scheduler.answer.tool_calls.coercion import coerce, property_schema
from scheduler.answer.tool_calls.json_arguments import JsonArguments, MalformedArguments, json_text
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.events import AnswerPiece, ToolCallArguments, ToolCallStarted

_MATCHING_SECONDS = 0.25
"""The limit for one block, in CPU time of all threads. Well-formed blocks of 200 KB take 0.2 to 25 ms."""
LONG_TEXT = 512
"""Characters up to which a text is parsed within a token's time, also where patterns take cubic time."""
_LONGEST_GUESS = 16_384
"""Without marks GLM's parser splits the block with shlex, at 1 ms per KB."""


class UnreadableCall(Exception):
    """A block that cannot be parsed. `index`: the number of its call, if it was started; `rest`: the part of
    its arguments that was not yielded. `read_to`: how many characters of the block the whole calls before it
    take."""

    def __init__(self, why: object, index: int | None = None, rest: str = "", *, read_to: int = 0) -> None:
        super().__init__(str(why))
        self.index = index
        self.rest = rest
        self.read_to = read_to


class AnswerCalls:
    """The calls of one answer: their numbers, ids and tools."""

    def __init__(self, offered: OfferedTools, call_id: Callable[[int], str], *, parallel: bool) -> None:
        self.offered = offered
        self._call_id = call_id
        self._parallel = parallel
        self.budget = StepBudget()
        """The budget for the coercion of all their arguments."""
        self.started = 0
        self.ended = 0
        """Calls that were found whole before the end of their block."""
        self.large = False
        """Whether one of them calls a tool with a large schema."""

    @property
    def enough(self) -> bool:
        """Return whether no more calls are allowed: the client asked for one at a time."""
        return self.started > 0 and not self._parallel

    def start(self, name: str, call_id: str | None = None) -> ToolCallStarted:
        """Start a call, also of a tool that was not offered: the client reports the error to the model."""
        index, self.started = self.started, self.started + 1
        self.large = self.large or self.offered.is_large(name)
        return ToolCallStarted(index, call_id or self._call_id(index), name)

    def whole(self, call: ParsedCall) -> Iterator[AnswerPiece]:
        start = self.start(call.name, call.call_id)
        yield start
        yield ToolCallArguments(start.index, self.fitted(call))

    def fitted(self, call: ParsedCall) -> str:
        """Return the JSON text of its arguments, coerced to their schema."""
        return json_text(coerce(call.arguments, self.offered.schema(call.name), budget=self.budget))


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments: dict[str, Any]
    call_id: str | None = None


class CallReader(Protocol):
    """The inside of one pair of marks. `feed` never raises: what follows a fault is read to the end."""

    def weighs(self, text: str | None) -> bool:
        """Return whether `feed(text)`, or `close()` if `text` is None, may take too long for the event
        loop."""
        ...

    def feed(self, text: str) -> Iterator[AnswerPiece]: ...

    def close(self) -> Iterator[AnswerPiece]:
        """Take the end mark, or the end of the model's turn, and yield what it completes. Raise
        UnreadableCall."""
        ...

    @property
    def raw(self) -> str:
        """Return all text fed so far."""
        ...


class CollectedBlock:
    """The common part of CallReaders that yield nothing before the end of the block."""

    def __init__(self, calls: AnswerCalls) -> None:
        self._calls = calls
        self._parts: list[str] = []
        self._length = 0

    @property
    def raw(self) -> str:
        return "".join(self._parts)

    def weighs(self, text: str | None) -> bool:
        if text is not None:
            return False
        offered = self._calls.offered
        return self._length > LONG_TEXT or not offered.are_read or offered.any_large()

    def feed(self, text: str) -> Iterator[AnswerPiece]:
        self._parts.append(text)
        self._length += len(text)
        yield from ()


class BlockReader(CollectedBlock):
    """Lets mlx-lm parse the whole block."""

    def __init__(self, syntax: ToolSyntax, calls: AnswerCalls) -> None:
        super().__init__(calls)
        self._syntax = syntax

    def close(self) -> Iterator[AnswerPiece]:
        for call in read_block(self.raw, self._syntax, self._calls):
            if not self._calls.enough:
                yield from self._calls.whole(call)


def read_block(raw: str, syntax: ToolSyntax, calls: AnswerCalls) -> list[ParsedCall]:
    """Return the calls that mlx-lm's parser reads in a block. Raise UnreadableCall."""
    try:
        parsed = _parse(raw, syntax, calls)
        found = parsed if isinstance(parsed, list) else [parsed]
        read = [_checked(call, syntax, calls) for call in found]
    except Exception as error:  # Parsers raise anything; only this block is malformed.
        raise UnreadableCall(error or type(error).__name__) from error
    if not read or (syntax.call_mark and raw.count(syntax.call_mark) > len(read)):
        raise UnreadableCall("a call is missing")
    return read


def _braces_match(raw: str, string_mark: str) -> bool:
    depth = 0
    for outside in raw.split(string_mark)[::2]:
        for character in outside:
            depth += (character == "{") - (character == "}")
            if depth < 0:
                return False
    return depth == 0


def _parse(raw: str, syntax: ToolSyntax, calls: AnswerCalls) -> Any:
    if syntax.string_mark and not _braces_match(raw, syntax.string_mark):
        raise ValueError("its braces do not match")
    if syntax.guesses and len(raw) > _LONGEST_GUESS and "<arg_key>" not in raw:
        raise ValueError("it is too long to guess at")
    with time_limit(_MATCHING_SECONDS), _quiet:
        try:
            return syntax.parse(raw, calls.offered.definitions)
        except TimeoutError:
            raise
        except Exception:
            # Some parsers convert by the schema and fail on a value that does not fit; try without it.
            return syntax.parse(raw, None)


class _Quiet:
    """Silences the warnings of Python's parser about invalid escapes in the model's text. All threads share
    one, because warning filters are the process's: they are restored when the last thread is done."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._before = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._before = warnings.catch_warnings()
                self._before.__enter__()
                warnings.simplefilter("ignore", SyntaxWarning)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._before.__exit__(None, None, None)


_quiet = _Quiet()


def _checked(call: Any, syntax: ToolSyntax, calls: AnswerCalls) -> ParsedCall:
    if not isinstance(call, dict):
        raise ValueError("it is not an object")
    name, arguments, call_id = call.get("name"), call.get("arguments", call.get("parameters")), call.get("id")
    if not isinstance(name, str) or not name:
        raise ValueError("it names no tool")
    name.encode()  # JSON can escape a lone surrogate, which UTF-8 cannot encode.
    if isinstance(arguments, str):
        arguments = loads(arguments, strict=False)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments are not an object")
    guessed = syntax.guesses and arguments.keys() == {"raw"}
    if guessed and "raw" not in calls.offered.schema(name).get("properties", {}):
        raise ValueError("the arguments cannot be distinguished")
    if writes_bare_text(syntax.name):
        arguments = _read_bare(name, arguments, calls)
    json_text(arguments)
    return ParsedCall(name, arguments, call_id if isinstance(call_id, str) and call_id else None)


def _read_bare(tool: str, arguments: dict[str, Any], calls: AnswerCalls) -> dict[str, Any]:
    schema, types = calls.offered.schema(tool), calls.offered.types
    return {
        name: read_bare(value, types(tool, name), property_schema(schema, name), schema, calls.budget)
        if isinstance(value, str)
        else value
        for name, value in arguments.items()
    }


_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL
)
_LONGEST_HEAD = 1024
_TAIL = re.compile(r"[\s}]*")
"""After whole arguments a brace too few or too many, a common slip, changes nothing."""


def _sendable_name(text: str) -> str | None:
    """Parse a name's JSON text. Return None if it is not a name, or one that cannot be sent."""
    try:
        name = str(loads(text, strict=False))
        name.encode()
    except ValueError:
        return None
    return name


class JsonReader:
    """`{"name": "f", "arguments": {...}}`: streams the name and then the arguments.

    Members in another order, or a list of calls, wait for the whole block as in BlockReader.
    """

    def __init__(self, syntax: ToolSyntax, calls: AnswerCalls) -> None:
        self._block = BlockReader(syntax, calls)
        self._calls = calls
        self._arguments: ObjectReader | None = None
        self._head = ""

    @property
    def raw(self) -> str:
        return self._block.raw

    def weighs(self, text: str | None) -> bool:
        if self._arguments is not None:
            return self._arguments.weighs(text)
        return self._block.weighs(None) if text is None else len(text) > LONG_TEXT

    def feed(self, text: str) -> Iterator[AnswerPiece]:
        yield from self._block.feed(text)
        if self._arguments is None:
            if len(self._head) >= _LONGEST_HEAD:
                # Bound a name that never ends: the head is matched again with each token.
                return
            self._head += text
            head = _HEAD.match(self._head, 0, _LONGEST_HEAD)
            if head is None or (name := _sendable_name(head[1])) is None:
                return
            self._arguments = ObjectReader(name, self._calls)
            text = self._head[head.end() :]
        yield from self._arguments.feed(text)

    def close(self) -> Iterator[AnswerPiece]:
        if self._arguments is None:
            yield from self._block.close()
        elif not self._arguments.done or not _TAIL.fullmatch(self._arguments.rest):
            raise self._arguments.unreadable()


class ObjectReader:
    """The arguments of a call whose name is known, as one JSON object."""

    def __init__(self, name: str, calls: AnswerCalls) -> None:
        self._name = name
        self._calls = calls
        self._arguments = JsonArguments(calls.offered.schema(name), calls.budget)
        self._is_large = calls.offered.is_large(name)
        self._start: ToolCallStarted | None = None
        self._parts: list[str] = []
        self._rest: list[str] = []
        self._fault: MalformedArguments | None = None

    @property
    def rest(self) -> str:
        """Return the text after the arguments."""
        return "".join(self._rest)

    @property
    def raw(self) -> str:
        return "".join(self._parts)

    @property
    def done(self) -> bool:
        return self._arguments.done

    def weighs(self, text: str | None) -> bool:
        if text is None or self._fault is not None:
            return False
        return len(text) > LONG_TEXT or self._arguments.may_fit(text, LONG_TEXT if not self._is_large else 0)

    def unreadable(self) -> UnreadableCall:
        why = self._fault or "the arguments are not a JSON object"
        index = None if self._start is None else self._start.index
        return UnreadableCall(why, index, self.raw[self._arguments.sent :])

    def feed(self, text: str) -> Iterator[AnswerPiece]:
        self._parts.append(text)
        if self._fault is not None:
            return
        if self._start is None:
            self._start = self._calls.start(self._name)
            yield self._start
        try:
            piece, rest = self._arguments.feed(text)
        except MalformedArguments as error:
            self._fault, piece, rest = error, error.certain, ""
        if rest:
            self._rest.append(rest)
        if piece:
            yield ToolCallArguments(self._start.index, piece)

    def close(self) -> Iterator[AnswerPiece]:
        if not self.raw.strip():
            # A call without arguments.
            yield from self.feed("{}")
        if not self.done or self.rest.strip():
            raise self.unreadable()


_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def call_id(place: str, *, short: bool) -> str:
    """Return the id of a call, for models that write none: the same for one `place` (request, choice and
    number), so a recomputed answer has the same ids. `short`: nine letters and digits."""
    digest = sha256(place.encode("utf-8", "backslashreplace")).digest()
    if short:
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])
    return "call_" + digest[:12].hex()
