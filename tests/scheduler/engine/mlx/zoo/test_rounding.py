"""16-bit and quantised weights: the same tokens in a batch as alone, but where rounding decides. A sample;
`make zoo` checks all kinds in all weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import create_causal_mask, make_prompt_cache

from scheduler.engine.mlx.kv.batch_rows import BatchRows
from tests.contracts.journal import GREEDY, request
from tests.examples import sampled
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.zoo.alone import Answer
from tests.scheduler.engine.mlx.zoo.census import ENTRIES, SMALL, build, build_exact, modules
from tests.scheduler.engine.mlx.zoo.check import Trial, words
from tests.scheduler.engine.mlx.zoo.faults import FALLBACKS
from tests.scheduler.engine.mlx.zoo.rounding import FAR, NEAR, Rule, logprobs_alone
from tests.scheduler.engine.mlx.zoo.weights import KINDS, REFUSED, WEIGHTS, base_of, in_weights

SAMPLE = ["qwen3@affine4", "gemma3_text@bfloat16", "qwen3_5@mxfp4"]
"""`make test-all` has the one without quantised weights, and plants faults in those."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sampled(SAMPLE, ["gemma3_text@bfloat16"]))
def test_a_batch_is_within_rounding_of_the_model_alone(name: str) -> None:
    """Tolerance: the rule of `rounding.py`, in every scene."""
    changes = SMALL if name == SAMPLE[1] else {}
    model, model_type = build(name, **changes)
    verdict = Trial(model, model_type, build_exact(name, **changes)).verdict()
    assert verdict.outcome == "right", verdict.scenes
    assert verdict.fallbacks == FALLBACKS.get(base_of(name), ((), ""))[0]


def _padding_seen(rows: Any, tokens: int, return_array: bool = False, **kwargs: Any) -> mx.array:
    """Every padded row sees the last column of its padding."""
    left_padding = mx.maximum(rows._geometry.left_padding - 1, 0)
    mask: mx.array = create_causal_mask(tokens, offset=rows._private.end, left_padding=left_padding, **kwargs)
    return mask


def _shifted(offsets: Callable[[Any], mx.array]) -> property:
    """The last of several rows is one position further."""

    def further(rows: Any) -> mx.array:
        found = offsets(rows)
        return found + (mx.arange(found.size) == found.size - 1) if found.size > 1 else found

    return property(further)


@pytest.mark.parametrize("name", sampled(["qwen3@bfloat16", "qwen3@affine4"], ["qwen3@affine4"]))
@pytest.mark.parametrize("fault", ["padding", "position"])
def test_a_planted_fault_is_found(name: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more token attended to, or one position: by the rule in a batch, and by the check at load."""
    model, model_type = build(name, **SMALL)
    trial = Trial(model, model_type, build_exact(name, **SMALL))
    assert trial.played("joins") == "right"
    if fault == "padding":
        monkeypatch.setattr(BatchRows, "make_mask", _padding_seen)
    else:
        monkeypatch.setattr(BatchRows, "offset", _shifted(BatchRows.offset.fget))  # type: ignore[attr-defined]
    assert trial.played("joins").startswith("wrong")
    assert checked(model, model_type).fallbacks == ("one_row",)


_PROMPT = words(50, 3)


@pytest.fixture(scope="module")
def alone() -> tuple[Rule, Answer]:
    """A rule over a model in bfloat16, and its own greedy answer of 6 tokens."""
    model = build("qwen3@bfloat16")[0]
    tokens: list[int] = []
    for _ in range(6):
        tokens.append(int(mx.argmax(logprobs_alone(model, [*_PROMPT, *tokens], [0])[-1])))
    scores = logprobs_alone(model, _PROMPT, tokens)
    logprobs = [float(scores[at, token]) for at, token in enumerate(tokens)]
    return Rule(model, build_exact("qwen3@bfloat16")), Answer(tokens, logprobs)


_ASKED = request(1, _PROMPT, 6, sampling=GREEDY)


def _off(answer: Answer, differences: list[float]) -> Answer:
    logprobs = [one + other for one, other in zip(answer.logprobs, differences, strict=True)]
    return Answer(list(answer.tokens), logprobs)


def test_what_the_rule_allows_and_what_not(alone: tuple[Rule, Answer]) -> None:
    """Its three parts, each at its bound."""
    rule, answer = alone
    error = rule.error
    assert rule.difference(answer, _ASKED) is None
    assert rule.difference(_off(answer, [0.9 * FAR * error, 0, 0, 0, 0, 0]), _ASKED) is None
    assert rule.difference(_off(answer, [0.9 * NEAR * error] * 6), _ASKED) is None
    assert "an answer" in (rule.difference(_off(answer, [1.1 * NEAR * error] * 6), _ASKED) or "")
    assert "token 2" in (rule.difference(_off(answer, [0, 0, 1.1 * FAR * error, 0, 0, 0]), _ASKED) or "")
    assert "token 1" in (rule.difference(_off(answer, [0, math.nan, 0, 0, 0, 0]), _ASKED) or "")
    assert "5 of 6" in (rule.difference(Answer(answer.tokens[:5], answer.logprobs[:5]), _ASKED) or "")


def test_another_token_is_allowed_only_next_to_the_best(alone: tuple[Rule, Answer]) -> None:
    """By the scores of the model alone: the first token that is further behind is wrong, however well its
    log-probability is reported."""
    rule, answer = alone
    (scores,) = logprobs_alone(rule.model, _PROMPT, answer.tokens[:1])
    best = float(scores.max())
    order: list[int] = mx.argsort(-scores).tolist()  # type: ignore[assignment]
    far = next(token for token in order if best - float(scores[token]) > 2 * FAR * rule.error)
    asked = msgspec.structs.replace(_ASKED, max_tokens=1)
    for token, wrong in ((order[0], False), (far, True)):
        found = rule.difference(Answer([token], [float(scores[token])]), asked)
        assert (found is not None) == wrong, found


def test_what_is_refused_cannot_be_computed() -> None:
    """A later MLX that computes one of these fails here, and the entry must go."""
    for name in REFUSED:
        model, _ = build(name)
        with pytest.raises(RuntimeError, match="only supports float32"):
            mx.eval(model(mx.array([[1, 2, 3]]), cache=make_prompt_cache(model)))


def test_every_kind_of_cache_is_tried_in_all_weights() -> None:
    """Or refused with a reason."""
    assert {base_of(name) for name in in_weights()} == set(KINDS)
    assert len(in_weights()) + len(REFUSED) == len(KINDS) * len(WEIGHTS)
    assert set(KINDS) <= set(modules()) | set(ENTRIES)


@pytest.mark.parametrize("weights", ["affine8", "affine4", "mxfp4", "nvfp4"])
def test_quantised_weights_are_packed(weights: str) -> None:
    """And embeddings as well, so that the model computes in bfloat16."""
    model, _ = build(f"qwen3@{weights}")
    parameters = dict(tree_flatten(model.parameters()))
    packed = [path for path, value in parameters.items() if value.dtype == mx.uint32]
    assert len(packed) == 4 * 7 + 1
    assert model(mx.array([[1]])).dtype == mx.bfloat16
    assert build_exact(f"qwen3@{weights}")(mx.array([[1]])).dtype == mx.float32
