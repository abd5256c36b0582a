"""Replaces those parts of a model that mlx-lm 0.32.2 wrote for one row by subclasses that know each row.

A part keeps its weights and gets another class, so mlx-lm's own classes stay as they are, and a model that
was not mended is still mlx-lm's: `tests/scheduler/engine/mlx/upstream/` finds the faults in it, and fails on
the day that a release has none. The check at load judges the mended model, as it judges every other.
"""

from __future__ import annotations

from typing import Any

from scheduler.engine.mlx.upstream.ernie4_5_moe import CorrectedChoice
from scheduler.engine.mlx.upstream.gelu import GELUS
from scheduler.engine.mlx.upstream.gemma2 import SoftcapAttention
from scheduler.engine.mlx.upstream.jamba import SharesOfAll
from scheduler.engine.mlx.upstream.llama4 import RowChunks, RowTemperatures, WholeCaches
from scheduler.engine.mlx.upstream.mamba2 import GroupedNorm
from scheduler.engine.mlx.upstream.minimax_m3_vl import RowBlocks

_OURS: tuple[type[Any], ...] = (
    RowBlocks,
    RowChunks,
    RowTemperatures,
    SharesOfAll,
    SoftcapAttention,
    WholeCaches,
)
_CONFIGURED: tuple[type[Any], ...] = (*GELUS, GroupedNorm, CorrectedChoice)
"""Those that a folder's configuration or tensors decide: `folder_model.py` gives them to the model."""
_CLASSES = {ours.__bases__[0]: ours for ours in _OURS}
"""Our classes by mlx-lm's. The exact type counts, for a subclass of a later release may have mended
itself."""


def mend(model: Any) -> Any:
    """Return the same model; its caches are to be made afterwards, for some models get others."""
    for _, part in model.named_modules():
        if (ours := _CLASSES.get(type(part))) is not None:
            part.__class__ = ours
    return model


def mended_parts(model: Any) -> tuple[str, ...]:
    """Return names of our classes in this model, for the keys of what is kept of it between starts: verdicts,
    and states on disk, which another class would not understand."""
    known = {*_OURS, *_CONFIGURED}
    return tuple(sorted({type(part).__name__ for _, part in model.named_modules() if type(part) in known}))
