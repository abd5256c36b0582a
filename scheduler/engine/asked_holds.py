"""Take the holds that a request asked for, once its tokens are in the prefix cache."""

from __future__ import annotations

from typing import Any

from scheduler.engine.prefix.holds import NO_CACHE
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.sequence import Sequence


def take_holds(prefixes: PrefixCache[Any, Any] | None, sequence: Sequence, tokens: int) -> None:
    """Hold what the first `tokens` of a sequence were asked to be held for, and remember what is refused. A
    longer prefix is left to a later call: the prompt's last token is computed apart. `prefixes` None: all
    are refused."""
    refusals = list[str]()
    for length, seconds in sequence.submit.holds:
        if prefixes is None:
            refusals.append(NO_CACHE)
        elif length <= tokens:
            refusals.append(prefixes.hold(sequence.tokens[:length], sequence.submit.salt, seconds).refusal)
    sequence.hold_refusal = next(filter(None, refusals), "")
