"""The adapters of a pool: every engine has those that requests may use, whatever happens to engines."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.config import EngineConfig
from scheduler.engines.adapters import source_of
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.events import Finished
from tests.fakes.adapter_folders import adapter_folder
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running


@trio_test
async def test_an_adapter_whose_files_changed_is_lost_with_its_engine_and_nothing_else(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A server does not start with it."""
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    engine, launcher = EngineConfig("scripted", "none", adapters=(red,)), LoopbackLauncher()
    scheduler = make_scheduler(launcher, engine=engine)
    async with running(scheduler):
        adapter_folder(tmp_path / "red", b"other")
        await answer(scheduler, ask(adapter="red"))
        launcher.kill()
        await trio.sleep(5)
        assert scheduler.pool.adapters.names == []
        _, end = await answer(scheduler, ask())
        assert isinstance(end, Finished)
    with pytest.raises(EngineNeverReady, match="'red' cannot be used: its files have changed"):
        await make_scheduler(LoopbackLauncher(), engine=engine).run()
