"""A leader is a back end like any other, and what it tells the other ranks keeps them equal to it."""

from __future__ import annotations

import math
from collections import abc
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.adapter_files import AdapterRefused
from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.prefill import Chunk
from scheduler.engine.prefix.pins import pin_name
from scheduler.engine.prefix.prefixes import Prefixes
from scheduler.engine.ranks.calls import Admit, Call, Compare, Prepare, Refused, Step
from scheduler.engine.ranks.replay import RanksDisagree, ToldClock
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import RequestRefused, Sequence
from scheduler.link.messages import AdapterSource, Cancel, Inspect, ScriptedPlan, ToEngine
from tests.contracts.check_backend import CHECKS, CHUNK, MakeBackend
from tests.contracts.check_thinking import THINKING_CHECKS
from tests.contracts.journal import Journal, prompt_of, request
from tests.fakes.memory_followers import Ranks

_PLAN = ScriptedPlan(prefill_tokens_per_step=CHUNK)


def _scripted(clock: ToldClock, kv_cache_bytes: int = 0, plan: ScriptedPlan = _PLAN) -> ScriptedBackend:
    return ScriptedBackend(plan, sleep=lambda seconds: None, kv_cache_bytes=kv_cache_bytes, clock=clock)


@pytest.mark.parametrize("check", [*CHECKS, *THINKING_CHECKS])
def test_contract(check: Callable[[MakeBackend], None]) -> None:
    """Whatever the contract of back ends says, over three ranks that are compared at every step."""
    made: list[Ranks] = []

    def make() -> Backend:
        made.append(Ranks(_scripted, 3, compared_steps=1))
        return made[-1].leader

    check(make)
    for ranks in made:
        ranks.leader.compare()
        ranks.leader.step()


def test_it_says_how_many_ranks_there_are() -> None:
    assert Ranks(_scripted, 3).leader.describe().ranks == 3


def test_a_call_is_sent_before_it_is_made() -> None:
    """A rank that hears of it too late comes late to a collective, for which rank 0 would wait."""
    order: list[str] = []

    class Noted(ScriptedBackend):
        def step(
            self, chunks: abc.Sequence[Chunk] = (), predicted_seconds: float | None = None
        ) -> StepResult:
            order.append("rank 0" if self is ranks.own else "rank 1")
            return super().step(chunks, predicted_seconds)

    ranks = Ranks(lambda clock: Noted(_PLAN, clock=clock))
    Journal(ranks.leader).admit(request(1, [1], 2))
    ranks.leader.step()
    assert order == ["rank 1", "rank 0"]


def test_what_is_refused_at_admission_is_refused_everywhere() -> None:
    """The other ranks refuse it as well, and rank 0 says so: nothing is left of it anywhere."""

    class Choosy(ScriptedBackend):
        def admit(self, sequence: Sequence) -> None:
            if sequence.tokens[0] == 7:
                raise RequestRefused("not this one")
            super().admit(sequence)

    ranks = Ranks(lambda clock: Choosy(_PLAN, clock=clock), compared_steps=1)
    journal = Journal(ranks.leader)
    with pytest.raises(RequestRefused, match="not this one"):
        journal.admit(request(1, [7], 2))
    assert [type(call) for call in ranks.followers.calls] == [Admit, Refused]
    journal.admit(request(2, [8], 2))
    journal.finish()


def _lost(kind: type) -> Callable[[Call], Call | None]:
    return lambda call: None if isinstance(call, kind) else call


def test_another_result_is_a_fault_with_both_hashes() -> None:
    """A rank that did something else computes nonsense: the engine must not go on."""

    class Other(ScriptedBackend):
        def step(
            self, chunks: abc.Sequence[Chunk] = (), predicted_seconds: float | None = None
        ) -> StepResult:
            result = super().step(chunks, predicted_seconds)
            if self is ranks.own:
                return result
            tokens = [msgspec.structs.replace(out, token=out.token ^ 1) for out in result.tokens]
            return StepResult(tokens, result.retired, result.prefills)

    ranks = Ranks(lambda clock: Other(_PLAN, clock=clock), compared_steps=4)
    journal = Journal(ranks.leader)
    course = journal.admit(request(1, [1], 9))
    with pytest.raises(
        RanksDisagree, match=r"rank 1 has computed .*digest='\w{16}'.*rank 0 .*digest='\w{16}'"
    ):
        journal.finish()
    assert len(course.tokens) == 4


