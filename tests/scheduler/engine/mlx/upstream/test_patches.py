"""The patches for mlx-lm: they apply to the release that we use, and with them its faults are gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.repo.tree import ROOT

PATCHES = sorted((ROOT / "scheduler/engine/mlx/upstream/patches").glob("*.patch"))
_COMPARE = """
import json, sys
from tests.scheduler.engine.mlx.upstream import test_mend as rows

def difference(name):
    batches = [rows._prompts((70, 1, 3), 1), rows._prompts((2, 45, 1), 11)]
    try:
        return rows._difference(*rows._together(rows._model(name, ours=False), batches))
    except (AttributeError, TypeError, ValueError):
        return 1.0

print(json.dumps({name: difference(name) for name in sys.argv[1:]}))
"""


def _differences(folder: Path | None) -> dict[str, float]:
    """By module, how far rows together are from each alone in mlx-lm, ours not in it. `folder`: of a copy."""
    path = [str(ROOT)] if folder is None else [str(folder), str(ROOT)]
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, *(one.stem for one in PATCHES)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = find_spec("mlx_lm")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = tmp_path_factory.mktemp("patched")
    shutil.copytree(spec.submodule_search_locations[0], folder / "mlx_lm")
    for one in PATCHES:
        subprocess.run(["git", "apply", "-p1", str(one)], cwd=folder, check=True)
    return folder


def test_with_its_patch_each_row_has_what_it_has_alone(patched: Path) -> None:
    """Without it no module does: here, too, is seen which patch a release makes needless."""
    assert len(PATCHES) >= 5
    found = _differences(patched)
    assert found == {one.stem: pytest.approx(0.0, abs=1e-4) for one in PATCHES}
    assert min(_differences(None).values()) > 1e-2
