"""Names this Penstock: its release, and the commit that it was built from, where that is known."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version
from pathlib import Path

PACKAGE = "penstock"
_FOLDER = Path(__file__).parent
_GIT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Version:
    release: str
    commit: str = ""
    """The commit, abbreviated, with `-dirty` for a checkout with changes; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.release} ({self.commit})" if self.commit else self.release

    def listing(self) -> dict[str, str | None]:
        """Return the version for `penstock doctor`."""
        return {"name": PACKAGE, "version": self.release, "commit": self.commit or None}


@cache
def own_version() -> Version:
    """Return this package's version. In a checkout, ask git at the first call."""
    return Version(release_of(PACKAGE), commit_of(_FOLDER))


def release_of(distribution: str) -> str:
    """Return the installed release of a package; empty if there is none."""
    try:
        return _version(distribution)
    except PackageNotFoundError:
        return ""


def commit_of(package: Path) -> str:
    """Return the commit of the package in this folder: the one that the build wrote into it
    (`hatch_build.py`), else git's of the checkout around it, or an empty string if unknown."""
    try:
        return (package / "commit.txt").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        pass
    if not (package.parent / ".git").exists():
        return ""  # Not a checkout; a folder further up may be somebody else's.
    try:
        asked = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=package,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return asked.stdout.strip()
