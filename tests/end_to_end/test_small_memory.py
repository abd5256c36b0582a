"""Sixteen agents whose prompts grow, on a server in a control group with little memory, that may itself take
far more than its group allows: only the live reading keeps it alive. Linux, and who may make a group."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.serving import Served, eventually, serving

_AGENTS = 16
_WORDS = 250
_OPTIONS = ("--max-slots", str(_AGENTS), "--memory-limit", "4GiB", "--kv-cache-bytes", "4GiB")
_WORD_LIST = ("river", "stone", "engine", "heron", "valve", "ledger", "copper", "winter", "signal", "harbor")
_SECONDS = 6.0
"""Without the guard the engine was killed in the ninth second."""
_SAMPLE_SECONDS = 1.0
_SPARE_BYTES = 300 << 20
_VERSION_1, _VERSION_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@contextmanager
def control_group() -> Iterator[tuple[Path, Path]]:
    """A new one, of either version, by the files of its processes and of its limit."""
    version_1 = (_VERSION_1 / "memory.limit_in_bytes").exists()
    folder = (_VERSION_1 if version_1 else _VERSION_2) / f"penstock-test-{os.getpid()}"
    limit = folder / ("memory.limit_in_bytes" if version_1 else "memory.max")
    with suppress(OSError):
        folder.mkdir()
    if not limit.exists():
        pytest.skip("no control group can be made here")
    try:
        yield folder / "cgroup.procs", limit
    finally:
        # A process may still be ending in it.
        eventually(lambda: _is_removed(folder))


def _is_removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def _text(agent: int, conversation: int, turn: int) -> str:
    start = agent * 7919 + conversation * 104729 + turn * 1299709
    words = (_WORD_LIST[(start + at * at) % len(_WORD_LIST)] + str(start % 97 + at) for at in range(_WORDS))
    return " ".join(words)


def _ask(served: Served, agent: int, messages: list[Any]) -> str:
    fields: dict[str, Any] = {"max_tokens": 16, "temperature": 0, "session_id": f"{agent}"}
    status, body = served.post(messages=messages, timeout_seconds=900, **fields)
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


def _held_bytes(served: Served) -> int:
    """Resident bytes of parent and engine, once they serve."""
    served.post(max_tokens=4)
    held = 0
    for pid in (served.process.pid, served.engine_pid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        held += sum(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
    return held * 1024


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
    said: list[tuple[int, list[Any], str]] = []
    over = threading.Event()

    def converse(served: Served, agent: int) -> None:
        """Ask turn after turn; each is the whole history and some new text."""
        for conversation in count():
            messages = [{"role": "system", "content": "You are an agent of the farm. " * 40}]
            for turn in range(turns):
                if over.is_set():
                    return
                messages.append({"role": "user", "content": _text(agent, conversation, turn)})
                answer = _ask(served, agent, messages)
                said.append((agent, [*messages], answer))
                messages.append({"role": "assistant", "content": answer})

    with control_group() as (processes, limit), serving(*_OPTIONS, trained=True, group=processes) as served:
        limit.write_text(str(_held_bytes(served) + _SPARE_BYTES))
        with ThreadPoolExecutor(agents) as threads:
            running = [threads.submit(converse, served, agent) for agent in range(agents)]
            time.sleep(seconds)
            over.set()
        for one in running:
            one.result()
        assert served.metric("penstock_engine_deaths_total") == 0
    assert said
    with serving(*_OPTIONS, trained=True) as served, ThreadPoolExecutor(agents) as threads:
        undisturbed = threads.map(lambda one: _ask(served, one[0], one[1]), said)
        assert list(undisturbed) == [answer for _, _, answer in said]
