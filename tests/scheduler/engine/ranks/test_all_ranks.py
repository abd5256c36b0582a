"""Several ranks are a back end like any other, and the plans that rank 0 sends keep them equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import Backend, StepResult
from scheduler.engine.budget.changes import BudgetChange, Evict
from scheduler.engine.drafts.speculation import Draft
from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import Admit, Keep, StepPlan, with_changes
from scheduler.engine.ranks.messages import Prepare
from scheduler.engine.ranks.other_rank import PlanClock, RanksDisagree
from scheduler.engine.scripted_answers import digest, scripted_token
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import (
    Cancel,
    Inspect,
    Retired,
    ScriptedPlan,
    StepOutput,
    ToEngine,
    TurnEnded,
)
from scheduler.shared.pins import pin_name
from scheduler.shared.token_ids import compact
from tests.contracts.check_backend import CHECKS, CHUNK, MakeBackend
from tests.contracts.check_thinking import THINKING_CHECKS
from tests.contracts.journal import Journal, prefixes_of, prompt_of, request
from tests.examples import examples
from tests.fakes.memory_followers import Ranks
from tests.scheduler.engine.guesses import eager, spoilt

_PLAN = ScriptedPlan(prefill_tokens_per_step=CHUNK)


def _scripted(clock: PlanClock, kv_cache_bytes: int = 0, plan: ScriptedPlan = _PLAN) -> ScriptedBackend:
    return ScriptedBackend(plan, sleep=lambda seconds: None, kv_cache_bytes=kv_cache_bytes, clock=clock)


@pytest.mark.parametrize("check", [*CHECKS, *THINKING_CHECKS])
def test_contract(check: Callable[[MakeBackend], None]) -> None:
    """Whatever the contract of back ends says, over three ranks that are compared at every step."""
    made: list[Ranks] = []

    def make() -> Backend:
        made.append(Ranks(_scripted, 3, compared_steps=1))
        return made[-1].together

    check(make)
    for ranks in made:
        ranks.together.execute(StepPlan(compare=-1))
        ranks.together.execute(StepPlan())


def test_it_says_how_many_ranks_there_are() -> None:
    assert Ranks(_scripted, 3).together.describe().ranks == 3


def test_a_plan_is_sent_before_it_is_carried_out() -> None:
    """A rank that hears of it too late comes late to a collective, for which rank 0 would wait."""
    order: list[str] = []

    class Noted(ScriptedBackend):
        def _step(self, plan: StepPlan) -> StepResult:
            order.append("rank 0" if self is ranks.own else "rank 1")
            return super()._step(plan)

    ranks = Ranks(lambda clock: Noted(_PLAN, clock=clock))
    journal = Journal(ranks.together)
    journal.admit(request(1, [1], 2))
    journal.step()
    assert order == ["rank 1", "rank 0"]


def test_drafts_are_sent_to_every_rank() -> None:
    """One that had none would compute other columns."""
    ranks = Ranks(_scripted, compared_steps=1)
    journal = Journal(ranks.together, lambda row: _answer(row.prompt(), 9)[row.generated_tokens :])
    course = journal.admit(request(1, [1, 2], 9))
    journal.step()
    journal.step()
    assert course.tokens == _answer([1, 2], 9)
    journal.admit(request(2, [1, 3], 9))
    ranks.followers.change = lambda sent: (
        with_changes(sent, drafts=()) if isinstance(sent, StepPlan) else sent
    )
    with pytest.raises(RanksDisagree):
        journal.finish()


def test_drafts_beside_an_admission_are_verified() -> None:
    """They belong to the part of the plan that decodes, and so does what grammars force next."""
    ranks = Ranks(_scripted, compared_steps=1)
    first, second = (EngineSequence.of(request(number, [1, number], 9)) for number in (1, 2))
    ranks.together.execute(StepPlan(admit=(Admit(first),), decode=(1,)))
    draft = Draft(1, tuple(_answer([1, 1], 9)[1:3]), "prediction")
    ranks.together.execute(StepPlan(admit=(Admit(second),), decode=(1, 2), drafts=(draft,), foresee=True))
    admitted, computed = [one for one in ranks.followers.sent if isinstance(one, StepPlan)][-2:]
    assert (admitted.drafts, admitted.foresee) == ((), False)
    assert (computed.drafts, computed.foresee) == ((draft,), True)


def test_what_is_refused_at_admission_is_refused_everywhere() -> None:
    """The other ranks refuse it as well, and the next plan says that rank 0 did: nothing is left of it."""

    class Choosy(ScriptedBackend):
        def _admit(self, sequence: EngineSequence) -> None:
            if sequence.tokens[0] == 7:
                raise RequestRefused("not this one")
            super()._admit(sequence)

    ranks = Ranks(lambda clock: Choosy(_PLAN, clock=clock), compared_steps=1)
    refused, taken = (EngineSequence.of(request(number, [token], 2)) for number, token in ((1, 7), (2, 8)))
    plan = StepPlan(admit=(Admit(refused), Admit(taken)), decode=(1, 2))
    result = ranks.together.execute(plan)
    assert result.refused == ((1, "not this one"),)
    assert [out.request_id for out in result.tokens] == [2]
    sent = [one for one in ranks.followers.sent if isinstance(one, StepPlan)]
    assert [(len(one.admit), one.computes, one.refused) for one in sent] == [
        (2, False, ()),
        (0, True, (1,)),
    ], "no collective before all ranks have the same rows"


def test_another_result_is_a_fault_with_both_hashes() -> None:
    """A rank that did something else computes nonsense: the engine must not go on."""

    class Other(ScriptedBackend):
        def _step(self, plan: StepPlan) -> StepResult:
            result = super()._step(plan)
            if self is ranks.own:
                return result
            tokens = [msgspec.structs.replace(out, token=out.token ^ 1) for out in result.tokens]
            return StepResult(tokens, result.retired, result.prefills)

    ranks = Ranks(lambda clock: Other(_PLAN, clock=clock), compared_steps=4)
    journal = Journal(ranks.together)
    course = journal.admit(request(1, [1], 9))
    with pytest.raises(
        RanksDisagree, match=r"rank 1 has computed .*digest='\w{16}'.*rank 0 .*digest='\w{16}'"
    ):
        journal.finish()
    assert len(course.tokens) == 4


def test_a_refusal_of_one_rank_only_is_a_fault() -> None:
    class Moody(ScriptedBackend):
        def _admit(self, sequence: EngineSequence) -> None:
            if (self is ranks.own) == (sequence.request_id == 1):
                raise RequestRefused("not this one")
            super()._admit(sequence)

    for number, who in ((1, "by rank 0 only"), (2, "here only: not this one")):
        ranks = Ranks(lambda clock: Moody(_PLAN, clock=clock))
        admitted = StepPlan(admit=(Admit(EngineSequence.of(request(number, [1], 2))),), decode=(number,))
        with pytest.raises(RanksDisagree, match=f"request {number} was refused {who}"):
            ranks.together.execute(admitted)


def test_ranks_are_compared_every_64_steps() -> None:
    """Often enough to bound what a wrong rank spoils, and seldom enough to cost nothing."""
    ranks = Ranks(_scripted)
    journal = Journal(ranks.together)
    journal.admit(request(1, [1], 200))
    journal.finish()
    steps = [one for one in ranks.followers.sent if isinstance(one, StepPlan) and one.computes]
    assert [at for at, step in enumerate(steps, 1) if step.compare] == [64, 128, 192]


def test_a_grammar_is_sent_once_when_it_is_to_be_compiled() -> None:
    """Every turn asks whether it is done."""
    ranks = Ranks(_scripted)
    waiting = EngineSequence.of(msgspec.structs.replace(request(1, [1], 2), grammar="start: /a/"))
    for _ in range(3):
        ranks.together.preparing(waiting)
    assert [type(one) for one in ranks.followers.sent] == [Prepare]
    ranks.together.execute(StepPlan(forget=(1,)))
    ranks.together.execute(StepPlan())
    assert len(ranks.followers.sent) == 2, "a plan of nothing is not sent"


class _Slow(ScriptedBackend):
    """After each step, its rows with these ids have masks that take too long on rank 0."""

    slow: frozenset[int] = frozenset()

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        return replace(
            result, slow=tuple((number, "too slow") for number in self._rows if number in self.slow)
        )


def _with_a_slow_row() -> Ranks:
    """Return two ranks with two rows, of which rank 0 finds the second slow."""
    ranks = Ranks(lambda clock: _Slow(_PLAN, clock=clock, kv_cache_bytes=1 << 20), compared_steps=1)
    assert isinstance(ranks.own, _Slow)
    ranks.own.slow = frozenset({2})
    rows = [EngineSequence.of(request(number, [number], 9)) for number in (1, 2)]
    ranks.together.execute(StepPlan(admit=tuple(Admit(row) for row in rows), decode=(1, 2)))
    return ranks


def test_a_row_that_is_slow_on_rank_0_ends_everywhere() -> None:
    """Times differ between processes, so what they mean is rank 0's word: in the same step for all."""
    ranks = _with_a_slow_row()
    result = ranks.together.execute(StepPlan(decode=(1, 2)))
    assert result.retired == [Retired(2, "grammar", "too slow")]
    assert [out.request_id for out in result.tokens] == [1]
    assert [one.end for one in ranks.followers.sent if isinstance(one, StepPlan) and one.end] == [
        ((2, "too slow"),)
    ]
    ranks.together.execute(StepPlan(decode=(1,)))
    ranks.together.execute(StepPlan())


