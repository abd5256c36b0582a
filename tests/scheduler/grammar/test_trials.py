"""What a client's grammar costs, a process of its own pays: what ends it is a 400, and the next grammar is
written in another."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from scheduler.errors import GrammarLimit, InvalidRequest, Unavailable
from scheduler.grammar.answer_grammar import Asked, GrammarWriter, Written
from scheduler.grammar.trials import GrammarTrials
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest, TextPrompt, Tool, ToolChoice
from scheduler.structure import OneOf, Rules, Structure
from tests.fakes.notation_tokenizer import NotationTokenizer
from tests.fakes.scheduling import FOLDER
from tests.scheduler.answer.notations import form

setup = Preparation(NotationTokenizer(form("json_tools"), ()), FOLDER)._grammar_setup


def of_text(structure: Structure) -> Asked:
    return Asked(GenerationRequest("", TextPrompt(""), structure=structure), structure.place, False)


def of_tool(parameters: dict[str, Any], text: Rules | None = None) -> Asked:
    tool = Tool("f", parameters=parameters, strict=True, place="p", text=text)
    asked = ChatPrompt((), tools=(tool,), tool_choice=ToolChoice.REQUIRED)
    return Asked(GenerationRequest("", asked), "tool_choice", False)


def of_text_tool(grammar: str) -> Asked:
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return of_tool(text, Rules(grammar, "p"))


def doubled(levels: int) -> dict[str, Any]:
    """A schema of N levels, each of which names the next twice."""
    references = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**references, f"d{levels}": {"type": "object"}}}


GROWING = "\n".join(["start: a0", *(f"a{n}: a{n + 1} a{n + 1}" for n in range(40)), 'a40: "x"'])
LONG = "z0: " + '"' + "a" * 4000 + '"\n' + "z1: z0 z0 z0 z0 z0 z0 z0 z0 z0 z0\n"
CHAIN = "".join(f"r{n}: (r{n + 1})+\n" for n in range(11000))
HOSTILE: dict[str, Asked] = {
    "rules that double": of_text_tool(GROWING),
    "alternatives of a long rule": of_text_tool(LONG + "start: " + "|".join(["z1"] * 300)),
    "a schema that doubles": of_tool(doubled(45)),
    "a chain of rules": of_text(Rules(f'start: r0\n{CHAIN}r11000: "a"', "p")),
}
LIMITS = re.compile("its grammar takes more than (1 s of CPU time|256 MiB of memory|the stack that there is)")


async def tried(every: Sequence[Asked], cpu_seconds: int = 1) -> list[Written | Exception]:
    trials, outcomes = GrammarTrials(setup, os.environ, cpu_seconds), list[Written | Exception]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trials.run)
        for asked in every:
            try:
                outcomes.append(await trio.to_thread.run_sync(partial(trials, asked)))
            except (InvalidRequest, Unavailable) as error:
                outcomes.append(error)
        nursery.cancel_scope.cancel()
    return outcomes


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_ends_its_process_and_is_a_400(name: str) -> None:
    """With the limit's name; and the next one is written as ever."""
    asked = HOSTILE[name]
    plain = of_text(OneOf(("yes", "no"), "p"))
    before, refused, after = trio.run(tried, [plain, asked, plain])
    assert before == after == GrammarWriter(*setup())(plain)
    assert isinstance(refused, Written)
    assert isinstance(refused.refusal, GrammarLimit)
    assert refused.refusal.param == asked.place
    assert LIMITS.search(refused.refusal.message)


def test_a_grammar_without_an_end_holds_up_no_other_one() -> None:
    async def main() -> None:
        trials, endless = GrammarTrials(setup, os.environ, cpu_seconds=600), list[Written]()

        async def hostile() -> None:
            endless.append(await trials.written(HOSTILE["a schema that doubles"]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trials.run)
            nursery.start_soon(hostile)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(2):
                assert not (await trials.written(of_text(OneOf(("yes",), "p")))).refusal
            assert not endless
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_process_that_ends_by_itself_is_no_verdict_on_a_grammar() -> None:
    """The client may send it again."""

    async def written() -> None:
        trials = GrammarTrials(tuple, os.environ)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trials.run)
            with pytest.raises(Unavailable, match="exited with status 1"):
                await trials.written(of_text(OneOf(("a",), "p")))
            nursery.cancel_scope.cancel()

    trio.run(written)
