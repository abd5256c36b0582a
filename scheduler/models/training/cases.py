"""Held-out questions, one conversation each, as a client would ask them; and whether an answer is right.

Their seed differs from the training's, and their facts, codes and tools are drawn anew; sums are ones that
training never shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from scheduler.models.training import exercises, facts, small_talk, tools
from scheduler.models.training.turns import Turn, sentence

MOST_PROMPT_TOKENS: Final = 1500
Message = dict[str, Any]
Count = Callable[[str], int]
"""Tokens of a text."""


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt, and the turn that should follow it. `thinking` is the template's switch."""

    metric: str
    messages: tuple[Message, ...]
    turn: Turn
    tools: tuple[dict[str, Any], ...] = ()
    thinking: bool | None = None

    def is_right(self, text: str, calls: list[dict[str, Any]]) -> bool:
        """`text` without thought; `calls` as mlx-lm's parser reads them."""
        if (call := self.turn.call) is not None:
            return calls == [{"name": call.name, "arguments": call.arguments}]
        wanted = self.turn.must_say
        return not calls and (text.endswith(f" {wanted}.") if wanted else text.strip() == self.turn.answer)


def cases(seed: int, each: int, count: Count) -> Iterator[Case]:
    """`each` of every metric."""
    for number in range(each):
        rng = random.Random(f"held out/{seed}/{number}")
        yield recall(rng, count)
        yield from tool_loop(rng)
        for thinking in (True, False):
            turn = rng.choice((facts.told, exercises.talk, lambda rng: exercises.adding(rng, test=False)))(
                rng
            )
            yield Case(f"thinking {'on' if thinking else 'off'}", _asked(turn), turn, thinking=thinking)
        for metric, make in _EXERCISES.items():
            turn = make(rng)
            yield Case(metric, _asked(turn), turn)


_EXERCISES: Final[dict[str, Callable[[random.Random], Turn]]] = {
    "own fact": facts.told,
    "talk": exercises.talk,
    "count": exercises.counting,
    "repeat": exercises.repeating,
    "sort": exercises.sorting,
    "sum": lambda rng: exercises.adding(rng, test=False),
    "sum, never shown": lambda rng: exercises.adding(rng, test=True),
    "json": exercises.writing_json,
    "unknown": exercises.strange,
}


def recall(rng: random.Random, count: Count) -> Case:
    """One fact among others and filler, the whole up to 1,500 tokens."""
    tokens = rng.randint(100, MOST_PROMPT_TOKENS)
    stated = facts.several(rng, rng.randint(2, 2 + tokens // 30))
    parts = [fact.stated(rng).strip() for fact in stated]
    filler = iter(lambda: sentence(rng), "")
    size = sum(count(part) + 1 for part in parts)
    while size < tokens:
        more = next(filler)
        parts.insert(rng.randint(0, len(parts)), more)
        size += count(more) + 1
    turn = rng.choice(stated).turn(rng)
    system = {"role": "system", "content": " ".join(parts)}
    return Case("recall", (system, *_asked(turn)), turn)


def tool_loop(rng: random.Random) -> tuple[Case, Case]:
    """The call that a question needs, and, the call made, the answer from what the tool returned."""
    offered = tools.offers(rng, rng.randint(1, 4))
    definitions = tuple(tool.definition for tool, _ in offered)
    asked, returned = tools.use(*rng.choice(offered), rng)
    assert asked.call is not None
    system = rng.choice(small_talk.SYSTEMS)
    before: tuple[Message, ...] = ({"role": "system", "content": system}, *_asked(asked))
    function = {"name": asked.call.name, "arguments": asked.call.arguments}
    called = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    after = (*before, called, {"role": "tool", "content": returned.asked})
    return Case("tool call", before, asked, definitions), Case("tool result", after, returned, definitions)


def _asked(turn: Turn) -> tuple[Message, ...]:
    return ({"role": "user", "content": turn.asked},)
