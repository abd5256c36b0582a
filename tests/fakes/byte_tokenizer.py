"""A tokenizer whose ids 0-255 are bytes: no file, no library, and every text is its own tokens.

Ids from 256 are words (`w256 `), because the scripted engine speaks in those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scheduler.answer.detokenizer import ByteLevelDetokenizer, ByteTable, Detokenizer
from scheduler.errors import TemplateFailed
from scheduler.request import Message

EOS = 8000


class ByteTokenizer:
    """Passes the same contract as `HubTokenizer` (`tests/contracts/check_tokenizer.py`)."""

    def __init__(self) -> None:
        self._table = _Table()

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def special_token_ids(self) -> frozenset[int]:
        return frozenset({ord("\n"), EOS})

    def render(self, messages: Sequence[Message], options: dict[str, Any]) -> str:
        if any("refuse me" in message["content"] for message in messages):
            raise TemplateFailed("the template refuses these messages", param="messages")
        turns = [f"<{message['role']}>{message['content']}\n" for message in messages]
        return "".join([*turns, "<assistant>"])

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenizer(self) -> Detokenizer:
        return ByteLevelDetokenizer(self._table)


class _Table(ByteTable):
    def __init__(self) -> None:
        super().__init__(lambda token_id: None)

    def __getitem__(self, token_id: int) -> bytes:
        if token_id == EOS:
            return b""
        return bytes([token_id]) if token_id < 256 else f"w{token_id} ".encode()
