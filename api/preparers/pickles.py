"""How work goes to a preparation process, and its result comes back.

Three things are not copied. A `Preparation` is named by its model: both ends have one. The conversation of a
body that was read, and the messages of a chat, stay where they were made: the other end gets the rest, and a
handle. Errors are rebuilt from what they hold, as their constructors take something else.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any, NamedTuple

from api.body_reading import ReadBody
from scheduler.errors import SchedulerError
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt

_PROTOCOL = 5
_OF_CHAT = tuple(each.name for each in fields(ChatPrompt) if each.name != "messages")


class HeldBody(NamedTuple):
    """A body without its conversation, which is held under `handle`."""

    handle: int
    shell: ReadBody


class HeldChat(NamedTuple):
    """The fields of a chat but its messages, which are held under `handle`."""

    handle: int
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """A function of a module, and its arguments behind the held object, if it takes one."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class _WorkPickler(pickle.Pickler):
    def __init__(self, file: BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file, _PROTOCOL)
        self._names = names

    def persistent_id(self, obj: Any) -> str | None:
        return self._names[id(obj)] if type(obj) is Preparation else None


def dump_work(work: Work, names: Mapping[int, str]) -> bytes:
    """`names`: of the models, by the identity of their `Preparation`."""
    file = BytesIO()
    _WorkPickler(file, names).dump((work.function, work.args))
    return file.getvalue()


class _WorkUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, models: Mapping[str, Preparation]) -> None:
        super().__init__(BytesIO(data))
        self._models = models

    def persistent_load(self, pid: str) -> Preparation:
        return self._models[pid]


def load_work(data: bytes, models: Mapping[str, Preparation]) -> Work:
    function, args = _WorkUnpickler(data, models).load()
    return Work(function, args)


class _ResultPickler(pickle.Pickler):
    def __init__(self, file: BytesIO, hold: Callable[[object], int]) -> None:
        super().__init__(file, _PROTOCOL)
        self._hold = hold

    def persistent_id(self, obj: Any) -> HeldBody | HeldChat | None:
        if type(obj) is ChatPrompt:
            return HeldChat(self._hold(obj), {name: getattr(obj, name) for name in _OF_CHAT})
        if type(obj) is ReadBody and not obj.is_shell:
            return HeldBody(self._hold(obj.body), obj.shell())
        return None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException):
            return _again, (type(obj), obj.args, obj.__dict__)
        return NotImplemented


def _again(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def dump_result(result: object, hold: Callable[[object], int]) -> bytes:
    """`hold`: called with what stays, returns its handle."""
    file = BytesIO()
    _ResultPickler(file, hold).dump(result)
    return file.getvalue()


def dump_error(error: BaseException) -> bytes:
    """With its stack as a note, where it is none of ours: the server logs it."""
    if not isinstance(error, SchedulerError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        return dump_result(error, _hold_nothing)
    except Exception:  # It holds something that cannot be pickled.
        return dump_result(RuntimeError(f"{type(error).__name__}: {error}"), _hold_nothing)


def _hold_nothing(_: object) -> int:
    raise TypeError("an error that holds a conversation")


class _ResultUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, found: Callable[[HeldBody | HeldChat], object]) -> None:
        super().__init__(BytesIO(data))
        self._found = found

    def persistent_load(self, pid: HeldBody | HeldChat) -> object:
        return self._found(pid)


def load_result(data: bytes, found: Callable[[HeldBody | HeldChat], object]) -> Any:
    """`found`: makes what stands for a held object."""
    return _ResultUnpickler(data, found).load()
