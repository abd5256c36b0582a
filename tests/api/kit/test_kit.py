"""Kits: cut, joined, checked, and installed with all real wheels without a network, where every part of
`bench device` runs (in CI the first ones)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.kit.__main__ import make, own_wheel, write
from api.kit.gather import Target, pins, required
from api.kit.install import Wrong, checked_files, joined, library_folders, link_cuda, read_sums
from api.kit.pieces import cut, write_sums
from tests.examples import examples
from tests.repo.tree import ROOT

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
FACTS = {"python": PYTHON, "machine": "x86_64", "backend": "cpu"}
RUN_PATH = (
    b"\0$ORIGIN/../../nvidia/cu13/lib:$ORIGIN/../../nvidia/cudnn/lib:$ORIGIN/../../nvidia/nccl/lib"
    b":$ORIGIN/../../mlx_cuda_13.libs\0"
)
"""As in the wheel of mlx-cuda-13 0.32.4 (`readelf -d`), shortened."""


def _wheel(folder: Path, name: str, files: dict[str, bytes], requires: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    every = {**files, f"{about}/METADATA": metadata.encode(), f"{about}/WHEEL": tags.encode()}
    with zipfile.ZipFile(path, "w") as archive:
        for place, content in every.items():
            archive.writestr(place, content)
        archive.writestr(f"{about}/RECORD", "".join(f"{place},,\n" for place in [*every, f"{about}/RECORD"]))
    return path


def _kit(folder: Path, facts: dict[str, str] = FACTS) -> Path:
    """A kit of three wheels in pieces of 1,500 bytes; the largest is cut into several parts."""
    wheels = [
        _wheel(folder / "wheels", "mlx", {"mlx/core.py": b"x = 1\n", "mlx/lib/libmlx.so": RUN_PATH}),
        _wheel(folder / "wheels", "numpy", {"numpy/data": os.urandom(4000)}),
        _wheel(folder / "wheels", "penstock", {"api/__main__.py": b"print('served')\n"}),
    ]
    assert write(wheels, facts, folder / "kit", 1500) > 3
    return folder / "kit"


def _without_network() -> list[str]:
    """What runs a command where there is no network, if we may."""
    alone = ["unshare", "--net", "--map-root-user"]
    try:
        return alone if subprocess.run([*alone, "true"], capture_output=True).returncode == 0 else []
    except FileNotFoundError:
        return []


def _install(kit: Path, environment: Path, *pieces: Path) -> subprocess.CompletedProcess[str]:
    """Run the kit's own program, with nothing of ours to import, and an index that cannot be reached."""
    inner = [sys.executable, "-P", str(kit / "install.py"), str(environment), *map(str, pieces)]
    settings = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    return subprocess.run([*_without_network(), *inner], capture_output=True, text=True, env=settings)


