"""A Mac stays awake while requests run and a minute longer, and sleeps when it likes otherwise."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api import sleep_prevention
from api.sleep_prevention import LINGER_SECONDS, caffeinate, stay_awake
from tests.end_to_end.serving import eventually


@trio_test
async def test_sleep_is_held_off_once_for_requests_that_follow_each_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two with a pause of 40 seconds are one time; one that comes ten minutes later is another."""
    requests = ((100.0, 130.0), (170.0, 200.0), (800.0, 801.0))
    begun = trio.current_time()
    held: list[tuple[float, float]] = []

    def busy() -> bool:
        return any(first <= trio.current_time() - begun <= last for first, last in requests)

    async def hold() -> None:
        since = trio.current_time() - begun
        try:
            await trio.sleep_forever()
        finally:
            held.append((since, trio.current_time() - begun))

    with trio.move_on_after(1000):
        await stay_awake(busy, hold)
    (first, first_end), (second, second_end) = held
    assert 100 <= first <= 102
    assert 200 + LINGER_SECONDS - 2 <= first_end <= 200 + LINGER_SECONDS + 2
    assert 800 <= second <= 802
    assert second_end <= 801 + LINGER_SECONDS + 2


@trio_test
async def test_caffeinate_ends_with_the_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for this process, too: a server that is killed leaves nothing that keeps the Mac awake."""
    program, said = tmp_path / "caffeinate", tmp_path / "said"
    program.write_text(f'#!/bin/sh\necho $$ "$@" > {said}.new; mv {said}.new {said}; exec sleep 600\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caffeinate)
        await trio.to_thread.run_sync(eventually, said.exists)
        nursery.cancel_scope.cancel()
    pid, *options = said.read_text().split()
    assert options == ["-i", "-w", str(os.getpid())]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), signal.SIGCONT)


@trio_test
async def test_a_system_without_it_serves_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleep_prevention, "caffeinate_command", lambda pid: ["no-such-program-of-ours"])
    with trio.fail_after(30):
        await caffeinate()
