"""The check at load: it finds what a model's module cannot do in a batch, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import pytest
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import quantize
from mlx_lm.utils import load_model

from scheduler.engine.mlx import load_check, loading
from scheduler.engine.mlx.batching import ONE_ROW, Batching
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.mlx.load_check import ModelUnusable
from scheduler.models.random_qwen3 import TINY, write_model
from tests.examples import sampled
from tests.scheduler.engine.mlx.conftest import Tiny
from tests.scheduler.engine.mlx.families import FAMILIES, random_model
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import FALLING_BACK, ReuseEngine, checked
from tests.scheduler.engine.mlx.zoo.census import SMALL, build


@pytest.mark.parametrize("family", sampled(sorted(FAMILIES), [*FALLING_BACK, "qwen3", "gpt_oss"]))
def test_each_family_falls_back_no_further_than_it_must(family: str) -> None:
    """What mlx-lm's module cannot do is found, and nothing is taken from the others."""
    assert checked(random_model(family), family) == FALLING_BACK.get(family, Batching())


Fault: TypeAlias = Callable[[mx.array, Any, mx.array], mx.array]
"""From a call's tokens, caches and logits to what the model returns instead."""


class _Faulty:
    """A model with a fault of its own in what it returns."""

    def __init__(self, model: Any, fault: Fault) -> None:
        self._model, self._fault = model, fault

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        return self._fault(tokens, cache, self._model(tokens, cache=cache))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _wrong_in_batches(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
    return logits * 1.1 if tokens.shape[0] > 1 else logits


def _nan_in_batches(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
    return logits * mx.nan if tokens.shape[0] > 1 else logits


def _raises_in_batches(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
    if tokens.shape[0] > 1:
        raise RuntimeError("one row only")
    return logits


@pytest.mark.parametrize("fault", [_wrong_in_batches, _nan_in_batches, _raises_in_batches])
def test_a_model_that_is_wrong_in_batches_runs_one_row_at_a_time(fault: Fault) -> None:
    """Whether it is a little wrong, not a number, or raises."""
    assert checked(_Faulty(random_model("qwen3", **SMALL), fault), "qwen3") == ONE_ROW


def _lagging(tokens: mx.array, cache: Any) -> bool:
    """Whether rows that decode end before others, because drafts were taken back."""
    if tokens.shape[1] > 1:
        return False
    return isinstance(cache[0], BatchRows) and bool(cache[0].geometry.lags)


def _wrong_where_rows_lag(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
    return logits * 1.1 if _lagging(tokens, cache) else logits


def _wrong_behind_a_draft(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
    """As of a model that takes its positions from the batch's end: the rows that lag are far from theirs."""
    if not _lagging(tokens, cache):
        return logits
    lags = mx.array(cache[0].geometry.lags)[:, None, None]
    return mx.where(lags > 0, logits[..., ::-1], logits)


@pytest.mark.parametrize("fault", [_wrong_where_rows_lag, _wrong_behind_a_draft])
def test_a_model_that_is_wrong_with_drafts_only_has_none(fault: Fault) -> None:
    """All the rest of the batch is its own, and no draft is asked for."""
    model = _Faulty(random_model("qwen3", **SMALL), fault)
    assert checked(model, "qwen3") == Batching(drafts=False)
    engine = ReuseEngine(model, f"qwen3, {fault.__name__}")
    assert not engine.backend.facts.verifies


def test_what_the_check_costs() -> None:
    """A model call reads all weights, so calls are what a large model pays, and tokens what a chunk costs."""
    calls: list[int] = []

    def counted(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
        calls.append(tokens.size)
        return logits

    assert checked(_Faulty(random_model("qwen3", **SMALL), counted), "qwen3") == Batching()
    assert len(calls) <= 45
    assert sum(calls) <= 400


def test_rounding_of_many_layers_is_no_fault(tmp_path: Path) -> None:
    """36 layers of random weights on an H100 differed by 0.054 in batches, and fell back to one row at a
    time; what that differs by is the model's own rounding."""
    write_model(replace(TINY, layers=24, seed=3), tmp_path / "deep")
    model, _ = load_model(tmp_path / "deep", lazy=True)
    model.set_dtype(mx.bfloat16)
    assert checked(model, "qwen3") == Batching()


def test_padding_is_found_in_16_bits() -> None:
    """In nemotron_h it shows only behind a cached state: without prefixes the difference is like rounding."""
    model, model_type = build("nemotron_h")
    model.set_dtype(mx.bfloat16)
    assert checked(model, model_type).fallbacks == ("equal_chunks",)


def test_rounding_that_logits_do_not_show_is_none_either() -> None:
    """Packed embeddings hand on bfloat16, and float32 norms make float32 logits of it."""
    model = random_model("qwen3", **SMALL)
    quantize(model, 32, 4, mode="mxfp4", class_predicate=lambda _, module: isinstance(module, Embedding))

    def widened(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
        return logits.astype(mx.float32)

    assert checked(_Faulty(model, widened), "qwen3") == Batching()


@pytest.mark.parametrize("weights", sampled(["bfloat16", "affine4", "mxfp4"], ["affine4"]))
def test_a_fault_is_found_in_any_weights(weights: str) -> None:
    """Rounding hides no fault: all rows but the first have their logits in reverse."""
    model, model_type = build(f"qwen3@{weights}", **SMALL)

    def fault(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
        return mx.concatenate([logits[:1], logits[1:, :, ::-1]])

    assert checked(_Faulty(model, fault), model_type) == ONE_ROW


def test_a_model_that_fails_alone_as_well_is_refused() -> None:
    """With the cause, before anything is served."""

    def raises(tokens: mx.array, cache: Any, logits: mx.array) -> mx.array:
        if tokens.size > 1:
            raise RuntimeError("no chunk can be computed")
        return logits

    with pytest.raises(ModelUnusable, match="no chunk can be computed"):
        checked(_Faulty(random_model("qwen3", **SMALL), raises), "qwen3")


def _count_checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each check."""
    checks: list[int] = []
    whole = load_check.check

    def counted(*args: Any, **options: Any) -> Batching:
        checks.append(1)
        return whole(*args, **options)

    monkeypatch.setattr(loading, "check", counted)
    return checks


def test_a_verdict_is_kept(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model's configuration and the software: the next load does not check again, a load with other
    weights types does, and a damaged file counts as none."""
    checks = _count_checks(monkeypatch)

    def load(**changes: Any) -> tuple[str, ...]:
        command = load_of(tiny.folder, cache_folder=str(tmp_path / "verdicts"), **changes)
        return loading.load(command, lambda stage: None).describe().fallbacks

    assert load() == load() == ()
    assert len(checks) == 1
    load(weights_dtype="bfloat16")
    assert len(checks) == 2
    for file in (tmp_path / "verdicts" / "load-checks").iterdir():
        file.write_text("{")
    load()
    assert len(checks) == 3
