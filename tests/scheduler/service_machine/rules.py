"""What holds whenever all tasks of a service rest, whatever clients and engines have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scheduler.config import RecoveryConfig
from scheduler.engines.pool import Pool
from scheduler.fleet.residency import ModelState
from scheduler.intake.queue import IntakeQueue
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, ENDING, QUEUE, Requests, place_of
from scheduler.service import Scheduler
from scheduler.shared.messages import Cancel
from tests.scheduler.service_machine.engine_process import DEVICE_BYTES
from tests.scheduler.service_machine.world import World

MOST_DEATHS = RecoveryConfig().max_request_deaths


def check(world: World) -> None:
    """Raise the first error of the world, or AssertionError with what does not hold."""
    if world.errors:
        raise world.errors[0]
    for line in world.logs:
        # One is provoked by a request that makes no frame, the other one by telemetry that fails.
        provoked = {"submit_failed", *(["telemetry_failed"] if world.setup.fails_to_trace else [])}
        assert "exc_info" not in line or line["event"] in provoked, line
    for number, scheduler in enumerate(world.schedulers):
        asked = [client for client in world.clients if client.model == number]
        records = [record for client in asked for record in client.records]
        here = [record for record in records if record.state is not State.RETIRED]
        _each_is_in_one_place(scheduler.pool.requests, scheduler.pool, here)
        assert all(record.unread for record in here if record.state is State.ENDING), (
            "nothing is left to read"
        )
        assert all(scheduler.pool.reading._waiting.values()), "an empty queue of readings"
        _all_is_charged_and_watched(scheduler, here)
        _engines_have_what_their_processes_have(world, number)
        if world.over is None:
            _nobody_waits_for_nothing(scheduler)
    if world.over is None and world.setup.models > 1:
        _only_loaded_models_have_processes(world)


def nothing_is_left(scheduler: Scheduler) -> bool:
    """Return whether no request has left anything behind, when all are over."""
    here = len(scheduler.pool.requests) + len(scheduler.pool.expiry) + len(scheduler.queue._dispatched)
    return here + len(scheduler.pool.reading._waiting) == 0


def _each_is_in_one_place(requests: Requests, pool: Pool, here: Sequence[StreamRecord]) -> None:
    """Where its state says: `here` are those that have not retired. Nothing of what has left is anywhere, and
    no effect is left over."""
    assert {one.request_id for one in requests} == {one.request_id for one in here}
    assert [*requests.retired, *requests.cancelling] == [], "effects are left over"
    assert not requests.changed
    places = {QUEUE, AWAITING, ENDING, *pool.names}
    assert requests._at.keys() <= places, "a place is kept of an engine that has left"
    for place in places:
        expected = {one.request_id for one in here if place_of(one.state, one.engine) == place}
        assert requests.at(place).keys() == expected
    assert {place_of(one.state, one.engine) for one in here} <= places


def _nobody_waits_beside_room(pool: Pool, queue: IntakeQueue) -> None:
    """Nor has an engine without a process a request."""
    open_ = [one for one in pool if one.room and not one.quarantined]
    assert pool.held or not (open_ and len(queue)), "requests wait, and an engine has room"
    lost = pool.awaiting(suspect=False)
    assert not (lost and any(one.room for one in pool)), "a lost request waits, and an engine has room"
    assert all(one.ready or not one.requests for one in pool), "an engine has requests and no process"


def _all_is_charged_and_watched(scheduler: Scheduler, here: Sequence[StreamRecord]) -> None:
    """Charges, bounds and timers are those of the requests that are here."""
    queue, expiry = scheduler.queue, scheduler.pool.expiry
    queued = [record for record in here if record.state is State.QUEUED]
    assert len(queue._dispatched) == sum(record.dispatched_at is not None for record in here)
    assert queue._per_tenant == Counter(record.request.tenant for record in queued)
    assert queue.prompt_tokens == sum(len(record.submit.prompt) for record in queued)
    assert len(queue.fair) == len(queued)
    assert not scheduler.pool.admission._preparing
    for tenant, account in queue.fair._ledger._root.sessions.items():
        own = [one for one in here if one.request.tenant == tenant]
        assert account.waiting == sum(one.state is State.QUEUED for one in own)
        assert account.running == sum(one.dispatched_at is not None for one in own)
    assert len(expiry._heap) <= 2 * len(expiry) + 18, "deadlines that were forgotten pile up"
    timed = {one.request_id for one in here if one.outcome is None and expiry._limits(one)}
    assert timed <= expiry._watched.keys() <= {one.request_id for one in here}


def _engines_have_what_their_processes_have(world: World, model: int) -> None:
    """And no more than they may; each Cancel is sent, and none of a request that goes on."""
    scheduler = world.schedulers[model]
    for engine in scheduler.pool:
        assert engine.requests <= world.setup.slots + world.setup.lookahead
        assert engine.ready or not engine.requests, "an engine without a process has requests"
        process = world.machine.processes.get((model, int(engine.name)))
        if not engine.ready or process is None or process.dead:
            continue
        assert engine.on_board.keys() == process.rows.keys() | process.coming
        sent = process.cancelled | {one.request_id for one in process.inbox if isinstance(one, Cancel)}
        for record in engine.on_board.values():
            assert (record.request_id in sent) == (record.state is State.CANCELLING)


def _nobody_waits_for_nothing(scheduler: Scheduler) -> None:
    """Neither a request beside a free place, nor an engine for a suspect that is none, or for its end."""
    pool = scheduler.pool
    _nobody_waits_beside_room(pool, scheduler.queue)
    for engine in pool:
        assert not engine.quarantined or engine.suspect is not None or pool.awaiting(suspect=True)
        suspects = [one for one in engine.on_board.values() if one.suspect and not one.trusted]
        assert len(suspects) <= 1, "one of them would be blamed for the other"
        if suspects and suspects[0].deaths >= MOST_DEATHS:
            assert engine.quarantined, "a new request would be a further suspect"
        assert not (engine.draining and not engine.requests and not engine.running), "a drained engine stays"


def _only_loaded_models_have_processes(world: World) -> None:
    """And memory is kept for no engine that has left."""
    for model in world.fleet:
        is_gone = model.state in (ModelState.UNLOADED, ModelState.FAILED)
        assert not (is_gone and model.scheduler.pool.running), (
            f"{model.name} is {model.state.value}, and runs"
        )
    if world.shared is not None:
        there = {(model.name, name) for model in world.fleet for name in model.scheduler.pool.names}
        assert world.shared.parts.keys() <= there, "memory is kept for an engine that has left"
        used_bytes = sum(process.limit_bytes for process in world.machine.processes.values())
        assert used_bytes <= DEVICE_BYTES, "processes may use more than there is"
