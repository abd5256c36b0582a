"""From README.md or CONTRIBUTING.md two links lead to every folder, and pages to nothing that is not there.

Each file but READMEs says in its first sentence what it is, which `python -m tests.repo.ideas` lists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repo.ideas import MAX_CHARACTERS, idea
from tests.repo.tree import PACKAGES, ROOT, modules, name_of

MAX_LINKS = 2


def targets(page: Path) -> Iterator[Path]:
    """Pages and Python files that a page links to or names in backticks, if they exist."""
    text = page.read_text()
    for name in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", text) + re.findall(r"`([\w./]+\.py)`", text):
        target = (page.parent / name).resolve()
        if target.is_dir():
            target /= "README.md"
        if target.is_file():
            yield target


@cache
def links_from_start() -> dict[Path, int]:
    """How many links each page or file is from README.md or CONTRIBUTING.md, up to MAX_LINKS."""
    distances = {ROOT / "README.md": 0, ROOT / "CONTRIBUTING.md": 0}
    for distance in range(1, MAX_LINKS + 1):
        pages = [page for page in distances if page.suffix == ".md"]
        for target in [target for page in pages for target in targets(page)]:
            distances.setdefault(target, distance)
    return distances


def product_files() -> list[Path]:
    files = [path for package in PACKAGES for path in modules(package)]
    return [path for path in files if not path.name.startswith("__")]


def test_each_file_opens_with_an_idea_of_its_own() -> None:
    """A file is one idea: a sentence that is short, and that no other file has."""
    ideas = {name_of(path): idea(path) for path in product_files()}
    assert len(ideas) > 400
    without = [name for name, found in ideas.items() if not 15 <= len(found) <= MAX_CHARACTERS]
    assert not without, f"begin the docstring with one sentence of {MAX_CHARACTERS} characters: {without}"
    shared = [found for found, files in Counter(ideas.values()).items() if files > 1]
    assert not shared, f"several files begin with {shared}"


def test_each_folder_is_in_a_map() -> None:
    """By its name or one of its files, in a page that one of them links to."""
    named = {target.parent for target in links_from_start()} | set().union(
        *(folders(page) for page in links_from_start() if page.suffix == ".md")
    )
    missing = sorted({name_of(path.parent) for path in product_files() if path.parent not in named})
    assert not missing, f"no page that README.md or CONTRIBUTING.md leads to names these: {missing}"


def folders(page: Path) -> set[Path]:
    """Return what a page names in backticks with a slash behind it."""
    return {(page.parent / name).resolve() for name in re.findall(r"`([\w./]+)/`", page.read_text())}


@pytest.mark.parametrize("readme", sorted(ROOT.glob("[a-z]*/**/README.md")), ids=name_of)
def test_readmes_name_files_that_exist(readme: Path) -> None:
    """A page that has drifted is worse than none. A file's name is from its folder or the root."""
    named = re.findall(r"`([\w./]+\.py)`", readme.read_text())
    assert named, "a README without a file"
    places = (readme.parent, ROOT)
    missing = [name for name in named if not any((place / name).is_file() for place in places)]
    assert not missing, f"{name_of(readme)} names {missing}"


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("[a-z]*/**/*.md"))],
    ids=name_of,
)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and the headings that anchors name."""
    for name, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page.read_text()):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{name_of(page)} links to {name}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {name}#{anchor}"


def anchors(page: Path) -> set[str]:
    """GitHub's: lower case, without punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_folder_readme_is_near() -> None:
    for readme in ROOT.glob("[a-z]*/**/README.md"):
        assert readme in links_from_start(), f"no page leads to {name_of(readme)} in {MAX_LINKS} links"