@pytest.mark.parametrize("admits", [False, True])
@pytest.mark.parametrize(
    "leaves", [StepPlan(release=(2,)), StepPlan(preempt=(2,))], ids=["cancelled", "preempted"]
)
def test_a_slow_row_that_leaves_in_that_turn_needs_no_end(leaves: StepPlan, admits: bool) -> None:
    """Its client has gone, or memory has run short: no rank is asked to end what is not there, and the other
    row goes on, also where the plan goes in two parts."""
    ranks = _with_a_slow_row()
    joins = (Admit(EngineSequence.of(request(3, [3], 9))),) if admits else ()
    plan = with_changes(leaves, admit=joins, decode=(1, 3) if admits else (1,))
    result = ranks.together.execute(plan)
    assert (result.retired, [out.request_id for out in result.tokens]) == ([], [*plan.decode])
    ranks.together.execute(StepPlan())


def test_the_time_of_both_parts_of_a_plan_is_counted() -> None:
    """What admitting took is not the step's time: pace learns from steps."""

    class Timed(ScriptedBackend):
        def execute(self, plan: StepPlan) -> StepResult:
            return replace(super().execute(plan), change_seconds=5.0 if plan.admit else 0.25)

    ranks = Ranks(lambda clock: Timed(_PLAN, clock=clock))
    plan = StepPlan(admit=(Admit(EngineSequence.of(request(1, [1], 9))),), decode=(1,))
    assert ranks.together.execute(plan).change_seconds == 5.25
    assert ranks.together.execute(StepPlan(decode=(1,))).change_seconds == 0.25


