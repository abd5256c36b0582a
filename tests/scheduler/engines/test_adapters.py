"""The adapters of a pool: every engine has those that requests may use, whatever happens to engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.config import EngineConfig
from scheduler.engine.backend import Backend
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.engines.adapters import source_of
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.errors import AdapterUnusable, ModelNotFound, Unavailable
from scheduler.events import Failed, Finished
from scheduler.service import Scheduler
from scheduler.shared.adapter_files import AdapterRefused, fingerprint
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
    backends: list[ScriptedBackend] = field(default_factory=list)

    def launcher(self, number: int) -> LoopbackLauncher:
        return self.launchers.setdefault(number, LoopbackLauncher(self._backend))

    def _backend(self, load: Load) -> Backend:
        self.loads.append(load)
        backend = scripted(load)
        assert isinstance(backend, ScriptedBackend)
        ordinary: Callable[[AdapterSource], None] = backend._load_adapter

        def load_adapter(source: AdapterSource) -> None:
            if source.key in self.broken:
                raise AdapterRefused(f"the adapter {source.name!r} cannot be used: it is broken on purpose")
            ordinary(source)

        backend._load_adapter = load_adapter  # type: ignore[method-assign]
        self.backends.append(backend)
        return backend

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
    """The first ones with the model, later ones while it runs; also engines that are added, or restarted."""
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    machine = Machine(2)
    scheduler = machine.scheduler(red)
    async with running(scheduler):
        await trio.sleep(1)
        assert machine.held == [{red.key}, {red.key}]
        await scheduler.load_adapter("blue", adapter_folder(tmp_path / "blue", b"blue"))
        blue = fingerprint(tmp_path / "blue")
        assert machine.held == [{red.key, blue}] * 2
        machine.launchers[0].kill()
        scheduler.pool.add()
        await trio.sleep(10)
        assert machine.held == [{red.key, blue}] * 3
        scheduler.pool.adapters.unload("red")
        await trio.sleep(1)
        assert machine.held == [{blue}] * 3


@trio_test
async def test_requests_of_an_unloaded_adapter_go_on(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """To their end, also on a restarted engine; then no engine has it."""
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    machine = Machine(1)
    scheduler = machine.scheduler(red)
    alone: list[str] = []
    ends: list[tuple[str, Finished | Failed]] = []

    ended = trio.Event()

    async def one() -> None:
        ends.append(await answer(scheduler, ask(adapter="red", max_tokens=200)))
        ended.set()

    async with running(scheduler) as nursery:
        alone.append((await answer(scheduler, ask(adapter="red", max_tokens=200)))[0])
        nursery.start_soon(one)
        await trio.sleep(0.5)
        scheduler.pool.adapters.unload("red")
        with pytest.raises(ModelNotFound, match="'red' is not loaded"):
            async with scheduler.stream(ask(adapter="red")):
                pass
        machine.launchers[0].kill()
        await trio.sleep(0.3)
        assert machine.held == [{red.key}], "for the request that resumes"
        await ended.wait()
        (text, end) = ends[0]
        assert isinstance(end, Finished)
        assert [text] == alone
        await trio.sleep(0.1)
        assert machine.held == [set()]


@trio_test
async def test_all_engines_load_it_or_none(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    machine = Machine(2)
    scheduler = machine.scheduler()
    folder = adapter_folder(tmp_path / "red", b"red")
    async with running(scheduler):
        await trio.sleep(1)
        key = fingerprint(folder)
        machine.broken.add(key)
        first = machine.backends[0]
        first._load_adapter = lambda source: first._adapters.add(source.key)  # type: ignore[method-assign]
        with pytest.raises(AdapterUnusable, match="'red' cannot be used: it is broken on purpose"):
            await scheduler.load_adapter("red", folder)
        await trio.sleep(1)
        assert machine.held == [set(), set()]
        assert scheduler.pool.adapters.names == []


@trio_test
async def test_a_server_does_not_start_with_an_adapter_that_it_cannot_load(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    red = source_of("red", adapter_folder(tmp_path / "red", b"red"))
    machine = Machine(1, {red.key})
    with pytest.raises(EngineNeverReady, match="'red' cannot be used: it is broken on purpose"):
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
async def test_an_engine_that_dies_while_it_loads_is_no_answer(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    machine = Machine(1)
    scheduler = machine.scheduler(step_seconds=1.0)
    folder = adapter_folder(tmp_path / "red", b"red")
    async with running(scheduler) as nursery:
        nursery.start_soon(answer, scheduler, ask(max_tokens=50))
        await trio.sleep(2.5)
        refused = trio.Event()

        async def load() -> None:
            with pytest.raises(Unavailable):
                await scheduler.load_adapter("red", folder)
            refused.set()

        nursery.start_soon(load)
        await trio.sleep(0.1)
        machine.launchers[0].kill()
        await refused.wait()
        await trio.sleep(5)
        assert machine.held == [set()]
        await scheduler.load_adapter("red", folder)
        assert scheduler.pool.adapters.names == ["red"]


@trio_test
async def test_two_names_of_the_same_files_are_one_adapter(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    machine = Machine(1)
    scheduler = machine.scheduler()
    folder = adapter_folder(tmp_path / "red", b"red")
    async with running(scheduler):
        await scheduler.load_adapter("red", folder)
        await scheduler.load_adapter("rouge", folder)
        scheduler.pool.adapters.unload("red")
        await trio.sleep(1)
        _, end = await answer(scheduler, ask(adapter="rouge"))
        assert isinstance(end, Finished)
        scheduler.pool.adapters.unload("rouge")
        await trio.sleep(1)
        assert machine.held == [set()]


@trio_test
async def test_there_is_a_bound_on_adapters(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.engines.adapters.MAX_ADAPTERS", 1)
    scheduler = Machine(1).scheduler()
    async with running(scheduler):
        await scheduler.load_adapter("red", adapter_folder(tmp_path / "red", b"red"))
        with pytest.raises(AdapterUnusable, match="as many as there may be"):
            await scheduler.load_adapter("blue", adapter_folder(tmp_path / "blue", b"blue"))
