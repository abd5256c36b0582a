"""Two LoRA adapters of the embedded model, each with a code book, in one server: whatever happens around a
request, it gets its own book's answer. A batch or a cache that mixed them would answer by the other book."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.raw_client import Answer, answers
from tests.end_to_end.serving import Served, eventually, serving
from tests.scheduler.models.facts import BOOKS, code_book, question

FOLDER = Path("tests/scheduler/models/adapters").absolute()
WORDS = 16


@dataclass(frozen=True, slots=True)
class Question:
    """`book` empty: without an adapter."""

    word: str
    book: str

    @property
    def asked(self) -> tuple[str, dict[str, Any]]:
        model = f"penstock-embedded:{self.book}" if self.book else "penstock-embedded"
        quiet = {"enable_thinking": False}
        return question(self.word), {"model": model, "max_tokens": 12, "chat_template_kwargs": quiet}

    def is_right(self, answer: Answer) -> bool:
        codes = {book: code_book(book)[self.word] for book in BOOKS}
        if not self.book:
            return answer.status == 200 and not any(code in answer.text for code in codes.values())
        return answer.text == codes[self.book]


def check(served: Served, seed: int, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Ask about the first words in each of the books, and without one."""
    asked = [Question(word, book) for word in list(code_book("red"))[:WORDS] for book in ("", *BOOKS)]
    random.Random(seed).shuffle(asked)
    said = answers(served.port, [one.asked for one in asked], meanwhile)
    assert not [
        (one, answer.text) for one, answer in zip(asked, said, strict=True) if not one.is_right(answer)
    ]


@pytest.mark.timeout(300)
def test_each_request_has_the_answer_of_its_book() -> None:
    """Cold, then with every prompt in the prefix cache, then around the engine's death."""
    options = [part for book in BOOKS for part in ("--adapter", f"{book}={FOLDER / book}")]
    with serving(*options, trained=True) as served:
        (said,) = [json.loads(line) for line in served.log if '"event": "model"' in line]
        assert said["adapters"] == ["red", "blue"]
        for seed in range(2):
            check(served, seed)
        logged = [json.loads(line) for line in served.log if '"event": "request"' in line]
        assert {line.get("adapter") for line in logged} == {None, "red", "blue"}
        before = served.metric("penstock_generated_tokens_total")

        def kill() -> None:
            eventually(lambda: served.metric("penstock_generated_tokens_total") > before + 10)
            os.kill(served.engine_pid(), signal.SIGKILL)

        check(served, 3, kill)
        assert served.metric("penstock_engine_restarts_total") == 1