def test_ranks_of_another_kind_are_refused_by_name() -> None:
    """Say which fact differs: another folder's model, another device."""
    plans = iter([ScriptedPlan(vocabulary=9000), ScriptedPlan()])
    with pytest.raises(LoadRefused, match="rank 1 cannot belong to this engine: its vocabulary is '9000'"):
        Ranks(lambda clock: _scripted(clock, plan=next(plans)))


def _used(budget_tokens: int = 400) -> tuple[Ranks, Journal]:
    """Two ranks with two cached prompts, and a row that has prefilled two chunks."""
    budget = budget_tokens * (KV_BYTES_PER_TOKEN + 4)
    ranks = Ranks(partial(_scripted, kv_cache_bytes=budget), compared_steps=1)
    journal = Journal(ranks.together)
    for number in (1, 2):
        journal.admit(request(number, prompt_of(50, number), 2))
        journal.finish()
    journal.admit(request(3, prompt_of(50, 3), 2))
    journal.step()
    journal.step()
    return ranks, journal


@pytest.mark.parametrize(
    "change",
    [
        StepPlan(keep=(Keep(3, CHUNK),)),
        StepPlan(release=(3,)),
        StepPlan(preempt=(3,)),
        StepPlan(evict=Evict(10 * KV_BYTES_PER_TOKEN)),
        StepPlan(budget=BudgetChange(kv_bytes=60 * KV_BYTES_PER_TOKEN)),
        StepPlan(clear=True),
    ],
    ids=["keep", "release", "preempt", "evict", "budget", "clear"],
)
def test_what_changes_rank_0s_prefixes_changes_all(change: StepPlan) -> None:
    """Each of them changes them here, so that a field that is not sent shows."""
    ranks, _ = _used()
    before = prefixes_of(ranks.own).statistics()
    ranks.together.execute(change)
    assert prefixes_of(ranks.own).statistics() != before
    assert prefixes_of(ranks.followers.backends[0]).statistics() == prefixes_of(ranks.own).statistics()


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
    ranks.together.execute(StepPlan(evict=Evict(120 * KV_BYTES_PER_TOKEN)))
    for backend in ranks.all:
        lengths = [prefixes_of(backend).match_length([*prompt_of(50, number), 0], "") for number in (1, 9)]
        assert lengths == [0, 50]


