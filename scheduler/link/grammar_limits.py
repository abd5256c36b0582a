"""How much work a grammar may make: the parent checks grammars with the limits that the engine compiles them
with, so the two must not have limits of their own."""

from __future__ import annotations

from llguidance import LLParserLimits

STEP_MAX_ITEMS = 5000
"""Parser items that one mask may need; the library's default is 50,000. An ambiguous grammar of 30 bytes
(`s: s s s | s s | /./`) makes masks of 0.3 s under the default, on the thread of all rows; under this none
took 10 ms. Of 79 grammars walked on Qwen's vocabulary of 151,650 (any JSON, trees, 300 fields, 100 variants,
40 tools at once) the most that any needed was 1,000: 60 variants of an object that begin alike."""


def parser_limits() -> LLParserLimits:
    """For every matcher that is made, in both processes."""
    return LLParserLimits(step_max_items=STEP_MAX_ITEMS, verbose_errors=False)
