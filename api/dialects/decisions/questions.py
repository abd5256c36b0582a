"""How a chat model is asked a question whose answer is one of some options, and what its probabilities say.

The state stands first, then the question with its options under labels: all questions about a state share
its prefix. A label is one token in every vocabulary: `Yes` and `No` for a statement, a capital letter for up
to 26 options. More options have a letter and a digit: the letters are read once, and behind each letter its
digits, whose probabilities are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase, digits

from api.dialects.readings import numbers
from scheduler.request import ChatPrompt, GenerationRequest, Message, Reasoning

MAX_OPTIONS = len(ascii_uppercase) * len(digits) - 5
"""OpenAI's and TypeSafe's bound, 255."""


@dataclass(frozen=True, slots=True)
class Option:
    text: str
    description: str = ""

    @property
    def line(self) -> str:
        return f"{self.text}: {self.description}" if self.description else self.text


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of a prompt: how likely each of `labels` is behind `begun`."""

    labels: tuple[str, ...]
    begun: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """`options`: of a statement its two ends, yes and no; of a scale its levels, the lowest first."""

    instructions: str
    options: tuple[Option, ...]
    is_statement: bool = False
    is_scale: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        if self.is_statement:
            return "Yes", "No"
        count = len(self.options)
        if count <= len(ascii_uppercase):
            return tuple(ascii_uppercase[:count])
        return tuple(letter + digit for letter in ascii_uppercase for digit in digits)[:count]

    @property
    def text(self) -> str:
        """Return what the model reads behind the state."""
        lines = [self.instructions, ""]
        if self.is_statement:
            lines += [f"{option.text}: {option.description}" for option in self.options if option.description]
            lines.append("Answer with one word, Yes or No.")
        else:
            lines.append("Levels, the lowest first:" if self.is_scale else "Options:")
            lines += [
                f"{label}. {option.line}" for label, option in zip(self.labels, self.options, strict=True)
            ]
            kind = "level" if self.is_scale else "option"
            lines.append(f"Answer with the label of one {kind}, and nothing else.")
        return "\n".join(lines)

    def reads(self) -> Iterator[Read]:
        """Yield what must be read."""
        labels = self.labels
        if self.is_statement or len(labels[-1]) == 1:
            yield Read(labels)
            return
        letters = list(dict.fromkeys(label[0] for label in labels))
        yield Read(tuple(letters))
        for letter in letters:
            yield Read(tuple(label[1] for label in labels if label[0] == letter), letter)

    def probabilities(self, vectors: Iterator[bytes]) -> Distribution:
        """Take what its reads found from `vectors`, in their order (`GenerationRequest.labels`)."""
        first, *more = [distribution(vector) for _, vector in zip(self.reads(), vectors, strict=False)]
        if not more:
            return first
        found = [share * each for share, one in zip(first.shares, more, strict=True) for each in one.shares]
        inner = sum(share * one.mass for share, one in zip(first.shares, more, strict=True))
        return Distribution(tuple(found), first.mass * inner)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The options' probabilities, which add up to 1, in their order. `mass`: what all labels had together of
    all that the model might have written; where it is little, the model was not asked well."""

    shares: tuple[float, ...]
    mass: float

    @property
    def best(self) -> int:
        return max(range(len(self.shares)), key=self.shares.__getitem__)

    @property
    def position(self) -> float:
        """Return the mean of the levels' numbers, from 0, by probability: TypeSafe's and OpenAI's `score`."""
        return min(len(self.shares) - 1, sum(level * share for level, share in enumerate(self.shares)))

    @property
    def peak(self) -> float:
        """Return TypeSafe's confidence of a choice: how far the likeliest option stands above an even
        spread, from 0 to 1."""
        even = 1 / len(self.shares)
        return 1.0 if even == 1 else min(1.0, max(0.0, (self.shares[self.best] - even) / (1 - even)))

    @property
    def nearness(self) -> float:
        """Return TypeSafe's confidence of a score: 1 less the mean distance from the likeliest level, over
        that of an even spread from its middle; never below 0."""
        count, best = len(self.shares), self.best
        if count == 1:
            return 1.0
        spread = sum(share * abs(level - best) for level, share in enumerate(self.shares))
        even = sum(abs(level - (count - 1) / 2) for level in range(count)) / count
        return max(0.0, 1 - spread / even)


def distribution(vector: bytes) -> Distribution:
    """Return the labels' probabilities, of what one read has found."""
    *logarithms, _ = numbers(vector)
    largest = max(logarithms)
    if largest == -math.inf:
        return Distribution((1 / len(logarithms),) * len(logarithms), 0.0)
    weights = [math.exp(one - largest) for one in logarithms]
    total = sum(weights)
    return Distribution(tuple(one / total for one in weights), min(1.0, total * math.exp(largest)))


def statement(text: str, yes: str = "", no: str = "") -> Question:
    """`yes`, `no`: what makes it true, and false."""
    return Question(text, (Option("Yes", yes), Option("No", no)), is_statement=True)


def asked(messages: Sequence[Message], question: Question, read: Read) -> GenerationRequest:
    """Return the request in which a chat model reads the state, and then the question."""
    conversation = (*messages, Message(role="user", content=question.text))
    return GenerationRequest(
        public_id="",
        prompt=ChatPrompt(conversation, reasoning=Reasoning(enabled=False)),
        labels=read.labels,
        begun=read.begun,
    )
