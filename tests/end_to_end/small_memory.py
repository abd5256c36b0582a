"""Sixteen agents whose prompts grow, on a server in a control group with little memory.

`python -m tests.end_to_end.small_memory [--minutes 10] [--spare-mb 300]` starts a server that may take far
more memory than its group allows (`--memory-limit 4GiB`), so that only the live reading keeps it alive. It
counts kills, and compares every answer with those of a server without a limit.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.end_to_end.agent_threads import agent_threads
from tests.end_to_end.control_group import ControlGroup, control_group
from tests.end_to_end.serving import Served, serving

AGENTS = 16
_TURNS = 10
_WORDS = 250
_OPTIONS = ("--max-slots", str(AGENTS), "--memory-limit", "4GiB", "--kv-cache-bytes", "4GiB")
_WORD_LIST = ("river", "stone", "engine", "heron", "valve", "ledger", "copper", "winter", "signal", "harbor")


def opening(agent: int, conversation: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": "You are an agent of the farm. " * 40},
        {"role": "user", "content": _text(agent, conversation, 0)},
    ]


def _text(agent: int, conversation: int, turn: int) -> str:
    start = agent * 7919 + conversation * 104729 + turn * 1299709
    words = (_WORD_LIST[(start + at * at) % len(_WORD_LIST)] + str(start % 97 + at) for at in range(_WORDS))
    return " ".join(words)


@dataclass
class Transcript:
    """The answers of each agent's conversations, in order."""

    answers: dict[tuple[int, int], list[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def converse(
        self, served: Served, agent: int, conversation: int, over: threading.Event, turns: int
    ) -> None:
        """Ask turn after turn; each is the whole history and some new text."""
        messages: list[dict[str, Any]] = list(opening(agent, conversation))
        said = self.answers.setdefault((agent, conversation), [])
        for turn in range(1, turns + 1):
            if over.is_set():
                return
            status, body = served.post(
                messages=messages, max_tokens=16, temperature=0, session_id=f"{agent}", timeout_seconds=900
            )
            if status != 200:
                self.failures.append(f"{status}: {body}")
                return
            answer = body["choices"][0]["message"]["content"]
            said.append(answer)
            messages += [
                {"role": "assistant", "content": answer},
                {"role": "user", "content": _text(agent, conversation, turn)},
            ]


@dataclass(frozen=True, slots=True)
class Outcome:
    deaths: int
    most_relief: int
    turns: int
    different: int
    failures: list[str]
    most_bytes: int


def limited(
    group: ControlGroup, seconds: float, spare_bytes: int, turns: int = _TURNS, agents: int = AGENTS
) -> Outcome:
    """Serve within what the idle server holds and `spare_bytes` more; then ask the same of a free server."""
    transcript, most_relief, most_bytes = Transcript(), 0, 0
    with serving(*_OPTIONS, trained=True, group=group) as served:
        group.limit(_held_bytes(served) + spare_bytes)

        def agent(number: int, over: threading.Event) -> None:
            for conversation in range(10_000):
                transcript.converse(served, number, conversation, over, turns)
                if over.is_set():
                    return

        with agent_threads(agent, agents):
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                time.sleep(0.5)
                most_relief = max(most_relief, int(served.metric("penstock_memory_relief")))
                most_bytes = max(most_bytes, group.usage_bytes())
        deaths = int(served.metric("penstock_engine_deaths_total"))
    return Outcome(
        deaths,
        most_relief,
        sum(map(len, transcript.answers.values())),
        _different(transcript, turns, agents),
        transcript.failures,
        most_bytes,
    )


def _held_bytes(served: Served) -> int:
    """Resident bytes of parent and engine, once they serve."""
    served.post(max_tokens=4)
    held = 0
    for pid in (served.process.pid, served.engine_pid()):
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            held += sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    return held * 1024


def _different(transcript: Transcript, turns: int, agents: int) -> int:
    """How many answers differ from an undisturbed run of the same conversations."""
    whole = Transcript()
    with serving(*_OPTIONS, trained=True) as served:
        asked = sorted(transcript.answers)

        def agent(number: int, over: threading.Event) -> None:
            for mine, conversation in asked:
                if mine == number:
                    said = len(transcript.answers[mine, conversation])
                    whole.converse(served, mine, conversation, threading.Event(), min(said, turns))

        with agent_threads(agent, agents):
            pass
    return sum(
        before != after
        for key, answers in transcript.answers.items()
        for before, after in zip(answers, whole.answers[key], strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--spare-mb", type=int, default=300)
    arguments = parser.parse_args()
    with control_group() as group:
        if group is None:
            raise SystemExit("no control group can be made here")
        print(limited(group, 60 * arguments.minutes, arguments.spare_mb << 20))


if __name__ == "__main__":
    main()
