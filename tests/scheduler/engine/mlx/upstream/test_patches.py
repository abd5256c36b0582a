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
MODULES = [one for one in PATCHES if one.stem != "generate"]
_COMPARE = """
import json, sys
import mlx.core as mx
mx.disable_compile()  # As test_mend.py does.
from tests.scheduler.engine.mlx.upstream import test_mend as rows

def difference(name):
    batches = [rows._prompts(rows._LENGTHS, 1), rows._prompts(rows._JOINING, 11)]
    try:
        return rows._difference(*rows._together(rows._model(name, ours=False), batches))
    except (AttributeError, TypeError, ValueError):
        return 1.0

print(json.dumps({name: difference(name) for name in sys.argv[1:]}))
"""


_BEGUN = """
import mlx.core as mx
from mlx_lm.generate import GenerationBatch, StopSequences

class Layer:
    def filter(self, keep):
        pass

stops = [StopSequences()] * 2
fields = [[], []], [None] * 2, None, [()] * 2, stops, [1, 1]
batch = GenerationBatch(None, [7, 8], mx.array([3, 4]), [Layer()], *fields, start=False)
batch.filter([1])
assert (batch.uids, batch._next_tokens.tolist(), batch._next_logprobs) == ([8], [4], [None])
"""


def _run(folder: Path, script: str, *arguments: str) -> str:
    """Run a script with the folder's mlx-lm. Return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout


def _differences(folder: Path) -> dict[str, float]:
    """By module, how far rows together are from each alone in the folder's mlx-lm, ours not in it."""
    printed = _run(folder, _COMPARE, *(one.stem for one in MODULES))
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
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
    """Without it no module does, as `test_mend.py` shows of some. It says which patch a release makes
    needless."""
    assert len(MODULES) >= 5
    found = _differences(patched)
    assert found == {one.stem: pytest.approx(0.0, abs=1e-4) for one in MODULES}


def test_with_its_patch_rows_begin_to_decode_without_a_model_call(patched: Path) -> None:
    """There is no model to call; rows leave such a batch as any other."""
    _run(patched, _BEGUN)
