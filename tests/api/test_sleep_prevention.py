"""A Mac stays awake while requests run and a minute longer, and sleeps when it likes otherwise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test

from api.sleep_prevention import HOLD_SECONDS, caffeinate, stay_awake
from tests.end_to_end.serving import eventually


def _runs(requests: Iterable[tuple[float, float]], now: float) -> bool:
    return any(first <= now <= last for first, last in requests)


@trio_test
async def test_sleep_is_held_off_without_a_gap_while_requests_follow_each_other(
    autojump_clock: MockClock,
) -> None:
    """Two with a pause of 40 seconds are one time; one that comes ten minutes later is another."""
    requests = ((100.0, 130.0), (170.0, 200.0), (800.0, 801.0))
    begun = trio.current_time()
    holds: list[float] = []

    async def hold() -> None:
        holds.append(trio.current_time() - begun)

    with trio.move_on_after(1000):
        await stay_awake(lambda: _runs(requests, trio.current_time() - begun), hold)

    def is_held(at: float) -> bool:
        return any(since <= at < since + HOLD_SECONDS for since in holds)

    assert not any(map(is_held, range(99)))
    assert all(map(is_held, range(102, 260)))
    assert not any(map(is_held, range(200 + HOLD_SECONDS + 1, 799)))
    assert all(map(is_held, range(802, 861)))
    assert len(holds) == 3


@trio_test
async def test_caffeinate_ends_with_the_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends by itself, too: a server that is killed leaves nothing that keeps the Mac awake."""
    program, said = tmp_path / "caffeinate", tmp_path / "said"
    program.write_text(f'#!/bin/sh\necho $$ "$@" > {said}.new; mv {said}.new {said}; exec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caffeinate)
        await trio.to_thread.run_sync(eventually, said.exists)
        nursery.cancel_scope.cancel()
    pid, *options = said.read_text().split()
    assert options == ["-i", "-t", str(HOLD_SECONDS)]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), signal.SIGCONT)
