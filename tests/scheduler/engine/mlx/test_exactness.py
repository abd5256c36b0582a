"""Every request gets the tokens that it would get alone, whatever other requests run.

The oracle is mlx-lm's own loop for one request, `generate_step`: other code for prefill, cache and masks. The
model computes in float32, so that batching changes logits by parts in a million only.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx
import msgspec
import pytest
from mlx_lm.generate import generate_step

from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.batch import PrefillBatch
from scheduler.engine.mlx.kv.cached_rows import Row
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import Cancel, PromptLogprobsOut, Sampling, StepOutput, Submit, ToEngine
from tests.contracts.journal import GREEDY, kv_bytes, prompt_of, request
from tests.examples import sampled
from tests.scheduler.engine.mlx.conftest import SHAPE, Tiny
from tests.scheduler.engine.mlx.sampling.row_sampler import LogitsAdjustment, RowSampler

_CHUNK = 64
_EDGES = (1, 2, _CHUNK - 1, _CHUNK, _CHUNK + 1, _CHUNK + 2, 2 * _CHUNK + 1, 5 * _CHUNK)


def _by_itself(tiny: Tiny, submit: Submit) -> list[int]:
    """What mlx-lm's loop for one request says, without any of our loop, batch or back end."""
    params, prompt = submit.sampling, mx.array(submit.prompt.tolist())
    steps = generate_step(
        prompt,
        tiny.model,
        max_tokens=submit.max_tokens,
        sampler=RowSampler(params) if params.temperature > 0 else None,
        logits_processors=[LogitsAdjustment(params, len(submit.prompt), SHAPE.vocabulary)]
        if LogitsAdjustment.wanted(params)
        else None,
    )
    return [token for token, _ in steps]


def _together(
    tiny: Tiny,
    arrivals: Sequence[tuple[int, Submit]],
    cancels: Iterable[tuple[int, int]] = (),
    slots: int = 32,
    prefill_rows: int = 8,
) -> tuple[dict[int, list[int]], int]:
    """Run all of them through one engine: each submitted and each cancelled in its turn. Return their tokens,
    and the most that ran together."""
    backend = tiny.backend(max_slots=slots, prefill_chunk_tokens=_CHUNK, prefill_rows=prefill_rows)
    loop = EngineLoop(backend, slots, PrefillPace(512))
    tokens: dict[int, list[int]] = {submit.request_id: [] for _, submit in arrivals}
    last_turn = max(turn for turn, _ in arrivals)
    most, turn = 0, 0
    while turn <= last_turn or not loop.idle:
        commands: list[ToEngine] = [submit for at, submit in arrivals if at == turn]
        commands += [Cancel(request_id) for at, request_id in cancels if at == turn]
        for output in loop.iterate(commands):
            assert isinstance(output, StepOutput)
            most = max(most, output.counters.running)
            for token in output.tokens:
                tokens[token.request_id].append(token.token)
            assert all(retired.reason in ("length", "cancelled") for retired in output.retired)
        turn += 1
    assert kv_bytes(backend) == 0
    return tokens, most


def _greedy_requests(generator: random.Random, count: int = 20) -> list[Submit]:
    lengths = [*_EDGES, *(generator.randrange(1, 300) for _ in range(count - len(_EDGES)))]
    generator.shuffle(lengths)
    return [
        request(request_id, prompt_of(length, generator.randrange(1 << 20)), generator.randrange(1, 30))
        for request_id, length in enumerate(lengths)
    ]


def _mixed(generator: random.Random) -> Sampling:
    """Any mix of parameters; a quarter of the requests are greedy."""
    draw = generator.choice
    return Sampling(
        temperature=draw([0.0, 0.4, 1.0, 1.3]),
        top_p=draw([1.0, 0.95, 0.6]),
        top_k=draw([0, 0, 5, 40]),
        min_p=draw([0.0, 0.0, 0.05]),
        seed=generator.getrandbits(63),
        repetition_penalty=draw([1.0, 1.0, 1.2]),
        presence_penalty=draw([0.0, 0.0, 0.7]),
        frequency_penalty=draw([0.0, 0.0, 0.4]),
        logit_bias=draw([(), (), ((5, 4.0), (9, -100.0))]),
    )


def _mixed_requests(generator: random.Random, count: int = 20) -> list[Submit]:
    return [
        msgspec.structs.replace(submit, sampling=_mixed(generator), max_tokens=12)
        for submit in _greedy_requests(generator, count)
    ]


@pytest.mark.parametrize(
    ("seed", "slots", "prefill_rows"),
    [
        pytest.param(1, 32, 8, marks=pytest.mark.long),
        (2, 32, 3),
        (3, 9, 8),
        pytest.param(4, 32, 1, marks=pytest.mark.long),
    ],
)
def test_greedy_requests_are_exact(tiny: Tiny, seed: int, slots: int, prefill_rows: int) -> None:
    """20 greedy requests of mixed lengths that join and leave at random steps, with a slot for each or with
    few, get token for token what each gets alone."""
    generator = random.Random(seed)
    submits = _greedy_requests(generator)
    arrivals = [(generator.choice([0, generator.randrange(20)]), submit) for submit in submits]
    tokens, most = _together(tiny, arrivals, slots=slots, prefill_rows=prefill_rows)
    assert most >= min(slots, 12), "they were hardly together"
    for submit in submits:
        assert tokens[submit.request_id] == _by_itself(tiny, submit)


