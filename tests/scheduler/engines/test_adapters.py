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
from scheduler.errors import ModelNotFound
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
async def test_every_engine_loads_them(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """With the model; also engines that are added, or restarted."""
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    machine = Machine(2)
    scheduler = machine.scheduler(red)
    async with running(scheduler):
        await trio.sleep(1)
        assert machine.held == [{red.key}, {red.key}]
        machine.launchers[0].kill()
        scheduler.pool.add(machine.launcher(2))
        await trio.sleep(10)
        assert machine.held == [{red.key}] * 3


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


@trio_test
async def test_two_names_of_the_same_files_are_one_adapter(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    folder = adapter_folder(tmp_path / "red", b"red")
    machine = Machine(1)
    scheduler = machine.scheduler(source_of("red", folder), source_of("rouge", folder))
    async with running(scheduler):
        assert scheduler.pool.adapters.names == ["red", "rouge"]
        texts = {(await answer(scheduler, ask(adapter=name)))[0] for name in ("red", "rouge")}
        assert len(texts) == len(machine.loads[0].adapters) == 1
        with pytest.raises(ModelNotFound, match="'blue' is not loaded"):
            async with scheduler.stream(ask(adapter="blue")):
                pass
