"""Words that this project once used in a sense of its own, and the field's words that took their place.

`python -m tests.repo.test_words` counts what is left, by file.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, statements

RETIRED = {
    r"file of its own because": "a line in its folder's README",
    r"ow(?:e|es|ed|ing)": "pending (of a token), due",
    r"(?:give|gives|giving|gave|given) way": "preempt, preempted",
    r"settl\w*": "trusted (a record), stable (an engine), finalize or charge (accounts), flush (a disk)",
    r"condemn\w*": "declare hung",
    r"wedge[sd]?": "hung",
    r"stranded": "awaiting engine",
    r"chronicles?": "request recorder",
    r"storms?": "crash loop",
    r"inquir\w+": "pending inspection",
    r"whoever": "the request that, a client that",
    r"so many": "N, that many, the number",
    r"warming(?! up)": "preparing, reading (from disk)",
    r"(?:for|within|after|has taken|waited) so long": "this long, this time, N seconds",
    r"by and by": "over time, gradually",
    r"held ends?": "min-tokens mask",
    r"(?:has|row\w*) said": "has output, counts",
    r"told prefill|prefill told": "reported prefill",
    r"token floor": "minimum token estimate",
    r"(?:is|are|was|were|be|being|been) told": "is reported, is sent, learns",
    r"telling": "reporting",
    r"kinship|kin": "compatibility (of engines)",
    r"keepers?": "model loader",
    r"gangs?": "a group",
    r"seats?": "slot",
    r"trunks?": "shared prefix",
    r"parent process(?:es)?|parent side": "server",
}
"""Patterns of whole words, after `_` and CamelCase are split; beside each what is written now."""

LEFT = {
    r"told": ("reported, sent", 0),
    r"said": ("output, generated, reported", 1),
    r"heard": ("replies, reports", 1),
    r"fronts?": ("server", 10),
    r"stor(?:y|ies)": ("report", 1),
}
"""What is written instead, and how often the word is left in the product's code, which may only fall. Option
names and wire fields keep theirs."""
PRODUCT = ("api/", "grafana/", "loadtests/", "scheduler/")
RIDDLES = {
    r"Of\b": "a sentence with a subject and a verb, an imperative or a noun phrase",
    r"(?:.*\W)?None: ": "a sentence about None: Return the part, or None if there is none",
}
"""Patterns of docstrings from their beginning; beside each what is written instead."""
_CANDIDATES = re.compile(r"Of\b(?<!\wOf)"), re.compile(r"None:\s(?<!-> None:\s)")
"""What a file with a riddle has somewhere: only such files are parsed, which takes seconds for all."""

SUFFIXES = (".py", ".md", ".yml", ".html", ".toml")
EXEMPT = ("CHANGELOG.md", "tests/repo/test_words.py", "tests/api/agents/")
"""History, this list, and what agents' command lines send."""
FOLDERS = ("api", "docs", "grafana", "loadtests", "scheduler", "tests")


@cache
def texts() -> tuple[tuple[str, str, str], ...]:
    """Name and content of every file that people read, names split into words; the content also in small
    letters, in which a pattern is found twenty times as fast."""
    return tuple((name, text, text.lower()) for name, text in _texts())


def _texts() -> Iterator[tuple[str, str]]:
    candidates = [path for path in ROOT.iterdir() if path.is_file()]
    candidates += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    for path in sorted(candidates):
        name = str(path.relative_to(ROOT))
        if (path.suffix in SUFFIXES or path.name == "Makefile") and not name.startswith(EXEMPT):
            yield name, split_names(path.read_text())


def split_names(text: str) -> str:
    """`has_settled` and `HasSettled` as words; lines stay lines."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ")


def pattern(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)".replace(" ", r"\s+"), re.I)


def places(words: str) -> list[str]:
    """`file:line` of each occurrence."""
    retired, somewhere = pattern(words), re.compile(words.replace(" ", r"\s+"))
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"
        for name, text, lowered in texts()
        if somewhere.search(lowered)
        for found in retired.finditer(text)
    ]


@pytest.mark.parametrize("words", RETIRED)
def test_a_retired_word_does_not_come_back(words: str) -> None:
    found = places(words)
    assert not found, f"write {RETIRED[words]} for these {len(found)}:\n" + "\n".join(found)


@pytest.mark.parametrize("words", LEFT)
def test_a_word_that_is_left_becomes_no_more_frequent(words: str) -> None:
    instead, left = LEFT[words]
    found = [place for place in places(words) if place.startswith(PRODUCT) and ".py:" in place]
    assert len(found) <= left, f"write {instead}; these {len(found)} are {left} at most:\n" + "\n".join(found)


@cache
def docstrings(name: str) -> tuple[tuple[int, str], ...]:
    """Return line and text of each docstring of a file that may have a riddle, also of attributes."""
    source = (ROOT / name).read_text()
    return tuple(_docstrings(source)) if any(one.search(source) for one in _CANDIDATES) else ()


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for statement in statements(ast.parse(source)):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield statement.lineno, " ".join(text.split())
            case _:
                pass


@pytest.mark.parametrize("riddle", RIDDLES)
def test_no_docstring_is_a_riddle(riddle: str) -> None:
    names = [name for name, *_ in texts() if name.startswith((*PRODUCT, "tests/")) and name.endswith(".py")]
    assert len(names) > 1000
    found = [
        f"{name}:{line}: {text}"
        for name in names
        for line, text in docstrings(name)
        if re.match(riddle, text)
    ]
    assert not found, f"write {RIDDLES[riddle]} for these {len(found)}:\n" + "\n".join(found)


PROCESS_NAMES = {
    r"(?:the|a|one|another|this|its) parent(?:'s)?": "the server",
    r"(?<!in\s)(?:front|fronts|front's)": "the server",
    r"api process": "the server",
}
"""In pages the two processes have one name each: the server, the engine."""


def prose(page: Path) -> str:
    """Return a page without its code: names of options, files and messages stay as they are."""
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", page.read_text(), flags=re.S)


PAGES = [
    path for path in sorted(ROOT.glob("**/*.md")) if path.name != "CHANGELOG.md" and ".venv" not in path.parts
]


@pytest.mark.parametrize("words", PROCESS_NAMES)
def test_pages_call_the_server_the_server(words: str) -> None:
    found = [f"{page}: {hit[0]}" for page in PAGES for hit in pattern(words).finditer(prose(page))]
    assert not found, f"write {PROCESS_NAMES[words]}:\n" + "\n".join(found)


def counts_by_file() -> Counter[str]:
    return Counter(place.split(":")[0] for words in RETIRED for place in places(words))


if __name__ == "__main__":
    for name, count in counts_by_file().most_common():
        print(f"{count:4} {name}")
    for words, instead in RETIRED.items():
        print(f"{len(places(words)):4} {words}: {instead}")
