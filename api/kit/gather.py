"""Which wheels a target needs, downloaded one level of requirements after another.

pip reads environment markers for the Python that runs it, also in `pip download --python-version`. So each
wheel's requirements are read here for the target, and pip gets names and versions only.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name, parse_wheel_filename

_GLIBC = 35
"""MLX's wheels want glibc 2.35; every older tag will do."""
_OLD_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
CUDA_LIBRARIES = "nvidia-"
"""How the names of NVIDIA's packages begin: 2 GB, which a Python with PyTorch has already."""


@dataclass(frozen=True, slots=True)
class Target:
    """A Linux machine without a network. `python`: "3.12"; `machine`: as `uname -m`."""

    python: str
    machine: str = "x86_64"

    @property
    def markers(self) -> dict[str, str]:
        return {
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": self.machine,
        }

    @property
    def pip_options(self) -> list[str]:
        tags = [f"manylinux_2_{minor}" for minor in range(_GLIBC, 4, -1)] + [*_OLD_TAGS]
        platforms = [f"--platform={tag}_{self.machine}" for tag in tags]
        return [f"--python-version={self.python}", "--implementation=cp", *platforms]


def pins(constraints: Path) -> dict[str, SpecifierSet]:
    """Return the versions of a constraints file, by canonical name."""
    lines = (line.partition("#")[0].strip() for line in constraints.read_text("utf-8").splitlines())
    found = map(Requirement, filter(None, lines))
    return {canonicalize_name(one.name): one.specifier for one in found}


def gather(
    first: Path, extra: str, target: Target, pinned: Mapping[str, SpecifierSet], without: str, folder: Path
) -> list[Path]:
    """Download into `folder` what the wheel `first` needs with this extra, and return all wheels, sorted by
    name, `first` the last. Requirements whose names begin with `without` are left out, unless that is empty.

    Raise CalledProcessError if the registry has no wheel of a package for the target.
    """
    own = canonicalize_name(parse_wheel_filename(first.name)[0])
    wheels: dict[str, Path] = {own: first}
    extras: dict[str, set[str]] = {own: {extra}}
    specifiers = dict(pinned)
    todo: set[str] = {own}
    while todo:
        wanted: set[str] = set()
        for requirement in (one for name in todo for one in required(wheels[name], extras[name], target)):
            name = canonicalize_name(requirement.name)
            if without and name.startswith(without):
                continue
            known = extras.setdefault(name, set())
            if name not in wheels or requirement.extras - known:
                wanted.add(name)
            known |= requirement.extras
            specifiers[name] = specifiers.get(name, SpecifierSet()) & requirement.specifier
        absent = sorted(wanted - wheels.keys())
        if absent:
            _download([f"{name}{specifiers[name]}" for name in absent], target, folder)
            wheels |= {parse_wheel_filename(path.name)[0]: path for path in folder.glob("*.whl")}
        todo = wanted
    del wheels[own]
    return [*(wheels[name] for name in sorted(wheels)), first]


def required(wheel: Path, extras: Iterable[str], target: Target) -> list[Requirement]:
    """Return what a wheel with these extras asks for on the target."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    found = map(Requirement, metadata.get_all("Requires-Dist", []))
    chosen = ["", *extras]
    return [
        one
        for one in found
        if one.marker is None
        or any(one.marker.evaluate({**target.markers, "extra": name}) for name in chosen)
    ]


def _download(requirements: list[str], target: Target, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "download", "--no-deps"]
    options = ["--only-binary=:all:", *target.pip_options, "--dest", str(folder)]
    subprocess.run([*pip, *options, *requirements], check=True)
