"""A tokenizer whose ids 0-255 are bytes: no file, no library, and every text is its own tokens.

Ids from 256 are words (`w256 `), which the scripted engine generates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache

from scheduler.answer.answer_format import PLAIN, AnswerFormat
from scheduler.answer.detokenizer import BYTE_LETTERS, ByteTable, Detokenizer
from scheduler.errors import TemplateFailed
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt

EOS = 8000
VOCABULARY = 8192


class ByteTokenizer(HubTokenizer):
    """Passes the same contract (`tests/contracts/check_tokenizer.py`)."""

    special_token_ids = frozenset({ord("\n"), EOS})

    def __init__(self, answer_format: AnswerFormat = PLAIN) -> None:
        self._table = _Table()
        self.answer_format = answer_format
        self.vocabulary = VOCABULARY
        self.eos_token_ids = frozenset({EOS})

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

    @property
    def cuts(self) -> Mapping[str, int]:
        return {"\n": ord("\n")}

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def encode_whole(self, text: str) -> list[int]:
        return [*self.encode(text), EOS]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<eos>" if token_id == EOS else self._table[token_id]

    def opening_bytes(self, token_id: int) -> bytes:
        return self.token_bytes(token_id)

    def detokenizer(self, spelled: frozenset[str] = frozenset(), *, begun: bool = False) -> Detokenizer:
        return Detokenizer(self._table)

    def to_json(self) -> str:
        return _written()


@cache
def _written() -> str:
    """Byte-level BPE without merges: its letters for the 256 bytes, the words, and the end."""
    letters = {byte: letter for letter, byte in BYTE_LETTERS.items()}
    vocabulary = {letter: byte for byte, letter in letters.items()} | {"<eos>": EOS}
    words = (word for word in range(256, VOCABULARY) if word != EOS)
    vocabulary |= {f"w{word}{letters[ord(' ')]}": word for word in words}
    end = {"id": EOS, "content": "<eos>", "special": True, "single_word": False, "lstrip": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{**end, "rstrip": False, "normalized": False}],
            "pre_tokenizer": level,
            "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    )


class _Table(ByteTable):
    def __init__(self) -> None:
        super().__init__(lambda token_id: None)

    def __getitem__(self, token_id: int) -> bytes:
        if token_id == EOS:
            return b""
        return bytes([token_id]) if token_id < 256 else f"w{token_id} ".encode()
