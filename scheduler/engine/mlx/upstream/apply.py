"""All changes to mlx-lm that hold for every model of this process."""

from __future__ import annotations

from scheduler.engine.mlx.upstream import attention, batch_generator, gate


def apply() -> None:
    """Make mlx-lm's models call our functions, those imported already and those imported later. `loading.py`
    calls it before it reads a model: importing our packages changes nothing. A second call does nothing."""
    attention.take_over()
    gate.take_over()
    batch_generator.take_over()
