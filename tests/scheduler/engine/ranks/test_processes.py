"""Engines of several ranks are several processes, which live and die as one."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.engine.inbox import SERVER_GONE
from scheduler.engine.ranks import group
from scheduler.shared.link_pair import link_pair
from scheduler.shared.messages import ScriptedPlan
from tests.contracts.journal import prompt_of, request
from tests.scheduler.engine.ranks.engine_of_ranks import Engine, engine, gone, load, replaced, started_with

_SLOW = ScriptedPlan(step_seconds=0.02)


def _answers(started: Engine) -> dict[int, list[int]]:
    started.send(*(request(number, prompt_of(9 * number, number), 20) for number in range(1, 6)))
    started.hear_retired(5)
    return started.tokens


def test_three_ranks_answer_as_one() -> None:
    with engine(load(3)) as three, engine(replaced(load(3), ranks=None)) as one:
        assert three.ready is not None
        assert one.ready is not None
        assert (three.ready.ranks, one.ready.ranks) == (3, 1)
        assert len(three.followers) == 2
        assert _answers(three) == _answers(one)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_killed_rank_ends_the_engine_by_name(rank: int) -> None:
    """The parent reads why, and no rank is left."""
    with engine(load(3, _SLOW)) as started:
        started.send(request(1, [1], 1000))
        started.hear_tokens(3)
        followers = started.followers
        os.kill(followers[rank - 1], signal.SIGKILL)
        assert started.hear_end() == 1
        assert started.fault is not None
        assert started.fault.error == f"rank {rank} was killed by SIGKILL"
        assert gone(followers)


def _close(started: Engine) -> None:
    started.link.close()


def _kill(started: Engine) -> None:
    os.kill(started.process.pid, signal.SIGKILL)


@pytest.mark.parametrize(("end", "status"), [(_close, SERVER_GONE), (_kill, -signal.SIGKILL)])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_all_ranks_end_with_rank_0(end: Callable[[Engine], None], status: int, stopped: bool) -> None:
    """However it ends, and even where another rank is stopped and reads nothing: an orphan would hold the
    device's memory."""
    with engine(load(3, _SLOW)) as started:
        started.send(request(1, [1], 1000))
        started.hear_tokens(3)
        followers = started.followers
        if stopped:
            os.kill(followers[0], signal.SIGSTOP)
        end(started)
        assert started.process.wait(30) == status
        assert gone(followers)


def test_a_rank_that_cannot_load_is_the_engines_failure(tmp_path: Path) -> None:
    """In the words of that rank: the operator reads why."""
    broken = (
        "import sys, scheduler.engine.scripted_backend as b\n"
        "def fail(*a, **k): raise ValueError('no such weights')\n"
        "if 'follower' in ' '.join(sys.orig_argv): b.ScriptedBackend.__init__ = fail\n"
    )
    with engine(load(2), started_with(tmp_path, broken)) as started:
        assert started.fault is not None
        assert "rank 1" in started.fault.error
        assert "no such weights" in started.fault.error


def test_a_rank_that_cannot_be_started_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a process nor a socket: the system may have had no room for one more."""
    pairs: list[tuple[socket.socket, socket.socket]] = []
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def paired() -> tuple[socket.socket, socket.socket]:
        pairs.append(link_pair())
        return pairs[-1]

    def limited(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        started.append(real(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(group, "link_pair", paired)
    monkeypatch.setattr(subprocess, "Popen", limited)
    with pytest.raises(BlockingIOError):
        group.lead(load(3), lambda progress: None, pytest.fail)
    assert started[0].wait(30) == -signal.SIGKILL
    assert [one.fileno() for pair in pairs for one in pair] == [-1, -1, -1, -1]


def test_ranks_that_differ_end_the_engine_with_both_hashes(tmp_path: Path) -> None:
    """The other rank's tokens are wrong from the first on: after 64 steps, and before any more, the parent
    hears of it."""
    wrong = (
        "import sys, scheduler.engine.scripted_backend as b\n"
        "if 'follower' in ' '.join(sys.orig_argv): b.scripted_token = lambda *a: 7\n"
    )
    with engine(load(2), started_with(tmp_path, wrong)) as started:
        started.send(request(1, [1], 1000))
        assert started.hear_end() == 1
        assert started.fault is not None
        assert started.fault.error.count("digest=") == 2
        assert len(started.tokens[1]) < 1000
