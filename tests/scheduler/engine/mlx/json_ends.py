"""How often a greedy model that is held to a schema comes to an end, and how soon.

`python -m tests.scheduler.engine.mlx.json_ends [--schemas 500]` measures it on the embedded model and on a
random one: the share of answers that end within three times the tokens of the shortest valid document.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.request import ChatPrompt, GenerationRequest, Sampling
from scheduler.structure import JsonText
from tests.scheduler.engine.mlx.grammar_engine import SILENT, Answer, GrammarModel, stopped
from tests.scheduler.engine.mlx.random_schemas import random_schema, shortest

SHORTEST_TIMES = 3


def ends_in_time(model: GrammarModel, schemas: Sequence[dict[str, Any]]) -> list[bool]:
    """For each schema, whether the model's greedy answer is complete within SHORTEST_TIMES the tokens of the
    shortest document that fits it."""
    return [stopped(answer) for answer, _ in greedy_answers(model, schemas)]


def greedy_answers(
    model: GrammarModel, schemas: Sequence[dict[str, Any]], times: int = SHORTEST_TIMES
) -> list[tuple[Answer, str]]:
    """Each with its text; of at most `times` the tokens of the shortest document."""
    engine = model.engine()
    answers = engine.run(*(_asked(model, schema, times) for schema in schemas))
    return [(answer, engine.text(answer)) for answer in answers]


def _asked(model: GrammarModel, schema: dict[str, Any], times: int) -> GenerationRequest:
    least = json.dumps(shortest(schema), ensure_ascii=False, separators=(",", ":"))
    tokens = len(model.preparation.tokenizer.encode(least))
    text = f"Give me an example of this JSON schema: {json.dumps(schema, ensure_ascii=False)}"
    return GenerationRequest(
        "ends",
        ChatPrompt(({"role": "user", "content": text},), reasoning=SILENT),
        sampling=Sampling(temperature=0.0),
        # One more for the end of the answer.
        max_tokens=times * tokens + 1,
        structure=JsonText(schema, "response_format"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schemas", type=int, default=500)
    arguments = parser.parse_args()
    schemas = [random_schema(seed) for seed in range(arguments.schemas)]
    with tempfile.TemporaryDirectory() as folder:
        models = {"embedded": GrammarModel(EMBEDDED_FOLDER), "random": GrammarModel(Path(folder))}
        for name, model in models.items():
            ended = ends_in_time(model, schemas)
            print(f"{name}: {sum(ended)} of {len(ended)} ({100 * sum(ended) / len(ended):.1f} %)")


if __name__ == "__main__":
    main()
