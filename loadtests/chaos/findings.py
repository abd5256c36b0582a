"""Compare the answers of a run with engine deaths with those of an undisturbed run. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from loadtests.chaos.questions import Question
from loadtests.client import Answer
from loadtests.record import Outcome

SAMPLED_SHARE = 0.03
"""The share of sampled answers that may differ from the undisturbed one. Float32 is not exact: one in some
thousands of sampled tokens is so near an edge that its neighbours in the batch decide it, with a death as
without (DESIGN.md). `control`, a second undisturbed run, shows how many differ without deaths."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Numbers of questions. Greedy and sampled ones are separate because only greedy answers must be
    equal."""

    asked: int
    greedy: int
    lost: list[int]
    """Requests that got neither their end nor an error."""
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
    left: int = 0
    """Clients that left before their answer ended."""
    strikes: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    """Strikes of which no engine died in time."""
    slow_steps: dict[str, int] = field(default_factory=dict)
    """Steps that were slow or hung while clients left, by kind."""
    hung: int = 0
    """Engines that did hang."""
    held: dict[str, float] = field(default_factory=dict)
    """What the server held for requests after the last one, by name."""
    server: dict[str, float] = field(default_factory=dict)
    """The server's own metrics: deaths, resumed requests and so on."""
    usual_pause_seconds: float = 0.0
    """The longest pause of a stream in the two undisturbed runs."""
    longest_pause_seconds: float = 0.0
    seconds: float = 0.0

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
        if wrong := [end for end in self.poison if "poisonous_request" not in end]:
            yield f"the planted poison did not fail as expected: {wrong}"
        if self.server.get("deaths", 0) < sum(self.strikes.values()):
            yield "not every strike killed an engine"
        if self.missed:
            yield f"strikes of which no engine died: {', '.join(self.missed)}"
        if self.held:
            yield f"held without a request: {self.held}"
        if self.slow_steps:
            if (killed := self.server.get("deaths reported as hung", 0)) != self.hung:
                yield f"{killed:g} engines were killed as hung, and {self.hung} hung"
            if (ended := self.server.get("requests whose client left", 0)) != self.left:
                yield f"{self.left} clients left, and {ended:g} requests ended for that"

    def lines(self) -> Iterator[str]:
        """Yield what a reader of the run sees."""
        complaints = list(self.complaints())
        yield "; ".join(complaints) or "every answer was delivered once, and equals the undisturbed one"
        sampled = self.asked - self.greedy
        facts: dict[str, object] = {
            "asked": f"{self.asked}: {self.greedy} greedy, {sampled} sampled",
            "lost, failed": f"{len(self.lost)}, {len(self.failed)}",
            "greedy, sampled answers that differ": f"{len(self.greedy_parted)}, {len(self.sampled_parted)}",
            "of all answers, between two undisturbed runs": len(self.control_parted),
            "longest pause of a stream": f"{self.longest_pause_seconds:.1f} s",
            "of the undisturbed runs": f"{self.usual_pause_seconds:.1f} s",
            "planted poison": ", ".join(self.poison) or "none",
            "clients that left": self.left,
            "seconds": f"{self.seconds:.0f}",
        }
        for name, value in {**facts, **self.strikes, **self.slow_steps, **self.server}.items():
            yield f"  {name:52} {f'{value:g}' if isinstance(value, float) else value}"


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
    got = {question.number: disturbed.get(question.number, Answer()) for question in plain}
    parted = [
        question
        for question in plain
        if got[question.number].whole
        and got[question.number].substance != undisturbed[question.number].substance
    ]
    cut_wrong = [n for n, answer in left.items() if not undisturbed[n].text.startswith(answer.text)]
    return Findings(
        asked=len(plain),
        greedy=sum(question.greedy for question in plain),
        lost=[one.number for one in plain if _is_lost(got[one.number], bool(one.body["stream"]))],
        failed={n: answer.detail for n, answer in got.items() if not answer.whole and answer.detail},
        disordered={number: answer.disorder for number, answer in got.items() if answer.disorder},
        longer=[
            question.number
            for question in plain
            if (got[question.number].output_tokens or 0) > question.body["max_tokens"]
        ],
        greedy_parted=[question.number for question in parted if question.greedy] + cut_wrong,
        sampled_parted=[question.number for question in parted if not question.greedy],
        control_parted=[n for n, one in control.items() if one.substance != undisturbed[n].substance],
        poison=[disturbed.get(one.number, Answer()).detail or "answered" for one in questions if one.poison],
        left=len(left),
    )


def _is_lost(answer: Answer, is_streamed: bool) -> bool:
    """Return whether its end is missing: of a stream also the end mark behind it."""
    unfinished = answer.outcome in (Outcome.UNFINISHED, Outcome.CUT)
    return unfinished or (answer.whole and is_streamed and not answer.is_over)


def longest_pause(answers: Iterable[Answer]) -> float:
    return max((b - a for one in answers for a, b in pairwise(one.stamps)), default=0.0)
