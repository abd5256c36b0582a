"""Scripts run on macOS too, which has bash 3.2."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

BASH_4 = re.compile(
    r"""wait\s+-n | \$\{\w+[,^@] | \b(?:mapfile|readarray|coproc)\b | &>> | \|& | \[\[\s+-v\b
    | \b(?:declare|local|typeset)\s+-[a-z]*[Ang] | printf\s+['"]%\( | \$\{\w+:\s*-?\d+:\s*-\d | ;;?&""",
    re.X,
)
"""What macOS's bash does not know: each of it ends a script, or does something else."""


def scripts() -> list[Path]:
    """All files of the repository that bash or sh reads."""
    folders = ("grafana", "tests", ".ci", "loadtests", "scheduler", "api")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    found = [path for path in files if re.match(rb"#!.*\b(?:ba)?sh\b", path.read_bytes()[:64])]
    return [*found, ROOT / "Makefile"]


def test_scripts_keep_to_bash_3() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in scripts()
        for line in path.read_text().splitlines()
        if BASH_4.search(line) and not line.lstrip().startswith("#")
    ]
    assert not found
    assert ROOT / "grafana/monitor" in scripts()
