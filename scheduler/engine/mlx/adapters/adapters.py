"""The adapters of a loaded model, by fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx.adapters.layers import Factors, adapt, adapt_sorting
from scheduler.engine.mlx.adapters.selection import Current, Selection
from scheduler.engine.mlx.adapters.weights import AdapterWeights, read_weights
from scheduler.shared.adapter_files import AdapterRefused, check_unchanged
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.messages import AdapterSource

_MOST_SELECTIONS = 64
"""Bound on the selections that are kept by the rows' adapters, which change only as rows join and leave."""
_ROWS = (True, False, False)
"""Which rows of the probe have the adapter. Backwards they are others, so a module that reverses rows is
found."""
_TOKENS = 24
"""Tokens of each row: with two experts a token, the three rows have more than the 64 inputs from which on
mlx-lm sorts them by expert."""
_TOLERANCE = 1e-3
_TOLERANCE_16_BIT = 0.05
"""Fraction of the largest logit, as at load (`../load_check.py`)."""
_Over = Callable[[Sequence[bool]], AbstractContextManager[None]]
"""Within its block, model calls are for these rows; True is a row with the adapter."""


class Adapters:
    """The adapters that a model has. `batched`: whether rows of the model share its calls."""

    def __init__(self, model: Any, *, batched: bool = True) -> None:
        self._model = model
        self._batched = batched
        self._current = Current()
        self._layers: dict[str, Factors] = {}
        self._slots: dict[str, int] = {}
        """Slots by fingerprint, from 1 on."""
        self._scales: list[float] = [0.0]
        self._selections: dict[tuple[str, ...], Selection] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._slots

    @property
    def nbytes(self) -> int:
        """Return the bytes of all factors."""
        return sum(layer.nbytes for layer in self._layers.values())

    def load(self, source: AdapterSource) -> None:
        """Load an adapter, unless it is loaded. Raise AdapterRefused; it then has no slot."""
        if source.key in self._slots:
            return
        try:
            weights = read_weights(Path(source.folder), self._model)
            check_unchanged(Path(source.folder), source.key)
            self._add(source.key, weights)
            self._try(source.key, weights)
        except AdapterRefused:
            self._remove(source.key)
            raise
        except Exception as error:  # A model that is built in another way.
            if is_device_error(error):
                raise  # What was computed may be garbage, too: the engine ends.
            self._remove(source.key)
            raise AdapterRefused(f"{type(error).__name__}: {error}") from error

    def _remove(self, key: str) -> None:
        """Free the adapter that was added last."""
        if (slot := self._slots.pop(key, None)) is None:
            return
        for layer in self._layers.values():
            layer.remove(slot)
        del self._scales[slot]
        self._changed()

    @contextmanager
    def over(self, keys: Sequence[str]) -> Iterator[None]:
        """Within this block, a call of the model is for rows that have these adapters, in their order. An
        empty key is a row without one; an empty list means that no row has one."""
        if not any(keys):
            yield
            return
        with self._current.over(self._selection(tuple(keys))):
            yield

    def _selection(self, keys: tuple[str, ...]) -> Selection:
        if (known := self._selections.get(keys)) is not None:
            return known
        if len(self._selections) >= _MOST_SELECTIONS:
            self._selections.clear()
        slots = [self._slots[key] if key else 0 for key in keys]
        self._selections[keys] = made = Selection.of(slots, mx.array(self._scales))
        return made

    def _add(self, key: str, weights: AdapterWeights) -> None:
        self._slots[key] = len(self._scales)
        self._scales.append(weights.scale)
        modules = dict(self._model.named_modules())
        for name in weights.factors.keys() - self._layers.keys():
            slots = self._slots[key]
            self._layers[name] = adapt(name, modules[name], self._current, slots)
            # A layer may be in a list, which is no module.
            adapt_sorting(modules.get(name.rpartition(".")[0]), self._current)
        for name, layer in self._layers.items():
            layer.add(weights.factors.get(name))
        self._changed()

    def _changed(self) -> None:
        self._selections.clear()
        mx.eval(_arrays(self._layers.values()))

    def _try(self, key: str, weights: AdapterWeights) -> None:
        self._current.called.clear()
        _probe(self._model, lambda with_it: self.over([key if one else "" for one in with_it]), self._batched)
        for name in weights.factors:
            if name not in self._current.called:
                raise AdapterRefused(f"{name} is a layer that the model does not call as one")


def _arrays(layers: Iterable[Factors]) -> list[mx.array]:
    return [array for layer in layers for array in (layer.a, layer.b) if array is not None]


def _probe(model: Any, over: _Over, batched: bool) -> None:
    """Try in a few model calls whether rows with an adapter and rows without can share one. Raise
    AdapterRefused.

    Modules of mlx-lm differ in what they pass to their layers: rows side by side, rows and tokens as one
    axis, tokens sorted by expert. As with the check at load, what a module does decides, not a list of names:
    the logits of three rows together are compared with those of each alone. Without `batched`, rows never
    share a call, and only rows by themselves are tried.
    """
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


def _logits(model: Any, tokens: mx.array, over: _Over, rows: Sequence[bool]) -> mx.array:
    """Return the logits, (rows, tokens, vocabulary)."""
    with over(rows):
        logits: mx.array = model(tokens, cache=make_prompt_cache(model))
    mx.eval(logits)
    return logits
