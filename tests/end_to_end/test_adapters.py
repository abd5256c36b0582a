"""Two LoRA adapters of the embedded model, each with a code book, in one server: whatever happens around a
request, it gets its own book's answer. A batch or a cache that mixed them would answer by the other book."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually, serving
from tests.end_to_end.test_start_errors import serve
from tests.scheduler.models.facts import BOOKS, code_book, question

pytestmark = pytest.mark.timeout(300)
FOLDER = Path("tests/scheduler/models/adapters").absolute()
STREAMS = 16
WORDS = 16


@dataclass(frozen=True, slots=True)
class Question:
    """`book` empty: without an adapter."""

    word: str
    book: str

    @property
    def model(self) -> str:
        return f"penstock-embedded:{self.book}" if self.book else "penstock-embedded"

    def is_right(self, answer: Answer) -> bool:
        codes = {book: code_book(book)[self.word] for book in BOOKS}
        if not self.book:
            return answer.status == 200 and not any(code in answer.text for code in codes.values())
        return answer.text == codes[self.book]


def questions(seed: int, books: tuple[str, ...] = ("", *BOOKS)) -> list[Question]:
    """About the first words, in each of these books."""
    found = [Question(word, book) for word in list(code_book("red"))[:WORDS] for book in books]
    random.Random(seed).shuffle(found)
    return found


async def ask_all(port: int, asked: list[Question]) -> dict[Question, Answer]:
    """On 16 streams at a time."""
    answers: dict[Question, Answer] = {}
    free = trio.CapacityLimiter(STREAMS)

    async def one(asking: Question) -> None:
        async with free:
            answers[asking] = await ask(
                port,
                question(asking.word),
                model=asking.model,
                max_tokens=12,
                chat_template_kwargs={"enable_thinking": False},
            )

    async with trio.open_nursery() as nursery:
        for asking in asked:
            nursery.start_soon(one, asking)
    return answers


def check(answers: dict[Question, Answer]) -> None:
    wrong = {
        (one.model, one.word): answer.text for one, answer in answers.items() if not one.is_right(answer)
    }
    assert not wrong


@pytest.fixture(scope="module")
def both() -> Iterator[Served]:
    options = [part for book in BOOKS for part in ("--adapter", f"{book}={FOLDER / book}")]
    with serving(*options, trained=True) as served:
        yield served


def test_each_request_has_the_answer_of_its_book(both: Served) -> None:
    """Cold, then with every prompt in the prefix cache."""
    (said,) = [json.loads(line) for line in both.log if '"event": "model"' in line]
    assert said["adapters"] == ["red", "blue"]
    for seed in range(2):
        check(trio.run(ask_all, both.port, questions(seed)))
    logged = [json.loads(line) for line in both.log if '"event": "request"' in line]
    assert {line.get("adapter") for line in logged} == {None, "red", "blue"}


def test_also_when_the_engine_is_killed(both: Served) -> None:
    before, restarts = both.engine_pid(), both.metric("penstock_engine_restarts_total")
    said = both.metric("penstock_generated_tokens_total")

    async def killed() -> dict[Question, Answer]:
        answers: dict[Question, Answer] = {}
        async with trio.open_nursery() as nursery:

            async def all_of_them() -> None:
                answers.update(await ask_all(both.port, questions(3)))

            nursery.start_soon(all_of_them)
            await trio.to_thread.run_sync(
                eventually, lambda: both.metric("penstock_generated_tokens_total") > said + 10
            )
            os.kill(before, signal.SIGKILL)
        return answers

    check(trio.run(killed))
    eventually(lambda: both.metric("penstock_engine_restarts_total") == restarts + 1)
    eventually(lambda: both.get("/ready")[0] == 200)
    assert both.engine_pid() != before


def test_a_folder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """By name and with what differs, in one line."""
    folder = tmp_path / "red"
    folder.mkdir()
    for file in (FOLDER / "red").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "adapter_config.json").read_text())
    config["lora_parameters"]["rank"] = 8
    (folder / "adapter_config.json").write_text(json.dumps(config))
    reason = (
        "the adapter 'red' cannot be used: model.layers.0.mlp.down_proj.lora_a is 512 x 4, and the model"
        " takes 512 x 8 at rank 8"
    )
    status, lines = serve("--model", "embedded", "--adapter", f"red={folder}")
    assert (status, lines) == (1, [f"penstock: {reason}"])
    status, lines = serve("--model", "embedded", "--adapter", f"red={tmp_path / 'nowhere'}")
    assert status == 1
    assert lines == [
        f"penstock: --adapter: the adapter 'red' cannot be used: {tmp_path / 'nowhere'} is not a folder"
    ]
