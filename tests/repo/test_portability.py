"""The tests run on macOS too, which has no /proc: `loadtests/processes.py` has the alternative."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LINUX_ONLY = {
    "tests/scheduler/engine/mlx/cpu/test_fast_blas.py": "only Linux preloads a library; skipped elsewhere",
    "tests/end_to_end/small_memory.py": "only Linux has control groups; run by hand",
}
"""Files that read it nevertheless, and why."""


@pytest.mark.parametrize(
    "path",
    [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != Path(__file__)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_test_reads_proc(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    reads = "/proc/" in path.read_text() or '"/proc"' in path.read_text()
    assert reads == (name in LINUX_ONLY), LINUX_ONLY.get(name)
