"""How long files and pages may be, and how short a file may be without a reason."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.repo.tree import PACKAGES, ROOT, imports, modules, name_of

MAX_LINES = 400
SMALL_LINES = 60
OWN_FILE = "A file of its own"
"""In the docstring of a small file with one importer: the start of the sentence that gives the reason."""
ENTRY_POINTS = ("__init__.py", "__main__.py", "sitecustomize.py")
"""Python loads these by their names."""

PAGE_LINES = {"README.md": 200, "DESIGN.md": 150}
MAX_GLOSSARY_TERMS = 40


@cache
def importers() -> dict[str, set[Path]]:
    """By dotted module name: the files of the packages that import it. Tests do not count."""
    found: dict[str, set[Path]] = defaultdict(set)
    for package in PACKAGES:
        for path in modules(package):
            for name in imports(path, members=True):
                found[name].add(path)
    return found


def dotted_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", [path for package in PACKAGES for path in modules(package)], ids=name_of)
def test_files_stay_small_enough_to_hold_in_the_head(path: Path) -> None:
    """A longer one lacks a seam."""
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize("path", [path for package in PACKAGES for path in modules(package)], ids=name_of)
def test_a_small_file_has_two_importers_or_a_reason(path: Path) -> None:
    """Else it belongs into its one importer: a reader should not open a file for ten lines."""
    text = path.read_text()
    program = path.name in ENTRY_POINTS or '__name__ == "__main__"' in text
    if program or len(text.splitlines()) >= SMALL_LINES:
        return
    users = importers()[dotted_name(path)] - {path}
    docstring = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
    assert len(users) >= 2 or OWN_FILE in docstring, f"imported only by {sorted(map(name_of, users))}"


@pytest.mark.parametrize("page", PAGE_LINES)
def test_pages_keep_their_length(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= PAGE_LINES[page]


def test_the_glossary_is_short_and_translates_each_term() -> None:
    """A term without an equivalent in vLLM or SGLang says so with a dash."""
    glossary = (ROOT / "DESIGN.md").read_text().split("## Glossary")[1]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", glossary, re.M)[2:]
    assert 15 <= len(rows) <= MAX_GLOSSARY_TERMS
    terms = [term for term, _, _ in rows]
    assert len(set(terms)) == len(terms)
    assert all(meaning.strip() and equivalent.strip() for _, meaning, equivalent in rows)
