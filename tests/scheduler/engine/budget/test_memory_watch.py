"""The engine loop on a device whose memory other programs share: nothing is lost, no answer changes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import StepResult
from scheduler.engine.budget.limits import MemoryLimit
from scheduler.engine.budget.policy import Relief, keep_to
from scheduler.engine.budget.watch import MemoryWatch
from scheduler.engine.device import Pressure
from scheduler.engine.plan import StepPlan
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.shared.messages import ScriptedPlan, StepOutput, ToEngine
from scheduler.shared.row_bytes import RowBytes
from tests.contracts.journal import alone, prompt_of, request
from tests.examples import examples
from tests.fakes.fake_device import FakeDevice
from tests.scheduler.engine.heard import HeardLoop

_TOKEN_BYTES = KV_BYTES_PER_TOKEN + 4
_CHUNK_TOKENS = 64
_ACTIVATION_BYTES = 200
"""Each token of a chunk takes these while it runs."""
_WEIGHTS_BYTES = 10_000
_MB = 1 << 20
_PLAN = ScriptedPlan(prefill_tokens_per_step=_CHUNK_TOKENS)


class _Metered(ScriptedBackend):
    """A chunk takes activations, and leaves them in the pool."""

    fake: FakeDevice
    most_bytes = 0
    """The most that was held at the peak of any step."""

    def _step(self, plan: StepPlan) -> StepResult:
        before = self._held_bytes()
        result = super()._step(plan)
        transient = _ACTIVATION_BYTES * result.computed_prefill_tokens
        self.fake.chunk_bytes = transient
        self.fake.pool_bytes = max(self.fake.pool_bytes, transient)
        held = _WEIGHTS_BYTES + max(before, self._held_bytes())
        self.most_bytes = max(self.most_bytes, held + transient)
        return result


class _Farm(HeardLoop):
    """On a device of its own. A quarter of a second passes at every turn."""

    def __init__(self, machine_bytes: int, limit_bytes: int, slots: int = 6) -> None:
        self.now = 0.0
        self.device = FakeDevice(machine_bytes, weights_bytes=_WEIGHTS_BYTES)
        self.backend = _Metered(
            _PLAN,
            kv_cache_bytes=limit_bytes,
            clock=lambda: self.now,
            device=self.device,
            memory_limit_bytes=limit_bytes,
        )
        self.backend.fake = self.device
        self.device.held_bytes = self.backend._held_bytes
        super().__init__(self.backend, slots, _CHUNK_TOKENS, clock=lambda: self.now)
        self.reliefs: list[int] = []

    def iterate(self, *commands: ToEngine) -> Sequence[StepOutput]:
        self.now += 0.25
        outputs = super().iterate(*commands)
        self.reliefs += [output.counters.guard.relief for output in outputs]
        return outputs


outsides = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 60_000), st.sampled_from(Pressure)), max_size=6
)
requests = st.lists(st.tuples(st.integers(5, 250), st.integers(1, 40)), min_size=1, max_size=12)


@settings(deadline=None, max_examples=examples(30))
@given(requests, outsides)
def test_beside_programs_that_come_and_go_all_answers_are_those_of_an_undisturbed_run(
    asked: list[tuple[int, int]], phases: list[tuple[int, int, Pressure]]
) -> None:
    farm = _Farm(machine_bytes=70_000, limit_bytes=60_000)
    submits = [request(n, prompt_of(length, n), answer) for n, (length, answer) in enumerate(asked)]
    farm.iterate(*submits)
    for turns, outside, pressure in phases:
        farm.device.outside_bytes, farm.device.pressure = outside, pressure
        for _ in range(turns):
            farm.iterate()
    farm.device.outside_bytes, farm.device.pressure = 0, Pressure.NORMAL
    farm.finish()
    undisturbed = ScriptedBackend(_PLAN)
    for submit in submits:
        assert farm.retired[submit.request_id].reason == "length"
        assert farm.tokens[submit.request_id] == alone(undisturbed, submit)


@settings(deadline=None, max_examples=examples(25))
@given(requests, st.integers(30_000, 60_000))
def test_memory_exceeds_the_limit_by_less_than_a_chunk(
    asked: list[tuple[int, int]], limit_bytes: int
) -> None:
    """Once a chunk was measured: its peak is reserved, and KV has the rest."""
    farm = _Farm(machine_bytes=1 << 30, limit_bytes=limit_bytes)
    farm.iterate(*[request(0, prompt_of(_CHUNK_TOKENS * 2, 99), 1)])
    farm.finish()
    farm.backend.most_bytes = 0
    farm.iterate(*[request(n + 1, prompt_of(length, n), answer) for n, (length, answer) in enumerate(asked)])
    farm.finish()
    # One row always runs, however little is left for it.
    least = _WEIGHTS_BYTES + (250 + 40 + 128) * _TOKEN_BYTES
    assert farm.backend.most_bytes <= max(limit_bytes, least) + _ACTIVATION_BYTES * _CHUNK_TOKENS


def test_another_program_costs_prefixes_then_chunks_then_admission_then_rows() -> None:
    farm = _Farm(machine_bytes=70_000, limit_bytes=60_000)
    farm.iterate(*[request(n, prompt_of(60, n), 200) for n in range(4)])
    for _ in range(20):
        farm.iterate()
    farm.device.outside_bytes = 55_000
    farm.iterate(*[request(9, prompt_of(60, 9), 5)])
    for _ in range(6):
        farm.iterate()
    order = [relief for at, relief in enumerate(farm.reliefs) if relief != farm.reliefs[at - 1]]
    assert order == [Relief.NONE, Relief.EVICT, Relief.SMALL_CHUNKS, Relief.HOLD, Relief.PREEMPT]
    assert len(farm.loop._slots) < 4
    assert 9 not in farm.tokens, "it is not admitted beside running rows"
    farm.device.outside_bytes = 0
    farm.finish()
    assert farm.retired.keys() == {0, 1, 2, 3, 9}


def test_what_joins_at_once_fits_before_it_joins() -> None:
    """What sixteen take that join at once is in no chunk's peak: it is counted, and those wait for whom there
    is no room, until there is."""
    farm = _Farm(machine_bytes=70_000, limit_bytes=60_000, slots=16)
    farm.iterate(*[request(0, prompt_of(60, 0), 100)])
    for _ in range(4):
        farm.iterate()
    farm.device.outside_bytes = 15_000
    farm.iterate()
    assert farm.reliefs[-1] == Relief.NONE
    farm.iterate(*[request(n, prompt_of(100, n), 10) for n in range(1, 16)])
    assert 1 < len(farm.loop._slots) < 16
    farm.finish()
    assert set(farm.reliefs) == {Relief.NONE}
    assert farm.backend.most_bytes <= farm.device.machine_bytes - farm.device.outside_bytes
    assert len(farm.retired) == 16


def test_a_prompt_that_fits_the_whole_budget_is_not_refused_under_pressure() -> None:
    """Relief is temporary; a refusal would be final."""
    farm = _Farm(machine_bytes=70_000, limit_bytes=60_000)
    farm.device.pressure = Pressure.CRITICAL
    farm.iterate(*[request(0, prompt_of(60, 1), 30)])
    for _ in range(8):
        farm.iterate()
    farm.iterate(*[request(1, prompt_of(400, 2), 1)])
    farm.finish()
    assert farm.retired[1].reason == "length"


def test_freed_buffers_may_take_a_part_of_what_is_left() -> None:
    """A pool that grows within a step takes memory as its arrays do, and is not counted on for them."""
    device = FakeDevice(machine_bytes=1000 * _MB, weights_bytes=100 * _MB)
    limit = MemoryLimit(1000 * _MB, 100 * _MB, pool_bytes=150 * _MB)
    watch = MemoryWatch(device, None, partial(keep_to, device), lambda: 0, RowBytes(1), limit, _CHUNK_TOKENS)
    watch.allowance(0.0)
    seen = [device.most_pool_bytes]
    watch.starting(True, 0)
    device.chunk_bytes = 20 * _MB
    watch.measured(_CHUNK_TOKENS, 0)
    for at, (left, pooled) in enumerate(((480, 0), (380, 100), (300, 0), (20, 0)), 1):
        device.outside_bytes, device.pool_bytes = (900 - left - pooled) * _MB, pooled * _MB
        room = watch.allowance(10.0 * at).room
        most = device.most_pool_bytes
        seen.append(most)
        assert room is not None
        assert most is not None
        assert room.room_bytes == left * _MB - limit.reserve_bytes - max(0, most - pooled * _MB)
    # At first there is room for all of it.
    assert seen == [None, 115 * _MB, 115 * _MB, 70 * _MB, 0]


def test_smaller_chunks_need_less_so_nothing_more_is_given_up_for_them() -> None:
    device = FakeDevice(machine_bytes=1000 * _MB, weights_bytes=100 * _MB)
    limit = MemoryLimit(1000 * _MB, 100 * _MB)
    watch = MemoryWatch(device, None, partial(keep_to, device), lambda: 0, RowBytes(1), limit, 2048)
    watch.starting(True, 0)
    device.chunk_bytes = 200 * _MB
    watch.measured(2048, 0)
    device.outside_bytes = 820 * _MB
    reliefs = []
    for at in range(10):
        watch.allowance(10.0 * at)
        reliefs.append(watch.state.relief)
    assert reliefs == [Relief.EVICT] + 9 * [Relief.SMALL_CHUNKS]


def test_a_reading_that_fails_ends_no_stream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    farm = _Farm(machine_bytes=70_000, limit_bytes=60_000)
    monkeypatch.setattr(FakeDevice, "system", lambda device: 1 // 0)
    farm.iterate(*[request(0, prompt_of(100, 1), 20)])
    farm.finish()
    assert farm.retired[0].reason == "length"
    assert capsys.readouterr().err.count("the memory guard failed: ZeroDivisionError") == 1


def test_the_kv_budget_is_what_the_limit_leaves_beside_chunks_and_relief() -> None:
    device = FakeDevice(machine_bytes=1200 * _MB, weights_bytes=100 * _MB)
    limit = MemoryLimit(1000 * _MB, 100 * _MB, 50 * _MB)
    first = limit.kv_budget_bytes(limit.first_peak_bytes)
    prefixes = PrefixCache[Any, Any](first, 1, False, lambda: 0.0)
    watch = MemoryWatch(
        device,
        prefixes,
        lambda change: None if change.kv_bytes is None else prefixes.set_budget(change.kv_bytes),
        lambda: 0,
        RowBytes(1),
        limit,
        _CHUNK_TOKENS,
    )
    watch.starting(True, 0)
    device.chunk_bytes = 400 * _MB
    watch.measured(_CHUNK_TOKENS, 0)
    watch.allowance(0.0)
    whole = limit.kv_budget_bytes(watch.state.chunk_peak)
    assert prefixes.budget_bytes == whole < first
    device.outside_bytes = 1000 * _MB
    watch.allowance(10.0)
    assert prefixes.budget_bytes < whole
    device.outside_bytes = 0
    for at in range(200):
        watch.allowance(20.0 + at)
    assert prefixes.budget_bytes == whole


@pytest.mark.parametrize("sharers", [1, 4])
def test_engines_on_one_device_count_on_their_part_of_what_is_left(sharers: int) -> None:
    """Each may take all that it counts on in the same step."""
    device = FakeDevice(machine_bytes=1000 * _MB, weights_bytes=100 * _MB)
    limit = MemoryLimit(900 * _MB, 100 * _MB, sharers=sharers)
    watch = MemoryWatch(device, None, partial(keep_to, device), lambda: 0, RowBytes(1), limit, _CHUNK_TOKENS)
    watch.allowance(0.0)
    assert watch.state.available == 900 * _MB // sharers
