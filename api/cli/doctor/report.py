"""`penstock doctor --report`: what an owner of a device sends in, in one file without private data."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory

from api.cli.command_line import COMMANDS
from api.cli.doctor.facts import Facts
from api.cli.doctor.findings import Finding
from api.cli.errors import OperatorError
from scheduler.shared.gigabytes import gigabytes

_UNMEASURED = "The measurements ended before their first section.\n"
_MEASURES = "bench"
"""The command that measures a device, registered by the package of load tests."""


def write_report(file: Path, facts: Facts, found: Sequence[Finding], quick: bool) -> int:
    """Measure the device, and write everything to `file`. Return the exit code of the measurements: 0 if
    nothing is wrong.

    Raise OperatorError if the file cannot be written, or the measurements are not installed.
    """
    if not entry_points(group=COMMANDS, name=_MEASURES):
        raise OperatorError("--report needs `penstock bench`, which this installation does not have")
    with TemporaryDirectory(prefix="penstock-report-") as folder:
        measure = [sys.executable, "-m", "api", _MEASURES, "device", "--out", folder]
        code = subprocess.run([*measure, "--quick"] if quick else measure, check=False).returncode
        written = Path(folder) / "device.md"
        measured = written.read_text() if written.exists() else _UNMEASURED
    try:
        file.write_text("\n".join(_machine(facts, found)) + "\n\n" + measured)
    except OSError as error:
        raise OperatorError(f"cannot write {file}: {error.strerror}") from error
    return code


def _machine(facts: Facts, found: Sequence[Finding]) -> Iterator[str]:
    """Yield what the doctor says of the machine: numbers, versions, and words of closed sets. Free text may
    name persons, folders, ports and models, which are the owner's."""
    yield f"# penstock doctor --report, {facts.version}"
    yield f"{facts.platform} {facts.architecture}, Python {facts.python}"
    yield ""
    yield "| memory | |"
    yield "|---|---|"
    yield f"| physical | {gigabytes(facts.physical_bytes)} |"
    yield f"| for an engine | {gigabytes(facts.limit_bytes) if facts.limit_bytes else 'not known'} |"
    yield ""
    yield "| finding | |"
    yield "|---|---|"
    yield from (f"| {one.topic} | {one.level} |" for one in found)
