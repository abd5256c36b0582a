"""How many examples a costly property is given: few in every run, more by `make test EXAMPLES=5`."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """Return Hypothesis' `max_examples`. `usual` is what finds a planted fault within a run of CI, whose
    twenty minutes all tests share."""
    return usual * int(os.environ.get("EXAMPLES", "1"))
