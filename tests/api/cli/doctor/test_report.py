"""`penstock doctor --report`: one file with what was found and measured, and nobody's names."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.command_line import penstock
from api.cli.doctor import command
from api.cli.doctor.facts import Blas, Disk, ModelOnDisk, Port
from api.cli.doctor.findings import findings
from api.cli.doctor.report import write_report
from api.cli.errors import OperatorError
from api.cli.models.disk_models import DiskModel
from api.cli.models.memory_plan import MemoryPlan
from tests.api.cli.doctor.test_findings import GB, LINUX

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


def test_it_names_no_person_machine_folder_port_or_model(measured: list[list[str]], tmp_path: Path) -> None:
    """Whatever was found: a fact's free text may have any of them in it."""
    unfit = MemoryPlan(90 * GB, 0, 91 * GB, reason="the weights of alice/large take 90 GB")
    facts = replace(
        LINUX,
        machine_error="dlopen(/home/alice/libmlx.so): no such file",
        blas=Blas("reference BLAS", "no fast BLAS: /home/alice/.cache is full"),
        ports=(Port(8443, "refused", "alice may not"), Port(9443, "taken")),
        disks=(Disk("models", Path("/home/alice/hub"), GB, False),),
        variable_error="PENSTOCK_ALICE: there is no such option",
        models=(
            ModelOnDisk(DiskModel("alice/large", Path("/hub/alice"), "hub"), unfit, reason=unfit.reason),
            ModelOnDisk(DiskModel("alice/cut", Path("/hub/cut"), "hub", reason="cut"), None, reason="cut"),
            ModelOnDisk(
                DiskModel("own", Path("/home/alice/own"), "folder"), None, reason="/home/alice: empty"
            ),
        ),
    )
    for private in (facts, replace(facts, machine=None, blas=None)):
        file = tmp_path / "report.md"
        write_report(file, private, findings(private), quick=False)
        assert "--quick" not in measured[-1]
        text = file.read_text().lower()
        assert "| problem |" in text
        for word in ("alice", "443", "cut", "own |", "/hub", "home"):
            assert word not in text


def test_a_file_that_cannot_be_written_is_named(measured: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="cannot write"):
        write_report(tmp_path / "absent" / "report.md", LINUX, findings(LINUX), quick=True)
