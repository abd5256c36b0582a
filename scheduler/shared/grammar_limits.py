"""Limits on the work of a grammar."""

from __future__ import annotations

from llguidance import LLParserLimits

STEP_MAX_ITEMS = 5000
"""Parser items that one mask may need; the library's default is 50,000. An ambiguous grammar of 30 bytes (`s:
s s s | s s | /./`) makes masks of 0.3 s under the default, on the thread of all rows; on 150,000 tokens its
longest took 62 ms under 5,000, and 10 under 2,000. But schemas need it: 200 optional fields whose names begin
alike need 4,000, 100 of them 1,300, 60 variants of an object that begin alike 1,000; any JSON, trees, 100
variants and 40 tools together at most 500. The time limit in `engine/grammars/constraint.py` stops what this
limit lets pass."""


def parser_limits() -> LLParserLimits:
    """Return the limits of every matcher, in both processes."""
    return LLParserLimits(step_max_items=STEP_MAX_ITEMS, verbose_errors=False)
