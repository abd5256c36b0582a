"""The gate of a change: which tests `make test` runs, and how long a part of it may take.

Files that start no process and compute nothing with MLX are in it, as their imports say, and those of the
files in tests/ and loadtests/ that they import. Of the others it has what shows a seam (`SEAMS`). Run as a
program it is the whole gate: style, types of this platform, tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.repo.tree import ROOT, imports

TESTS = ROOT / "tests"
SEAMS: dict[str, tuple[str, ...]] = {
    "a batch is each row alone, for several kinds of cache, preempted, drafted and after a death": (
        "scheduler/engine/mlx/zoo/test_meetings.py",
        "scheduler/engine/mlx/kv/test_regroup.py",
        "scheduler/engine/mlx/test_shared_rows.py",
    ),
    "what is drawn": (
        "scheduler/engine/mlx/sampling/test_failed_rows.py",
        "scheduler/engine/mlx/sampling/test_rows_sampler.py",
    ),
    "prefix hits": ("scheduler/engine/mlx/kv/test_prefix_reuse.py",),
    "drafts": ("scheduler/engine/mlx/test_speculation.py",),
    "adapters": ("scheduler/engine/mlx/adapters/test_rows.py",),
    "packed keys and values": ("scheduler/engine/mlx/test_packed.py",),
    "embeddings": ("scheduler/engine/mlx/pooling/test_rows.py",),
    "the contract of a back end": ("scheduler/engine/mlx/test_backend.py",),
    "what a device says": ("scheduler/engine/mlx/test_device_errors.py",),
    "the cost of a step, in calls": ("scheduler/engine/mlx/test_step_cost.py",),
    "loading, and the check of a batch": (
        "scheduler/engine/mlx/test_loading.py",
        "scheduler/engine/mlx/test_load_check.py",
    ),
    "what mlx-lm is taken for": ("scheduler/engine/mlx/upstream/test_upstream.py",),
    "prefixes on disk": ("scheduler/engine/mlx/kv/test_prefix_disk.py", "end_to_end/test_prefix_disk.py"),
    "structured output": ("scheduler/engine/mlx/test_grammars.py", "end_to_end/test_structured_output.py"),
    "calls, and thoughts that end": (
        "end_to_end/test_tool_loops.py",
        "scheduler/engine/mlx/test_thinking_grammars.py",
    ),
    "death and resume": ("end_to_end/test_engine_death.py", "failures/test_resume_structured.py"),
    "clients that leave, and crowds": ("end_to_end/test_crowds.py",),
    "one process speaks with another": ("scheduler/processes/test_process.py",),
    "the official clients": ("end_to_end/test_official_clients.py",),
    "right and wrong answers": ("end_to_end/test_meaning.py", "scheduler/models/test_embedded_model.py"),
    "`make serve` and its first answer": ("end_to_end/test_make_serve.py",),
    "a start that is refused": ("end_to_end/test_start_errors.py",),
    "the live page in a browser": ("end_to_end/test_live_page.py",),
    "several models": ("end_to_end/test_several_models.py",),
    "the commands": ("api/cli/test_command_line.py",),
    "the repository": (
        "repo/test_claims.py",
        "repo/test_gate.py",
        "repo/test_layers.py",
        "repo/test_readme.py",
    ),
}
"""What only a process or MLX can show, and the files that show it. Tests in them that are marked `slow` are
left to `make test-all`."""
ON_ONE_SERVER = frozenset(
    f"tests/end_to_end/test_{name}.py"
    for name in (
        "official_clients",
        "structured_output",
        "crowds",
        "tool_loops",
        "meaning",
    )
)
"""Files that ask servers which they leave as they are: one worker has them, so that each server is started
once."""
EXAMPLES = "0.4"
"""The part of a property's usual examples, of which `make test-all` tries all."""
WORKERS = "2"
PASSED = ROOT / "build" / "gate-passed.txt"
"""The tests that the last gate has passed and that more examples would not change: what CI's `make test-all`
leaves out."""

