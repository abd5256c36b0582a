"""A fast BLAS for MLX on a plain Linux CPU: finds or makes the library that the engine preloads.

The `mlx-cpu` wheel links reference BLAS, with which batching gains nothing. The wheel
`scipy-openblas32` holds OpenBLAS, but under prefixed names; here a copy of it is given the names
that MLX asks for, kept in the cache, and tried in a process of its own before anyone relies on it.
The supervisor calls `prepare` once, before it starts the engine; nothing here imports MLX, and
nothing here stops the service from starting but an explicit library that cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scheduler.errors import OptionError

RENAMED: Final = tuple((f"scipy_cblas_{kind}gemm", f"cblas_{kind}gemm") for kind in "sdcz")
"""`nm -D` on libmlx.so 0.32.4 shows what MLX calls: cblas_sgemm, cblas_dgemm and cblas_cgemm, no gemv
and no other level; cblas_zgemm completes the set. It imports fourteen LAPACK routines as well
(sgesdd_, sgetrf_ ...), which serve mx.linalg only: no language model calls them while decoding, so
they stay with the reference library they were built against."""

_CACHE_VERSION = 1
_TOOL_SECONDS = 60.0
_SILENCE = "start with --blas off to do without it and without this warning"

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


class BlasOptionError(OptionError, ValueError):
    """`--blas` names something that cannot serve as a BLAS library."""


@dataclass(frozen=True, slots=True)
class BlasChoice:
    """What the engine's matrix products will run on."""

    name: str
    """For the start-up line."""
    library: Path | None = None
    """To be preloaded into the engine; None leaves MLX what it was built with."""
    warning: str | None = None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """The engine's environment: `base`, with the library behind whatever it preloads already."""
        environment = dict(base)
        if self.library is None:
            return environment
        preloaded = environment.get("LD_PRELOAD", "")
        environment["LD_PRELOAD"] = f"{preloaded}:{self.library}" if preloaded else str(self.library)
        environment.setdefault("OPENBLAS_NUM_THREADS", str(default_threads()))
        return environment
