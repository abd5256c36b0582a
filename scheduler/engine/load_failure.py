"""Why an engine could not load its model, as one line for the operator that names the remedy.

Pure. The stack goes to the server beside it, which logs it at debug level.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from scheduler.errors import StartupError

_MAX_CHARACTERS = 600
"""Bound on the error's own words: mlx-lm lists every missing parameter."""


class LoadRefused(Exception):
    """The model is not served; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A kind of error, by the text `Type: message`, and the sentence that it becomes."""

    mark: re.Pattern[str]
    meaning: str
    remedy: str


_KNOWN = (
    _Known(
        re.compile(
            r"^MemoryError\b|malloc\w*\] (?:Attempting|Unable) to allocate|std::bad_alloc"
            r"|cudaErrorMemoryAllocation|out of memory",
            re.IGNORECASE,
        ),
        "the model does not fit into memory",
        "serve a smaller or more strongly quantized one, or end other programs",
    ),
    _Known(
        re.compile(r"^ValueError: Model type .* not supported"),
        "mlx-lm does not know this type of model",
        "upgrade mlx-lm, or serve another model",
    ),
    _Known(
        re.compile(r"\[load_safetensors\]|\[read\]|SafetensorError|safetensors"),
        "the weights cannot be read",
        "download the model again",
    ),
    _Known(
        re.compile(r"Expected shape|parameters not in model|^ValueError: Missing \d+ parameters"),
        "the weights are not those that config.json describes",
        "download the model again",
    ),
    _Known(
        re.compile(r"ModelArgs|^KeyError\b"),
        "config.json lacks something that mlx-lm needs",
        "download the model again, or correct it",
    ),
)


def in_one_line(error: BaseException) -> str:
    """Return the line: what it means, the error's own words, what to do."""
    if isinstance(error, LoadRefused | StartupError):
        return str(error).removeprefix("--model: ")
    full = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    words = full if len(full) <= _MAX_CHARACTERS else full[: _MAX_CHARACTERS - 3] + "..."
    known = next((known for known in _KNOWN if known.mark.search(full)), None)
    if known is None:
        return f"the model cannot be loaded ({words}): --log-level debug shows where"
    return f"{known.meaning} ({words}): {known.remedy}"