FILE_SECONDS = 20
TEST_SECONDS = 5
SLOWER = {
    "tests/end_to_end/test_engine_death.py::"
    "test_a_stopped_engine_is_killed_and_its_streams_go_on": "the watchdog waits for its stall seconds",
    "tests/end_to_end/test_engine_death.py::test_under_16_streams_all_go_on_to_the_byte": "two engines start",
    "tests/end_to_end/test_live_page.py": "four servers, and a browser for each test",
    "tests/end_to_end/test_live_page.py::test_the_page_shows_a_busy_server[390-dark]": "a browser under load",
    "tests/end_to_end/test_prefix_disk.py::"
    "test_the_next_engine_and_the_next_server_are_warm_and_right": "four engines start",
    "tests/scheduler/service_machine/test_service.py::test_so_it_is_where_starts_fail": "whole services",
}
"""Files and tests that may take longer, and why."""

_SLOW = (
    "mlx",
    "mlx_lm",
    "multiprocessing",
    "scheduler.engine.mlx",
    "scheduler.processes.child_process.ChildProcess",
    "scheduler.processes.process.ProcessLauncher",
    "subprocess",
)
_STALLS = Path("/proc/pressure/cpu")
_WORK_SECONDS = 0.008
"""What `_slowness` counts took, by the gate's own time, when the limits were set: half of what it took where
the gate took twice as long."""
STALLED, SLOWED, WHOLE = "stalled", "slowed", "whole"
"""Names of what a worker says of a report."""


@cache
def is_in_gate(file: Path) -> bool:
    """Whether the gate has the test file, or any test file of the folder."""
    if file.is_dir():
        return any(is_in_gate(one) for one in file.rglob("test_*.py"))
    return file in _seam_files() or is_fast(file)


@cache
def is_fast(file: Path) -> bool:
    """Whether the test file needs neither a process nor MLX."""
    return not any(_is_slow(name) for reached in _reached(file) for name in imports(reached, members=True))


class Gate:
    """pytest's hooks: the seams' files first, since they are the longest; a failure for what takes too long.

    Wall-clock seconds count, less those in which any task of the machine waited for a core, and over how much
    slower the machine is at this moment: so what fails is slow on a quiet machine, too.
    """

    def __init__(self) -> None:
        self._stalled_seconds = 0.0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self.late: list[str] = []
        """What took too long."""
        self._passed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.path not in _seam_files())

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadScopeScheduling:
        return _ByFile(config, log)

    def pytest_runtest_logstart(self) -> None:
        self._stalled_seconds = _stalled_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        before, self._stalled_seconds = self._stalled_seconds, _stalled_seconds()
        report.user_properties += [
            (STALLED, self._stalled_seconds - before),
            (SLOWED, _slowness() if report.duration > 1 else 1.0),
            (WHOLE, not _depends_on_examples(item)),
        ]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        found: dict[str, Any] = dict(report.user_properties)
        # The report of a worker that crashed has no properties.
        seconds = max(0.0, report.duration - found.get(STALLED, 0.0)) / found.get(SLOWED, 1.0)
        self._seconds[report.nodeid.split("::")[0]] += seconds
        if report.when == "call" and report.passed and found.get(WHOLE):
            self._passed.append(report.nodeid)
        if report.when == "call" and seconds > TEST_SECONDS and report.nodeid not in SLOWER:
            self.late.append(f"{report.nodeid} took {seconds:.1f} s of {TEST_SECONDS}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        self.late += [
            f"{file} took {seconds:.1f} s of {FILE_SECONDS}"
            for file, seconds in self._seconds.items()
            if seconds > FILE_SECONDS and file not in SLOWER
        ]
        if self.late and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        PASSED.parent.mkdir(exist_ok=True)
        PASSED.write_text("\n".join(self._passed))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.late:
            terminalreporter.write_line(f"TOO SLOW for the gate (tests/gate.py): {line}", red=True)


