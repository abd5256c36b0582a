"""What the doctor says of scripted machines: every finding, its level and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.cli.doctor.command import lines
from api.cli.doctor.facts import Facts, Port, PortState
from api.cli.doctor.findings import Finding, Level, findings, serves
from api.cli.machine import Machine
from api.cli.models.disk_models import DiskModel
from api.version import Version
from tests.examples import examples

GB = 10**9
EMBEDDED = DiskModel("embedded", Path("/penstock/embedded"))
LINUX = Facts(
    Version("1.2.3", "0123456789ab"),
    "linux",
    "x86_64",
    "3.12.1",
    {"mlx": "0.32.4", "transformers": ""},
    Port(8000, "free"),
    back_ends=("mlx-cpu",),
    machine=Machine("cpu", "cpu", True, 16 * GB),
    physical_bytes=16 * GB,
    available_bytes=12 * GB,
    cores=8,
    models=(EMBEDDED,),
)
MAC_INFO = {"max_recommended_working_set_size": 48 * GB, "memory_size": 64 * GB}
MAC = replace(
    LINUX,
    platform="darwin",
    architecture="arm64",
    back_ends=("mlx-metal",),
    machine=Machine("Apple M4 Max", "metal", False, 64 * GB, MAC_INFO),
    physical_bytes=64 * GB,
    available_bytes=None,
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
    "a larger working set": (
        MAC,
        *("working set", "ok", "48 GB of 64 GB", "iogpu.wired_limit_mb=51879"),
    ),
    "the port is another program's": (
        replace(LINUX, port=Port(8000, "taken")),
        *("port 8000", "problem", "another program", "serve --port"),
    ),
    "the port is a Penstock's": (
        replace(LINUX, port=Port(8000, "penstock", "engine is loading")),
        *("port 8000", "note", "a Penstock serves there: engine is loading", "serve --port"),
    ),
    "the port needs root": (
        replace(LINUX, port=Port(80, "refused", "Permission denied")),
        *("port 80", "problem", "Permission denied", "serve --port"),
    ),
    "a misspelt variable": (
        replace(LINUX, variable_error="PENSTOCK_PROT: there is no such option"),
        *("variables", "problem", "PENSTOCK_PROT", "unset"),
    ),
    "no model": (
        replace(LINUX, models=(replace(EMBEDDED, reason="the folder holds no config.json"),)),
        *("models", "problem", "0 of 1", "penstock models"),
    ),
    "half a download beside a model": (
        replace(LINUX, models=(EMBEDDED, DiskModel("a/cut", Path("/cut"), reason="cut"))),
        *("models", "ok", "1 of 2", "penstock models"),
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
    said = shown(facts)
    assert max(map(len, said.splitlines())) <= 80
    assert " ".join(finding.what.split()) in " ".join(said.split()), "nothing is cut off"


def shown(facts: Facts) -> str:
    return click.unstyle("\n".join(lines(facts, findings(facts))))


def test_the_last_line_is_the_verdict() -> None:
    assert shown(LINUX).splitlines()[-1] == "penstock serve can serve"
    refused = replace(LINUX, port=Port(8000, "taken"), variable_error="PENSTOCK_PROT: there is none")
    assert shown(refused).splitlines()[-1] == "penstock serve would fail: 2 problems"


def test_what_a_report_of_something_broken_needs_is_there() -> None:
    said = " ".join(shown(LINUX).split())
    for part in ("1.2.3 (0123456789ab) on Linux x86_64", "Python 3.12.1 mlx 0.32.4", "16 GB"):
        assert part in said


COUNTS = st.integers(0, 1 << 50)


@settings(deadline=None, max_examples=examples(60))
@given(
    numbers=st.fixed_dictionaries({"physical_bytes": COUNTS, "cores": st.integers(1, 999)}),
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
        port=Port(1, state),
        machine=base.machine if known else None,
    )
    found = findings(facts)
    assert all(finding.what for finding in found)
    assert all(finding.todo for finding in found if finding.level == "problem")
    assert serves(found) == (known and state in ("free", "penstock"))
