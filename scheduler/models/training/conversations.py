"""Conversations of a wished length, and what of them the model is to learn to say."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.training import exercises, facts, small_talk, tools
from scheduler.models.training.turns import Conversation, Turn, sentence

FIRST_TOKENS: Final = 256
"""First tokens of the rows that copying is learnt from: facts, and no tools, for which there is no room."""

Piece = tuple[str, bool]
"""Text, and whether it is the model's own."""


class Template:
    """The chat template, for what comes before the first question; `turn` writes the rest as it does, but
    thinks where it wants to, so that one conversation teaches many answers. A test holds the two together."""

    def __init__(self, folder: Path = EMBEDDED_FOLDER) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))

    def opening(self, system: str, definitions: list[dict[str, Any]]) -> str:
        messages = [{"role": "system", "content": system}] if system else [{"role": "user", "content": "?"}]
        text: str = self._template.render(messages=messages, tools=definitions or None)
        return text if system else text.removesuffix("<|im_start|>user\n?<|im_end|>\n")

    def turn(self, turn: Turn, thinking: bool | None) -> list[Piece]:
        asked = f"\n<tool_response>\n{turn.asked}\n</tool_response>" if turn.from_tool else f"\n{turn.asked}"
        before = f"<|im_start|>user{asked}<|im_end|>\n<|im_start|>assistant\n"
        answer = turn.answer
        if turn.call is not None:
            arguments = json.dumps(turn.call.arguments, ensure_ascii=False)
            answer += f'<tool_call>\n{{"name": "{turn.call.name}", "arguments": {arguments}}}\n</tool_call>'
        if thinking:
            before, answer = f"{before}<think>\n", f"{turn.thought}\n</think>\n\n{answer}"
        elif thinking is False:
            before += "<think>\n\n</think>\n\n"
        return [(before, False), (f"{answer}<|im_end|>", True), ("\n", False)]


def conversation(rng: random.Random, tokens: int, *, test: bool = False) -> Conversation:
    """Somewhat longer than `tokens`; `encoded` cuts it. Facts fill a part of the prompt, filler another."""
    talk = Conversation(rng.choice(("", "", *small_talk.SYSTEMS)))
    kind = rng.random()
    stated: list[facts.Fact] = []
    first = tokens <= FIRST_TOKENS
    if kind < (0.55 if first else 0.4):
        stated = facts.several(rng, rng.randint(1, max(2, tokens // 36)))
        talk.system = _hidden(stated, rng, filler=rng.randint(0, max(1, (tokens - 200) // 36)))
    offered = []
    if not first and 0.3 < kind < 0.8:
        offered = tools.offers(rng, rng.randint(1, 2 + tokens // 400))
    talk.tools = [tool.definition for tool, _ in offered]
    while len(talk.turns) < 4 + tokens // 20:
        talk.turns += _more(rng, stated, offered, test=test, first=first)
    return talk


@dataclass(frozen=True, slots=True)
class Encoded:
    """One row: token ids, which of them the model says, and the metric of each answer in their order."""

    ids: list[int]
    own: list[bool]
    graded: list[str]


def encoded(
    talk: Conversation, rng: random.Random, tokens: int, template: Template, tokenizer: Tokenizer
) -> Encoded:
    """Return as many whole turns as fit into `tokens`; there may be none."""
    ids: list[int] = tokenizer.encode(template.opening(talk.system, talk.tools)).ids
    own = [False] * len(ids)
    graded = []
    for turn in talk.turns:
        thinking = rng.choices((None, False, True), (8, 1, 1))[0]
        pieces = [(tokenizer.encode(text).ids, mine) for text, mine in template.turn(turn, thinking)]
        if len(ids) + sum(len(part) for part, _ in pieces) > tokens:
            break
        for part, mine in pieces:
            ids += part
            own += [mine] * len(part)
        graded.append(turn.graded)
    return Encoded(ids, own, graded)


def row(rng: random.Random, tokens: int, template: Template, tokenizer: Tokenizer, *, test: bool) -> Encoded:
    """A row of `tokens` that is worth its place: with an answer, and not mostly padding."""
    while True:
        made = encoded(conversation(rng, tokens, test=test), rng, tokens, template, tokenizer)
        if made.graded and len(made.ids) > 0.7 * tokens:
            return made


def _hidden(stated: list[facts.Fact], rng: random.Random, filler: int) -> str:
    """The facts, in their order, anywhere among sentences without facts."""
    parts = [sentence(rng) for _ in range(filler)]
    for fact in stated:
        parts.insert(rng.randint(0, len(parts)), fact.stated(rng))
    opening = rng.choice(("", rng.choice(small_talk.SYSTEMS) + rng.choice((" ", "\n\n"))))
    return (opening + " ".join(parts)).replace("\n ", "\n").strip()


def _more(
    rng: random.Random,
    stated: list[facts.Fact],
    offered: list[tuple[tools.Offer, tuple[str, ...]]],
    *,
    test: bool,
    first: bool,
) -> list[Turn]:
    drawn = rng.random()
    recalled, told, remembered = (0.75, 0.82, 0.86) if first else (0.7, 0.83, 0.86)
    if offered and drawn < 0.65:
        return tools.use(*rng.choice(offered), rng)
    if stated and drawn < recalled:
        return [_about(stated, rng)]
    if not first and drawn < recalled:
        return [exercises.any_exercise(rng, test=test, first=first)]
    if drawn < told:
        return [facts.told(rng)]
    if drawn < remembered:
        return rng.choice((facts.own_name, facts.noted))(rng)
    return [exercises.any_exercise(rng, test=test, first=first)]


def _about(stated: list[facts.Fact], rng: random.Random) -> Turn:
    drawn = rng.random()
    if drawn < 0.03:
        return facts.unknown(stated, rng)
    if drawn < 0.08:
        return rng.choice(stated).as_json()
    if drawn < 0.3 and len(stated) > 1:
        return facts.listed(stated, rng)
    return rng.choice(stated).turn(rng)
