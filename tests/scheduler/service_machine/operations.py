"""What clients, engines, the machine and operators may do to a service, in any order."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import trio
import trio.testing
from hypothesis import strategies as st

from scheduler.engines.pool import Pool
from scheduler.errors import SchedulerError
from scheduler.processes.process import Exit
from scheduler.request import GenerationRequest, Sampling, TokenPrompt
from scheduler.shared.messages import (
    Begun,
    Counters,
    Fault,
    FromEngine,
    Loading,
    Retired,
    StepOutput,
    TokenOut,
)
from tests.fakes.faulty_backend import METAL_TIMEOUT
from tests.scheduler.engines.engine_lives import READY
from tests.scheduler.service_machine.engine_process import UNSENDABLE, EngineProcess, ProcessesLauncher
from tests.scheduler.service_machine.world import ADAPTERS, Client, Setup, World

WEIGHTS = {
    "ask": 16,
    "leave": 3,
    "pass_time": 6,
    "report": 1,
    "inspect": 1,
    # An engine's process starts, or does not.
    "ready": 18,
    "start_dies": 3,
    "start_faults": 1,
    "unlike": 1,
    "ready_and_fault": 1,
    "launches_fail": 1,
    # It computes, or ends.
    "step": 22,
    "die": 6,
    "fault": 1,
    "break_protocol": 1,
    # Operators decide.
    "add": 1,
    "drain": 1,
    "retry": 1,
    "load": 2,
    "unload": 1,
}
"""All operations, and how often each is drawn."""
_TROUBLED_STARTS = {
    "ready": 8,
    "start_dies": 16,
    "start_faults": 5,
    "unlike": 5,
    "ready_and_fault": 5,
    "launches_fail": 3,
    "pass_time": 16,
    "step": 8,
    "load": 5,
    "unload": 3,
    "drain": 3,
    "add": 3,
}
"""Where starts fail: much of what else may happen needs engines that are ready."""
_FAULT = Exit(1, ("Traceback (most recent call last):", "ValueError: x"))
_EXITS = (Exit(-11), Exit(-9), Exit(3), Exit(-9, out_of_memory=True), Exit(-6, (METAL_TIMEOUT,)), _FAULT)
_NOBODY = 10**6
_HAPPENS_WHEN_READY = {
    **dict.fromkeys(("ready", "start_dies", "start_faults", "unlike", "ready_and_fault"), False),
    **dict.fromkeys(("step", "die", "fault", "break_protocol"), True),
}
"""What happens to a process, and whether before it is ready or when it is."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What it does in detail comes of its own `seed`: it stays the same when others before it are dropped."""

    kind: str
    seed: int


setups = st.builds(
    Setup,
    models=st.sampled_from([1, 1, 2, 3]),
    engines=st.sampled_from([1, 1, 2, 3]),
    slots=st.integers(1, 3),
    lookahead=st.integers(0, 2),
    reads_late=st.booleans(),
    is_tight=st.sampled_from([False, False, True]),
    fails_to_trace=st.sampled_from([False] * 6 + [True]),
    shares_memory=st.booleans(),
    adapters=st.integers(0, len(ADAPTERS)),
)


def _operations(weights: Mapping[str, int]) -> st.SearchStrategy[list[Operation]]:
    kinds = [kind for kind, weight in weights.items() for _ in range(weight)]
    operation = st.builds(Operation, st.sampled_from(kinds), st.integers(0, 999))
    # A list of lists, as a flat one without a least length has five on average.
    phases = st.lists(st.lists(operation, min_size=1, max_size=20), min_size=4, max_size=15)
    return phases.map(lambda lists: [one for operations in lists for one in operations])


operations = _operations(WEIGHTS)
with_troubled_starts = _operations({**WEIGHTS, **_TROUBLED_STARTS})


async def rest() -> None:
    """Wait until all tasks of the service wait for time or for another operation."""
    for _ in range(3):
        await trio.testing.wait_all_tasks_blocked()


