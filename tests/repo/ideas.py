"""The idea of each file of the product, which its docstring begins with: `python -m tests.repo.ideas FOLDER`
lists a folder's."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from tests.repo.tree import ROOT, name_of

MAX_CHARACTERS = 190
"""Two lines of a terminal."""


def idea(path: Path) -> str:
    """Return the first sentence of a module's docstring, or an empty string."""
    first_paragraph = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    text = " ".join(first_paragraph.split())
    sentence = re.match(r".+?\.(?= |$)", text)
    return sentence[0] if sentence else text


if __name__ == "__main__":
    for path in sorted((ROOT / (sys.argv[1] if sys.argv[1:] else "scheduler")).rglob("*.py")):
        if said := idea(path):
            print(f"{name_of(path)}: {said}")