@settings(max_examples=examples(15))
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=5),
    st.integers(40, 300),
)
def test_pieces_keep_their_size_and_join_to_the_same_wheels(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    wheels = [folder / f"w{at:02}-1-py3-none-any.whl" for at in range(len(sizes))]
    contents = [bytes((at + place) % 251 for place in range(size)) for at, size in enumerate(sizes)]
    for wheel, content in zip(wheels, contents, strict=True):
        wheel.write_bytes(content)
    kit = folder / "kit"
    kit.mkdir()
    count = cut(wheels, kit, most)
    write_sums(kit)
    pieces = [path for path in kit.iterdir() if path.is_dir()]
    whole = [wheel for wheel, size in zip(wheels, sizes, strict=True) if size]
    assert len(pieces) == (count if whole else 0)
    for piece in pieces:
        assert sum(file.stat().st_size for file in piece.iterdir()) <= most
    found = {path.name: path.read_bytes() for path in joined(checked_files(kit, pieces), folder / "kit")}
    assert found == {wheel.name: wheel.read_bytes() for wheel in whole}
    assert set(read_sums(kit)) == {
        path.relative_to(kit).as_posix() for path in kit.glob("*/*") if path.is_file()
    }


def test_a_wheel_asks_for_what_the_target_needs_and_not_for_what_we_need(tmp_path: Path) -> None:
    """pip would read the markers for the Python that runs it."""
    lines = [
        'Requires-Dist: old ; python_version < "3.12"',
        'Requires-Dist: mlx[cuda13] ; platform_system == "Linux" and extra == "cuda13"',
        'Requires-Dist: mlx[cpu] ; platform_system == "Linux" and extra == "cpu"',
        'Requires-Dist: mac ; sys_platform == "darwin"',
        "Requires-Dist: plain>=2",
    ]
    wheel = _wheel(tmp_path, "asks", {}, "".join(f"{line}\n" for line in lines))

    def names(python: str, *extras: str) -> list[str]:
        return [str(one).partition(";")[0].strip() for one in required(wheel, extras, Target(python))]

    assert names("3.11") == ["old", "plain>=2"]
    assert names("3.13", "cuda13") == ["mlx[cuda13]", "plain>=2"]


def test_every_backend_of_the_makefile_is_an_extra_that_brings_mlx(tmp_path: Path) -> None:
    wheel = own_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        assert "scheduler/models/embedded/model.safetensors" in archive.namelist(), (
            "the embedded model is in it"
        )
    plain = {str(one) for one in required(wheel, [], Target("3.12"))}
    for backend in ("cpu", "cuda12", "cuda13"):
        brought = {str(one).partition("==")[0] for one in required(wheel, [backend], Target("3.12"))} - plain
        assert f"mlx[{backend}]" in brought
    pinned = pins(ROOT / "constraints.txt")["mlx"]
    assert f"mlx[cuda13]{pinned}" in (ROOT / "pyproject.toml").read_text()


def test_a_kit_is_installed_by_python_and_pip_alone(tmp_path: Path) -> None:
    """Its pieces may lie anywhere, as long as their folders have their names."""
    kit = _kit(tmp_path)
    assert subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=kit).returncode == 0
    pieces = [path.rename(tmp_path / path.name) for path in sorted(kit.glob("[0-9]*"))]
    done = _install(kit, tmp_path / "environment", *pieces)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Penstock 1.0 (cpu): ")
    python = tmp_path / "environment" / "bin" / "python"
    run = subprocess.run([python, "-P", "-m", "api"], capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout == "served\n"


def test_what_is_wrong_with_a_kit_is_said_in_a_line(tmp_path: Path) -> None:
    kit = _kit(tmp_path)
    part = next(kit.glob("2/*"))
    content = part.read_bytes()
    part.write_bytes(content[:-1] + b"?")
    damaged = _install(kit, tmp_path / "environment")
    assert (damaged.returncode, damaged.stderr.count("\n")) == (1, 1)
    assert f"{part} is damaged" in damaged.stderr
    part.unlink()
    assert f"2/{part.name} is missing: bring folder 2" in _install(kit, tmp_path / "environment").stderr
    part.write_bytes(content)
    (kit / "kit.json").write_text(json.dumps({**FACTS, "python": "3.9", "penstock": "1.0"}))
    assert "the kit is for Python 3.9, and this is 3." in _install(kit, tmp_path / "environment").stderr
    assert not (tmp_path / "environment").exists(), "nothing is installed before all is there"


def _environment(folder: Path) -> Path:
    """The site-packages of an environment that has MLX for CUDA."""
    packages = folder / "site-packages"
    (packages / "mlx" / "lib").mkdir(parents=True)
    (packages / "mlx" / "lib" / "libmlx.so").write_bytes(RUN_PATH)
    return packages


def test_mlx_finds_the_cuda_libraries_of_another_python(tmp_path: Path) -> None:
    """By the run path in its own library, and its headers beside them, which its compiler needs."""
    packages = _environment(tmp_path)
    theirs = tmp_path / "torch" / "nvidia"
    for place in ("cu13/lib", "cu13/include", "cudnn/lib", "other/lib"):
        (theirs / place).mkdir(parents=True)
    (theirs / "cudnn/lib/libcudnn.so.9").touch()
    mlx = packages / "mlx" / "lib"
    assert library_folders(mlx / "libmlx.so")[1] == "../../nvidia/cudnn/lib"
    linked = link_cuda(packages, [str(theirs)])
    assert [folder.resolve() for folder in linked] == [theirs / "cu13/lib", theirs / "cudnn/lib"]
    assert (mlx / "../../nvidia/cudnn/lib/libcudnn.so.9").exists()
    assert (packages / "nvidia/cu13/include").is_dir()


def test_libraries_in_the_kit_come_first_and_none_at_all_is_said(tmp_path: Path) -> None:
    packages = _environment(tmp_path)
    with pytest.raises(Wrong, match="KIT_CUDA=1"):
        link_cuda(packages, [])
    (packages / "nvidia/cu13/lib").mkdir(parents=True)
    assert link_cuda(packages, [str(tmp_path / "nowhere")]) == []


@pytest.mark.timeout(1800)  # It fetches 150 MB, and has twenty-four minutes.
@pytest.mark.parametrize(
    ("parts", "finding"),
    [
        (("--part", "facts", "--part", "operations", "--part", "embedded"), '"embedded"'),
        pytest.param((), "as_undisturbed", marks=pytest.mark.long),
    ],
)
def test_all_real_wheels_measure_and_serve_where_there_is_no_network(
    parts: tuple[str, ...], finding: str, tmp_path: Path
) -> None:
    kit, environment = tmp_path / "kit", tmp_path / "environment"
    make(Target(PYTHON, os.uname().machine), "cpu", False, kit, 60_000_000)
    assert (done := _install(kit, environment)).returncode == 0, done.stderr
    measure = [
        environment / "bin/penstock",
        "bench",
        "device",
        "--quick",
        "--minutes",
        "24",
        "--out",
        tmp_path,
        *parts,
    ]
    settings = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    up = ["sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh"] if _without_network() else []
    ran = subprocess.run(
        [*_without_network(), *up, *map(str, measure)],
        capture_output=True,
        text=True,
        env=settings,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert finding in (tmp_path / "device.json").read_text()
