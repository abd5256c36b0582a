"""What importing mlx-lm may not do to a process of ours: lower its limit of open files, and load what only
tokenizers and downloads need."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def file_limits_kept() -> Iterator[None]:
    """Restore the limits: mlx-lm sets RLIMIT_NOFILE to (2048, 4096) when it is imported, which raises
    ValueError where the hard limit is lower. The engine needs a dozen files, and the server has raised the
    soft limit already."""
    set_limit = resource.setrlimit
    resource.setrlimit = lambda *limits: None
    try:
        yield
    finally:
        resource.setrlimit = set_limit


@contextmanager
def without_tokenizers() -> Iterator[None]:
    """Import mlx-lm without `transformers` and `huggingface_hub`: two thirds of the CPU time of its import,
    for which every start of an engine would wait. mlx-lm's own `load` and `generate` fail in this process
    afterwards; both libraries can be imported as ever. Change nothing where mlx-lm is already imported."""
    stand_ins = [] if "mlx_lm" in sys.modules else _stand_ins()
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        for module in stand_ins:
            del sys.modules[module.__name__]


def _stand_ins() -> list[ModuleType]:
    """Return modules with the names that mlx-lm takes from them when it is imported."""
    taken: dict[str, dict[str, Any]] = {
        "huggingface_hub": {"snapshot_download": _left_out},
        "transformers": {"PreTrainedTokenizer": _LeftOut},
        "mlx_lm.tokenizer_utils": {"TokenizerWrapper": _LeftOut, "load": _left_out},
    }
    made = []
    for name, attributes in taken.items():
        if name not in sys.modules:
            module = ModuleType(name)
            vars(module).update(attributes)
            made.append(module)
    return made


class _LeftOut:
    """The type of no object."""


def _left_out(*_arguments: Any, **_options: Any) -> Any:
    raise NotImplementedError("the engine has no tokenizer of mlx-lm, and downloads nothing")
