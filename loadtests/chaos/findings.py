"""What a run with deaths did to the answers: a comparison with the same questions undisturbed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadtests.chaos.answers import Answer
from loadtests.chaos.questions import Question

SAMPLED_SHARE = 0.03
"""The share of the sampled answers that may differ from the undisturbed one. Float32 is not exact, and in
some thousand sampled tokens one stands so near an edge that its neighbours in the batch decide it, with a
death as without (DESIGN.md). `control`, a second undisturbed run, shows how many do so by themselves."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Numbers of questions. Greedy and sampled ones are apart because only the greedy must be the same."""

    asked: int
    greedy: int
    streamed: int
    tokens: int
    """Of all answers undisturbed."""
    lost: list[int]
    """Neither an answer nor an error came to its end."""
    failed: dict[int, str]
    """An error that is not the model's own: a call that it writes, and nobody can read, is an answer."""
    disordered: dict[int, str]
    longer: list[int]
    """More tokens than were asked for: something was said twice."""
    greedy_parted: list[int]
    sampled_parted: list[int]
    control_parted: list[int]
    """Of either kind, between two undisturbed runs."""
    poison: list[str]
    """How the planted ones ended."""
    strikes: dict[str, int] = field(default_factory=dict)
    server: dict[str, float] = field(default_factory=dict)
    """Its own count of deaths, resumed requests and so on."""
    longest_pause_seconds: float = 0.0
    seconds: float = 0.0

    def complaints(self) -> Iterator[str]:
        """What must not be; empty for a run that holds."""
        if self.lost:
            yield f"lost: {self.lost}"
        if self.failed:
            yield f"failed: {self.failed}"
        if self.disordered:
            yield f"out of order: {self.disordered}"
        if self.longer:
            yield f"said more than was asked: {self.longer}"
        if self.greedy_parted:
            yield f"greedy answers that are not the undisturbed ones: {self.greedy_parted}"
        if len(self.sampled_parted) > max(1.0, SAMPLED_SHARE * (self.asked - self.greedy)):
            yield f"too many sampled answers that are not the undisturbed ones: {self.sampled_parted}"
        if wrong := [end for end in self.poison if end != "poisonous_request"]:
            yield f"the planted poison ended otherwise: {wrong}"
        if self.server.get("deaths", 0) < sum(self.strikes.values()):
            yield "not every strike was a death"


def compare(
    questions: Sequence[Question],
    undisturbed: Mapping[int, Answer],
    control: Mapping[int, Answer],
    disturbed: Mapping[int, Answer],
) -> Findings:
    """`disturbed` has the poison's answers too; the others have the same questions without it."""
    plain = [question for question in questions if not question.poison]
    got = {question.number: disturbed.get(question.number, Answer()) for question in plain}
    whole = {number: answer for number, answer in got.items() if answer.whole}
    parted = [
        question
        for question in plain
        if question.number in whole and whole[question.number].said != undisturbed[question.number].said
    ]
    return Findings(
        asked=len(plain),
        greedy=sum(question.greedy for question in plain),
        streamed=sum(question.streamed for question in plain),
        tokens=sum(answer.output_tokens or 0 for answer in undisturbed.values()),
        lost=[number for number, answer in got.items() if not answer.ended and answer.error is None],
        failed={
            number: answer.error
            for number, answer in got.items()
            if answer.error is not None and not answer.whole
        },
        disordered={number: answer.disorder for number, answer in got.items() if answer.disorder is not None},
        longer=[
            question.number
            for question in plain
            if (got[question.number].output_tokens or 0) > question.body["max_tokens"]
        ],
        greedy_parted=[question.number for question in parted if question.greedy],
        sampled_parted=[question.number for question in parted if not question.greedy],
        control_parted=[
            number for number, answer in control.items() if answer.said != undisturbed[number].said
        ],
        poison=[
            disturbed.get(question.number, Answer()).error or "answered"
            for question in questions
            if question.poison
        ],
        longest_pause_seconds=max((answer.longest_pause_seconds for answer in got.values()), default=0.0),
    )


def count(strikes: Sequence[str]) -> dict[str, int]:
    """By kind, in the order of the alphabet."""
    return dict(sorted(Counter(strikes).items()))
