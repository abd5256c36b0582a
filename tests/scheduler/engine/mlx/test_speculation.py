"""Rows whose drafts are verified get the tokens and log-probabilities of a run without drafts: whatever the
sampling, the company, what ends them, and where they are taken up again.

In most tests the drafts are the client's prediction, which is the answer of the run without drafts with some
tokens changed, so that drafts are right, wrong at once, and right up to a place.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine import memory
from scheduler.engine.backend import Backend
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.request import GenerationRequest, Tool, ToolChoice
from scheduler.shared.counters import DraftCounters
from scheduler.shared.messages import (
    Cancel,
    LogprobsOut,
    Retired,
    Sampling,
    StepOutput,
    Submit,
    ThinkingBudget,
    ToEngine,
)
from scheduler.shared.token_ids import compact
from tests.contracts.journal import GREEDY, SEEDED, prefixes_of, prompt_of, request
from tests.examples import examples, sampled
from tests.scheduler.engine.guesses import Guesses, eager, spoilt
from tests.scheduler.engine.mlx.adapters.test_schedules import engine_of as adapted_engine
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.families import FAMILIES
from tests.scheduler.engine.mlx.grammar_engine import PERSON, GrammarModel, asked
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words
from tests.scheduler.engine.mlx.test_shared_rows import _tree
from tests.scheduler.engine.mlx.test_thinking_grammars import person

_SLOTS = 8
_MOST_TURNS = 5000
_TOLERANCE = 2e-5
"""Tolerance of log-probabilities. A call of several tokens a row sums in another order than one of a single
token: most are within 7e-6, the least likely of a row's best within 1.3e-5, of logits of 20."""
CUT = ("deepseek_v3", "gemma2", "llama", "qwen3")
"""Families whose layers can all be cut: latent attention, bounded scores, and keys and values."""


@dataclass(slots=True)
class Heard:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOut | None] = field(default_factory=list)
    retired: Retired | None = None


@dataclass(slots=True)
class Run:
    """An engine's loop, and what its requests got."""

    loop: EngineLoop
    heard: dict[int, Heard] = field(default_factory=dict)
    drafts: DraftCounters = field(default_factory=DraftCounters)
    steps: int = 0
    preemptions: int = 0

    @classmethod
    def of(cls, backend: Backend, speculation: Speculation | None, slots: int = _SLOTS) -> Run:
        # A clock that stands still: the schedule is the same on every machine.
        return cls(EngineLoop(backend, slots, PrefillPace(64), clock=lambda: 0.0, speculation=speculation))

    def iterate(self, commands: Iterable[ToEngine] = ()) -> None:
        commands = list(commands)
        self.heard |= {one.request_id: Heard() for one in commands if isinstance(one, Submit)}
        for frame in self.loop.iterate(commands):
            assert isinstance(frame, StepOutput)
            counters = frame.counters
            self.drafts, self.steps, self.preemptions = counters.drafts, counters.steps, counters.preemptions
            for token in frame.tokens:
                heard = self.heard[token.request_id]
                assert heard.retired is None, "a token after the end"
                heard.tokens.append(token.token)
                heard.logprobs.append(token.logprobs)
            for retired in frame.retired:
                self.heard[retired.request_id].retired = retired

    def play(self, arrivals: Sequence[tuple[int, ToEngine]]) -> Run:
        """To the end; each command in its turn."""
        last = max(turn for turn, _ in arrivals)
        for turn in range(_MOST_TURNS):
            self.iterate(command for at, command in arrivals if at == turn)
            if turn >= last and self.loop.idle:
                return self
        raise AssertionError("it never ended")

    @property
    def tokens(self) -> dict[int, list[int]]:
        return {number: heard.tokens for number, heard in self.heard.items()}

    def accepted(self) -> tuple[int, int]:
        """Return how many drafted tokens were accepted, and rejected."""
        proposed = sum(proposed for proposed, _ in self.drafts.sources.values())
        accepted = sum(accepted for _, accepted in self.drafts.sources.values())
        return accepted, proposed - accepted


