"""Programs of the machine that tests run, if it has them: Prometheus' own, and gateways."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml


def program(name: str, package: str = "prometheus", folders: Sequence[str] = ()) -> str:
    """Return its path, on the PATH or in these folders. Skip if it is not installed; fail in CI, which
    installs it."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must run {name}, and it is not on the PATH")
        pytest.skip(f"no {name} on the PATH (Debian's package {package})")
    return found


def judged_rules(document: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Let promtool test the rules by this document, which is written to `folder`."""
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    return subprocess.run(
        [program("promtool"), "test", "rules", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
