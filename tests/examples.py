"""How much of a rule a run tries: `make test-all` as much as finds a planted fault, the gate a part of it
(`EXAMPLES` below 1), `make test-long` more (above 1), and all cases."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
_PART = float(os.environ.get("EXAMPLES", "1"))
_LEAST_CASES = 3


def examples(usual: int) -> int:
    """Return Hypothesis' `max_examples`. `usual` is what finds a planted fault within a run of CI, whose
    minutes all tests share."""
    return max(1, round(usual * _PART))


def is_long_run() -> bool:
    return _PART > 1


def some(cases: Iterable[T]) -> list[T]:
    """Return the cases that one test tries in turn: all, or in the gate a part of them."""
    return list(cases)[:: max(1, round(1 / _PART))]


def sampled(cases: Iterable[Any], sample: Sequence[Any]) -> list[Any]:
    """Return the cases of one rule as parameters: those of the sample are tried in every run, the others are
    `long`. The gate tries the beginning of the sample."""
    cases = list(cases)
    assert set(sample) <= set(cases), "the sample has what is no case"
    tried = sample[: max(_LEAST_CASES, ceil(len(sample) * min(1.0, _PART)))]
    return [case if case in tried else pytest.param(case, marks=pytest.mark.long) for case in cases]
