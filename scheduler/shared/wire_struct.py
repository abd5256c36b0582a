"""The base class of the messages and of what they contain."""

from __future__ import annotations

import msgspec


class WireStruct(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Acyclic plain data, so the garbage collector can skip the thousands made per second."""
