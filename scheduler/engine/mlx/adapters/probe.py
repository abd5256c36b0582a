"""A few model calls that show whether rows with an adapter and rows without can share one.

Modules of mlx-lm differ in what they pass to their layers: rows side by side, rows and tokens as one axis,
tokens sorted by expert. As with the check at load, what a module does decides, not a list of names: the
logits of three rows together are compared with those of each alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.shared.adapter_files import AdapterRefused
from scheduler.shared.device_errors import is_device_error

_ROWS = (True, False, False)
"""Rows that are not the same from behind: a module may turn them round."""
_TOKENS = 24
"""Enough tokens that, with two experts a token, there are more than the 64 inputs from which on mlx-lm sorts
them by expert."""
_TOLERANCE = 1e-3
_TOLERANCE_16_BIT = 0.05
"""Fraction of the largest logit, as at load (`../load_check.py`)."""

Over = Callable[[Sequence[bool]], AbstractContextManager[None]]
"""The model calls within are for these rows; True: with the adapter."""


def probe(model: Any, over: Over, batched: bool) -> None:
    """Raise AdapterRefused. Not `batched`: rows never share a call, and one with the adapter is all that is
    tried."""
    tokens = (mx.arange(len(_ROWS) * _TOKENS) % 61 + 1).reshape(len(_ROWS), _TOKENS)
    try:
        alone = [_logits(model, tokens[at : at + 1], over, [row]) for at, row in enumerate(_ROWS)]
        if not all(mx.all(mx.isfinite(one)).item() for one in alone):
            raise AdapterRefused("with it the model's logits are not finite")
        together = _logits(model, tokens, over, _ROWS) if batched else mx.concatenate(alone)
    except AdapterRefused:
        raise
    except Exception as error:  # Models raise many types.
        if is_device_error(error):
            raise
        raise AdapterRefused(f"the model fails with it: {type(error).__name__}: {error}") from error
    tolerance = _TOLERANCE if together.dtype == mx.float32 else _TOLERANCE_16_BIT
    for at, one in enumerate(alone):
        wanted = one.astype(mx.float32)
        # The median token: in 16 bits rounding may send one to another expert, which changes it alone.
        differences = mx.abs(together[at].astype(mx.float32) - wanted[0]).max(axis=-1)
        bound = tolerance * mx.maximum(mx.abs(wanted).max(), 1.0)
        if not (mx.sort(differences)[_TOKENS // 2] <= bound).item():
            raise AdapterRefused("in one batch with other rows this model's answers differ from those alone")


def _logits(model: Any, tokens: mx.array, over: Over, rows: Sequence[bool]) -> mx.array:
    """(rows, tokens, vocabulary)"""
    with over(rows):
        logits: mx.array = model(tokens, cache=make_prompt_cache(model))
    mx.eval(logits)
    return logits