class _ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """A worker runs all tests of a file, and one of them all files that share a server."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "served" if file in ON_ONE_SERVER else file


def drop_passed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that the last gate has not shown. Raise pytest.UsageError where there was none."""
    if not PASSED.exists():
        raise pytest.UsageError("--after-gate: there was no gate in this checkout: make test")
    passed = frozenset(PASSED.read_text().splitlines())
    return [item for item in items if item.nodeid not in passed]


def main() -> int:
    """Run the gate, types beside tests. Return the exit status."""
    began, python = time.monotonic(), [sys.executable, "-m"]
    for style in (["ruff", "check", "."], ["ruff", "format", "--check", "--quiet", "."]):
        if status := subprocess.run([*python, *style], cwd=ROOT).returncode:
            return status
    types = subprocess.Popen(
        [*python, "mypy"], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    tests = subprocess.run(
        [*python, "pytest", "--gate", "-q", "-n", WORKERS, "--no-loadscope-reorder", *sys.argv[1:]],
        cwd=ROOT,
        env={**os.environ, "EXAMPLES": os.environ.get("EXAMPLES", EXAMPLES)},
    )
    print(types.communicate()[0].rstrip())
    status = tests.returncode or types.returncode
    minutes = (time.monotonic() - began) / 60
    outcome = f"{'failed' if status else 'passed'} in {minutes:.1f} min: style, types of {sys.platform},"
    if sys.argv[1:]:
        print(f"{outcome} and of the gate's tests only {' '.join(sys.argv[1:])}")
        return status
    files = list(TESTS.rglob("test_*.py"))
    in_gate = sum(map(is_in_gate, files))
    print(
        f"{outcome} tests of {in_gate} files, {len(_seam_files())} of them with processes or MLX for"
        f" {len(SEAMS)} seams; `make test-all` has {len(files) - in_gate} files more, all examples,"
        " clients in other languages, gateways, a real model and macOS' types"
    )
    return status


@cache
def _seam_files() -> frozenset[Path]:
    return frozenset(TESTS / file for files in SEAMS.values() for file in files)


def _stalled_seconds() -> float:
    """Return for how long any task has waited for a core since the start; 0 where nobody counts it."""
    if not _STALLS.exists():
        return 0.0
    return int(_STALLS.read_text().splitlines()[0].rpartition("total=")[2]) / 1e6


def _slowness() -> float:
    """Return how many times as long some work takes now as it took where the limits were set, at least 1:
    virtual machines are lent faster and slower cores."""
    began, total = time.perf_counter(), 0
    for number in range(200_000):
        total += number * number % 7
    return max(1.0, (time.perf_counter() - began) / _WORK_SECONDS)


def _depends_on_examples(item: pytest.Item) -> bool:
    return item.get_closest_marker("hypothesis") is not None or hasattr(getattr(item, "module", None), "some")


def _reached(file: Path) -> set[Path]:
    """Return the file, and those of tests/ and loadtests/ that it imports, directly or not."""
    reached: set[Path] = set()
    todo = [file]
    while todo:
        if (one := todo.pop()) not in reached:
            reached.add(one)
            todo += [found for name in imports(one, members=True) if (found := _our_file(name)) is not None]
    return reached


def _is_slow(name: str) -> bool:
    return any(name == slow or name.startswith(f"{slow}.") for slow in _SLOW)


@cache
def _our_file(name: str) -> Path | None:
    """Return the file of a module, or of the module that has this name."""
    if not name.startswith(("tests.", "loadtests.")):
        return None
    place = ROOT.joinpath(*name.split("."))
    return next((file for one in (place, place.parent) if (file := one.with_suffix(".py")).is_file()), None)


if __name__ == "__main__":
    sys.exit(main())
