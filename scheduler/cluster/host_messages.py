"""What the front and a host process send each other, beside the engine's own link.

A file of its own because the two ends must not import each other: one has trio, the other must not.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from scheduler.link.framing import FrameReader
from scheduler.link.wire_struct import WireStruct

HOST_ROLE = "host"
ENGINE_ROLE = "engine"


class EngineStarted(WireStruct, frozen=True, tag="engine_started"):
    """The engine runs, and its connection is let in."""

    pid: int


class NotStarted(WireStruct, frozen=True, tag="not_started"):
    """There is no engine, and the host process is about to end: a sentence for the operator."""

    reason: str


class StderrOutput(WireStruct, frozen=True, tag="stderr"):
    """The next bytes of the engine's stderr."""

    data: bytes


class EngineExited(WireStruct, frozen=True, tag="engine_exited"):
    """After all of its stderr. `returncode` is negative for a signal."""

    returncode: int


class AbortEngine(WireStruct, frozen=True, tag="abort_engine"):
    """Let a hung engine write its stacks, then kill it."""


class KillEngine(WireStruct, frozen=True, tag="kill_engine"):
    """Kill it."""


FromHost: TypeAlias = EngineStarted | NotStarted | StderrOutput | EngineExited
ToHost: TypeAlias = AbortEngine | KillEngine


def front_inbound() -> FrameReader[FromHost]:
    """A reader for what the front receives."""
    return FrameReader(msgspec.msgpack.Decoder(FromHost))


def host_inbound() -> FrameReader[ToHost]:
    """A reader for what a host process receives."""
    return FrameReader(msgspec.msgpack.Decoder(ToHost))
