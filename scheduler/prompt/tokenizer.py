"""The seam to tokenizers, and the one real implementation: whatever transformers loads from a folder.

No MLX here: this runs in the parent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from scheduler.answer.detokenizer import ByteLevelDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from scheduler.errors import StartupError, TemplateFailed
from scheduler.request import Message


class Tokenizer(Protocol):
    """Text to token ids and back, and a model's way of writing a conversation."""

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that no text is made of: what templates mark turns with."""
        ...

    def render(self, messages: Sequence[Message], options: dict[str, Any]) -> str:
        """The prompt text of a conversation, ready for the assistant's turn. Raises TemplateFailed."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids, with special tokens recognised and none added. Thread-safe."""
        ...

    def detokenizer(self) -> Detokenizer:
        """A new stream of text; cheap."""
        ...


class HubTokenizer:
    """A fast tokenizer in the Hugging Face format, with its Jinja chat template."""

    def __init__(self, folder: Path) -> None:
        """Raises StartupError where the folder holds no tokenizer that we can use."""
        # It has no use for PyTorch here, and the operator none for its advice to install it.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        # Here and not above: the import takes a second, and scripted tests do without.
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # transformers raises whatever its parsers raise
            raise StartupError(f"--model: the tokenizer in {folder} cannot be loaded: {error}") from error
        self._backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if self._backend is None:
            raise StartupError(
                f"--model: {folder} holds no fast tokenizer (tokenizer.json); only those are served"
            )
        self._special = frozenset(
            token_id for token_id, added in self._backend.get_added_tokens_decoder().items() if added.special
        )
        self._byte_table = self._make_byte_table()

    @property
    def eos_token_ids(self) -> frozenset[int]:
        eos = self._tokenizer.eos_token_id
        return frozenset() if eos is None else frozenset({int(eos)})

    @property
    def special_token_ids(self) -> frozenset[int]:
        return self._special

    @property
    def has_chat_template(self) -> bool:
        return self._tokenizer.chat_template is not None

    def render(self, messages: Sequence[Message], options: dict[str, Any]) -> str:
        if not self.has_chat_template:
            raise TemplateFailed("this model has no chat template", param="messages")
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **options
            )
        except Exception as error:  # A template is a program: it raises what it likes, for this request only.
            raise TemplateFailed(
                f"the model's chat template does not accept these messages: {error}", param="messages"
            ) from error
        return text

    def encode(self, text: str) -> list[int]:
        # encode_batch_fast gives up the GIL, encode holds it (17 ms for 10k tokens).
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def detokenizer(self) -> Detokenizer:
        if self._byte_table is not None:
            return ByteLevelDetokenizer(self._byte_table)
        return WindowDetokenizer(self._decode)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=True))

    def _make_byte_table(self) -> ByteTable | None:
        decoder = json.loads(self._backend.to_str()).get("decoder") or {}
        if decoder.get("type") != "ByteLevel":
            return None
        special, spelling = self._special, self._backend.id_to_token
        return ByteTable(lambda token_id: None if token_id in special else spelling(token_id))
