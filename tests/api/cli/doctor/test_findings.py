"""What the doctor says of scripted machines: every finding, its level and what to do."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from api.cli.command_line import penstock
from api.cli.doctor import command
from api.cli.doctor.command import show
from api.cli.doctor.facts import Disk, Facts, Log, Port, PortState
from api.cli.doctor.findings import Finding, Level, findings, serves
from api.cli.machine import Machine
from api.cli.models.disk_models import DiskModel, Source
from api.cli.models.memory_plan import MemoryPlan
from api.cli.models.reading import PlannedModel
from api.version import Version
from scheduler.shared.row_bytes import RowBytes
from tests.examples import examples

GB = 10**9
EMBEDDED = PlannedModel(
    DiskModel("embedded", Path("/penstock/embedded"), "embedded"),
    MemoryPlan(14_000_000, 8 * GB, 6 * GB, RowBytes(5120)),
)
LINUX = Facts(
    Version("1.2.3", "0123456789ab"),
    "linux",
    "x86_64",
    "3.12.1",
    {"mlx": "0.32.4", "transformers": ""},
    back_ends=("mlx-cpu",),
    machine=Machine("cpu", "cpu", True, 16 * GB),
    limit_bytes=8 * GB,
    physical_bytes=16 * GB,
    available_bytes=12 * GB,
    cores=8,
    ports=(Port(8000, "free"),),
    disks=(Disk("models", Path("/home/a/hub"), 50 * GB, True),),
    models=(EMBEDDED,),
    log=Log(Path("/caches/logs/serve-8000.log"), "[error] engine_died"),
)


def unread(name: str, source: Source, reason: str) -> PlannedModel:
    return PlannedModel(DiskModel(name, Path(f"/{name}"), source, reason=reason), None)


MAC_INFO = {"max_recommended_working_set_size": 48 * GB, "memory_size": 64 * GB}
MAC = replace(
    LINUX,
    platform="darwin",
    architecture="arm64",
    back_ends=("mlx-metal",),
    machine=Machine("Apple M4 Max", "metal", False, 64 * GB, MAC_INFO),
    physical_bytes=64 * GB,
    available_bytes=None,
    limit_bytes=45 * GB,
)


def one(facts: Facts, heading: str) -> Finding:
    """Return the finding on this topic that is not ok; of several the first."""
    found = [finding for finding in findings(facts) if finding.topic == heading]
    return next((finding for finding in found if finding.level != "ok"), found[0])


@pytest.mark.parametrize("facts", [LINUX, MAC], ids=["linux", "mac"])
def test_nothing_is_wrong_with_a_machine_in_order(facts: Facts) -> None:
    found = findings(facts)
    assert {finding.level for finding in found} == {"ok"}
    assert serves(found)


CASES: Mapping[str, tuple[Facts, str, Level, str, str]] = {
    "no back end on Linux": (
        replace(LINUX, back_ends=(), machine=None),
        *("mlx", "problem", "no MLX back end", "penstock[cpu]"),
    ),
    "no MLX on a Mac": (
        replace(MAC, back_ends=(), machine=None),
        *("mlx", "problem", "not installed", "pip install mlx"),
    ),
    "two back ends": (
        replace(LINUX, back_ends=("mlx-cpu", "mlx-cuda-13")),
        *("mlx", "note", "mlx-cpu and mlx-cuda-13", "new environment"),
    ),
    "MLX does not load": (
        replace(LINUX, machine=None, machine_error="libmlx.so: cannot open"),
        *("mlx", "problem", "libmlx.so: cannot open", "--force-reinstall"),
    ),
    "CUDA without a driver": (
        replace(LINUX, back_ends=("mlx-cuda-13",), machine=None, machine_error="no CUDA device"),
        *("mlx", "problem", "no CUDA device", "nvidia-smi"),
    ),
    "a card that nobody uses": (
        replace(LINUX, cards=2),
        *("device", "note", "2 NVIDIA cards are not used", "penstock[cuda13]"),
    ),
    "Python under Rosetta": (
        replace(MAC, architecture="x86_64", machine=Machine("cpu", "cpu", True, 64 * GB)),
        *("device", "note", "Metal is not there", "Rosetta"),
    ),
    "a Mac in a virtual machine": (
        replace(MAC, machine=Machine("cpu", "cpu", True, 64 * GB)),
        *("device", "note", "Metal is not there", "virtual machine"),
    ),
    "other programs have the memory": (
        replace(LINUX, available_bytes=2 * GB),
        *("memory", "note", "2.0 GB of it available", "--memory-limit 2000MB"),
    ),
    "a control group limits memory": (
        replace(LINUX, machine=Machine("cpu", "cpu", True, 4 * GB)),
        *("limits", "note", "4.0 GB of 16 GB", "MemoryMax="),
    ),
    "a small working set": (
        replace(
            MAC,
            machine=Machine(
                "Apple M4", "metal", False, 64 * GB, {**MAC_INFO, "max_recommended_working_set_size": 40 * GB}
            ),
        ),
        *("working set", "note", "40 GB of 64 GB", "iogpu.wired_limit_mb=51879"),
    ),
    "the port is another program's": (
        replace(LINUX, ports=(Port(8000, "taken"),)),
        *("port 8000", "problem", "another program", "serve --port"),
    ),
    "the port is a Penstock's": (
        replace(LINUX, ports=(Port(8000, "penstock", "engine is loading"),)),
        *("port 8000", "note", "a Penstock serves there: engine is loading", "serve --port"),
    ),
    "the port needs root": (
        replace(LINUX, ports=(Port(80, "refused", "Permission denied"),)),
        *("port 80", "problem", "Permission denied", "serve --port"),
    ),
    "models cannot be written": (
        replace(LINUX, disks=(Disk("models", Path("/hub"), 50 * GB, False),)),
        *("disk", "note", "/hub: not writable", "HF_HOME"),
    ),
    "caches cannot be written": (
        replace(LINUX, disks=(Disk("caches", Path("/caches"), 50 * GB, False),)),
        *("disk", "note", "/caches: not writable", "XDG_CACHE_HOME"),
    ),
    "the disk is full": (
        replace(LINUX, disks=(Disk("models", Path("/hub"), GB, True),)),
        *("disk", "note", "1.0 GB free", "hf cache rm"),
    ),
    "a misspelt variable": (
        replace(LINUX, variable_error="PENSTOCK_PROT: there is no such option"),
        *("variables", "problem", "PENSTOCK_PROT", "unset"),
    ),
    "nothing fits": (
        replace(LINUX, models=(unread("embedded", "embedded", "the weights take 14 MB"),)),
        *("models", "problem", "0 of 1", "reason"),
    ),
    "a model that is too large": (
        replace(
            LINUX,
            models=(
                EMBEDDED,
                PlannedModel(
                    DiskModel("a/large", Path("/large"), "hub"),
                    MemoryPlan(90 * GB, 0, reason="the weights take 90 GB"),
                ),
            ),
        ),
        *("a/large", "note", "90 GB", "mlx_lm.convert"),
    ),
    "half a download": (
        replace(
            LINUX,
            models=(
                EMBEDDED,
                unread("a/cut", "hub", "cut"),
            ),
        ),
        *("a/cut", "note", "cut", "penstock pull a/cut"),
    ),
    "weights in a form that is not read": (
        replace(
            LINUX, models=(EMBEDDED, unread("a/packed", "hub", "packed as GPTQ: serve a conversion to MLX"))
        ),
        *("a/packed", "note", "packed as GPTQ: serve a conversion to MLX", ""),
    ),
    "a file of a download that is cut short": (
        replace(LINUX, models=(EMBEDDED, unread("a/short", "hub", "a file is cut short: download it again"))),
        *("a/short", "note", "a file is cut short", "penstock pull a/short"),
    ),
    "a field of config.json that is not computed": (
        replace(LINUX, models=(EMBEDDED, unread("own", "folder", "x 2 changes answers: take the field out"))),
        *("own", "note", "x 2 changes answers: take the field out", ""),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_with_what_to_do(case: str) -> None:
    """On a terminal of 80 columns, whole. A note serves, and a problem does not."""
    facts, heading, level, what, todo = CASES[case]
    finding = one(facts, heading)
    assert finding.level == level
    assert what in finding.what
    assert todo in finding.todo
    assert serves(findings(facts)) == (level != "problem")
    lines = shown(facts).splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line], "nothing is cut off"


def test_a_large_mac_learns_how_to_hold_a_larger_model() -> None:
    """It serves as it is: this is no note."""
    finding = one(MAC, "working set")
    assert finding.level == "ok"
    assert "iogpu.wired_limit_mb" in finding.todo


def test_many_folders_without_a_model_are_counted() -> None:
    """A wrong --models-folder must not hide the rest."""
    unfit = [unread(str(n), "folder", "empty") for n in range(80)]
    found = findings(replace(LINUX, models=(EMBEDDED, *unfit)))
    assert len(found) < 25
    assert found[-1].what == "72 more cannot be"
    assert serves(found)


def shown(facts: Facts) -> str:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    show(facts, findings(facts), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_last_line_is_the_verdict() -> None:
    assert shown(LINUX).splitlines()[-1] == "penstock serve can serve"
    refused = replace(LINUX, ports=(Port(8000, "taken"), Port(8001, "taken")))
    assert shown(refused).splitlines()[-1] == "penstock serve would fail: 2 problems"


def test_what_a_report_of_something_broken_needs_is_there() -> None:
    said = " ".join(shown(LINUX).split())
    for part in ("1.2.3 (0123456789ab) on Linux x86_64", "Python 3.12.1 mlx 0.32.4", "16 GB", "/home/a/hub"):
        assert part in said
    assert "serve-8000.log [error] engine_died" in said


def test_an_interrupt_ends_it_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Facts:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "gather", interrupted)
    ended = CliRunner().invoke(penstock, ["doctor"])
    assert (ended.exit_code, ended.output) == (130, "")


@pytest.mark.parametrize("wrong", [["--port", "0"], ["--port", "65536"]])
def test_a_wrong_argument_is_refused_before_anything_is_asked(wrong: list[str]) -> None:
    ended = CliRunner().invoke(command.doctor, wrong)
    assert ended.exit_code == 2
    assert wrong[0] in ended.output


COUNTS = st.integers(0, 1 << 50)


@settings(deadline=None, max_examples=examples(60))
@given(
    numbers=st.fixed_dictionaries(
        {"physical_bytes": COUNTS, "limit_bytes": COUNTS, "cores": st.integers(1, 999)}
    ),
    available=st.none() | COUNTS,
    state=st.sampled_from(get_args(PortState)),
    base=st.sampled_from([LINUX, MAC]),
    known=st.booleans(),
)
def test_every_machine_has_its_findings(
    numbers: dict[str, Any],
    available: int | None,
    state: PortState,
    base: Facts,
    known: bool,
) -> None:
    facts = replace(
        base,
        **numbers,
        available_bytes=available,
        ports=(Port(1, state),),
        machine=base.machine if known else None,
    )
    found = findings(facts)
    assert all(finding.what for finding in found)
    assert all(finding.todo for finding in found if finding.level == "problem")
    assert serves(found) == (known and state in ("free", "penstock"))
