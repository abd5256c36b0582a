"""The byte tokenizer of a model whose marks are tokens of their own, as real models have them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scheduler.answer.answer_format import AnswerFormat
from scheduler.answer.detokenizer import ByteTable, Detokenizer
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer


class NotationTokenizer(ByteTokenizer):
    """`marks` are the tokens from EOS + 1 on."""

    def __init__(self, answer_format: AnswerFormat, marks: Sequence[str]) -> None:
        super().__init__(answer_format)
        self.marks = {EOS + 1 + number: mark for number, mark in enumerate(marks)}

    def detokenizer(self, spelled: frozenset[str] = frozenset(), *, begun: bool = False) -> Detokenizer:
        return Detokenizer(_Spelled(self, self.marks))

    def plain_bytes(self, token_id: int) -> bytes:
        return self._table[token_id]

    def to_json(self) -> str:
        written = json.loads(super().to_json())
        (end,) = written["added_tokens"]
        vocabulary = written["model"]["vocab"]
        by_id = {token_id: text for text, token_id in vocabulary.items()}
        for token_id, mark in self.marks.items():
            del vocabulary[by_id[token_id]]
            vocabulary[mark] = token_id
            written["added_tokens"].append({**end, "id": token_id, "content": mark})
        return json.dumps(written)


class _Spelled(ByteTable):
    def __init__(self, tokenizer: NotationTokenizer, marks: dict[int, str]) -> None:
        super().__init__(lambda token_id: None)
        self._tokenizer = tokenizer
        self._spelling = marks

    def __getitem__(self, token_id: int) -> bytes:
        if token_id in self._spelling:
            return self._spelling[token_id].encode()
        return self._tokenizer.plain_bytes(token_id)
