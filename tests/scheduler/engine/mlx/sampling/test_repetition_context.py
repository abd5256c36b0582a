"""`repetition_context_size`: the tokens are those of mlx-lm's own processor, beside any other row."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.generate import generate_step
from mlx_lm.sample_utils import make_logits_processors, make_repetition_penalty

from scheduler.engine import memory
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.device import METAL, X86, forced
from scheduler.engine.mlx.sampling.draw import gumbel
from scheduler.engine.mlx.sampling.graph_chooser import GraphChooser
from scheduler.engine.mlx.sampling.host_chooser import HostChooser
from scheduler.engine.mlx.sampling.row_sampling import RowSampling
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import Sampling, StepOutput, Submit
from tests.contracts.journal import GREEDY, prompt_of, request
from tests.examples import examples
from tests.scheduler.engine.mlx.conftest import Tiny

_replace = msgspec.structs.replace
VOCABULARY = 16
WINDOWS = [0, 1, 2, 5, 20, 1000]
"""0 is the whole context, as mlx-lm's slice has it."""


@pytest.fixture(params=["host", "graph"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """The chooser of this test, whatever the processor."""
    with forced(X86 if request.param == "host" else METAL):
        yield request.param


_tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


@given(
    prompt=_tokens,
    output=st.lists(st.integers(0, VOCABULARY - 1), max_size=6),
    context=st.integers(0, 9),
    penalty=st.sampled_from([1.3, 0.5, 7.0]),
    seed=st.integers(0, 99),
    on_host=st.booleans(),
    rebuilt=st.booleans(),
)
@settings(deadline=None, max_examples=examples(150))
def test_each_steps_logits_are_mlx_lms(
    prompt: list[int],
    output: list[int],
    context: int,
    penalty: float,
    seed: int,
    on_host: bool,
    rebuilt: bool,
) -> None:
    """Beside rows with another window and none, from the middle of an answer, and when the batch changes."""
    params = Sampling(temperature=0.0, repetition_penalty=penalty, repetition_context=context)
    others = [GREEDY, _replace(params, repetition_context=0), _replace(params, repetition_context=3)]
    rows = [RowSampling(one, VOCABULARY, prompt, output, on_host=on_host) for one in (params, *others)]
    chooser = HostChooser(rows) if on_host else GraphChooser(rows, gumbel)
    processor = make_repetition_penalty(penalty, context)
    said = [*prompt, *output]
    for step in range(8):
        logits = mx.random.normal((1, VOCABULARY), key=mx.random.key(seed + step))
        expected = processor(mx.array(said), mx.array(logits))
        chosen = chooser(mx.repeat(logits, len(rows), axis=0), mx.array([said[-1]] * len(rows)))
        assert int(chosen.tokens[0]) == mx.argmax(expected).item()
        assert float(chosen.scores[0]) == mx.max(expected).item()
        said.append(int(chosen.tokens[0]))
        for row in rows:
            row.position += 1
        if rebuilt and step == 3:
            chooser.leave()
            rows = [rows[0], rows[2]]
            chooser = HostChooser(rows) if on_host else GraphChooser(rows, gumbel)


def _alone(tiny: Tiny, submit: Submit) -> list[int]:
    """mlx-lm's own loop and processors. Checks that no token was decided by rounding."""
    sampling, prompt, tokens = submit.sampling, submit.prompt.tolist(), list[int]()
    key = (tuple(prompt), submit.max_tokens, sampling.repetition_penalty, sampling.repetition_context)
    if key in _ALONE:
        return _ALONE[key]
    processors = make_logits_processors(
        repetition_penalty=sampling.repetition_penalty, repetition_context_size=sampling.repetition_context
    )
    for token, logprobs in generate_step(
        mx.array(prompt), tiny.model, max_tokens=submit.max_tokens, logits_processors=processors
    ):
        first, second = sorted(logprobs.tolist())[:-3:-1]
        assert first - second > 1e-4
        tokens.append(token)
    _ALONE[key] = tokens
    return tokens


_ALONE: dict[tuple[tuple[int, ...], int, float, int], list[int]] = {}


def _served(
    tiny: Tiny, submits: list[Submit], budget_tokens: int = 1 << 20
) -> tuple[list[list[int]], int, int]:
    """The tokens of each, how many were prefix hits, and how often one was preempted."""
    budget_bytes = budget_tokens * (tiny.ready.kv_bytes_per_token + 4)
    loop = EngineLoop(tiny.backend(max_slots=16, kv_cache_bytes=budget_bytes), 16, PrefillPace(256))
    tokens = {submit.request_id: list[int]() for submit in submits}
    cached, preemptions = dict.fromkeys(tokens, 0), 0
    arriving = [submits[:1], submits[1:]]
    while arriving or not loop.idle:
        for frame in loop.iterate(arriving.pop(0) if arriving and (loop.idle or len(arriving) == 2) else []):
            assert isinstance(frame, StepOutput)
            for token in frame.tokens:
                tokens[token.request_id].append(token.token)
            for prefill in frame.prefills:
                cached[prefill.request_id] = prefill.cached
            preemptions = frame.counters.preemptions
            assert all(retired.reason == "length" for retired in frame.retired)
    return list(tokens.values()), sum(cached.values()), preemptions


def _asked(number: int, prompt: list[int], tokens: int, penalty: float, context: int) -> Submit:
    sampling = _replace(GREEDY, repetition_penalty=penalty, repetition_context=context)
    return _replace(request(number, prompt, tokens), sampling=sampling)


def test_a_batch_and_a_prefix_hit_give_mlx_lms_tokens(tiny: Tiny, way: str) -> None:
    """Each row with a window of its own, the others behind the first one's prompt."""
    shared = prompt_of(120, 4)
    submits = [
        _asked(number, [*shared, *prompt_of(5, number)], 24, 1.3 + 0.1 * number, context)
        for number, context in enumerate(WINDOWS, 1)
    ]
    tokens, cached, _ = _served(tiny, submits)
    assert tokens == [_alone(tiny, submit) for submit in submits]
    assert cached >= 100 * (len(submits) - 1)


def test_preempted_rows_give_mlx_lms_tokens(tiny: Tiny, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reserved for answers, so that short ones outgrow the budget."""
    monkeypatch.setattr(memory, "GROWTH_TOKENS", 1)
    submits = [_asked(number, prompt_of(30, number), 40, 1.4, 20) for number in range(1, 7)]
    tokens, _, preemptions = _served(tiny, submits, 3 * 70)
    assert preemptions > 0
    assert tokens == [_alone(tiny, submit) for submit in submits]


def test_a_window_as_long_as_the_answer_can_become_costs_no_memory(tiny: Tiny, way: str) -> None:
    """No token ever leaves it: it is the whole context."""
    huge, whole = (_asked(1, prompt_of(30, 2), 12, 1.5, context) for context in (2**31 - 1, 0))
    assert _served(tiny, [huge]) == _served(tiny, [whole])
