"""Write into the wheel and the sdist which commit they were built from; Hatchling calls this.

Without git, or outside a checkout, they carry no commit, unless a source distribution brought its own
(`api/commit.txt` in it). The checkout itself has no such file: there `api/version.py` asks git.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface  # type: ignore[import-not-found, unused-ignore]

COMMIT_FILE = "api/commit.txt"


class CommitHook(BuildHookInterface):  # type: ignore[misc, type-arg, unused-ignore]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version`: "standard", or "editable", which is the checkout."""
        if version == "editable" or not (commit := _commit(Path(self.root))):
            return
        self._folder = tempfile.mkdtemp()
        file = Path(self._folder) / "commit.txt"
        file.write_text(f"{commit}\n", encoding="ascii")
        build_data["force_include"][str(file)] = COMMIT_FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            shutil.rmtree(self._folder, ignore_errors=True)


def _commit(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    try:
        asked = subprocess.run(
            # As api/version.py asks.
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()
