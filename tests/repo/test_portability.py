"""All runs on macOS too, which has no /proc (`loadtests/processes.py` has the alternative), and bash 3.2."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

LINUX_ONLY = {
    "tests/scheduler/engine/mlx/cpu/test_fast_blas.py": "only Linux preloads a library; skipped elsewhere",
    "tests/end_to_end/test_small_memory.py": "only Linux has control groups; skipped elsewhere",
    "tests/gate.py": "only Linux counts for how long tasks wait for a core",
    "tests/macos/simulated.py": "makes of a Linux a Mac, without /proc",
}
"""Files that read it nevertheless, and why."""


def test_no_test_reads_proc() -> None:
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    assert {
        name for name, text in texts.items() if "/proc/" in text or '"/proc"' in text
    } == LINUX_ONLY.keys()


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
