"""The examples of the pages in `docs/`: each request with the answer that is shown behind it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.repo.tree import ROOT, name_of

URL = "http://127.0.0.1:8000"
REST = "..."
"""In an answer: the rest of a text, of a list or, as a line, of the lines."""
_ANSWERS = ("json", "text")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Example:
    page: str
    line: int
    language: str
    request: str
    answer_language: str
    """Empty without an answer."""
    answer: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def asks(self) -> bool:
        """Return whether it asks the server, and so must show an answer."""
        return self.language == "python" or (URL in self.request and "curl" in self.request)


def pages() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def examples() -> list[Example]:
    """Return each request, and each command that shows an answer."""
    found = [example for page in pages() for example in _of_page(name_of(page), page.read_text())]
    return [example for example in found if example.asks or example.answer_language]


def _of_page(page: str, text: str) -> Iterator[Example]:
    blocks = list(re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M))
    for block, behind in pairwise([*blocks, None]):
        if block is None or block[1] not in ("sh", "python"):
            continue
        line = text.count("\n", 0, block.start()) + 1
        between = text[block.end() : behind.start()] if behind else ""
        answered = behind is not None and behind[1] in _ANSWERS and not between.strip()
        shown = (behind[1], behind[2]) if behind is not None and answered else ("", "")
        yield Example(page, line, block[1], block[2], *shown)


def difference(example: Example, real: str) -> str:
    """Return where the real answer is another one than the page shows, or an empty string.

    What is shown must be there: fields, types, texts, but for numbers, whose type counts. Fields that are
    not shown may be there.
    """
    if example.answer_language == "json":
        return _of_values(json.loads(example.answer), json.loads(real), "")
    return _of_lines(example.answer.splitlines(), real.splitlines())


def _of_values(shown: Any, real: Any, path: str) -> str:
    match shown, real:
        case dict(), dict():
            for name, value in shown.items():
                if name not in real:
                    return f"{path}.{name} is not there; there are {', '.join(real)}"
                if found := _of_values(value, real[name], f"{path}.{name}"):
                    return found
            return ""
        case list(), list():
            if shown and shown[-1] == REST:
                shown = shown[:-1]
                real = real[: len(shown)]
            if len(shown) != len(real):
                return f"{path} has {len(real)} entries: {json.dumps(real)}"
            differences = (
                _of_values(one, other, f"{path}[{n}]")
                for n, (one, other) in enumerate(zip(shown, real, strict=True))
            )
            return next(filter(None, differences), "")
        case str(), str():
            if shown.endswith(REST) and real.startswith(shown.removesuffix(REST)):
                return ""
            return "" if shown == real else f"{path} is {real!r}"
        case (bool(), _) | (_, bool()) | (None, _) | (_, None):
            return "" if shown is real else f"{path} is {real!r}"
        case (int(), int()) | (float(), float()):
            return ""
        case _:
            return f"{path} is {real!r}"


def _of_lines(shown: Sequence[str], real: Sequence[str]) -> str:
    """Compare lines; one of `REST` alone stands for any number of them."""
    todo = list(real)
    skip = False
    for line in shown:
        if line == REST:
            skip = True
            continue
        while todo and (found := _of_line(line, todo[0])) and skip:
            todo.pop(0)
        if not todo:
            return f"the line {line!r} is not there"
        if found:
            return found
        todo.pop(0)
        skip = False
    return "" if skip or not todo else f"the line {todo[0]!r} is not shown"


def _of_line(shown: str, real: str) -> str:
    for prefix in ("data: ", ""):
        if shown.startswith(f"{prefix}{{") and real.startswith(f"{prefix}{{"):
            return _of_values(
                json.loads(shown.removeprefix(prefix)), json.loads(real.removeprefix(prefix)), ""
            )
    one, other = (" ".join(_NUMBER.sub("0", line).split()) for line in (shown, real))
    if one.endswith(REST) and other.startswith(one.removesuffix(REST).rstrip()):
        return ""
    return "" if one == other else f"{real!r} is shown as {shown!r}"
