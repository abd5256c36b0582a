"""A back end that generates given texts, such as real models' dialects, a byte a token.

For exact expectations of everything behind the engine. Otherwise it is the scripted back end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import trio

from scheduler.engine.backend import Backend
from scheduler.engine.scripted_backend import ScriptedBackend, _Row
from scheduler.engine.sequence import EngineSequence
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.shared.messages import Load, ScriptedPlan, Submit
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.loopback_engine import LoopbackLauncher

Chooser: TypeAlias = Callable[[int, str], str]
"""Chooses a request's text, by the number of requests before it and by its prompt."""


def in_turn(*texts: str) -> Chooser:
    """The first request gets the first text, and so on; the last one serves all later requests."""
    return lambda number, prompt: texts[min(number, len(texts) - 1)]


class PlaybackBackend(ScriptedBackend):
    def __init__(
        self,
        plan: ScriptedPlan,
        choose: Chooser,
        kv_cache_bytes: int = 0,
        tokenizer: HubTokenizer | None = None,
    ) -> None:
        """It keeps prefixes only where a test says how many bytes of them."""
        super().__init__(plan, lambda seconds: None, max(0, kv_cache_bytes), trio.current_time)
        self._choose = choose
        self._tokenizer: HubTokenizer = tokenizer or ByteTokenizer()
        self._asked: dict[int, Submit] = {}
        self._by_request: dict[int, Sequence[int]] = {}
        self.submits: list[Submit] = []

    def check(self, sequence: EngineSequence) -> None:
        # Its text is fixed; `submits` shows that a grammar was requested.
        submit = sequence.submit
        sequence.submit = msgspec.structs.replace(submit, grammar="")
        super().check(sequence)
        self._asked[sequence.request_id] = msgspec.structs.replace(submit, prompt=sequence.tokens[:])

    def _admit(self, sequence: EngineSequence) -> None:
        super()._admit(sequence)
        submit = self._asked[sequence.request_id]
        prompt = self._tokenizer.decode(submit.prompt.tolist())
        text = self._choose(len(self.submits), prompt)
        self._by_request[sequence.request_id] = self._tokenizer.encode(text)
        self.submits.append(submit)

    def _next_token(self, row: _Row) -> int:
        sequence = row.sequence
        text = self._by_request[sequence.request_id]
        if sequence.generated_tokens < len(text):
            return text[sequence.generated_tokens]
        # A model that ignores the end of its turn goes on.
        return sequence.submit.stop_token_ids[0] if sequence.submit.stop_token_ids else ord(".")

    def writing(self, text: bytes) -> list[_Row]:
        """Return the rows that are writing this text, a byte a token."""
        text_ids = list(text)
        return [row for number, row in self._rows.items() if self._by_request.get(number) == text_ids]


class Playback(LoopbackLauncher):
    """An in-process engine that generates `texts`, or the text from `choose`; `submits` has its requests.
    `tokenizer`: of a model whose tokens are not bytes."""

    def __init__(
        self, *texts: str, choose: Chooser | None = None, tokenizer: HubTokenizer | None = None
    ) -> None:
        super().__init__(self._make)
        self._choose = choose or in_turn(*texts)
        self._tokenizer = tokenizer
        self.submitted = 0
        """By any of its engines; `submits` has those of the newest."""

    def _make(self, load: Load) -> Backend:
        return PlaybackBackend(load.scripted, self._choose_counted, load.kv_cache_bytes, self._tokenizer)

    def _choose_counted(self, number: int, prompt: str) -> str:
        self.submitted += 1
        return self._choose(number, prompt)

    @property
    def submits(self) -> list[Submit]:
        assert isinstance(self.backend, PlaybackBackend)
        return self.backend.submits
