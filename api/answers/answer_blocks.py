"""The blocks of an answer, in the order in which the model wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from scheduler.events import TokenLogprobs


@dataclass(slots=True)
class TextBlock:
    text: str
    logprobs: list[TokenLogprobs] = field(default_factory=list)


@dataclass(slots=True)
class ReasoningBlock:
    text: str


@dataclass(slots=True)
class ToolCallBlock:
    call_id: str
    name: str
    arguments: str = ""
    """JSON text; of a malformed call what the model wrote instead."""
    malformed: str = ""
    """The whole of a call that cannot be parsed, as the model wrote it; else empty."""

    @property
    def input(self) -> dict[str, Any] | None:
        """Return the arguments as an object, or None for a malformed call or one that the end of the answer
        has cut."""
        if self.malformed:
            return None
        try:
            text = json.dumps(json.loads(self.arguments), ensure_ascii=False, allow_nan=False)
            # JSON can contain lone surrogates, UTF-8 cannot.
            return msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
        except (ValueError, RecursionError):
            return None


Block: TypeAlias = TextBlock | ReasoningBlock | ToolCallBlock
