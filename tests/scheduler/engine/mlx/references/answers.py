"""What PyTorch answered, as small files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "answers"


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
    answers: tuple[Answer, ...]


def write(family: str, references: Mapping[str, Reference], versions: Mapping[str, str]) -> None:
    """Write the references of a family, by name of the folder."""
    folders = {name: asdict(reference) for name, reference in references.items()}
    content = {"versions": dict(versions), "folders": folders}
    STORED.mkdir(exist_ok=True)
    (STORED / f"{family}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n", "utf-8")


def read(family: str) -> dict[str, Reference]:
    """Return a family's references by name. Raise FileNotFoundError."""
    content: dict[str, Any] = json.loads((STORED / f"{family}.json").read_text("utf-8"))
    return {
        name: Reference(
            {one: tuple(shape) for one, shape in stored["shapes"].items()},
            tuple(
                Answer(one["prompt_tokens"], one["seed"], tuple(one["tokens"]), tuple(one["logprobs"]))
                for one in stored["answers"]
            ),
        )
        for name, stored in content["folders"].items()
    }
