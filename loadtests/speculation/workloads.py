"""What rows write: answers that copy from their prompts, as agents' do, and free text.

Each row gets another file of `loadtests/`, so that rows share no prefix. Where a small model might not follow
its prompt, its answer is begun for it: what is measured is the engine, not the model's obedience.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scheduler.request import Sampling
from scheduler.structure import JsonText

_FILE_CHARACTERS = 1200
_BEGUN_CHARACTERS = 60
_WORDS = (
    "harbour",
    "lantern",
    "copper",
    "meadow",
    "signal",
    "orchard",
    "granite",
    "anchor",
    "saddle",
    "velvet",
)
_GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Task:
    """What one row is asked. `begun`: how its answer begins, as part of its prompt."""

    message: str
    begun: str = ""
    sampling: Sampling = _GREEDY
    schema: JsonText | None = None


@cache
def _files() -> tuple[str, ...]:
    folder = Path(__file__).parent.parent
    texts = [path.read_text() for path in sorted(folder.glob("*.py"))]
    bodies = [text[text.find("\n\n\n") + 3 :] for text in texts if len(text) > 3 * _FILE_CHARACTERS]
    return tuple(body[: body.rfind("\n", 0, _FILE_CHARACTERS)] for body in bodies)


def _file(row: int) -> str:
    return _files()[row % len(_files())]


def _repeat(row: int) -> Task:
    text = _file(row)
    message = f"```python\n{text}\n```\nRepeat this file, changing nothing."
    return Task(message, f"```python\n{text[:_BEGUN_CHARACTERS]}")


def _edit(row: int) -> Task:
    """Ask for the file with one word replaced wherever it is."""
    text = _file(row)
    message = f"```python\n{text}\n```\nReplace every `str` with `Name`, and write the whole file."
    return Task(message, f"```python\n{text[:_BEGUN_CHARACTERS].replace('str', 'Name')}")


def _records(row: int) -> list[dict[str, object]]:
    words = random.Random(row)
    return [
        {
            "customer_name": f"{words.choice(_WORDS)} {words.choice(_WORDS)}",
            "shipping_address": f"{words.randrange(900)} {words.choice(_WORDS)} street",
            "quantity_ordered": words.randrange(1000),
            "is_confirmed": words.random() < 0.5,
        }
        for _ in range(8)
    ]


def _json(row: int) -> Task:
    text = json.dumps(_records(row), indent=1)
    return Task(f"{text}\nReturn this JSON unchanged.", text[:_BEGUN_CHARACTERS])


def _schema(row: int) -> Task:
    """Hold the answer to a grammar, which forces the keys."""
    known: dict[str, dict[str, object]] = {
        "customer_name": {"type": "string", "maxLength": 30},
        "shipping_address": {"type": "string", "maxLength": 30},
        "quantity_ordered": {"type": "integer", "minimum": 0, "maximum": 999},
        "is_confirmed": {"type": "boolean"},
    }
    item = {"type": "object", "properties": known, "required": [*known], "additionalProperties": False}
    schema = JsonText({"type": "array", "items": item, "minItems": 100}, "speculation")
    return Task(f"{json.dumps(_records(row))}\nReturn this JSON unchanged.", schema=schema)


def _tools(row: int) -> Task:
    """Ask for a loop of calls whose arguments differ in one number."""
    words = random.Random(row)
    folder = f"/srv/{words.choice(_WORDS)}/{words.choice(_WORDS)}-{row}"

    def call(page: int) -> str:
        arguments = {"path": f"{folder}/report.csv", "encoding": "utf-8", "page": page, "rows_per_page": 50}
        return f"<tool_call>{json.dumps({'name': 'read_table', 'arguments': arguments})}</tool_call>"

    turns = "\n".join(f"{call(page)}\n<result>page {page} is read</result>" for page in range(1, 5))
    return Task(f"{turns}\nGo on until all pages are read.", f"{call(5)}\n<result>page 5 is read</result>\n")


def _free(row: int) -> Task:
    words = random.Random(row)
    message = (
        f"Write a long report on a {words.choice(_WORDS)}, a {words.choice(_WORDS)} and a city by the sea."
    )
    return Task(message, sampling=Sampling(temperature=0.8, seed=row))


COPY_HEAVY: dict[str, Callable[[int], Task]] = {
    "repeat": _repeat,
    "edit": _edit,
    "json": _json,
    "schema": _schema,
    "tools": _tools,
}
WORKLOADS: dict[str, Callable[[int], Task]] = COPY_HEAVY | {"free": _free}
"""By name, what makes the task of each row."""


def least_ratio(workload: str, rows: int) -> float:
    """Return the least ratio that speculation must give, of tokens/s with it to those without."""
    if workload not in COPY_HEAVY:
        return 0.98
    return next(ratio for most, ratio in ((1, 2.0), (8, 1.4), (1 << 30, 1.05)) if rows <= most)


def tasks(workload: str, rows: int) -> Iterator[Task]:
    return map(WORKLOADS[workload], range(rows))
