"""Modules of mlx-lm that are for one row are right for many once mended; the faults are still in mlx-lm.

No code of ours but `mend`: mlx-lm's own caches merge the rows, pad a chunk, and let others join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.upstream.mend import mend
from tests.examples import examples
from tests.scheduler.engine.mlx.sampling.row_sampler import uncompiled
from tests.scheduler.engine.mlx.zoo.census import build
from tests.scheduler.engine.mlx.zoo.engine import words

MENDED = {
    "gemma2": "raises: a mask of several rows is taken for one of several heads",
    "llama4": "raises: `ChunkedKVCache` has no `merge`",
    "minimax_m3_vl": "differs: sparse blocks are counted from the first column, padding included",
}
"""Modules that are mended, and what mlx-lm 0.32.2 does with rows of different lengths: for a report."""
_LENGTHS = (70, 1, 3)
"""These rows begin together: more blocks and chunks than a query may attend to, and less than an n-gram."""
_JOINING = (2, 45, 1)
_ROUNDING = 1e-4


@pytest.fixture(scope="module", autouse=True)
def _without_a_compiler() -> Iterator[None]:
    """The faults are not in activations, for each of which MLX's CPU calls a C++ compiler."""
    with uncompiled():
        yield


@cache
def _model(name: str, ours: bool) -> Any:
    model, _ = build(name)
    return mend(model) if ours else model


@dataclass(slots=True)
class _Rows:
    """Rows of a batch in caches of mlx-lm, with their prompts computed but for the last token."""

    model: Any
    prompts: Sequence[Sequence[int]]
    caches: list[Any]

    @classmethod
    def begin(cls, model: Any, prompts: Sequence[Sequence[int]]) -> _Rows:
        alone = zip(*(make_prompt_cache(model) for _ in prompts), strict=True)
        rows = cls(model, prompts, [layers[0].merge(layers) for layers in alone])
        rows._prefill()
        return rows

    def _prefill(self) -> None:
        lengths = [len(prompt) - 1 for prompt in self.prompts]
        if min(lengths) < 1:
            assert max(lengths) < 1, "rows without a chunk join later"
            return
        padding = [max(lengths) - length for length in lengths]
        for layer in self.caches:
            layer.prepare(lengths=lengths, right_padding=padding)
        chunks = [[*prompt[:-1], *[0] * more] for prompt, more in zip(self.prompts, padding, strict=True)]
        self.model(mx.array(chunks), cache=self.caches)
        for layer in self.caches:
            layer.finalize()

    def extend(self, others: _Rows) -> None:
        for layer, other in zip(self.caches, others.caches, strict=True):
            layer.extend(other)
        self.prompts = [*self.prompts, *others.prompts]

    def logits(self) -> mx.array:
        """(rows, 2, vocabulary): of the last token of each prompt, and of another one."""
        last = mx.array([[prompt[-1]] for prompt in self.prompts])
        steps = [self.model(last, cache=self.caches), self.model(last, cache=self.caches)]
        return mx.concatenate(steps, axis=1)


def _grouped(prompts: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Those with a chunk to compute, and those of one token."""
    halves = [[one for one in prompts if (len(one) == 1) is single] for single in (False, True)]
    return [half for half in halves if half]


def _together(model: Any, batches: Sequence[Sequence[Sequence[int]]]) -> tuple[mx.array, mx.array]:
    """Logits of all rows, of each batch that joins those before; and of each row alone."""
    rows: _Rows | None = None
    for prompts in (half for batch in batches for half in _grouped(batch)):
        more = _Rows.begin(model, prompts)
        if rows is None:
            rows = more
        else:
            rows.extend(more)
    assert rows is not None
    alone = [_Rows(model, [prompt], _alone(model, prompt)).logits() for prompt in rows.prompts]
    return rows.logits(), mx.concatenate(alone)


def _alone(model: Any, prompt: Sequence[int]) -> list[Any]:
    caches: list[Any] = make_prompt_cache(model)
    if len(prompt) > 1:
        model(mx.array([prompt[:-1]]), cache=caches)
    return caches


def _difference(found: mx.array, expected: mx.array) -> float:
    """Return the difference as a fraction of the largest finite logit; not a number is infinite."""
    apart = mx.where(found == expected, 0.0, mx.abs(found - expected))
    largest = mx.abs(mx.where(mx.isinf(expected), 0.0, expected)).max()
    difference = float(apart.max() / largest)
    return difference if difference == difference else float("inf")


def _prompts(lengths: Sequence[int], seed: int) -> list[list[int]]:
    return [words(length, seed + at) for at, length in enumerate(lengths)]


@pytest.mark.parametrize("name", MENDED)
def test_mlx_lm_still_has_the_fault(name: str) -> None:
    """Where this fails, mlx-lm has mended its module: ours goes, with its line in MENDED."""
    fault = MENDED[name]
    batches = [_prompts(_LENGTHS, 1), _prompts(_JOINING, 11)]
    if fault.startswith("raises"):
        with pytest.raises((AttributeError, TypeError, ValueError)):
            _together(_model(name, ours=False), batches)
    else:
        found, expected = _together(_model(name, ours=False), batches)
        assert _difference(found, expected) > 100 * _ROUNDING


@pytest.mark.parametrize("name", MENDED)
@settings(deadline=None, max_examples=examples(5))
@given(data=st.data())
def test_a_mended_module_gives_each_row_what_it_gives_alone(name: str, data: st.DataObject) -> None:
    """Whatever the rows' lengths, and whichever join."""
    lengths = st.lists(st.integers(1, 80), min_size=1, max_size=3)
    batches = [_prompts(data.draw(lengths), seed) for seed in (1, 11)]
    found, expected = _together(_model(name, ours=True), batches)
    assert _difference(found, expected) <= _ROUNDING
