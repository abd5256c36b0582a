"""Sixteen agents whose prompts grow, on a server in a control group with little memory, that may itself take
far more than its group allows: only the live reading keeps it alive."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.end_to_end.agent_threads import agent_threads
from tests.end_to_end.control_group import ControlGroup, control_group
from tests.end_to_end.serving import Served, serving

_AGENTS = 16
_WORDS = 250
_OPTIONS = ("--max-slots", str(_AGENTS), "--memory-limit", "4GiB", "--kv-cache-bytes", "4GiB")
_WORD_LIST = ("river", "stone", "engine", "heron", "valve", "ledger", "copper", "winter", "signal", "harbor")
_SECONDS = 6.0
"""Without the guard the engine was killed in the ninth second."""
_SAMPLE_SECONDS = 1.0
_SPARE_BYTES = 300 << 20


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
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are an agent of the farm. " * 40},
            {"role": "user", "content": _text(agent, conversation, 0)},
        ]
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


def limited(group: ControlGroup, seconds: float, turns: int, agents: int) -> tuple[int, Transcript]:
    """Serve within what the idle server holds and a little more. Return the engine's deaths and what was
    said."""
    transcript = Transcript()
    with serving(*_OPTIONS, trained=True, group=group) as served:
        group.limit(_held_bytes(served) + _SPARE_BYTES)

        def agent(number: int, over: threading.Event) -> None:
            for conversation in range(10_000):
                transcript.converse(served, number, conversation, over, turns)
                if over.is_set():
                    return

        with agent_threads(agent, agents):
            time.sleep(seconds)
        return int(served.metric("penstock_engine_deaths_total")), transcript


def _held_bytes(served: Served) -> int:
    """Resident bytes of parent and engine, once they serve."""
    served.post(max_tokens=4)
    held = 0
    for pid in (served.process.pid, served.engine_pid()):
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            held += sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    return held * 1024


def undisturbed(transcript: Transcript, agents: int) -> Transcript:
    """Return the same conversations with a server without a limit."""
    whole = Transcript()
    with serving(*_OPTIONS, trained=True) as served:

        def agent(number: int, over: threading.Event) -> None:
            for (mine, conversation), said in sorted(transcript.answers.items()):
                if mine == number:
                    whole.converse(served, mine, conversation, threading.Event(), len(said))

        with agent_threads(agent, agents):
            pass
    return whole


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seconds", "turns", "agents"),
    [
        pytest.param(_SAMPLE_SECONDS, 1, 3, id="sample"),
        pytest.param(_SECONDS, 3, _AGENTS, id="whole", marks=pytest.mark.long),
    ],
)
def test_no_engine_is_killed_where_waiting_does(seconds: float, turns: int, agents: int) -> None:
    """And all answers are those of an undisturbed run."""
    with control_group() as group:
        if group is None:
            pytest.skip("no control group can be made here")
        deaths, transcript = limited(group, seconds, turns, agents)
    assert (deaths, transcript.failures) == (0, [])
    assert any(transcript.answers.values())
    assert undisturbed(transcript, agents).answers == transcript.answers
