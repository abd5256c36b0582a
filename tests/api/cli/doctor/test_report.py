"""`penstock doctor --report`: one file with what was found and measured, and nobody's names."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.command_line import penstock
from api.cli.doctor import command
from api.cli.doctor.findings import findings
from api.cli.doctor.report import write_report
from api.cli.errors import OperatorError
from tests.api.cli.doctor.test_findings import LINUX

MEASURED = "# Penstock on cpu\n"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The measurements write a report and find something wrong; returned is how they were started."""
    started: list[list[str]] = []

    def run(arguments: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        started.append(arguments)
        (Path(arguments[arguments.index("--out") + 1]) / "device.md").write_text(MEASURED)
        return subprocess.CompletedProcess(arguments, 1)

    monkeypatch.setattr(subprocess, "run", run)
    return started


def test_it_holds_the_doctors_findings_and_the_measurements(
    measured: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "gather", lambda *asked: LINUX)
    file = tmp_path / "report.md"
    said = CliRunner().invoke(penstock, ["doctor", "--report", str(file), "--quick"])
    assert said.exit_code == 1, "something measured is wrong"
    assert str(file) in said.output
    assert measured[0][2:5] == ["api", "bench", "device"]
    assert "--quick" in measured[0]
    text = file.read_text()
    assert text.endswith(MEASURED)
    for one in findings(LINUX):
        assert f"| {one.topic} | {one.level} |" in text


def test_it_names_no_folder_and_no_model(measured: list[list[str]], tmp_path: Path) -> None:
    file = tmp_path / "report.md"
    write_report(file, LINUX, findings(LINUX), quick=False)
    text = file.read_text()
    assert "--quick" not in measured[0]
    folders = [disk.folder for disk in LINUX.disks] + [one.model.folder for one in LINUX.models]
    for private in map(str, folders):
        assert private not in text


def test_a_file_that_cannot_be_written_is_named(measured: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot write"):
        write_report(tmp_path / "absent" / "report.md", LINUX, findings(LINUX), quick=True)
