"""A well-behaved client beside the bad ones: its tokens must equal those that it gets alone, at about the
same pace.

Seconds of one request on a shared machine are noise. So a pace is only compared with the same request alone,
repeated right after it if the two differ, and a scenario has several tries to show a good one
(`test_known_bad.py`). Tokens are compared exactly, every time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.end_to_end.known_bad.asking import Ask, Asking, Outcome
from tests.end_to_end.raw_client import Answer

_TIMEOUT_SECONDS = 20.0
_ASK = Ask(
    "/v1/completions",
    {
        "prompt": "Count from 1 to 40: 1, 2, 3,",
        "max_tokens": 60,
        "temperature": 0,
        # Prevents repetition, in which a wrong cache would not show.
        "repetition_penalty": 1.5,
        "ignore_eos": True,
        "stream": True,
    },
)


@dataclass(frozen=True, slots=True)
class Heard:
    """One whole answer: its text, its finish reason, and its seconds from request to end."""

    text: str
    finish_reason: str | None
    seconds: float
    complaint: str | None = None


class Neighbour(Asking):
    """A greedy stream of a fixed number of tokens."""

    def __init__(self, port: int) -> None:
        super().__init__(port, _ASK, _TIMEOUT_SECONDS)

    def heard(self) -> Heard:
        reply = self.join(2 * _TIMEOUT_SECONDS)
        if reply.outcome is not Outcome.ANSWERED:
            return Heard("", None, self.seconds, str(reply))
        *chunks, _ = Answer(reply.status, reply.body.encode()).events
        choices = [choice for chunk in chunks for choice in chunk.get("choices", [])]
        text = "".join(choice["text"] for choice in choices)
        return Heard(text, choices[-1]["finish_reason"], self.seconds)


def alone(port: int) -> Heard:
    heard = Neighbour(port).heard()
    assert heard.complaint is None, heard.complaint
    return heard
