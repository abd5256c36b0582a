"""How long the pages may be that everybody reads."""

from __future__ import annotations

import re

import pytest

from tests.repo.tree import ROOT

PAGE_LINES = {"README.md": 150, "DESIGN.md": 150}
MAX_GLOSSARY_TERMS = 40


@pytest.mark.parametrize("page", PAGE_LINES)
def test_pages_keep_their_length(page: str) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= PAGE_LINES[page]


def test_the_glossary_is_short_and_translates_each_term() -> None:
    """A term without an equivalent in vLLM or SGLang says so with a dash."""
    glossary = (ROOT / "DESIGN.md").read_text().split("## Glossary")[1]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", glossary, re.M)[1:]
    assert 15 <= len(rows) <= MAX_GLOSSARY_TERMS
    terms = [term for term, _, _ in rows]
    assert len(set(terms)) == len(terms)
    assert all(meaning.strip() and equivalent.strip() for _, meaning, equivalent in rows)
