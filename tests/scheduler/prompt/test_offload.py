"""Which lane a request's preparation takes, with the real grammar library asked or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio
from trio.testing import trio_test

from scheduler.errors import InvalidRequest
from scheduler.prompt.offload import Lane, PreparationOffLoop
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.prompt_size import LARGE_CHARACTERS
from scheduler.request import GenerationRequest
from scheduler.structure import JsonText
from tests.fakes.byte_tokenizer import ByteTokenizer
from tests.fakes.scheduling import FOLDER, ask

_T = TypeVar("_T")


class Recorder:
    """Runs work in place, and notes where it should have run."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Lane]] = []

    async def __call__(self, work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
        self.taken.append((tenant, lane))
        await trio.lowlevel.checkpoint()
        return work()


def asks_for(schema: Any) -> GenerationRequest:
    return ask(tenant="t", structure=JsonText(schema, "response_format"))


def off_loop() -> tuple[PreparationOffLoop, Recorder]:
    recorder = Recorder()
    return PreparationOffLoop(Preparation(ByteTokenizer(), FOLDER), recorder), recorder


@trio_test
async def test_only_an_unknown_grammar_takes_the_grammar_lane() -> None:
    """The second time its verdict is known, also where it is bad."""
    preparation, recorder = off_loop()
    for schema, good in (({"type": "integer"}, True), ({"type": "nonsense"}, False)):
        for times in range(2):
            recorder.taken.clear()
            if good:
                assert (await preparation.prepare(asks_for(schema))).grammar
            else:
                with pytest.raises(InvalidRequest):
                    await preparation.prepare(asks_for(schema))
            lanes = [lane for _, lane in recorder.taken]
            assert lanes == ([Lane.PLAIN] if times else [Lane.PLAIN, Lane.GRAMMAR])
            assert {tenant for tenant, _ in recorder.taken} == {"t"}


@trio_test
async def test_large_prompts_and_prompts_of_many_values_leave_the_plain_lane() -> None:
    """Many values are counted in a thread first."""
    preparation, recorder = off_loop()
    await preparation.prepare(ask("hello"))
    with pytest.raises(InvalidRequest):
        await preparation.prepare(ask("x" * (LARGE_CHARACTERS + 1)))
    assert [lane for _, lane in recorder.taken] == [Lane.PLAIN, Lane.LARGE]
