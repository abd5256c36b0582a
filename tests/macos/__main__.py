"""Run tests on a simulated Mac: `python -m tests.macos tests/api/http -x`, or what else pytest takes.

The Python processes that it starts are the Mac's, too. Whatever is Metal's, launchd's or the network's own is
not there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIMULATED = "MAC_SIM"
DESCRIPTORS = 256
"""The soft limit of a Mac's shells and agents."""
_TEMPORARY = "var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"
"""TMPDIR has 49 characters in each session of a Mac."""
KNOWN: dict[str, str] = {}
"""Tests that fail for the simulation, and why: they are not run."""
_HOOK = "from tests.macos.simulated import install\ninstall()\n"


def run(arguments: Sequence[str], output: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest with these arguments. `output`: for what it prints, as `subprocess.run` takes it."""
    with tempfile.TemporaryDirectory(prefix="m", dir="/tmp") as folder:
        hook, temporary = Path(folder, "hook"), Path(folder, _TEMPORARY)
        hook.mkdir()
        # Python loads a module of this name at its start.
        (hook / "sitecustomize.py").write_text(_HOOK)
        temporary.mkdir(parents=True)
        environment = {
            **os.environ,
            SIMULATED: "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(hook))),
            "PATH": f"{ROOT / 'tests/macos/bin'}:{os.environ['PATH']}",
            "TMPDIR": str(temporary),
            "PYTHON_OF_TESTS": sys.executable,
        }
        limited = ["sh", "-c", f'ulimit -S -n {DESCRIPTORS}; exec "$@"', "sh"]
        unwanted = [word for name in KNOWN for word in ("--deselect", name)]
        command = [*limited, sys.executable, "-m", "pytest", "-q", *unwanted, *arguments]
        return subprocess.run(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, text=True, check=False
        )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]).returncode)
