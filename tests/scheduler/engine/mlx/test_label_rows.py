"""Log-probabilities of labels are the model's own: in a batch, behind hits, after preemption, in 16 bits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.quantized import quantize

from scheduler.engine.mlx.label_rows import LabelHead
from scheduler.engine.plan import StepPlan
from scheduler.shared.messages import Submit
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import FAMILIES, ONE_OF_EACH_KIND, random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

COMMON = words(30, 1)
LABELS = ((5, 250, 7), (7, 0), (299, 5, 100, 2))


def expected(model: Any, submit: Submit) -> Any:
    """mlx-lm's model on the whole prompt at once, without a cache."""
    logits = model(mx.array([submit.prompt.tolist()]))[0, -1].astype(mx.float32)
    total = mx.logsumexp(logits)
    return np.append(np.array(logits - total)[list(submit.labels)], total.item())


def check(engine: ReuseEngine, submit: Submit, most: float = 2e-5) -> None:
    heard = engine.heard[submit.request_id]
    assert heard.retired is not None
    assert (heard.retired.reason, heard.tokens) == ("pooled", [])
    found = np.frombuffer(heard.retired.vector, "<f4")
    assert found == pytest.approx(expected(engine.model, submit), abs=most)


@pytest.mark.parametrize("family", sampled(sorted(FAMILIES), list(ONE_OF_EACH_KIND)))
def test_they_are_those_of_the_whole_prompt(family: str) -> None:
    """Questions behind one state, twice, beside rows that write: nobody's numbers or tokens change."""
    engine = engine_of(family)
    for _ in range(2):
        writing = [engine.submit(words(9, 70)), engine.submit(COMMON + words(2, 71))]
        asking = [
            engine.submit(COMMON + words(1 + 4 * at, 40 + at), labels=labels)
            for at, labels in enumerate(LABELS)
        ]
        engine.iterate([writing[0], *asking, writing[1]])
        engine.finish()
        for submit in writing:
            engine.check(submit)
        for submit in asking:
            check(engine, submit, 1e-4)


def test_questions_share_their_state_and_hold_up_no_stream() -> None:
    """64 of 30 tokens behind a state of 4,000: the state is computed once. Beside them a row that writes gets
    its token in each step, and no step computes more than one of a prompt does."""
    state, asked, most = words(4000, 1), 64, 256
    engine = engine_of("qwen3", max_slots=16, prefill_chunk_tokens=most)
    writing = engine.submit(words(9, 70), max_tokens=500)
    engine.iterate([writing])
    while not (written := engine.heard[writing.request_id].tokens):
        engine.iterate()
    asking = [engine.submit(state + words(30, 90 + at), labels=(1, 2)) for at in range(asked)]
    computed, before = [engine.prefilled_tokens], len(written)
    engine.iterate(asking)
    while any(engine.heard[one.request_id].retired is None for one in asking):
        engine.iterate()
        computed.append(engine.prefilled_tokens)
    steps = len(computed)
    assert len(written) - before == steps
    assert max(after - one for one, after in pairwise(computed)) <= most
    own = computed[-1] - computed[0] - len(state)
    assert asked * 29 <= own <= asked * 30
    assert sum(engine.heard[one.request_id].cached >= len(state) - 1 for one in asking) == asked - 1


@pytest.mark.parametrize("after_steps", [0, 1, 3])
def test_a_preempted_question_is_answered(after_steps: int) -> None:
    engine = engine_of("qwen3")
    submit = engine.submit(words(40, 4), labels=(3, 4))
    engine.iterate([submit])
    for _ in range(after_steps):
        engine.iterate()
    (sequence,) = list(engine.loop._slots)
    engine.loop._step(StepPlan(preempt=(sequence.request_id,)))
    engine.finish()
    check(engine, submit)


def test_a_label_outside_the_vocabulary_is_refused() -> None:
    engine = engine_of("qwen3")
    submit = engine.submit(words(4, 4), labels=(300,))
    engine.iterate([submit])
    retired = engine.heard[submit.request_id].retired
    assert retired is not None
    assert retired.reason == "refused"


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(
    ("family", "changes", "cap"),
    [("qwen3", {"tie_word_embeddings": tied}, None) for tied in (False, True)] + [("gemma2", {}, 30.0)],
)
def test_a_head_of_16_bits_is_multiplied_in_float32(
    family: str, changes: dict[str, Any], cap: float | None, quantised: bool
) -> None:
    """By the hidden state of 16 bits, and with the soft cap behind the head. Nothing else changes."""
    model = random_model(family, **changes)
    if quantised:
        quantize(model, group_size=32, bits=4)
    model.set_dtype(mx.bfloat16)
    prompt, labels = mx.array([words(12, 3)]), [5, 250, 7]
    before = model(prompt)
    (scores,) = LabelHead(model)(prompt, None, [labels])
    assert mx.array_equal(model(prompt), before), "the head stays as it was"
    whole = before[0, -1].astype(mx.float32)
    exact = model.model(prompt)[0, -1].astype(mx.float32) @ _float32_head(model)[mx.array(labels)].T
    exact = exact if cap is None else mx.tanh(exact / cap) * cap
    found, total = np.array(scores)[:-1], np.array(scores)[-1]
    assert found + total == pytest.approx(np.array(exact), abs=1e-4)
    assert found - found[0] == pytest.approx(np.array(exact - exact[0]), abs=1e-5)
    assert found == pytest.approx(np.array(exact - mx.logsumexp(whole)), abs=1e-2)
    narrow = whole[mx.array(labels)]
    assert found - found[0] != pytest.approx(np.array(narrow - narrow[0]), abs=1e-4)


def _float32_head(model: Any) -> Any:
    head = getattr(model, "lm_head", None) or model.model.embed_tokens
    if "scales" not in head:
        return head.weight.astype(mx.float32)
    scales, biases = head.scales.astype(mx.float32), head.biases.astype(mx.float32)
    return mx.dequantize(head.weight, scales, biases, head.group_size, head.bits)
