"""What PyTorch answered, as small files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

_STORED = Path(__file__).parent / "answers"


class Answer(msgspec.Struct, frozen=True):
    """A greedy answer to `folders.prompt(prompt_tokens, seed)`. `logprobs`: natural logarithms of the tokens'
    probabilities."""

    prompt_tokens: int
    seed: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


class Reference(msgspec.Struct, frozen=True):
    """The answers of one folder. `shapes`: of the tensors that transformers saves for it."""

    shapes: dict[str, tuple[int, ...]]
    answers: tuple[Answer, ...]


class _Family(msgspec.Struct):
    versions: Mapping[str, str]
    folders: dict[str, Reference]


def write(family: str, references: dict[str, Reference], versions: Mapping[str, str]) -> None:
    """Write the references of a family, by name of the folder."""
    _STORED.mkdir(exist_ok=True)
    (_STORED / f"{family}.json").write_bytes(msgspec.json.encode(_Family(versions, references)) + b"\n")


def read(family: str) -> dict[str, Reference]:
    """Return a family's references by name. Raise FileNotFoundError."""
    return msgspec.json.decode((_STORED / f"{family}.json").read_bytes(), type=_Family).folders