async def operate(world: World, nursery: trio.Nursery, operation: Operation) -> None:
    """Do it, if there is what it needs."""
    draw = random.Random(f"{operation.kind} {operation.seed}")
    scheduler = draw.choice(world.schedulers)
    pool, model = scheduler.pool, f"m{world.schedulers.index(scheduler)}"
    reading = [client for client in world.clients if not client.is_done]

    def begin(work: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            with suppress(SchedulerError):
                await work()

        nursery.start_soon(run)

    match operation.kind:
        case "ask":
            client = _client(world, draw, world.schedulers.index(scheduler))
            world.clients.append(client)
            nursery.start_soon(world.ask, client)
            if draw.random() < 0.1:
                client.leave()  # before anything is prepared
        case "leave" if reading:
            draw.choice(reading).leave()
        case "pass_time":
            await trio.sleep(draw.choice([0.05, 0.5, 3.0, 15.0, 70.0]))
        case "report":
            for report in (scheduler.operations.report, scheduler.operations.observe):
                report()
            scheduler.operations.statistics()
            for client in world.clients[-5:]:
                with suppress(SchedulerError):
                    scheduler.operations.request_reports(client.request.public_id)
        case "inspect":
            clear = draw.random() < 0.5
            begin(lambda: scheduler.operations.inspect_cache(clear=clear))
        case "launches_fail":
            world.machine.failing_launches = draw.randint(1, 3)
        case "add" | "drain" | "retry" as kind:
            _change_engines(pool, kind, draw)
        case "load" if len(world.fleet) > 1:
            world.fleet.load(model, trio.current_time())
        case "unload" if len(world.fleet) > 1:
            world.fleet.unload(model)
        case kind:
            processes = [one for one in world.processes if one.ready == _HAPPENS_WHEN_READY.get(kind)]
            if processes:
                await _happen(draw.choice(processes), kind, draw)


def _client(world: World, draw: random.Random, model: int) -> Client:
    number, most, size = len(world.clients), draw.choice([0, 1, 2, 5, 12, 40]), draw.choice([3, 3, 10, 300])
    prompt = [10 + number % 200, 10 + number // 200, 65 + draw.randrange(5), *[66] * (size - 3)]
    adapters = world.schedulers[model].pool.adapters.names
    request = GenerationRequest(
        f"r{number}",
        TokenPrompt(tuple([*prompt, UNSENDABLE] if draw.random() < 0.05 else prompt)),
        Sampling(temperature=1.0, seed=draw.randrange(100)),
        max_tokens=most,
        stop=draw.choice([(), ("!", "ab")]),
        choices=draw.choice([1, 1, 1, 2, 3]) if most else 1,
        prompt_logprobs=0 if draw.random() < 0.15 and size < 300 else None,
        tenant=draw.choice(["", "x", "y"]),
        session=draw.choice([None, None, "s", "t"]),
        priority=draw.choice([0, 0, 0, -3, 5]),
        timeout_seconds=draw.choice([None, None, None, 20.0, 70.0]),
        adapter=draw.choice(adapters) if adapters and draw.random() < 0.7 else "",
    )
    return Client(model, request, draw.choice([None] * 6 + [1, 2, 3]))


def _change_engines(pool: Pool, kind: str, draw: random.Random) -> None:
    match kind, pool.names:
        case "add", names if len(names) < 5:
            launcher = pool._provision.launcher_of(0)
            assert isinstance(launcher, ProcessesLauncher)
            launcher.place = (launcher.place[0], int(pool.add(launcher).name))
        case "drain", [_, *_] as names:
            name = draw.choice(names)
            if any(one.name != name and not one.draining and not one.failed for one in pool):
                pool.remove(name)
        case "retry", [_, *_] as names:
            pool.retry(draw.choice(names))
        case _:
            pass


async def _happen(process: EngineProcess, kind: str, draw: random.Random) -> None:
    """Let a process do what only it can. All but a death ends when the server ends it."""
    seconds = draw.choice([0.0, 0.0, 0.4, 0.8])
    match kind:
        case "ready":
            process.ready = True
            stages = [Loading("weights")] if draw.random() < 0.5 else []
            await process.send(*stages, process.report())
        case "ready_and_fault":
            await process.end(_FAULT, seconds, process.report(), Fault("broke"))
        case "start_dies":
            await process.die(draw.choice(_EXITS), seconds)
        case "start_faults":
            await process.end(Exit(1), seconds, Fault("cannot load"))
        case "unlike":
            await process.end(Exit(0), seconds, process.report(vocabulary=1))
        case "step":
            for _ in range(draw.choice([1, 4, 8])):
                if not process.dead:
                    await process.send(*process.step(draw))
                    await rest()
        case "die":
            in_step = tuple(number for number in process.rows if draw.random() < 0.7)
            step = process.step(draw) if draw.random() < 0.3 else [Begun("prefill", in_step)]
            await process.send(*step)
            if draw.random() < 0.5:
                await rest()
            await process.die(draw.choice(_EXITS), seconds)
        case "fault":
            frames = [*process.read(), Begun("decode", tuple(process.rows)), Fault("broke")]
            await process.end(_FAULT, seconds, *frames)
        case "break_protocol":
            await process.end(process.exit, seconds, *process.step(draw), draw.choice(_FOREIGN))
        case _:
            raise ValueError(kind)


_FOREIGN: tuple[FromEngine, ...] = (
    StepOutput([TokenOut(_NOBODY, 65)], [], [], Counters()),
    StepOutput([], [], [Retired(_NOBODY, "stop")], Counters()),
    READY,
)
"""What no engine may send in a step."""
