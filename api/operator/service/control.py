"""What `penstock service` and the running supervisor say to each other: JSON lines on a Unix socket.

Who may open the socket may upgrade the service: it lies in a folder that only its user enters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

import msgspec
import trio

from api.operator.errors import OperatorError

MOST_PATH_BYTES = 100
"""A Unix socket's name has 108 bytes on Linux, 104 on macOS."""
_MOST_LINE_BYTES = 256 * 1024
_CONNECT_SECONDS = 5.0


class Order(StrEnum):
    """Which of two processes is there first."""

    BESIDE = "beside"
    """The new one gets ready while the old one serves: both hold a model."""
    ONE_AT_A_TIME = "one-at-a-time"
    """The old one ends its streams first; new connections wait in the backlog until the new one is ready."""


class AskStatus(msgspec.Struct, frozen=True, tag="status"):
    pass


class AskUpgrade(msgspec.Struct, frozen=True, tag="upgrade"):
    """None keeps what the running process has."""

    program: tuple[str, ...] | None
    arguments: tuple[str, ...] | None
    order: Order
    ready_seconds: float
    """A new process that is not ready by then is rolled back."""
    streams_seconds: float
    """Time for the old process's streams; what is left then drains as after SIGTERM."""


Ask: TypeAlias = AskStatus | AskUpgrade


class ServeState(msgspec.Struct, frozen=True):
    """One `penstock serve`."""

    pid: int
    version: str | None
    """None: not ready yet."""
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    age_seconds: float


class Status(msgspec.Struct, frozen=True, tag="status"):
    pid: int
    """Of the supervisor."""
    serving: ServeState
    retiring: tuple[ServeState, ...]
    """Old processes whose connections have not ended."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    text: str


class Upgraded(msgspec.Struct, frozen=True, tag="upgraded"):
    serving: ServeState


class RolledBack(msgspec.Struct, frozen=True, tag="rolled_back"):
    """The service goes on as before."""

    reason: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: str


Reply: TypeAlias = Status | Progress | Upgraded | RolledBack | Refused

_encoder = msgspec.json.Encoder()
_ask_decoder: msgspec.json.Decoder[Ask] = msgspec.json.Decoder(Ask)
_reply_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


async def send(stream: trio.abc.SendStream, message: Ask | Reply) -> None:
    await stream.send_all(_encoder.encode(message) + b"\n")


class _Lines:
    """Whole lines of a stream."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._left = b""

    async def next(self) -> bytes | None:
        """Return the next line, or None at the end. Raise ValueError for a line that is too long."""
        while b"\n" not in self._left:
            if len(self._left) > _MOST_LINE_BYTES:
                raise ValueError("the line is too long")
            data = await self._stream.receive_some()
            if not data:
                return None
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        return line


async def read_ask(stream: trio.abc.ReceiveStream) -> Ask | None:
    """Return the client's question, or None if it left. Raise ValueError for what is none."""
    line = await _Lines(stream).next()
    return None if line is None else _ask_decoder.decode(line)


class Replies:
    """What the supervisor says to one question."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._lines = _Lines(stream)

    async def next(self) -> Reply | None:
        """Return None when it has no more to say. Raise OperatorError if it cannot be understood."""
        try:
            line = await self._lines.next()
            return None if line is None else _reply_decoder.decode(line)
        except (trio.BrokenResourceError, ValueError) as error:
            raise OperatorError(f"the service has ended or is of another version: {error}") from error


@asynccontextmanager
async def asked(control: Path, ask: Ask) -> AsyncIterator[Replies]:
    """Ask the supervisor; leaving the block takes the question back. Raise OperatorError if there is none."""
    try:
        with trio.fail_after(_CONNECT_SECONDS):
            stream = await trio.open_unix_socket(control)
            await send(stream, ask)
    except (OSError, RuntimeError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise OperatorError(
            f"no service runs here: nothing answers at {control}\n"
            "start it with penstock service install, or in a terminal with penstock service run"
        ) from error
    async with stream:
        yield Replies(stream)
