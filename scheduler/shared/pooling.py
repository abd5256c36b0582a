"""How an engine makes one vector of a prompt, where its model is an embedder.

As in `messages.py`, the field order is the format.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from scheduler.shared.wire_struct import WireStruct

ModelKind: TypeAlias = Literal["chat", "embedding", "rerank"]
"""What a model is asked for: tokens, a vector of a text, or the relevance of a document to a query."""
PooledTokens: TypeAlias = Literal["last", "mean"]
"""The tokens of which the final hidden states are taken."""


class Pooler(WireStruct, frozen=True):
    """How a prompt's final hidden states become its vector, float32."""

    tokens: PooledTokens = "last"
    dense: tuple[str, ...] = ()
    """Folders of linear layers that follow, inside the model's folder."""
    normalize: bool = True
    """Whether the vector has length 1."""
    two_way: bool = False
    """Whether each token attends to all of its prompt: then no prompt can be computed in chunks."""
