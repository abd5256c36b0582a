"""Prompts for a real model: chats, code, lists and other scripts, from twenty tokens to six thousand."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.real_model.tasks import QUESTIONS
from tests.repo.tree import ROOT

_OTHER_SCRIPTS = (
    "Вода кипит при ста градусах, а лёд тает при нуле.",
    "水在一百度沸腾，冰在零度融化。",
    "水は百度で沸騰し、氷は零度で溶けます。",
    "الماء يغلي عند مئة درجة.",
    "पानी सौ डिग्री पर उबलता है।",
    "Το νερό βράζει στους εκατό βαθμούς.",
    "물은 백 도에서 끓습니다.",
    "L'eau bout à cent degrés, et la glace fond à zéro 🙂.",
)
_CODE = (
    "scheduler/engine/plan.py",
    "scheduler/intake/fair_queue.py",
    "api/answers/errors.py",
    "scheduler/config.py",
)
Encode = Callable[[str], Sequence[int]]


def prompts(encode: Encode, lengths: Sequence[int]) -> list[list[int]]:
    """Return one prompt for each length, in tokens; a chat is as long as its whole turns allow. Equal lengths
    give other prompts."""
    kinds = (_chat, _code, _list, _scripts)
    return [
        kinds[number % len(kinds)](random.Random(number), encode, length)
        for number, length in enumerate(lengths)
    ]


def spread(count: int, longest: int) -> list[int]:
    """Lengths from 20 to `longest`, most of them short, in random order."""
    steps = [at / max(count - 1, 1) for at in range(count)]
    lengths = [round(20 * (longest / 20) ** (step**1.7)) for step in steps]
    random.Random(count).shuffle(lengths)
    return lengths


def page(encode: Encode, tokens: int) -> list[int]:
    """Return the beginning of the project's own pages."""
    pages = ("DESIGN.md", "scheduler/README.md", "scheduler/engine/README.md", "api/README.md")
    return list(encode("\n".join((ROOT / name).read_text() for name in pages)))[:tokens]


def _chat(rng: random.Random, encode: Encode, length: int) -> list[int]:
    end = list(encode("<|im_start|>assistant\n"))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    tokens = list(encode(f"<|im_start|>system\n{system}<|im_end|>\n")) if length >= 40 else []
    while True:
        question, answer = rng.choice(list(QUESTIONS.items()))
        asked = list(encode(f"<|im_start|>user\n{question}<|im_end|>\n"))
        told = list(encode(f"<|im_start|>assistant\nIt is {answer}.<|im_end|>\n"))
        if len(tokens) + len(asked) + len(told) + len(asked) + len(end) > length:
            return tokens + asked + end
        tokens += asked + told


def _code(rng: random.Random, encode: Encode, length: int) -> list[int]:
    text = "\n".join((ROOT / name).read_text() for name in rng.sample(_CODE, len(_CODE)))
    tokens = list(encode(text))
    begin = rng.randrange(max(1, len(tokens) - length))
    return tokens[begin : begin + length]


def _list(rng: random.Random, encode: Encode, length: int) -> list[int]:
    lines = (f"{n}. item {rng.randrange(1000)}: {rng.choice(['red', 'blue'])}\n" for n in range(1, length))
    return list(encode("".join(lines)))[:length]


def _scripts(rng: random.Random, encode: Encode, length: int) -> list[int]:
    text = " ".join(rng.choice(_OTHER_SCRIPTS) for _ in range(length))
    return list(encode(text))[:length]
