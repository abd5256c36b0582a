"""The repository's packages, their files, and what those import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("scheduler", "api", "loadtests")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def statements(tree: ast.Module) -> list[ast.AST]:
    """Return all statements, at any depth. No expression has one, so most of the tree is left out."""
    todo: list[ast.AST] = [tree]
    for node in todo:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += getattr(node, block, ())
    return todo


@cache
def imports(path: Path, members: bool = False) -> tuple[str, ...]:
    """Return dotted names of the modules that a file imports; with `members` also of what it imports from
    them, which may be modules, too."""
    names: list[str] = []
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names.append(module)
            if members:
                names += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(names)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))
