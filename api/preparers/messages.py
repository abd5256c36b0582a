"""The messages between the server and one preparation process: frames of `scheduler/link/framing.py`.

Work and results are pickled (`pickles.py`): both ends run this code, and bodies are validated models.
"""

from __future__ import annotations

from typing import TypeAlias

from scheduler.link.framing import FrameReader, message_decoder
from scheduler.link.wire_struct import WireStruct


class Serve(WireStruct, frozen=True, tag="serve"):
    """The first message: the pickled `PreparationRecipe` of each model, by name."""

    models: bytes


class Call(WireStruct, frozen=True, tag="call"):
    """Do some work: a pickled function and its arguments. Calls are answered in their order."""

    number: int
    work: bytes
    of: int | None = None
    """The held object that is the function's first argument; None: none is."""
    large: bool = False
    """Whether memory is to be returned to the system after it."""


class Free(WireStruct, frozen=True, tag="free"):
    """Forget a held object."""

    handle: int


class Started(WireStruct, frozen=True, tag="started"):
    """The models' tokenizers are loaded."""


class Begun(WireStruct, frozen=True, tag="begun"):
    """A call is being carried out: if the process ends now, that may be why."""

    number: int


class Caches(WireStruct, frozen=True):
    """What a process keeps for the prompts of one model, since it started."""

    model: str
    tokens: int
    kept_tokens: int
    pieces_bytes: int
    messages: int
    kept_messages: int
    texts_bytes: int


class Reply(WireStruct, frozen=True, tag="reply"):
    """The pickled result of a call, or what it raised."""

    number: int
    result: bytes
    raised: bool
    held: tuple[int, ...]
    """The objects that the process holds since this call."""
    caches: tuple[Caches, ...]
    """Of the models that it has."""


ToPreparer: TypeAlias = Serve | Call | Free
FromPreparer: TypeAlias = Started | Begun | Reply


def preparer_inbound() -> FrameReader[ToPreparer]:
    """A reader for what a preparation process receives."""
    return FrameReader(message_decoder(ToPreparer))


def server_inbound() -> FrameReader[FromPreparer]:
    """A reader for what the server receives of one."""
    return FrameReader(message_decoder(FromPreparer))
