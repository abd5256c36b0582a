"""Every model that mlx-lm can run: the same tokens in a batch as alone. A sample; `make zoo` checks all."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from scheduler.shared.messages import KvCacheDtype
from tests.examples import sampled
from tests.scheduler.engine.mlx.zoo.__main__ import unexpected
from tests.scheduler.engine.mlx.zoo.alone import ROUNDING, TIE, Answer, difference
from tests.scheduler.engine.mlx.zoo.census import (
    ENTRIES,
    NO_MODELS,
    NOT_BUILT,
    SMALL,
    build,
    module_of,
    modules,
    names,
)
from tests.scheduler.engine.mlx.zoo.check import Trial, Verdict
from tests.scheduler.engine.mlx.zoo.faults import FALLBACKS, FAULTS
from tests.scheduler.engine.mlx.zoo.kinds import KINDS
from tests.scheduler.engine.mlx.zoo.tiny import wide_heads
from tests.scheduler.engine.mlx.zoo.weights import in_weights

SAMPLE = [
    "qwen3",  # keys and values of every token, shared in place
    "deepseek_v3",  # a latent form of them, copied to each row
    "gpt_oss",  # sliding windows beside full attention, and experts
    "rwkv7",  # recurrent layers only, through which padding runs
    "qwen3_next",  # recurrent layers beside full attention
    "mistral3+windows",  # windows that are in the mask only
    "gemma2",  # a bound on scores in attention of its own
    "llama4",  # chunks of attention that are in the mask only, and copied prefixes
]
"""One of each kind of cache, and of each kind of fault that shows soon. One row a model call is in
`test_meetings.py`: it takes as long as five of these."""
_EVERY_RUN = "gemma2"
"""The kind that the samples in `test_meetings.py` and below have not; `make test-long` has all."""


_PACKED = [*(name for name in KINDS if name not in ("rwkv7", "deepseek_v41")), "gemma2"]
"""Without those that have nothing to pack: recurrent states only, and one row a model call."""


def _param(name: str) -> Any:
    cause = FAULTS.get(name)
    marks = [pytest.mark.xfail(reason=cause, strict=True)] if cause else []
    return pytest.param(name, marks=marks if name == _EVERY_RUN else [*marks, pytest.mark.long])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [_param(name) for name in SAMPLE])
def test_a_model_has_the_same_tokens_in_a_batch_as_alone(name: str) -> None:
    """Alone, joining, behind a prefix that is new and one that is known, in a second turn, resumed."""
    model, model_type = build(name, **(SMALL if name == _EVERY_RUN else {}))
    verdict = Trial(model, model_type).verdict()
    assert verdict.outcome == "right", verdict.scenes
    assert verdict.distinct > 40, "answers that vary too little to be a test"
    assert verdict.fallbacks == FALLBACKS.get(name, ((), ""))[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    sampled(
        [(name, packing) for name in _PACKED for packing in ("q8", "k8v4", "q4")],
        [("deepseek_v3", "q4")],
    ),
    ids="-".join,
)
def test_a_model_that_packs_keys_and_values_says_in_a_batch_what_it_says_alone(
    case: tuple[str, KvCacheDtype],
) -> None:
    """Within what packing changes, in the same scenes: the rule that 16 bits are held to. What is left of it
    is that a last bit decides which of two codes a number gets."""
    name, kv_cache_dtype = case
    with wide_heads():
        model, model_type = build(name, **(SMALL if name == "deepseek_v3" else {}))
    trial = Trial(model, model_type, kv_cache_dtype=kv_cache_dtype)
    verdict = trial.verdict()
    assert verdict.outcome == "right", verdict.scenes
    assert verdict.distinct > 40, "answers that vary too little to be a test"
    assert verdict.fallbacks == FALLBACKS.get(name, ((), ""))[0]


def test_every_module_of_mlx_lm_is_there_or_listed() -> None:
    listed = NO_MODELS.keys() | NOT_BUILT.keys()
    assert listed <= set(modules()), "a module is gone"
    assert set(modules()) == listed | {module_of(name) for name in names()}


@pytest.mark.parametrize("part", sampled(range(8), [3]))
def test_every_module_of_mlx_lm_is_built(part: int) -> None:
    """A release of mlx-lm with a module whose configuration cannot be made up from its fields fails here:
    it needs an entry, or a reason."""
    unknown = {}
    for name in names()[part::8]:
        try:
            build(name)
        except Exception as error:  # Whatever a module raises that finds no name or no size for a field.
            unknown[name] = f"{type(error).__name__}: {error}"
    assert not unknown, "modules that cannot be built"


def test_entries_and_faults_are_of_modules_that_are_there() -> None:
    assert {module_of(name) for name in ENTRIES} <= set(modules())
    assert FAULTS.keys() <= {*names(), *in_weights()}


@pytest.mark.parametrize("name", ["recurrent_gemma", "rwkv7", "gpt_oss"])
def test_no_part_of_a_model_is_zero(name: str) -> None:
    """What is zero hides what is done with its input: `conv_1d` of recurrent_gemma is made as zeros."""
    model, _ = build(name)
    parameters = dict(tree_flatten(model.parameters()))
    assert not [path for path, value in parameters.items() if not mx.any(value).item()]


def test_each_verdict_is_held_against_the_known_faults() -> None:
    """A new fault surprises as one that is mended does, and so does a fallback."""
    known = "plamo3"
    fallbacks = FALLBACKS[known][0]
    right, wrong = {"joins": "right"}, {"alone": "right", "joins": "wrong tokens: token 3"}
    faulty = Verdict(wrong, fallbacks=fallbacks)
    assert unexpected({"qwen3": Verdict(right), known: faulty}) == []
    assert unexpected({"qwen3": Verdict(wrong), known: Verdict(right, fallbacks=fallbacks)}) == [
        "qwen3",
        known,
    ]
    assert unexpected({"qwen3": Verdict(right, fallbacks=("one_row",)), known: faulty}) == ["qwen3"]


def _answer(count: int) -> Answer:
    generator = random.Random(count)
    return Answer([generator.randrange(300) for _ in range(count)], [-1.0] * count, [0.5] * count)


def test_a_difference_is_found_but_for_a_tie() -> None:
    """Another token, another probability, too few tokens; after a tie an answer may go its own way."""
    expected = _answer(6)
    assert difference(expected, expected) is None
    assert "only 4 of 6" in (difference(_answer_of(expected, 4), expected) or "")
    other = _answer_of(expected, 6)
    other.tokens[3] += 1
    assert "token 3 of 6" in (difference(other, expected) or "")
    expected.leads[3] = TIE / 2
    assert difference(other, expected) is None
    likelier = _answer_of(expected, 6)
    likelier.logprobs[2] += 2 * ROUNDING
    assert "wrong logits: token 2" in (difference(likelier, expected) or "")


def _answer_of(answer: Answer, count: int) -> Answer:
    return Answer(answer.tokens[:count], answer.logprobs[:count], answer.leads[:count])
