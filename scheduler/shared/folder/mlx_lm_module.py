"""Which module of mlx-lm builds a type of model, and which fields of config.json it takes.

Read from mlx-lm's sources: importing them imports MLX, which the server does not.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Module:
    """A module, together with those of mlx-lm's models that it passes its fields to."""

    name: str
    declared: frozenset[str]
    """The fields of its dataclasses: what it takes of config.json."""
    read: frozenset[str]
    """Those of them that its code then uses: some modules declare what they never look at."""
    words: frozenset[str] = frozenset()
    """All names in its code, in lower case."""


def module_of(model_type: str, architectures: object = None) -> Module | None:
    """Return the module for a `model_type` and the `architectures` of config.json, or None if the installed
    mlx-lm has none."""
    if (package := package_folder()) is None:
        return None
    classes = architectures if isinstance(architectures, list) else [architectures]
    own = _table(package, "MODEL_ARCHITECTURE_REMAPPING")
    by_class = [own[model_type, one] for one in classes if (model_type, one) in own]
    name = by_class[0] if by_class else renamed_types(package).get(model_type, model_type)
    if not (name.replace("-", "_").replace(".", "_").isidentifier() and _source(package, name).exists()):
        return None
    return _module(package, name)


def package_folder() -> Path | None:
    """Return the folder of the installed mlx-lm, or None."""
    spec = find_spec("mlx_lm")
    locations = None if spec is None else spec.submodule_search_locations
    return Path(locations[0]) if locations else None


def renamed_types(package: Path) -> dict[str, str]:
    """Return mlx-lm's MODEL_REMAPPING: types that share another type's code."""
    return _table(package, "MODEL_REMAPPING")


@cache
def _table(package: Path, name: str) -> dict[Any, str]:
    """Return a dictionary of mlx-lm's utils.py, empty if there is none of this name."""
    for statement in ast.parse((package / "utils.py").read_text("utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Dict() as table) if found == name:
                written: dict[Any, str] = ast.literal_eval(table)
                return written
            case _:
                pass
    return {}


def _source(package: Path, name: str) -> Path:
    return package / "models" / f"{name}.py"


@cache
def _module(package: Path, name: str) -> Module:
    declared, used, words = set[str](), set[str](), set[str]()
    todo, seen = [name], {name}
    while todo:
        for node in ast.walk(ast.parse(_source(package, todo.pop()).read_text("utf-8"))):
            match node:
                case ast.ClassDef() if any("dataclass" in ast.dump(one) for one in node.decorator_list):
                    fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                    declared |= {field.id for field in fields if isinstance(field, ast.Name)}
                # Fields of nested objects are keys.
                case ast.Attribute(attr=str(word), ctx=ast.Load()) | ast.Constant(value=str(word)):
                    used.add(word)
                case ast.Name(id=word):
                    words.add(word.lower())
                case ast.ImportFrom(level=1, module=None, names=names):
                    todo += _with_fields(package, {alias.name for alias in names} - seen)
                    seen |= {alias.name for alias in names}
                case ast.ImportFrom(level=1, module=str(other)):
                    todo += _with_fields(package, {other} - seen)
                    seen.add(other)
                case _:
                    pass
    words |= {word.lower() for word in used}
    return Module(name, frozenset(declared), frozenset(declared & used), frozenset(words))


def _with_fields(package: Path, names: set[str]) -> list[str]:
    """Return those of these files that take fields of config.json."""
    sources = ((name, _source(package, name)) for name in names)
    return [name for name, file in sources if file.exists() and "class ModelArgs" in file.read_text("utf-8")]