def test_a_refusal_of_one_rank_only_is_a_fault() -> None:
    ranks = Ranks(_scripted)
    ranks.followers.change = lambda call: Refused(call.submit.request_id) if isinstance(call, Admit) else call
    with pytest.raises(RanksDisagree, match="request 1 was refused by rank 0 only"):
        Journal(ranks.leader).admit(request(1, [1], 2))


def test_ranks_are_compared_every_64_steps() -> None:
    """Often enough to bound what a wrong rank spoils, and seldom enough to cost nothing."""
    ranks = Ranks(_scripted)
    journal = Journal(ranks.leader)
    journal.admit(request(1, [1], 200))
    journal.finish()
    kinds = [type(call) for call in ranks.followers.calls if isinstance(call, Step | Compare)]
    assert [at for at, kind in enumerate(kinds) if kind is Compare] == [64, 129, 194]


def test_a_grammar_is_sent_once_when_it_is_to_be_compiled() -> None:
    """Every turn asks whether it is done."""
    ranks = Ranks(_scripted)
    waiting = Sequence.of(msgspec.structs.replace(request(1, [1], 2), grammar="start: /a/"))
    for _ in range(3):
        ranks.leader.preparing(waiting)
    assert [type(call) for call in ranks.followers.calls] == [Prepare]
    ranks.leader.forget(waiting)
    ranks.leader.forget(waiting)
    assert len(ranks.followers.calls) == 2


def test_a_row_that_is_slow_on_rank_0_ends_everywhere() -> None:
    """Times differ between processes, so what they mean is rank 0's word: in the same step for all."""

    class Slow(ScriptedBackend):
        def slow_rows(self) -> dict[int, str]:
            return {number: "too slow" for number in self._rows if number == 2} if self is ranks.own else {}

        def end_row(self, request_id: int, reason: str) -> None:
            self.remove(request_id)
            ended.append((self is ranks.own, request_id, reason))

    ended: list[tuple[bool, int, str]] = []
    ranks = Ranks(lambda clock: Slow(_PLAN, clock=clock), compared_steps=1)
    for number in (1, 2):
        ranks.leader.admit(Sequence.of(request(number, [number], 9)))
    for _ in range(3):
        ranks.leader.step()
    assert ended == [(False, 2, "too slow"), (True, 2, "too slow")]


def test_ranks_of_another_kind_are_refused_by_name() -> None:
    """Say which fact differs: another folder's model, another device."""
    plans = iter([ScriptedPlan(vocabulary=9000), ScriptedPlan()])
    with pytest.raises(LoadRefused, match="rank 1 cannot belong to this engine: its vocabulary is '9000'"):
        Ranks(lambda clock: _scripted(clock, plan=next(plans)))


def test_adapters_are_refused_by_name() -> None:
    with pytest.raises(AdapterRefused, match="ranks"):
        Ranks(_scripted).leader.load_adapter(AdapterSource("tone", "/nowhere", "key"))


def _used(budget_tokens: int = 400) -> tuple[Ranks, Journal]:
    """Two ranks with two cached prompts, and a row that has prefilled two chunks."""
    budget = budget_tokens * (KV_BYTES_PER_TOKEN + 4)
    ranks = Ranks(partial(_scripted, kv_cache_bytes=budget), compared_steps=1)
    journal = Journal(ranks.leader)
    for number in (1, 2):
        journal.admit(request(number, prompt_of(50, number), 2))
        journal.finish()
    journal.admit(request(3, prompt_of(50, 3), 2))
    journal.step()
    journal.step()
    return ranks, journal


def _prefixes(backend: Backend) -> Prefixes:
    assert backend.prefixes is not None
    return backend.prefixes


@pytest.mark.parametrize(
    "change",
    [
        lambda leader: leader.keep(3, CHUNK),
        lambda leader: leader.remove(3),
        lambda leader: _prefixes(leader).evict(10 * KV_BYTES_PER_TOKEN),
        lambda leader: _prefixes(leader).set_budget(60 * KV_BYTES_PER_TOKEN),
        lambda leader: _prefixes(leader).clear(),
    ],
    ids=["keep", "remove", "evict", "set_budget", "clear"],
)
def test_what_changes_rank_0s_prefixes_changes_all(change: Callable[[Backend], object]) -> None:
    """Each of them changes them here, so that a call that is not sent shows."""
    ranks, _ = _used()
    before = _prefixes(ranks.own).statistics()
    change(ranks.leader)
    assert _prefixes(ranks.own).statistics() != before
    assert _prefixes(ranks.followers.backends[0]).statistics() == _prefixes(ranks.own).statistics()


