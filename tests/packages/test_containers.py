"""Containerfile and Compose file name what there is. They were built and run by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CONTAINERFILE = (ROOT / "Containerfile").read_text()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return read


def copied() -> list[str]:
    """Return what the image is built from."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", CONTAINERFILE, re.M)
    return [name for line in lines for name in line.split()[:-1]]


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in allowed
    for name in copied():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in allowed, name


def test_all_that_a_build_reads_is_copied() -> None:
    """The packages, and the files that pyproject.toml names."""
    read = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE")
    assert {"scheduler", "api", "loadtests", *read} <= set(copied())


def test_the_image_does_not_serve_as_root() -> None:
    assert re.findall(r"^USER (.+)$", CONTAINERFILE, re.M) == ["penstock"]


def test_mounted_files_exist(compose: dict[str, Any]) -> None:
    mounts = [one for service in compose["services"].values() for one in service.get("volumes", ())]
    here = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert here
    for name in here:
        assert (ROOT / name).is_dir(), name
    named = {mount.split(":")[0] for mount in mounts if not mount.startswith("./")}
    assert named == set(compose["volumes"])


def test_nothing_listens_to_other_machines(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]
    assert all(port.startswith("127.0.0.1:") for port in ports)
