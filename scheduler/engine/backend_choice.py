"""Makes the back end that a Load asks for."""

from __future__ import annotations

import os
from collections.abc import Callable

from scheduler.engine.backend import Backend
from scheduler.engine.mlx.environment import set_defaults
from scheduler.engine.mlx_lm_import import file_limits_kept, without_tokenizers
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.shared.messages import Load


def make_backend(command: Load, report: Callable[[str], None]) -> Backend:
    """Load the model. `report`: gets the stages of loading. Raise what the back end's loading raises."""
    match command.backend:
        case "scripted":
            return ScriptedBackend(
                command.scripted,
                kv_cache_bytes=command.kv_cache_bytes,
                kv_cache_share=command.kv_cache_share,
                memory_limit_bytes=int(command.memory_limit) if command.memory_limit > 1 else 0,
                memory_part=command.memory_part,
                adapters=command.adapters,
            )
        case "mlx":
            report("importing mlx")
            set_defaults(os.environ)
            # Imported here: a scripted engine starts without the time of this import.
            with file_limits_kept(), without_tokenizers():
                from scheduler.engine.mlx import loading as model_loading
                from scheduler.engine.mlx.pooling import loading as pooling_loading

            if command.pooler is not None:
                return pooling_loading.load(command, report)
            return model_loading.load(command, report)
