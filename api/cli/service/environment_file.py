"""The file of a service's variables: API keys, tokens of a hub, the device to use.

Keys are in it and nowhere else: every user of the machine can read a command line, and units are often
readable, too. Lines are `NAME=value`; of a value in quotes only the outermost pair is removed; `#` begins a
comment line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from api.cli.errors import OperatorError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEAD = """\
# Variables of the Penstock service: keys belong here, not in the unit. A change applies to the processes
# started after it: penstock service restart. For example:
# PENSTOCK_API_KEY=a-long-random-text
# HF_TOKEN=...
"""
KEPT = ("HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_CACHE", "CUDA_VISIBLE_DEVICES")
"""Variables that `install` takes over from its own environment, beside every option of `serve`."""


def written(variables: Mapping[str, str]) -> str:
    """Return the file's text. Raise OperatorError for a value that no line can hold."""
    lines = []
    for name, value in variables.items():
        # `parsed` splits lines at each of Python's line breaks.
        if "\0" in value or len(f"{value}.".splitlines()) > 1:
            raise OperatorError(f"{name} has a line break, which the environment file cannot hold")
        needs_quotes = value != value.strip() or value[:1] in ("'", '"')
        lines.append(f'{name}="{value}"' if needs_quotes else f"{name}={value}")
    return _HEAD + "".join(line + "\n" for line in lines)


def parsed(text: str, where: str) -> dict[str, str]:
    """Return the variables. Raise OperatorError naming the line, but not its value."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (stripped := line.strip()) or stripped.startswith("#"):
            continue
        name, equals, value = stripped.partition("=")
        if not equals or _NAME.fullmatch(name) is None:
            raise OperatorError(f"{where}, line {number}: expected NAME=value")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        found[name] = value
    return found


def read(path: Path) -> dict[str, str]:
    """Return the file's variables, none if there is no file. Raise OperatorError if the file cannot be used,
    or others can read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise OperatorError(f"others can read {path}, which may hold keys: chmod 600 {path}")
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"cannot read {path}: {error}") from error
    return parsed(text, str(path))
