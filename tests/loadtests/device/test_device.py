"""`penstock bench device` from end to end on the CPU, and its report."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from loadtests.device import commands, report
from loadtests.device.__main__ import machine
from loadtests.device.finding import DeviceReport, Finding, Section, attempt
from scheduler.engine.mlx.device import MlxDevice, device
from tests.loadtests.device.shorter import ANSWER_TOKENS
from tests.repo.tree import ROOT

pytestmark = pytest.mark.timeout(600)  # A minute beside other tests.


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a quick run, and what its process printed."""
    out = tmp_path_factory.mktemp("device")
    runs: list[subprocess.CompletedProcess[str]] = []

    def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        shorter = [
            "tests.loadtests.device.shorter" if part == "loadtests.device" else part for part in command
        ]
        assert shorter != command
        env = {**env, "PYTHONPATH": str(ROOT)}
        runs.append(subprocess.run(shorter, capture_output=True, text=True, env=env, cwd=ROOT))
        return runs[0]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(commands, "subprocess", SimpleNamespace(run=run))
        CliRunner().invoke(commands.device, ["--quick", "--out", str(out)])
    assert runs[0].returncode == 0, runs[0].stdout + runs[0].stderr
    return out, runs[0].stdout


def _findings(data: dict[str, Any], title: str) -> dict[str, dict[str, Any]]:
    (section,) = (section for section in data["sections"] if section["title"] == title)
    return {finding["name"]: finding for finding in section["findings"]}


def test_every_branch_is_right_on_this_machine(quick_run: tuple[Path, str]) -> None:
    """All tokens are the best ones in float32, and seeded answers do not depend on neighbours."""
    data = json.loads((quick_run[0] / "device.json").read_text())
    assert all(finding["judgement"] == "right" for finding in _findings(data, "Operations").values())
    branches = _findings(data, "Branches, tiny model")
    assert len(branches) == 2 * 3, "two dtypes, and the branches of this device, a GPU's and x86's"
    for name, finding in branches.items():
        assert finding["judgement"] == "right"
        figures = finding["figures"]
        if "float32" in name:
            assert figures["best_tokens"] == figures["positions"] == 4 * ANSWER_TOKENS
            assert figures["seeded_answers_as_alone"] == figures["seeded_answers"] == 4


def test_steps_and_memory_have_figures(quick_run: tuple[Path, str]) -> None:
    """No test can say what the figures should be; those that the guard relies on are held to bounds."""
    data = json.loads((quick_run[0] / "device.json").read_text())
    steps = _findings(data, "Steps")
    for rows in (1, 8):
        figures = steps[f"decode steps of {rows} rows"]["figures"]
        assert figures["step_ms"] > 0
        assert figures["host_ms"] > 0
        assert figures["overlap_ratio"] > 0
    assert "cost_tokens" in steps["a group of 256 tokens"]["figures"]
    memory = _findings(data, "Memory")
    growth = memory["growth of a prompt"]["figures"]
    assert growth["tokens"] == 896
    assert growth["expected_bytes_per_token"] <= growth["bytes_per_token"]
    assert memory["steps and a row that leaves"]["judgement"] == "right"
    assert memory["pool of freed buffers"]["judgement"] == "right"
    assert memory["buffers"]["figures"]["weights"] > 0


def test_a_server_on_it_starts_and_outlives_its_engine(quick_run: tuple[Path, str]) -> None:
    server = _findings(json.loads((quick_run[0] / "device.json").read_text()), "Server")
    death = server["a death under 4 streams"]
    assert death["judgement"] == "right"
    assert death["figures"]["as_undisturbed"] == death["figures"]["streams"] == 4
    assert server["start"]["figures"]["seconds"] > 0


def test_the_report_can_be_sent_in(quick_run: tuple[Path, str]) -> None:
    """It says what ran on what, and names no folder, user or host."""
    out, printed = quick_run
    text = (out / "device.md").read_text()
    assert text.startswith(f"# Penstock on {device().name}\n")
    for title in (
        "Operations",
        "Branches, tiny model",
        "Branches, embedded model",
        "Steps",
        "Memory",
        "Server",
    ):
        assert f"## {title}\n" in text
        assert f"{title}:\n" in printed
    for private in (str(ROOT), str(Path.home()) + "/", os.uname().nodename):
        assert private not in text + (out / "device.json").read_text()


def test_what_raises_is_a_finding() -> None:
    """A device that we have never run on may raise anything; the report names it first."""

    def fails() -> Finding:
        raise RuntimeError("no kernel | for\nfloat64")

    finding = attempt("a product", fails)
    assert finding == Finding("a product", "raised", detail="RuntimeError: no kernel | for\nfloat64")
    section = Section("Operations", "All are right.", (Finding("a sum", "right", {"error": 0.25}), finding))
    whole = DeviceReport({"device": "M9"}, "tiny", True, 3.2, (section,))
    assert list(whole.complaints()) == ["Operations: a product: RuntimeError: no kernel | for\nfloat64"]
    lines = report.markdown(whole).splitlines()
    assert lines[0] == "# Penstock on M9"
    assert "| a sum | right | 0.25 |" in lines
    assert "| a product | raised: RuntimeError: no kernel / for float64 |" in lines


@pytest.mark.parametrize(
    ("raised", "detail"),
    [
        (
            FileNotFoundError(2, "No such file", "/Users/al b/x's"),
            "FileNotFoundError: [Errno 2] No such file: ...",
        ),
        (RuntimeError("cannot open ~/models/secret: full"), "RuntimeError: cannot open ...: full"),
        (RuntimeError("dlopen(/home/al b/m.so): no image"), "RuntimeError: dlopen(...: no image"),
        (
            RuntimeError("at /home/al b/k.cu\nmlx/jit.cpp:12: 1/s"),
            "RuntimeError: at ...\nmlx/jit.cpp:12: 1/s",
        ),
        (RuntimeError("3 / 4 of 'a/b'"), "RuntimeError: 3 / 4 of 'a/b'"),
    ],
)
def test_what_raises_names_no_folder(raised: Exception, detail: str) -> None:
    """An error of the system, of a loader or of a compiler has the user's folders in its text."""

    def fails() -> Finding:
        raise raised

    assert attempt("a product", fails).detail == detail


def test_facts_of_a_device_are_numbers_and_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another release of MLX may report more, as CUDA's uuid."""
    facts = {"device_name": "M9", "architecture": "g18", "memory_size": 8, "uuid": "GPU-77", "host": "alice"}
    monkeypatch.setattr(MlxDevice, "facts", staticmethod(lambda: facts))
    shown = machine()
    assert (shown["device_name"], shown["architecture"], shown["memory_size"]) == ("M9", "g18", 8)
    assert not {"GPU-77", "alice"} & set(shown.values())
