"""How much of a costly property each run tries, and how much `make test-long`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def examples(usual: int) -> int:
    """Return Hypothesis' `max_examples`. `usual` is what finds a planted fault within a run of CI, whose
    minutes all tests share; `make test-long` tries as often as its EXAMPLES says."""
    return usual * int(os.environ.get("EXAMPLES", "1"))


def sampled(cases: Iterable[Any], sample: Collection[Any]) -> list[Any]:
    """Return the cases of one rule as parameters: those of the sample are tried in every run, the others are
    `long`."""
    cases = list(cases)
    assert set(sample) <= set(cases), "the sample has what is no case"
    return [case if case in sample else pytest.param(case, marks=pytest.mark.long) for case in cases]
