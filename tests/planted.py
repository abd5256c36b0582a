"""Plant a fault, and say which test of the gate finds it: `python -m tests.planted FILE RIGHT WRONG ...`.

It judges a deletion of tests: before one, plant faults where those tests looked. Each fault, three words, is
planted in a copy of the tree; the room's own tests of the gate are run until one fails, then all of the gate.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gate import EXAMPLES, WORKERS
from tests.repo.tree import ROOT


def main() -> int:
    """Return 1 if a fault was not found."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        for file, right, wrong in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
            text = (tree / file).read_text()
            assert text.count(right) == 1, f"{file} has no such place: {right}"
            (tree / file).write_text(text.replace(right, wrong))
            room = next(one for one in Path("tests", file).parents if (tree / one).is_dir())
            finder = _failed(tree, [str(room)]) or _failed(tree, [])
            (tree / file).write_text(text)
            missed += finder is None
            print(f"{file}: {right.strip()!r}: {finder or 'NOT FOUND'}", flush=True)
    return 1 if missed else 0


def _failed(tree: Path, tests: list[str]) -> str | None:
    """Return the first test of the gate that fails."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--gate", "-x", "-q", "-n", WORKERS, *tests],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "EXAMPLES": EXAMPLES},
        capture_output=True,
        text=True,
    )
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.M)
    assert found or run.returncode in (0, 5), run.stdout[-2000:]
    return found and found[1]


if __name__ == "__main__":
    sys.exit(main())
