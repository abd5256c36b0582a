"""A tokenizer whose ids 0-255 are bytes: no file, no library, and every text is its own tokens.

Ids from 256 are words (`w256 `), because the scripted engine speaks in those.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.answer.answer_format import PLAIN, AnswerFormat
from scheduler.answer.detokenizer import ByteLevelDetokenizer, ByteTable, Detokenizer
from scheduler.errors import TemplateFailed
from scheduler.request import ChatPrompt

EOS = 8000


class ByteTokenizer:
    """Passes the same contract as `HubTokenizer` (`tests/contracts/check_tokenizer.py`)."""

    def __init__(self, answer_format: AnswerFormat = PLAIN) -> None:
        self._table = _Table()
        self._format = answer_format

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset({EOS})

    @property
    def answer_format(self) -> AnswerFormat:
        return self._format

    @property
    def special_token_ids(self) -> frozenset[int]:
        return frozenset({ord("\n"), EOS})

    def render(self, prompt: ChatPrompt) -> str:
        if any("refuse me" in message["content"] for message in prompt.messages):
            raise TemplateFailed("the template refuses these messages", param="messages")
        tools = [f"<tool>{tool.name}\n" for tool in prompt.offered_tools]
        turns = [f"<{message['role']}>{message['content']}\n" for message in prompt.messages]
        if prompt.continue_final:
            return "".join([*tools, *turns]).removesuffix("\n")
        return "".join([*tools, *turns, "<assistant>"])

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<eos>" if token_id == EOS else self._table[token_id]

    def detokenizer(self, spelled: frozenset[str] = frozenset()) -> Detokenizer:
        return ByteLevelDetokenizer(self._table)


class _Table(ByteTable):
    def __init__(self) -> None:
        super().__init__(lambda token_id: None)

    def __getitem__(self, token_id: int) -> bytes:
        if token_id == EOS:
            return b""
        return bytes([token_id]) if token_id < 256 else f"w{token_id} ".encode()
