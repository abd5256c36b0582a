"""The engine's loop over the scripted back end: its invariants for every schedule of commands."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Literal, TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.backend import StepResult
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.plan import StepPlan
from scheduler.engine.planning.pace import PrefillPace
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN, ScriptedBackend
from scheduler.engine.sequence import EngineSequence
from scheduler.errors import RequestRefused
from scheduler.shared.messages import (
    Begun,
    Cancel,
    ScriptedPlan,
    StepOutput,
    Submit,
    ToEngine,
    TurnEnded,
)
from tests.contracts.journal import alone, kv_bytes, prefixes_of, request
from tests.examples import examples
from tests.fakes.faulty_backend import Faults, FaultyBackend
from tests.scheduler.engine.heard import HeardLoop

_REFUSED, _FAILING = 66, 67
_PLAN = ScriptedPlan(prefill_tokens_per_step=3)
_FAULTS = Faults(refuse_token=_REFUSED, fail_sampler_token=_FAILING)
_TOLERANT = Faults(fail_sampler_token=_FAILING)

Kind: TypeAlias = Literal["plain", "refused", "failing"]


class _Watched(FaultyBackend):
    """The scripted back end, and who was in it at each step."""

    def __init__(self) -> None:
        super().__init__(_PLAN, _FAULTS)
        self.rows: set[int] = set()
        self.admitted: list[int] = []
        self.refused: set[int] = set()
        self._stepped: set[int] | None = None
        self.begun: list[Begun] = []
        """What the loop reported before it did it."""
        self.prepares: set[int] = set()
        """Requests whose prerequisites are not done."""

    def check(self, sequence: EngineSequence) -> None:
        try:
            assert self.begun[-1].work == "reading", "a request was read without a report"
            assert sequence.request_id in self.begun[-1].requests
            super().check(sequence)
        except RequestRefused:
            self.refused.add(sequence.request_id)
            raise

    def preparing(self, sequence: EngineSequence) -> bool:
        return sequence.request_id in self.prepares

    def _admit(self, sequence: EngineSequence) -> None:
        self.admitted.append(sequence.request_id)
        super()._admit(sequence)
        self.rows.add(sequence.request_id)

    def _remove(self, request_id: int) -> None:
        super()._remove(request_id)
        self.rows.remove(request_id)

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.computes:
            chunks = {chunk.request_id for chunk in plan.chunks}
            admitted = {admit.sequence.request_id for admit in plan.admit}
            begun = self.begun[-1]
            assert set(begun.requests) - self.prepares == {*chunks, *plan.decode, *admitted}, (
                "all that is computed is reported"
            )
            decoded = set(plan.decode) - chunks
            assert (begun.work != "decode", begun.work != "prefill") == (
                bool(chunks),
                not chunks or bool(decoded),
            )
        return super().execute(plan)

    def _step(self, plan: StepPlan) -> StepResult:
        self._stepped = set(self.rows)
        result = super()._step(plan)
        self.rows -= {retired.request_id for retired in result.retired}
        return result

    def take_stepped(self) -> set[int] | None:
        """Who was in the step since this was last asked; None when there was none."""
        stepped, self._stepped = self._stepped, None
        return stepped


class _Run(HeardLoop):
    """Under watch: `iterate` asserts whatever must hold after every turn."""

    def __init__(self, slots: int) -> None:
        self.backend, self.speculation = _Watched(), Speculation()
        super().__init__(self.backend, slots, begins=self.backend.begun.append, speculation=self.speculation)
        self._slots = slots
        self.submitted: dict[int, Submit] = {}
        self._prefilled: dict[int, int] = {}
        self._steps = 0

    @property
    def open(self) -> set[int]:
        return self.submitted.keys() - self.retired.keys()

    def iterate(self, *commands: ToEngine) -> Sequence[StepOutput]:
        cancelled = set[int]()
        for command in commands:
            if isinstance(command, Submit):
                self.submitted[command.request_id] = command
            elif isinstance(command, Cancel) and command.request_id in self.open:
                cancelled.add(command.request_id)
        there = self.open
        outputs = super().iterate(*commands)
        stepped = self.backend.take_stepped()
        named = {token.request_id for output in outputs for token in output.tokens}
        named |= {progress.request_id for output in outputs for progress in output.prefills}
        ended_now = {retired.request_id for output in outputs for retired in output.retired}
        assert named | ended_now <= there, "something is said of nobody"
        assert cancelled <= ended_now, "a cancel is answered in its own turn"
        assert not cancelled & (self.backend.rows | (stepped or set())), "a cancelled row took part in a step"
        assert self.loop.idle == (not self.open)
        assert (not outputs) == (stepped is None and not ended_now), "silence only when nothing happened"
        if stepped is None:
            assert not self.open, "requests are there, and no step was taken"
        else:
            self._steps += 1
            assert len(stepped) <= self._slots
            # Who could have run in this step: all that had not ended before it.
            could_run = stepped | (self.open - self.backend.rows)
            assert len(stepped) == min(self._slots, len(could_run)), "a request waited beside a free slot"
        for output in outputs:
            self._prefilled |= {prefill.request_id: prefill.done for prefill in output.prefills}
            self._check_counters(output)
        return outputs

    def _check_counters(self, output: StepOutput) -> None:
        counters = output.counters
        assert counters.steps == self._steps
        assert counters.busy_seconds == self._steps, "the clock of this test ticks once a look"
        assert counters.generated_tokens == sum(len(tokens) for tokens in self.tokens.values())
        assert counters.prefilled_tokens == sum(self._prefilled.values())
        assert counters.running == len(self.backend.rows)
        assert counters.running + counters.waiting == len(self.open)
        own_tokens = counters.row_tokens - counters.shared_row_tokens
        assert counters.kv_bytes == kv_bytes(self.backend) == KV_BYTES_PER_TOKEN * own_tokens
        assert counters.memory.active == self.backend.device.memory().active

    def finish(self, turns: int = 2000) -> None:
        super().finish(turns)
        assert not self.open
        assert not self.backend.rows
        assert kv_bytes(self.backend) == 0
        assert not self.speculation._rows, "half a megabyte each, where prompts are long"


def _submit(request_id: int, kind: Kind, prompt_tokens: int, max_tokens: int) -> Submit:
    flag = {"plain": [], "refused": [_REFUSED], "failing": [_FAILING]}[kind]
    return request(request_id, [*flag, *range(100, 100 + prompt_tokens)], max_tokens)


_commands = st.one_of(
    st.tuples(
        st.sampled_from(["plain", "plain", "plain", "refused", "failing"]),
        st.integers(1, 9),
        st.integers(1, 6),
    ),
    st.integers(-1, 30),
)
"""A request, or the id to cancel: one that runs, waits, has ended, is not there yet, or never comes."""


@settings(deadline=None, max_examples=examples(300))
@given(slots=st.integers(1, 4), turns=st.lists(st.lists(_commands, max_size=5), max_size=20))
def test_every_schedule_keeps_the_promises(
    slots: int, turns: list[list[tuple[Kind, int, int] | int]]
) -> None:
    """Exactly one Retired for each Submit, in whatever way it ends; never more rows than slots; no
    request waits while a slot is free; the counters are what happened; requests not cancelled have the
    tokens it would have had alone, admitted in order of arrival."""
    run, ids = _Run(slots), count()
    for turn in turns:
        commands: list[ToEngine] = [
            Cancel(entry) if isinstance(entry, int) else _submit(next(ids), *entry) for entry in turn
        ]
        run.iterate(*commands)
    run.finish()
    assert run.retired.keys() == run.submitted.keys()
    assert run.backend.admitted == sorted(run.backend.admitted)
    for request_id, submit in run.submitted.items():
        expected = alone(FaultyBackend(_PLAN, _TOLERANT), submit)
        tokens = run.tokens.get(request_id, [])
        match run.retired[request_id].reason:
            case "refused":
                assert request_id in run.backend.refused
                assert tokens == []
            case "cancelled":
                assert tokens == expected[: len(tokens)]
            case "failed" | "length" | "stop":
                assert tokens == expected


def test_a_step_like_the_last_one_is_not_reported_again() -> None:
    """Decoding the same rows costs no message a token."""
    run = _Run(2)
    run.iterate(_submit(1, "plain", 4, 50), _submit(2, "plain", 4, 50))
    run.iterate()
    reports = len(run.backend.begun)
    for _ in range(20):
        run.iterate()
    assert len(run.backend.begun) == reports
    assert run.backend.begun[-1] == Begun("decode", (1, 2), run.backend.begun[-1].context_tokens)
    run.iterate(Cancel(1))
    assert (run.backend.begun[-1].requests, [*run.speculation._rows]) == ((2,), [2])


def test_requests_that_are_prepared_are_reported_alone_and_beside_rows() -> None:
    """A grammar that is compiled in a thread may end the process, too."""
    run = _Run(2)
    run.backend.prepares = {2}
    run.loop.iterate([_submit(2, "plain", 4, 50)])
    assert run.backend.begun == [Begun("reading", (2,))]
    run.loop.iterate([_submit(1, "plain", 4, 50)])
    assert run.backend.begun[-1].requests == (1, 2)
    run.backend.prepares.clear()
    for _ in range(5):
        run.loop.iterate([])
    assert (run.backend.begun[-1].work, run.backend.begun[-1].requests) == ("decode", (1, 2))


def test_the_end_of_a_turn_reaches_the_prefix_cache() -> None:
    """With the salt under which its prefixes are kept, its adapter's included; without a prefix cache it is
    ignored. It has no answer."""
    ended: list[tuple[str, str, str]] = []
    backend = ScriptedBackend(ScriptedPlan(), kv_cache_bytes=1 << 20)
    prefixes_of(backend).ended = lambda *told: ended.append(told)  # type: ignore[method-assign]
    for one in (backend, ScriptedBackend(ScriptedPlan())):
        loop = EngineLoop(one, max_slots=2, pace=PrefillPace(64))
        assert loop.iterate([TurnEnded("mine", "", "agent", "read")]) == []
    assert ended == [("mine", "agent", "read")]
