"""What PyTorch answered, as small files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "answers"
_MAKERS = ("folders.py", "make.py", "tensors.py")


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer to `folders.prompt(prompt_tokens, seed)`. `logprobs`: natural logarithms of the tokens'
    probabilities."""

    prompt_tokens: int
    seed: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The answers of one folder. `shapes`: of the tensors that transformers saves for it."""

    shapes: Mapping[str, tuple[int, ...]]
    weights_sha256: str
    answers: tuple[Answer, ...]


def made_by() -> str:
    """Return a SHA-256 of the sources that make the answers."""
    sources = (Path(__file__).with_name(name).read_bytes() for name in _MAKERS)
    return sha256(b"".join(sources)).hexdigest()


def write(family: str, references: Mapping[str, Reference], versions: Mapping[str, str]) -> None:
    """Write the references of a family, by name of the folder."""
    content = {"made_by": made_by(), "versions": dict(versions)}
    content |= {"folders": {name: asdict(reference) for name, reference in references.items()}}
    STORED.mkdir(exist_ok=True)
    (STORED / f"{family}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n", "utf-8")


def read(family: str) -> tuple[str, dict[str, Reference]]:
    """Return the hash of the sources that made a family's references, and these. Raise FileNotFoundError."""
    content: dict[str, Any] = json.loads((STORED / f"{family}.json").read_text("utf-8"))
    return content["made_by"], {
        name: Reference(
            {one: tuple(shape) for one, shape in stored["shapes"].items()},
            stored["weights_sha256"],
            tuple(
                Answer(one["prompt_tokens"], one["seed"], tuple(one["tokens"]), tuple(one["logprobs"]))
                for one in stored["answers"]
            ),
        )
        for name, stored in content["folders"].items()
    }
