"""The adapters of a pool: every engine has those that requests may use, whatever happens to engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.config import EngineConfig
from scheduler.engine.backend import Backend
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.engines.adapters import source_of
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.events import Finished
from scheduler.service import Scheduler
from scheduler.shared.messages import AdapterSource, Load, ScriptedPlan
from tests.fakes.adapter_folders import adapter_folder
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.fakes.scheduling import answer, ask, make_scheduler, running


@dataclass
class Machine:
    """Engines in this process. `broken`: keys of adapters that they refuse."""

    engines: int
    broken: set[str] = field(default_factory=set)
    launchers: dict[int, LoopbackLauncher] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)

    def launcher(self, number: int) -> LoopbackLauncher:
        return self.launchers.setdefault(number, LoopbackLauncher(self._backend))

    def _backend(self, load: Load) -> Backend:
        self.loads.append(load)
        if any(source.key in self.broken for source in load.adapters):
            adapters = tuple(msgspec.structs.replace(one, key="others") for one in load.adapters)
            load = msgspec.structs.replace(load, adapters=adapters)
        return scripted(load)

    @property
    def held(self) -> list[set[str]]:
        """Keys in each living engine."""
        return [
            one.backend._adapters
            for one in self.launchers.values()
            if isinstance(one.backend, ScriptedBackend)
        ]

    def scheduler(self, *adapters: AdapterSource, step_seconds: float = 0.01) -> Scheduler:
        plan = ScriptedPlan(step_seconds=step_seconds)
        engine = EngineConfig("scripted", "none", max_slots=4, scripted=plan, adapters=adapters)
        return make_scheduler(self.launcher, engine=engine, engines=self.engines)


@trio_test
async def test_a_server_does_not_start_with_an_adapter_that_it_cannot_load(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    machine = Machine(1, {red.key})
    with pytest.raises(EngineNeverReady, match="'red' cannot be used: its files have changed"):
        await machine.scheduler(red).run()


@trio_test
async def test_an_adapter_whose_files_changed_is_lost_with_its_engine_and_nothing_else(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    machine = Machine(1)
    scheduler = machine.scheduler(red)
    async with running(scheduler):
        adapter_folder(tmp_path / "red", b"other")
        await answer(scheduler, ask(adapter="red"))
        machine.launchers[0].kill()
        await trio.sleep(5)
        assert scheduler.pool.adapters.names == []
        _, end = await answer(scheduler, ask())
        assert isinstance(end, Finished)
