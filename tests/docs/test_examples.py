"""Each example of the user's book is sent to a server, and answered as the page shows."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.docs.blocks import URL, Example, difference, examples, pages
from tests.docs.documented_server import documented_server
from tests.grafana.programs import program
from tests.repo.test_maps import targets
from tests.repo.tree import ROOT

EXAMPLES = examples()
SECONDS = 60
"""A bound on what hangs."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who types what the pages say."""

    url: str
    folder: Path

    def answer(self, example: Example) -> str:
        text = example.request.replace(URL, self.url)
        if example.language == "python":
            printed = io.StringIO()
            names = {"__name__": "__main__", "print": partial(print, file=printed)}
            with patch.dict(os.environ, {"no_proxy": "127.0.0.1"}):
                exec(compile(text, str(example), "exec"), names)
            return printed.getvalue()
        done = subprocess.run(
            ["sh", "-ec", text],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{example}: {done.stderr}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
        return kept | {"PATH": path, "PENSTOCK_URL": self.url, "COLUMNS": "80"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    program("curl", package="curl")
    with documented_server() as played:
        yield Reader(played.url, tmp_path_factory.mktemp("book"))


@pytest.mark.parametrize("page", sorted({example.page for example in EXAMPLES}))
def test_a_pages_examples_are_answered_as_it_shows(page: str, reader: Reader) -> None:
    """In their order: one may use what another has made."""
    for example in (one for one in EXAMPLES if one.page == page):
        assert example.answer_language, f"{example} shows no answer"
        real = reader.answer(example)
        found = difference(example, real)
        assert not found, f"{example}: {found}\n{real}"


def test_the_index_leads_to_every_page() -> None:
    """Or to the agents' index, and that to the page."""
    book = ROOT / "docs"
    named = {*targets(book / "index.md"), *targets(book / "agents" / "index.md")}
    assert {*pages()} - named == {book / "index.md"}