def check_equal(found: Run, plain: Run, cancelled: Iterable[int] = ()) -> None:
    """Tokens, ends, and log-probabilities; the beginnings of those that were cancelled."""
    cancelled = set(cancelled)
    for number, heard in plain.heard.items():
        mine = found.heard[number]
        least = len(heard.tokens)
        if number in cancelled:
            least = min(least, len(mine.tokens))
        else:
            assert _end(mine) == _end(heard), number
            assert len(mine.tokens) == least, number
        assert mine.tokens[:least] == heard.tokens[:least], number
        for one, other in zip(mine.logprobs[:least], heard.logprobs[:least], strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.chosen == pytest.approx(other.chosen, abs=_TOLERANCE)
                tops = zip(one.top, other.top, strict=True)
                assert all(mine[1] == pytest.approx(theirs[1], abs=_TOLERANCE) for mine, theirs in tops)


def _end(heard: Heard) -> tuple[str, str]:
    assert heard.retired is not None
    return heard.retired.reason, heard.retired.detail


def predicted(submits: Iterable[Submit], answers: Mapping[int, Sequence[int]]) -> list[Submit]:
    """Return the same requests with predictions that are mostly right."""
    return [
        msgspec.structs.replace(one, prediction=compact(spoilt(answers[one.request_id], one.request_id)))
        for one in submits
    ]


def _draw(generator: random.Random) -> Sampling:
    draw = generator.choice
    return Sampling(
        temperature=draw([0.0, 0.4, 1.0]),
        top_p=draw([1.0, 0.95, 0.6]),
        top_k=draw([0, 0, 5, 40]),
        min_p=draw([0.0, 0.0, 0.05]),
        seed=generator.getrandbits(63),
        repetition_penalty=draw([1.0, 1.0, 1.2]),
        repetition_context=draw([0, 0, 4, 30]),
        presence_penalty=draw([0.0, 0.0, 0.7]),
        frequency_penalty=draw([0.0, 0.0, 0.4]),
        logit_bias=draw([(), (), ((5, 4.0), (9, -100.0))]),
    )


_THINKING = ThinkingBudget(tokens=7, start=(503, 505), end=(509, 510), opens=True, anywhere=True, held=1)


def _any_request(generator: random.Random, number: int, most_tokens: int) -> Submit:
    """Requests with every mix of parameters, stop tokens, budgets and what is asked about its tokens."""
    submit = request(
        number,
        prompt_of(generator.choice([1, 2, 9, 40]), generator.randrange(50)),
        generator.randrange(1, most_tokens + 1),
        stop=tuple(generator.sample(range(512), generator.choice([0, 0, 20]))),
        sampling=_draw(generator),
    )
    thinking = msgspec.structs.replace(_THINKING, tokens=generator.randrange(most_tokens))
    return msgspec.structs.replace(
        submit,
        min_tokens=generator.choice([0, 0, 5]),
        top_logprobs=generator.choice([None, 0, 3]),
        thinking=generator.choice([None, None, thinking]),
    )


def _any_requests(seed: int, count: int, most_tokens: int = 30) -> list[Submit]:
    generator = random.Random(seed)
    return [_any_request(generator, number, most_tokens) for number in range(count)]


_SOURCES = ("predictions", "guesses")


@pytest.mark.parametrize(
    "case",
    sampled(
        [(source, seed) for source in _SOURCES for seed in range(8)], [("predictions", 0), ("guesses", 1)]
    ),
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def test_all_sampling_parameters_mixed(tiny: Tiny, case: tuple[str, int]) -> None:
    """Penalties with their contexts, bias, cut-offs, seeds, `min_tokens`, stop tokens, log-probabilities and
    thinking budgets, in one batch that changes all the time."""
    source, seed = case
    submits = _any_requests(seed, 24)
    turns = [random.Random(seed).randrange(20) for _ in submits]
    plain = Run.of(tiny.backend(), None).play([*zip(turns, submits, strict=True)])
    speculation: Speculation = Guesses(plain.tokens, seed)
    if source == "predictions":
        submits, speculation = predicted(submits, plain.tokens), eager()
    found = Run.of(tiny.backend(), speculation).play([*zip(turns, submits, strict=True)])
    check_equal(found, plain)
    accepted, rejected = found.accepted()
    assert accepted > 50
    assert rejected > 50
    assert found.steps < plain.steps


@pytest.mark.usefixtures("device_of_its_own")
def test_a_device_of_its_own_says_the_same(tiny: Tiny) -> None:
    """Where nothing is computed on the host, and a step is always ahead."""
    submits = _any_requests(3, 10)
    plain = Run.of(tiny.backend(), None).play([(at, one) for at, one in enumerate(submits)])
    found = Run.of(tiny.backend(), Guesses(plain.tokens)).play([(at, one) for at, one in enumerate(submits)])
    check_equal(found, plain)
    assert min(found.accepted()) > 30


def speculating(engine: ReuseEngine, speculation: Speculation) -> ReuseEngine:
    slots = 8
    engine.loop = EngineLoop(engine.backend, slots, PrefillPace(8), speculation=speculation)
    return engine


@pytest.mark.parametrize(
    "family", sampled(sorted(FAMILIES), ["deepseek_v3", "gemma2", "qwen3", "gpt_oss", "qwen3_next"])
)
def test_families_whose_layers_can_all_be_cut_verify_drafts(family: str) -> None:
    """And no others: what a window or a state has dropped does not come back."""
    assert engine_of(family).backend.facts.verifies == (family in CUT)


@pytest.mark.parametrize("family", sampled(CUT, ["deepseek_v3", "qwen3"]))
def test_rows_behind_shared_prefixes_come_and_go(family: str) -> None:
    """Held to mlx-lm's own loop: prompts behind nested prefixes, which rows attend to in place where the
    model can, joins and cancels, for 75 turns."""
    speculation = eager()
    engine = speculating(engine_of(family), speculation)
    generator = random.Random(1)
    submits: list[Submit] = []
    cancelled = set[int]()
    prompts, grouped = _tree(generator, 12), 0
    for _ in range(75):
        commands: list[Any] = []
        while prompts and generator.random() < 0.25:
            plain = engine.submit(prompts.pop(), max_tokens=generator.randrange(8, 30), boundaries=(40, 65))
            submits += predicted([plain], {plain.request_id: engine.alone(plain)})
            commands.append(submits[-1])
        if submits and generator.random() < 0.03:
            cancelled.add(victim := generator.choice(submits).request_id)
            commands.append(Cancel(victim))
        engine.iterate(commands)
        layers = engine.batch._generation_batch.prompt_cache
        grouped += any(
            layer.groups and layer.geometry.lags for layer in layers if isinstance(layer, BatchRows)
        )
    engine.finish()
    assert not prompts
    for submit in submits:
        if submit.request_id in cancelled:
            engine.check_beginning(submit)
        else:
            engine.check(submit)
    proposed, accepted = speculation.counters.sources["prediction"]
    assert accepted > 20, "with this engine's chunks of 16 tokens a step has as many positions"
    assert proposed - accepted > 10
    assert (grouped > 0) == (family != "deepseek_v3"), "rows that lag behind others and share a prefix"


def test_the_second_turn_finds_accepted_tokens_only() -> None:
    """What was drafted and rejected is in no cached prefix: a prompt that goes on behind an answer has the
    tokens that it has alone."""
    engine = speculating(engine_of("qwen3"), eager())
    firsts = [engine.submit(words(20, number), max_tokens=20) for number in range(3)]
    engine.ask(*predicted(firsts, {one.request_id: engine.alone(one) for one in firsts}))
    seconds = [
        engine.submit([*one.prompt, *engine.heard[one.request_id].tokens, *words(5, 70 + at)], max_tokens=20)
        for at, one in enumerate(firsts)
    ]
    heard = engine.ask(*predicted(seconds, {one.request_id: engine.alone(one) for one in seconds}))
    # The last token of an answer is never computed.
    assert [one.cached for one in heard] == [39] * 3
    assert not prefixes_of(engine.backend).check_integrity()


def test_rows_with_adapters(tmp_path: Path) -> None:
    """LoRA rows of two adapters and of none in one call of several tokens a row."""
    speculation = eager()
    engine = adapted_engine("qwen3", tmp_path)
    speculating(engine, speculation)
    keys = ["", *(source.key for source in engine.sources)]
    submits = [engine.submit(words(20, at), adapter=keys[at % 3], max_tokens=20) for at in range(6)]
    submits = predicted(submits, {one.request_id: engine.alone(one) for one in submits})
    for number, submit in enumerate(submits):
        engine.iterate([submit])
        if number % 3 == 2:
            engine.iterate()
    engine.finish()
    for submit in submits:
        engine.check(submit)
    assert speculation.counters.sources["prediction"][1] > 20


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        pytest.param(SEEDED, 120, id="sampled"),
        pytest.param(GREEDY, 600, id="greedy-long", marks=pytest.mark.long),
        pytest.param(SEEDED, 600, id="sampled-long", marks=pytest.mark.long),
    ],
)
def test_preempted_rows_go_on(
    tiny: Tiny, sampling: Sampling, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six requests in the bytes of four, drafts and preemptions at once."""
    monkeypatch.setattr(memory, "GROWTH_TOKENS", tokens // 3)  # A row outgrows what was reserved for it.
    submits = [request(number, prompt_of(40, number), tokens, sampling=sampling) for number in range(6)]

    def run(budget_tokens: int, speculation: Speculation | None, asked: Sequence[Submit]) -> Run:
        budget_bytes = budget_tokens * (tiny.ready.kv_bytes_per_token + 4)
        backend = tiny.backend(max_slots=16, kv_cache_bytes=budget_bytes)
        return Run.of(backend, speculation, 16).play([(0, submit) for submit in asked])

    plain = run(1 << 20, None, submits)
    found = run(4 * tokens, eager(), predicted(submits, plain.tokens))
    assert plain.preemptions == 0 < found.preemptions
    check_equal(found, plain)
    assert found.accepted()[0] > tokens


@pytest.mark.parametrize("seed", sampled(range(6), [0]))
def test_an_answer_goes_on_in_another_engine(tiny: Tiny, seed: int) -> None:
    """The first one dies in the middle of drafts; the next knows nothing of them."""
    submits = _any_requests(100 + seed, 8, 40)
    plain = Run.of(tiny.backend(), None).play([(0, one) for one in submits])
    submits = predicted(submits, plain.tokens)
    first = Run.of(tiny.backend(), eager())
    first.iterate(submits)
    for _ in range(4 + seed):
        first.iterate()
    out = first.tokens
    rest = [
        msgspec.structs.replace(
            one, prompt=compact([*one.prompt, *out[one.request_id]]), done_tokens=len(out[one.request_id])
        )
        for one in submits
        if first.heard[one.request_id].retired is None
    ]
    assert any(one.done_tokens > 1 for one in rest)
    second = Run.of(tiny.backend(), eager()).play([(0, one) for one in rest])
    assert second.accepted()[0] > 10
    for number, heard in plain.heard.items():
        resumed = second.heard.get(number, Heard(retired=first.heard[number].retired))
        assert out[number] + resumed.tokens == heard.tokens
        assert _end(resumed) == _end(heard)


def _answered(
    model: GrammarModel,
    requests: Sequence[GenerationRequest],
    speculation: Speculation | None,
    **changes: Any,
) -> Run:
    """The requests as one batch of an engine with grammars."""
    engine = model.engine(**changes)
    submits = [engine.submit(one)[1] for one in requests]
    run = Run.of(engine.backend, speculation, 32)
    run.iterate(submits)
    while not run.loop.idle:
        run.iterate()
    return run


_WRITE = Tool(
    "write_the_file",
    parameters={
        "type": "object",
        "properties": {"path_of_file": {"type": "string", "maxLength": 9}, "is_new": {"type": "boolean"}},
        "required": ["path_of_file", "is_new"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("kind", ["schema", "call", "thinking"])
def test_what_a_grammar_forces_is_drafted_and_changes_nothing(model: GrammarModel, kind: str) -> None:
    """JSON keys, the envelope of a call, and what follows a forced end of reasoning: the tokens of the run
    without drafts, in fewer steps. Drafts are the canonical tokens of the text so far, which a random model
    need not write: some are rejected, and some accepted."""
    made: dict[str, Callable[[int], GenerationRequest]] = {
        "schema": lambda seed: asked(PERSON, seed, 400),
        "call": lambda seed: asked(None, seed, 400, tools=(_WRITE,), tool_choice=ToolChoice.REQUIRED),
        "thinking": lambda seed: person(model, seed, seed),
    }
    requests = [replace(made[kind](seed), top_logprobs=1) for seed in range(6)]
    plain = _answered(model, requests, None)
    found = _answered(model, requests, eager())
    check_equal(found, plain)
    proposed, accepted = found.drafts.sources["grammar"]
    assert 0 < accepted <= proposed
    # A batch lasts as long as its longest answer, of which reasoning forces little.
    assert found.steps < plain.steps or kind == "thinking"


def test_a_grammar_s_rows_are_preempted_between_drafts(model: GrammarModel) -> None:
    """A matcher of its own follows the answer so far."""
    requests = [asked(PERSON, seed, 400) for seed in range(5)]
    engine = model.engine()
    submits = [engine.submit(one)[1] for one in requests]
    plain = Run.of(engine.backend, None).play([(0, one) for one in submits])
    run = Run.of(model.engine().backend, eager())
    run.iterate(submits)
    for turn in range(_MOST_TURNS):
        if run.loop.idle:
            break
        if turn % 5 == 4:
            for sequence in [one for one in run.loop._slots if not one.prefilling][: turn % 3]:
                # As where memory runs out.
                run.loop._step(StepPlan(preempt=(sequence.request_id,)))
        run.iterate()
    check_equal(run, plain)
    assert run.preemptions > 3
    assert run.drafts.sources["grammar"][1] > 0


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, when it comes, and when it is cancelled, preempted or its engine dies."""

    after_turns: int
    seed: int
    answer_tokens: int
    leaves_after: int | None


_VISITS = st.lists(
    st.builds(
        Visit,
        after_turns=st.integers(0, 3),
        seed=st.integers(0, 1 << 20),
        answer_tokens=st.integers(1, 14),
        leaves_after=st.one_of(st.none(), st.none(), st.integers(0, 8)),
    ),
    min_size=2,
    max_size=7,
)


@settings(
    max_examples=examples(40),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    visits=_VISITS,
    seed=st.integers(0, 1 << 16),
    preempted=st.sets(st.integers(0, 12), max_size=3),
    dies_at=st.one_of(st.none(), st.integers(1, 10)),
)
def test_random_batches(
    tiny: Tiny, visits: list[Visit], seed: int, preempted: set[int], dies_at: int | None
) -> None:
    """Any requests, joins, leaves and preemptions, and perhaps a death: the tokens of the plain run."""
    submits, arrivals, cancelled, turn = [], [], set[int](), 0
    for number, visit in enumerate(visits):
        turn += visit.after_turns
        submits.append(_any_request(random.Random(visit.seed), number, visit.answer_tokens))
        arrivals.append((turn, number))
        if visit.leaves_after is not None:
            cancelled.add(number)
    plain = Run.of(tiny.backend(), None).play([(at, submits[number]) for at, number in arrivals])
    leaves = {
        number: at + visit.leaves_after
        for (at, number), visit in zip(arrivals, visits, strict=True)
        if visit.leaves_after is not None
    }
    found = _disturbed(
        tiny,
        submits,
        {number: at for at, number in arrivals},
        leaves,
        preempted,
        dies_at,
        Guesses(plain.tokens, seed),
    )
    for number, heard in plain.heard.items():
        mine = found[number]
        if number in cancelled:
            assert mine.tokens == heard.tokens[: len(mine.tokens)]
        else:
            assert mine.tokens == heard.tokens
            assert _end(mine) == _end(heard)
        for one, other in zip(mine.logprobs, heard.logprobs, strict=False):
            if one is not None and other is not None:
                assert one.chosen == pytest.approx(other.chosen, abs=_TOLERANCE)


def _disturbed(
    tiny: Tiny,
    submits: Sequence[Submit],
    arrivals: Mapping[int, int],
    leaves: Mapping[int, int],
    preempted: Iterable[int],
    dies_at: int | None,
    speculation: Speculation,
) -> dict[int, Heard]:
    """Return what each request got, of one engine or two."""
    run = Run.of(tiny.backend(), speculation)
    whole: dict[int, Heard] = {}
    last = max([*arrivals.values(), *leaves.values(), *preempted, dies_at or 0])
    for turn in range(_MOST_TURNS):
        if turn == dies_at:
            whole = run.heard
            run = Run.of(tiny.backend(), speculation)
            run.iterate(_resumed(one, whole[one.request_id]) for one in submits if _runs(whole, one))
        if turn in preempted:
            for sequence in [one for one in run.loop._slots if not one.prefilling][:2]:
                run.loop._step(StepPlan(preempt=(sequence.request_id,)))
        run.iterate(
            [
                *(one for one in submits if arrivals[one.request_id] == turn),
                *(Cancel(number) for number, at in leaves.items() if at == turn),
            ]
        )
        if turn > last and run.loop.idle:
            break
    for number, heard in run.heard.items():
        before = whole.get(number, Heard())
        whole[number] = Heard(before.tokens + heard.tokens, before.logprobs + heard.logprobs, heard.retired)
    return whole


def _runs(heard: Mapping[int, Heard], submit: Submit) -> bool:
    known = heard.get(submit.request_id)
    return known is not None and known.retired is None


def _resumed(submit: Submit, heard: Heard) -> Submit:
    prompt = compact([*submit.prompt, *heard.tokens])
    resumed: Submit = msgspec.structs.replace(submit, prompt=prompt, done_tokens=len(heard.tokens))
    return resumed
