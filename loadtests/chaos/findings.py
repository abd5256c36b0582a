"""Compare the answers of a run with engine deaths with those of an undisturbed run. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadtests.chaos.answers import Answer
from loadtests.chaos.questions import Question
from loadtests.chaos.volleys import MOST_GAP_SECONDS

SAMPLED_SHARE = 0.03
"""The share of sampled answers that may differ from the undisturbed one. Float32 is not exact: one in some
thousands of sampled tokens is so near an edge that its neighbours in the batch decide it, with a death as
without (DESIGN.md). `control`, a second undisturbed run, shows how many differ without deaths."""

MOST_USUAL_WAITS = 2.0
"""Bound on a wait beside restarts, in usual waits of the undisturbed runs."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Numbers of questions. Greedy and sampled ones are separate because only greedy answers must be
    equal."""

    asked: int
    greedy: int
    streamed: int
    tokens: int
    """Tokens of all undisturbed answers."""
    lost: list[int]
    """Requests that got neither a finish reason nor an error."""
    failed: dict[int, str]
    """Requests that failed with an error. A malformed tool call by the model is an answer, not an error."""
    disordered: dict[int, str]
    longer: list[int]
    """Answers with more tokens than the request allowed: tokens were sent twice."""
    greedy_parted: list[int]
    sampled_parted: list[int]
    control_parted: list[int]
    """Answers, greedy or sampled, that differ between two undisturbed runs."""
    poison: list[str]
    """How the planted poison requests ended."""
    strikes: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Strikes of which no engine died in time."""
    slow_steps: dict[str, int] = field(default_factory=dict)
    """Steps that were slow or hung while clients left, by kind."""
    hung: int = 0
    """Engines that did hang."""
    left: int = 0
    """Clients that left before their answer ended."""
    held: dict[str, float] = field(default_factory=dict)
    """What the server held for requests after the last one, by name."""
    waits: dict[int, float] = field(default_factory=dict)
    """The longest silence of each stream in seconds, without the time in which the engine could not
    answer."""
    usual_wait_seconds: float = 0.0
    """The same in the two undisturbed runs, of nine streams in ten."""
    server: dict[str, float] = field(default_factory=dict)
    """The server's own metrics: deaths, resumed requests and so on."""
    longest_pause_seconds: float = 0.0
    seconds: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """For several engines: the longest pause of any even stream that was trusted, at each moment when one was
    killed alone."""
    early_gap_seconds: float = 0.0
    """The longest pause, at all these moments, of streams that had just begun. It has no bound: their prompts
    are computed again."""
    usual_gap_seconds: float = 0.0
    """The longest pause of the same streams in the two undisturbed runs: where the machine alone makes pauses
    longer than MOST_GAP_SECONDS, one of that length is not blamed on a death."""

    def complaints(self) -> Iterator[str]:
        """Yield a complaint for each violated requirement; none if the run passed."""
        if self.lost:
            yield f"lost: {self.lost}"
        if self.failed:
            yield f"failed: {self.failed}"
        if self.disordered:
            yield f"out of order: {self.disordered}"
        if self.longer:
            yield f"answers with too many tokens: {self.longer}"
        if self.greedy_parted:
            yield f"greedy answers that differ from the undisturbed ones: {self.greedy_parted}"
        if len(self.sampled_parted) > max(1.0, SAMPLED_SHARE * (self.asked - self.greedy)):
            yield f"too many sampled answers that differ from the undisturbed ones: {self.sampled_parted}"
        if wrong := [end for end in self.poison if end != "poisonous_request"]:
            yield f"the planted poison did not fail as expected: {wrong}"
        if max(self.gaps, default=0.0) > max(MOST_GAP_SECONDS, self.usual_gap_seconds):
            yield f"a stream paused for {max(self.gaps):.1f} s while one engine of several was dead"
        if self.server.get("deaths", 0) < sum(self.strikes.values()):
            yield "not every strike killed an engine"
        if self.slow_steps:
            yield from self._complaints_of_slow_steps()
        if self.missed:
            yield f"strikes of which no engine died: {', '.join(self.missed)}"

    def _complaints_of_slow_steps(self) -> Iterator[str]:
        killed = self.server.get("deaths reported as hung", 0)
        if killed != self.hung:
            yield f"{killed:g} engines were killed as hung, and {self.hung} hung"
        if (ended := self.server.get("requests whose client left", 0)) != self.left:
            yield f"{self.left} clients left, and {ended:g} requests ended for that"
        if self.held:
            yield f"held without a request: {self.held}"
        bound = MOST_USUAL_WAITS * self.usual_wait_seconds
        if long := {number: round(seconds, 1) for number, seconds in self.waits.items() if seconds > bound}:
            yield f"streams that waited longer than {bound:.1f} s beside restarts: {long}"


def compare(
    questions: Sequence[Question],
    undisturbed: Mapping[int, Answer],
    control: Mapping[int, Answer],
    disturbed: Mapping[int, Answer],
    left: Mapping[int, Answer] | None = None,
) -> Findings:
    """Compare question by question. Only `disturbed` has answers to the poison requests. `left`: greedy
    answers up to where their clients left."""
    left = left or {}
    plain = [question for question in questions if not question.poison and question.number not in left]
    begun = [number for number, answer in left.items() if undisturbed[number].text.startswith(answer.text)]
    got = {question.number: disturbed.get(question.number, Answer()) for question in plain}
    whole = {number: answer for number, answer in got.items() if answer.whole}
    parted = [
        question
        for question in plain
        if question.number in whole and whole[question.number].outcome != undisturbed[question.number].outcome
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
        greedy_parted=[question.number for question in parted if question.greedy]
        + [number for number in left if number not in begun],
        left=len(left),
        sampled_parted=[question.number for question in parted if not question.greedy],
        control_parted=[
            number for number, answer in control.items() if answer.outcome != undisturbed[number].outcome
        ],
        poison=[
            disturbed.get(question.number, Answer()).error or "answered"
            for question in questions
            if question.poison
        ],
        longest_pause_seconds=max((answer.longest_pause_seconds for answer in got.values()), default=0.0),
    )


def count(strikes: Sequence[str]) -> dict[str, int]:
    """Return counts by kind, in alphabetical order."""
    return dict(sorted(Counter(strikes).items()))
