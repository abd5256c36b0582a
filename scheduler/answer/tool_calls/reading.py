"""Read the calls of one block while they are written, by the notation's description.

A description says what the template writes; models also leave out marks, write them twice, or go on where a
call is over. One rule for all notations: what begins a call is its head with a name; marks around it may be
missing, and none of them counts within a value. A call that cannot be read goes to the client as it was
written, and what follows is read again from the next head of an offered tool in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from html import unescape
from json import loads
from string import digits

from scheduler.answer.notations.description import (
    NUMBER,
    TOOL,
    Braced,
    Elements,
    JsonObject,
    Keywords,
    Notation,
    Tagged,
)
from scheduler.answer.text_stream import (
    HEAVY,
    NotAsWritten,
    Reading,
    TextEnded,
    TextStream,
    Waiting,
    is_control,
)
from scheduler.answer.tool_calls.bracketed import (
    CLOSERS,
    NAMES,
    PYTHON,
    braces,
    bracketed,
    json_arguments,
    json_call,
)
from scheduler.answer.tool_calls.elements import element_arguments
from scheduler.answer.tool_calls.literals import read_value
from scheduler.answer.tool_calls.quoted_text import QUOTES, nested_value
from scheduler.answer.tool_calls.tagged import TaggedArguments
from scheduler.answer.tool_calls.written_call import LONG_TEXT, AnswerCalls, WrittenCall
from scheduler.events import CallFault, MalformedCall

_MOST_RESTARTS = 16
"""Bound on reading parts of an answer again, so that no text takes longer than linear time."""
_MOST_MARKS = 4
"""Bound on marks before a call."""
_LONGEST_HEAD = 256
_MOST_NAMED = 64
"""Bound on tools whose names are marks: each piece of text is searched for them."""
_NAME = re.compile(r"[^\s<>{}()\"']+")
_FUNCTIONS = "functions."
_CLIENTS_IDS = ("call_", "toolu_")
"""How ids begin that a model copies from its history."""
_SEPARATORS = (",", ";")
_QUOTED = re.compile(r"\s*([\"'])(.*?)\1")


class _Empty(NotAsWritten):
    """The marks of calls have none between them."""


class CallReader:
    def __init__(self, notation: Notation, calls: AnswerCalls, stream: TextStream) -> None:
        self._notation = notation
        self._calls = calls
        self._stream = stream
        self._forms = (notation, *notation.also)
        self.openers = _longest_first(mark for form in self._forms for mark in _openers_of(form))
        self._prefixes = tuple(form for form in self._forms if form.prefix and not form.is_json)
        self._closers = _longest_first(
            mark
            for form in self._forms
            for mark in (
                "" if form.is_json else form.tail.strip(),
                form.call_end.strip(),
                form.closing_mark,
                *form.strays,
            )
        )
        behind = {form.head.removeprefix(TOOL).strip() for form in self._forms if form.head.startswith(TOOL)}
        names = tuple(calls.offered) if len(calls.offered) <= _MOST_NAMED else ()
        self._named_heads = _longest_first(
            name + mark for mark in behind if any(map(str.isalpha, mark)) for name in names
        )
        """Heads whose name comes first: of each offered tool, whose outer mark may be missing."""
        self.prefixes = (*(form.prefix for form in self._prefixes), *self._named_heads)
        """What begins a call where an offered name stands behind it, or in it."""
        self._alternatives = (*self.openers, *self.prefixes)
        bare_head = not (notation.opening or notation.call_start or notation.bare or notation.is_json)
        self.sure = (*self.openers, *((notation.prefix,) if bare_head and notation.prefix else ()))
        """What begins a call whatever stands behind it."""
        self.closers = tuple(mark for mark in self._closers if any(map(str.isalpha, mark)))
        """What a model also writes behind calls, and which no text has."""
        self._call: WrittenCall | None = None
        """The call that is not over."""
        self._head_at = 0
        """Where the head of the newest call begins."""
        self._listed = self._within = self._alone = False
        """Whether a list, and the mark of several calls, has been opened."""
        self._restarts = _MOST_RESTARTS
        self.cut = False
        """Whether the answer ends in the middle by the client's or the server's limits."""

    def read(self, space: str, *, alone: bool = True) -> Reading[None]:
        """Read a block whose first mark is next, to its end. `space`: the white space before it. `alone`:
        there is no text before it, so marks with nothing between them are no text either."""
        self._alone = alone
        first = True
        while True:
            begun = self._stream.position
            try:
                form = yield from self._next(first=first)
                if form is None:
                    return
                yield from self._one(form)
                self._over()
            except (NotAsWritten, ValueError, RecursionError) as fault:
                if not (yield from self._broken(begun, space, fault)):
                    return
            if self._calls.enough:
                return
            first, space = False, ""

    def arguments_of(self, recipient: str) -> Reading[None]:
        """Read the call of a tool that a message's header names, and whose arguments are all of the
        message."""
        begun = self._head_at = self._stream.position
        self._stream.keep()
        try:
            call = yield from self._begin(self._named(recipient.removeprefix(_FUNCTIONS)))
            yield from self._object(call)
            # Braces too many are a common slip.
            yield from self._stream.run(["}"])
            yield from self._stream.space()
            end = self._stream.ahead(self._stream.any_of(self.openers))
            if not (yield from self._stream.ended()) and not (yield from end):
                raise NotAsWritten("there is text behind the arguments")
            self._over()
        except (NotAsWritten, ValueError, RecursionError) as fault:
            yield from self._broken(begun, "", fault)
        self._stream.release()

    def _named(self, recipient: str) -> str:
        """Return the offered tool with whose name a recipient begins: what should stand behind it is
        sometimes glued to it."""
        glued = (name for name in self._calls.offered if recipient.startswith(name))
        return max(glued, key=len, default=recipient)

    def begins(self) -> Waiting[bool]:
        """Read what may begin a call, and return whether it does: its marks, then the name of an offered
        tool."""
        if (yield from self._stream.any_of(self._named_heads)):
            return True
        opened = yield from self._stream.run(self.openers, _MOST_MARKS)
        yield from self._stream.space()
        for form in self._prefixes:
            if (yield from self._stream.optional(form.prefix)):
                return (yield from self._names_offered())
        if (yield from self._stream.optional("[")):
            yield from self._stream.space()
            opened = True
        if (yield from self._stream.optional("{")):
            return (yield from self._names_in_json())
        if not opened or not (yield from self._names_offered()):
            return False
        bare = self._bare("")
        calls = bare is not None and isinstance(bare.arguments, Keywords)
        return not calls or (yield from self._stream.peek()) == "("

    def _names_in_json(self) -> Waiting[bool]:
        yield from self._stream.run(('"type"', '"function"', ":", ","), 4)
        yield from self._stream.run((*(f'"{name}"' for name in NAMES), ":"), 2)
        yield from self._stream.space()
        return (yield from self._names_offered())

    def _names_offered(self) -> Waiting[bool]:
        if (yield from self._stream.peek()) in ("'", '"'):
            self._stream.read(1)
            yield from self._stream.space()
        yield from self._stream.optional(_FUNCTIONS)
        name = ""
        offered = self._calls.offered
        # A model that calls one tool that was not offered calls others.
        any_name = self._call is not None and self._call.started.name not in offered
        while len(name) <= (_LONGEST_HEAD if any_name else offered.longest_name):
            letter = yield from self._stream.peek()
            if (name in offered or (any_name and name)) and (
                not letter or not (letter.isalnum() or letter in "_-.")
            ):
                return True
            if not letter or letter.isspace() or letter in "\"'":
                return False
            name += self._stream.read(1)
        return False

    @cached_property
    def _heads(self) -> re.Pattern[str]:
        """What begins a call of an offered tool."""
        names = "|".join(map(re.escape, sorted(self._calls.offered, key=len, reverse=True))) or r"(?!)"
        openers = "|".join(map(re.escape, self.openers)) or r"(?!)"
        named = rf"[\"']?(?:functions\.)?(?:{names})(?![\w.-])"
        heads = [rf"(?:{re.escape(form.prefix)})\s*{named}" for form in self._prefixes]
        heads.append(rf"\{{\s*\"(?:{'|'.join(NAMES)})\"\s*:\s*{named}")
        heads.append(rf"(?:{openers})\s*{named}")
        return re.compile("|".join(heads))

    def _head_in(self, raw: str, start: int) -> int | None:
        """Return where the marks of the first call of an offered tool begin in a text."""
        if (found := self._heads.search(raw, start)) is None:
            return None
        place = found.start()
        while (before := raw[start:place].rstrip()) and before.endswith(self.openers or "\0"):
            place = start + len(before) - len(next(one for one in self.openers if before.endswith(one)))
        return place

    def _next(self, *, first: bool) -> Waiting[Notation | str | None]:
        """Read what stands before the next call. Return its notation; "{" for one in JSON; None behind the
        last one. Raise NotAsWritten where there is none at all."""
        behind, opened, stream = self._stream.position, "", self._stream
        if first:
            self._listed = self._within = False
        while True:
            yield from stream.space()
            if mark := (yield from self._stream.any_of(self.openers)):
                opened, self._within = mark, True
                continue
            if mark := (yield from self._stream.any_of(self._closers)):
                self._within = self._within and mark != self._notation.closing_mark
                if first:
                    raise _Empty("there is no call between the marks")
                behind, opened, self._listed = stream.position, "", False
                continue
            self._head_at = stream.position
            if (opened or first) and not self._listed and (yield from stream.optional("[")):
                self._listed = True
                continue
            if self._listed and (yield from stream.optional("]")):
                behind, self._listed = stream.position, False
                if first:
                    raise _Empty("there is no call in the list")
                continue
            if not first and (yield from self._stream.any_of(_SEPARATORS)):
                continue
            if (yield from stream.peek()) == "{":
                return "{"
            for form in self._prefixes:
                if (yield from stream.optional(form.prefix)):
                    return form
            bare = self._bare(opened)
            is_named = yield from stream.ahead(stream.any_of(self._named_heads))
            if (opened or self._listed or is_named) and bare is not None:
                # Gemma's calls without their first word.
                yield from stream.optional(":")
                return bare
            if self._within and not first and bare is not None and not bare.call_start:
                begun = stream.position
                is_call = yield from self._names_offered()
                if not is_call and self.cut and (yield from stream.ended()):
                    return None
                stream.rewind(begun)
                if is_call:
                    return bare
            if first:
                ended = (yield from stream.ended()) or (self.cut and (yield from self._is_half()))
                raise (TextEnded if ended else NotAsWritten)("there is no call")
            if not (self.cut and (yield from self._is_half())):
                stream.rewind(behind)
            return None

    def _is_half(self) -> Waiting[bool]:
        """Read the rest of the answer if it is the beginning of what could stand here, and return whether it
        was."""
        marks = (*self._alternatives, *self._closers)
        rest = yield from self._stream.peek(max(map(len, marks), default=1))
        is_half = any(mark.startswith(rest) for mark in marks)
        self._stream.read(len(rest) if is_half else 0)
        return is_half

    def _bare(self, opened: str) -> Notation | None:
        """Return the notation of a call whose name stands directly behind a mark."""
        forms = [form for form in self._forms if not form.is_json and not form.prefix.endswith("=")]
        own = [form for form in forms if opened in _openers_of(form)]
        return next(iter(sorted(own or forms, key=lambda form: form.prefix != "")), None)

    def _one(self, form: Notation | str) -> Reading[None]:
        if isinstance(form, str):
            yield from json_call(self._stream, self._begin, self._calls.offered.__contains__)
            yield from self._stream.run(["}"])
            return
        name, call_id = yield from self._name(form)
        call = yield from self._begin(name, call_id)
        match form.arguments:
            case JsonObject():
                yield from self._object(call)
            case Keywords():
                yield from bracketed(self._stream, call, ")", PYTHON)
            case Braced(string_mark=mark):
                opening = yield from self._stream.one_of([*CLOSERS])
                yield from bracketed(self._stream, call, CLOSERS[opening], braces(mark))
            case Elements(mark=mark):
                yield from element_arguments(self._stream, call, mark)
            case Tagged() as tagged:
                yield from self._tagged(call, tagged)

    def _object(self, call: WrittenCall) -> Reading[None]:
        """Read an object of arguments, or none where the answer ends."""
        yield from self._stream.space()
        if (yield from self._stream.ended()) and not self.cut:
            yield call.end()
        else:
            yield from json_arguments(self._stream, call)

    def _tagged(self, call: WrittenCall, tagged: Tagged) -> Reading[None]:
        yield from self._stream.space()
        opening, closing = tagged.in_json
        if (yield from self._stream.peek()) == "{" or (
            opening and (yield from self._stream.optional(opening))
        ):
            yield from json_arguments(self._stream, call)
            yield from self._stream.optional(closing)
            return
        yield from TaggedArguments(
            self._stream,
            call,
            tagged,
            self._closers,
            self._alternatives,
            self.begins,
            lambda text: self._heads.search(text) is not None,
        ).read()

    def _begin(self, name: str, call_id: str | None = None) -> Reading[WrittenCall]:
        """Begin a call. Raise NotAsWritten for an empty name."""
        if not name:
            raise NotAsWritten("it names no tool")
        if self._calls.offered.is_large(name):
            yield HEAVY
        self._call = self._calls.start(name, call_id, self._stream)
        yield self._call.started
        return self._call

    def _over(self) -> None:
        self._call = None
        self._calls.ended = self._calls.started

    def _name(self, form: Notation) -> Reading[tuple[str, str | None]]:
        """Return the tool's name, and the call's id if the model writes one."""
        before, after = form.head.split(TOOL)
        middle, _, last = after.strip().rpartition(NUMBER)
        last, soft = last.lstrip('"'), _beginnings(form)
        others = (*self._closers, *self.openers)
        ends = [one for one in (last, form.id_mark, *soft, *others) if one]
        text, mark = yield from self._stream.name(ends, may_end=True)
        if not mark and self.cut:
            raise TextEnded("it ends in its name")
        call_id: str | None = None
        if mark and mark == form.id_mark:
            call_id, mark = yield from self._stream.name([last, *soft])
            call_id = call_id.strip()
        if mark != last:
            self._stream.rewind(self._stream.position - len(mark))
        head = text.strip()
        if (quoted := _QUOTED.match(text)) is not None:
            text = quoted[2]
        elif middle and head not in self._calls.offered:
            text, number, _ = head.rpartition(middle)
            own = text.removeprefix(_FUNCTIONS)
            if not number or (own.startswith(_CLIENTS_IDS) and own not in self._calls.offered):
                text = yield from self._meant(head)
            elif before.endswith(_FUNCTIONS) or head.startswith(_FUNCTIONS):
                call_id = _FUNCTIONS + head.removeprefix(_FUNCTIONS)
        name = self._checked(text)
        is_known = name in self._calls.offered
        may_lack = is_known and isinstance(form.arguments, JsonObject)
        if last and (not mark or mark in others) and not may_lack:
            raise (NotAsWritten if mark else TextEnded)("its arguments are missing")
        if not last and mark != soft[0] and not is_known:
            raise NotAsWritten("words are no call")
        return name, call_id

    def _meant(self, call_id: str) -> Reading[str]:
        """Return the tool of a call whose id does not name one as it should: the offered one with whose name
        it begins, or else the only one that takes these arguments. Raise NotAsWritten."""
        word = call_id.removeprefix(_FUNCTIONS[:-1]).lstrip("._").rstrip(digits).rstrip("._:-")
        if word in self._calls.offered:
            return word
        yield from self._stream.space()
        text = yield from self._stream.ahead(nested_value(self._stream, QUOTES))
        if len(text) > LONG_TEXT:
            yield HEAVY
        arguments = read_value(text)
        fits = self._calls.offered.taking(arguments) if isinstance(arguments, dict) else []
        if len(fits) != 1:
            raise NotAsWritten("it names no tool")
        return fits[0]

    def _checked(self, text: str) -> str:
        name = text.strip()
        spelled = (name, name.removeprefix(_FUNCTIONS), unescape(name))
        name = next((one for one in spelled if one in self._calls.offered), name)
        if name not in self._calls.offered and _NAME.fullmatch(name) is None:
            raise NotAsWritten("it names no tool")
        return name

    def _broken(self, begun: int, space: str, fault: Exception) -> Reading[bool]:
        """Yield what cannot be read as it was written. Return whether the block goes on."""
        stream, call = self._stream, self._call
        end = stream.position
        raw, head = stream.raw(begun), max(self._head_at, begun) - begun
        # The fault may be in the middle of the next head.
        ahead = yield from stream.peek(_LONGEST_HEAD)
        found = self._head_in(raw + ahead[:_LONGEST_HEAD], head + 1) if self._restarts else None
        found = None if found is None or found >= len(raw) else found
        if found is not None:
            self._restarts -= 1
            end = begun + found
            stream.rewind(end)
        elif self.cut and isinstance(fault, TextEnded):
            # Half a call, and half a mark behind it.
            stream.read(len(ahead))
            return False
        else:
            end = yield from self._skip(closed=isinstance(fault, _Empty))
        text = stream.raw(begun)
        index, rest = None, ""
        if call is not None:
            index, rest = call.started.index, stream.raw(call.sent_to, max(call.sent_to, end))
            if _is_json(call.sent + rest):
                rest = text
        self._over()
        if isinstance(fault, _Empty) and (self._alone or is_control(text)):
            return False
        why = CallFault.NO_CALL if call is None else CallFault.ARGUMENTS
        self._calls.faults[CallFault.UNFINISHED if isinstance(fault, TextEnded) else why] += 1
        yield MalformedCall(space + text, index, rest)
        return found is not None

    def _skip(self, *, closed: bool) -> Waiting[int]:
        """Read to the end of what cannot be read: behind its closing marks, or before the next opening one.
        Return where the closing marks begin."""
        stream, marks = self._stream, (*self._closers, *self.openers)
        end = stream.position
        while not closed:
            _, mark = stream.before(marks)
            end = stream.position
            if mark in self.openers or (not mark and stream.closed):
                return end
            if mark:
                stream.read(len(mark))
                closed = True
            else:
                yield
        yield from stream.run(self._closers)
        return end


def _openers_of(form: Notation) -> tuple[str, ...]:
    return (form.opening_mark, form.call_start.strip(), *form.openings)


def _beginnings(form: Notation) -> tuple[str, ...]:
    """Return what begins the arguments behind a name, where what should stand between is missing."""
    match form.arguments:
        case Tagged(opening=opening):
            return (opening.split("{")[0].rstrip(), "{", "\n")
        case JsonObject():
            return ("{",)
        case Braced():
            return ("{", "(")
        case _:
            return ()


def _longest_first(marks: Iterator[str]) -> tuple[str, ...]:
    return tuple(sorted({mark for mark in marks if mark}, key=len, reverse=True))


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except (ValueError, RecursionError):
        return False
    return True