def test_sessions_wait_on_every_rank() -> None:
    """Two sessions have just ended a turn: the one that returns after an hour goes before the one that
    returns after five seconds. A rank that does not learn it would keep both alike, and evict the older
    one."""
    ranks, journal = _used(budget_tokens=2000)
    seeds, lengths = {"slow": 7, "quick": 8}, {"slow": 40, "quick": 40}
    turns = [*[("slow", 3600.0)] * 8, *[("quick", 5.0)] * 8, ("quick", 1.0), ("slow", 1.0)]
    for number, (session, gap) in enumerate(turns, 10):
        lengths[session] += 4
        asked = request(number, prompt_of(120, seeds[session])[: lengths[session]], 1)
        journal.admit(msgspec.structs.replace(asked, session=session))
        journal.finish()
        ranks.together.execute(StepPlan(ended=(TurnEnded("", "", session, session),)))
        ranks.now += gap

    def kept(backend: Backend) -> set[str]:
        found = {
            name: prefixes_of(backend).match_length(prompt_of(120, seed), "") for name, seed in seeds.items()
        }
        return {name for name, length in found.items() if length >= lengths[name]}

    while kept(ranks.own) == {"slow", "quick"}:
        ranks.together.execute(StepPlan(evict=Evict(KV_BYTES_PER_TOKEN)))
    assert [kept(backend) for backend in ranks.all] == [{"quick"}] * len(ranks.all)


def test_pins_begin_and_end_on_every_rank() -> None:
    ranks, journal = _used()
    asked = request(20, prompt_of(50, 7), 1)
    journal.admit(msgspec.structs.replace(asked, holds=((50, math.inf),)))
    journal.finish()
    pins = [[pin.cached_tokens for pin in prefixes_of(one).statistics().pins] for one in ranks.all]
    assert pins == [[50]] * len(ranks.all)
    name = pin_name(prompt_of(50, 7), "")
    assert ranks.together.execute(StepPlan(unpin=(name, "another"))).unpinned == (name,)
    assert [prefixes_of(one).statistics().held_bytes for one in ranks.all] == [0] * len(ranks.all)


_PROMPTS = st.integers(0, 5).map(lambda seed: prompt_of(60, seed % 2)[: 20 + 8 * seed])
_EVENT = st.one_of(
    st.tuples(st.just("submit"), _PROMPTS, st.integers(1, 30)),
    st.tuples(st.just("cancel"), st.integers(0, 40)),
    st.tuples(st.just("clear")),
    st.tuples(st.just("turns"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.floats(0.1, 1000)),
)


def _hear(frames: Sequence[object], heard: dict[int, list[int]]) -> None:
    for frame in frames:
        if isinstance(frame, StepOutput):
            for token in frame.tokens:
                heard.setdefault(token.request_id, []).append(token.token)


def _answer(prompt: Sequence[int], tokens: int) -> list[int]:
    return [scripted_token(digest(prompt), position, _PLAN.vocabulary) for position in range(tokens)]


@given(st.lists(_EVENT, max_size=40), st.integers(200, 900))
@settings(deadline=None, derandomize=True, max_examples=examples(60))
@example([("submit", prompt_of(60, 1), 60), ("submit", prompt_of(50, 1), 60), ("turns", 6)], 900)
def test_the_loop_keeps_all_ranks_equal(events: list[tuple[object, ...]], budget_tokens: int) -> None:
    """Whatever the engine loop does over several ranks (drafts, cancels, preemptions, evictions, a cleared
    cache, prefixes that age): all ranks give equal tokens, and hold equal bytes and prefixes. Every answer is
    predicted, with a few wrong tokens."""
    budget = budget_tokens * (KV_BYTES_PER_TOKEN + 4)
    ranks = Ranks(lambda clock: _scripted(clock, budget), compared_steps=1)
    speculation = eager()
    loop = EngineLoop(ranks.together, 4, PrefillPace(64), clock=lambda: ranks.now, speculation=speculation)
    answers: list[list[int]] = []
    heard: dict[int, list[int]] = {}
    for event in events:
        commands: list[ToEngine] = []
        match event:
            case ("submit", list() as prompt, int() as most):
                answers.append(_answer(prompt, most))
                predicted = spoilt(answers[-1], len(answers))
                asked = request(len(answers) - 1, prompt, most)
                commands = [msgspec.structs.replace(asked, prediction=compact(predicted))]
            case ("cancel", int() as request_id):
                commands = [Cancel(request_id)]
            case ("clear",):
                commands = [Inspect(1, clear=True)]
            case ("turns", int() as count):
                for _ in range(count):
                    _hear(loop.iterate([]), heard)
            case ("wait", float() as seconds):
                ranks.now += seconds
        _hear(loop.iterate(commands), heard)
    while not loop.idle:
        _hear(loop.iterate([]), heard)
    for number, tokens in heard.items():
        assert tokens == answers[number][: len(tokens)]
    if any(len(answer) > 50 for answer in answers) and not any(event[0] == "cancel" for event in events):
        assert speculation.counters.steps > 0
    for backend in ranks.followers.backends:
        assert prefixes_of(backend).statistics() == prefixes_of(ranks.own).statistics()
        assert not prefixes_of(backend).check_integrity()
    ranks.together.execute(StepPlan(compare=-1))
    ranks.together.execute(StepPlan())