def test_prefixes_age_by_rank_0s_clock() -> None:
    """The first prompt came back three times, and nobody has asked for it for hours; another one came back
    once, just now, and stays. Without rank 0's time another rank would keep the first."""
    ranks, journal = _used()
    for number in (4, 5, 6):
        ranks.now += 5
        journal.admit(request(number, prompt_of(50, 1), 1))
        journal.finish()
    ranks.now += 20_000
    for number in (7, 8):
        ranks.now += 5
        journal.admit(request(number, prompt_of(50, 9), 1))
        journal.finish()
    _prefixes(ranks.leader).evict(120 * KV_BYTES_PER_TOKEN)
    for backend in ranks.all:
        lengths = [_prefixes(backend).match_length([*prompt_of(50, number), 0], "") for number in (1, 9)]
        assert lengths == [0, 50]


def test_sessions_wait_on_every_rank() -> None:
    """Of two sessions that have just ended a turn the one that returns after an hour goes before the one that
    returns after five seconds. A rank that is not told would keep both alike, and evict the older one."""
    ranks, journal = _used(budget_tokens=2000)
    prefixes = _prefixes(ranks.leader)
    seeds, lengths = {"slow": 7, "quick": 8}, {"slow": 40, "quick": 40}
    turns = [*[("slow", 3600.0)] * 8, *[("quick", 5.0)] * 8, ("quick", 1.0), ("slow", 1.0)]
    for number, (session, gap) in enumerate(turns, 10):
        lengths[session] += 4
        asked = request(number, prompt_of(120, seeds[session])[: lengths[session]], 1)
        journal.admit(msgspec.structs.replace(asked, session=session))
        journal.finish()
        prefixes.ended("", session, session)
        ranks.now += gap

    def kept(backend: Backend) -> set[str]:
        found = {
            name: _prefixes(backend).match_length(prompt_of(120, seed), "") for name, seed in seeds.items()
        }
        return {name for name, length in found.items() if length >= lengths[name]}

    while kept(ranks.own) == {"slow", "quick"}:
        prefixes.evict(KV_BYTES_PER_TOKEN)
    assert [kept(backend) for backend in ranks.all] == [{"quick"}] * len(ranks.all)


def test_pins_begin_and_end_on_every_rank() -> None:
    ranks, journal = _used()
    asked = request(20, prompt_of(50, 7), 1)
    journal.admit(msgspec.structs.replace(asked, holds=((50, math.inf),)))
    journal.finish()
    pins = [[pin.cached_tokens for pin in _prefixes(one).statistics().pins] for one in ranks.all]
    assert pins == [[50]] * len(ranks.all)
    assert _prefixes(ranks.leader).unpin(pin_name(prompt_of(50, 7), ""))
    assert [_prefixes(one).statistics().held_bytes for one in ranks.all] == [0] * len(ranks.all)


_PROMPTS = st.integers(0, 5).map(lambda seed: prompt_of(60, seed % 2)[: 20 + 8 * seed])
_EVENT = st.one_of(
    st.tuples(st.just("submit"), _PROMPTS, st.integers(1, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("turns"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.floats(0.1, 1000)),
)


@given(st.lists(_EVENT, max_size=40), st.integers(200, 900))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_loop_keeps_all_ranks_equal(events: list[tuple[object, ...]], budget_tokens: int) -> None:
    """Whatever the engine loop does over a leader (cancels, preemptions, evictions, a cleared cache, prefixes
    that age): all ranks give equal tokens, and hold equal bytes and prefixes."""
    budget = budget_tokens * (KV_BYTES_PER_TOKEN + 4)
    ranks = Ranks(lambda clock: _scripted(clock, budget), compared_steps=1)
    loop = EngineLoop(ranks.leader, 4, PrefillPace(64), clock=lambda: ranks.now)
    submitted = 0
    for event in events:
        commands: list[ToEngine] = []
        match event:
            case ("submit", list() as prompt, int() as most):
                commands = [request(submitted, prompt, most)]
                submitted += 1
            case ("cancel", int() as request_id):
                commands = [Cancel(request_id)]
            case ("clear",):
                commands = [Inspect(1, clear=True)]
            case ("turns", int() as count):
                for _ in range(count):
                    loop.turn([])
            case ("wait", float() as seconds):
                ranks.now += seconds
        loop.turn(commands)
    while not loop.idle:
        loop.turn([])
    for backend in ranks.followers.backends:
        assert _prefixes(backend).statistics() == _prefixes(ranks.own).statistics()
        assert not _prefixes(backend).check_integrity()
    ranks.leader.compare()
    ranks.leader.step()