@pytest.mark.parametrize("seed", sampled([11, 12], [11]))
def test_cancels_of_others_change_nothing(tiny: Tiny, seed: int) -> None:
    """Half of them are cancelled at any moment, waiting, in prefill or decoding: the others get their tokens,
    and the cancelled ones the first of theirs."""
    generator = random.Random(seed)
    submits = _greedy_requests(generator)
    arrivals = [(generator.randrange(20), submit) for submit in submits]
    cancels = [(at + generator.randrange(25), submit.request_id) for at, submit in arrivals[::2]]
    tokens, _ = _together(tiny, arrivals, cancels, slots=generator.choice([8, 20]))
    cut = 0
    for submit in submits:
        alone = _by_itself(tiny, submit)
        if submit.request_id % 2:
            assert tokens[submit.request_id] == alone
        else:
            assert tokens[submit.request_id] == alone[: len(tokens[submit.request_id])]
            cut += len(tokens[submit.request_id]) < len(alone)
    assert cut >= 5, "the cancels came too late to mean anything"


@pytest.mark.parametrize("seed", sampled([21, 22], [21]))
def test_seeded_sampling_is_exact(tiny: Tiny, seed: int) -> None:
    """Sampled requests of every mix of parameters get among 19 others what they get alone, for any order of
    the batch and any moment of joining."""
    generator = random.Random(seed)
    submits = _mixed_requests(generator)
    expected = {submit.request_id: _by_itself(tiny, submit) for submit in submits}
    assert len({submit.sampling.temperature for submit in submits}) == 4
    shuffled = generator.sample(submits, len(submits))
    for order in (submits, shuffled):
        tokens, most = _together(tiny, [(0, submit) for submit in order])
        assert tokens == expected
        assert most == 20
    tokens, _ = _together(tiny, [(generator.randrange(15), submit) for submit in shuffled], slots=12)
    assert tokens == expected


def test_seeds_decide(tiny: Tiny) -> None:
    """The same prompt with 32 seeds gives 32 answers, and with equal seeds the same answer, in one batch.

    Admission gives a seed to a request without one, so unseeded requests rely on this too.
    """
    sampled = msgspec.structs.replace(GREEDY, temperature=1.0)
    prompt = prompt_of(20, 31)
    submits = [
        request(index, prompt, 12, sampling=msgspec.structs.replace(sampled, seed=index // 2))
        for index in range(32)
    ]
    tokens, _ = _together(tiny, [(0, submit) for submit in submits])
    assert all(tokens[index] == tokens[index + 1] for index in range(0, 32, 2))
    assert len({tuple(answer) for answer in tokens.values()}) == 16


def test_a_seed_s_first_tokens_do_not_depend_on_how_many_follow(tiny: Tiny) -> None:
    """Random numbers belong to a position: a longer answer begins with the shorter one."""
    sampled = msgspec.structs.replace(GREEDY, temperature=1.0, seed=5)
    long = request(1, prompt_of(10, 32), 20, sampling=sampled)
    short = msgspec.structs.replace(long, request_id=2, max_tokens=7)
    tokens, _ = _together(tiny, [(0, long), (3, short)])
    assert tokens[1][:7] == tokens[2]


def test_the_penalties_and_the_bias_are_felt(tiny: Tiny) -> None:
    """A request whose parameters do nothing would pass every test above."""
    liking_77 = msgspec.structs.replace(GREEDY, logit_bias=((77, 9.0),))
    replace = msgspec.structs.replace
    ways = [
        liking_77,
        replace(liking_77, repetition_penalty=1.5),
        replace(liking_77, presence_penalty=2.0),
        replace(liking_77, frequency_penalty=2.0),
        replace(liking_77, logit_bias=((77, 100.0),)),
        replace(liking_77, temperature=1.0),
    ]
    prompt = prompt_of(30, 33)
    submits = [request(at, prompt, 24, sampling=sampling) for at, sampling in enumerate(ways)]
    tokens, _ = _together(tiny, [(0, submit) for submit in submits])
    assert tokens[4] == [77] * 24
    assert len({tuple(answer) for answer in tokens.values()}) == len(ways)


@pytest.mark.usefixtures("device_of_its_own")
def test_a_device_of_its_own_says_the_same(tiny: Tiny) -> None:
    """Greedy and sampled requests that join and leave, where nothing is computed on the host."""
    generator = random.Random(31)
    submits = [*_greedy_requests(generator, 10), *_mixed_requests(generator)[12:]]
    arrivals = [(generator.randrange(15), submit) for submit in submits]
    tokens, _ = _together(tiny, arrivals, slots=12)
    for submit in submits:
        assert tokens[submit.request_id] == _by_itself(tiny, submit)


def test_prompts_of_several_batches_are_exact(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts that arrive while long ones are prefilled, and end before them; one long one leaves."""
    seen: list[int] = []
    compute = PrefillBatch.compute

    def counted(batch: PrefillBatch, tokens: Mapping[Row, int]) -> list[PromptLogprobsOut]:
        lengths = [row.sequence.computed_tokens for row in batch.rows]
        assert max(lengths) - min(lengths) <= max(48, min(lengths)), "a row is padded by more than it may be"
        seen.append(max(lengths))
        return compute(batch, tokens)

    monkeypatch.setattr(PrefillBatch, "compute", counted)
    lengths = {1: 1500, 2: 700, **{number: 40 + 7 * number for number in range(3, 12)}}
    submits = {one: request(one, prompt_of(length, one), 6) for one, length in lengths.items()}
    arrivals = [(0 if number < 3 else 6 + number, submit) for number, submit in submits.items()]
    tokens, _ = _together(tiny, arrivals, cancels=[(16, 2)])
    assert seen != sorted(seen), "no batch passed another"
    for number, submit in submits.items():
        assert tokens[number] == ([] if number == 2 else _by_itself(tiny, submit))
