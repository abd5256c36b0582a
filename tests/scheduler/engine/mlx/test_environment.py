"""What MLX reads of the engine's environment: ours where the operator has set nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.engine.mlx.device import CUDA, METAL, X86, forced
from scheduler.engine.mlx.environment import drop_compiled, set_defaults
from scheduler.engine.mlx.load_check import computes_in_float32
from scheduler.engine.mlx.loading import load
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.messages import Ready
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.loads import load_of

_NAME = "MLX_ENABLE_TF32"


def _loaded(folder: Path, dtype: str) -> Ready:
    return load(load_of(folder, weights_dtype=dtype, load_check="off"), lambda stage: None).describe()


def test_cuda_never_raises_for_shapes_that_it_has_not_cached() -> None:
    """And an operator's own sizes stand."""
    environment = {"MLX_CUDA_GRAPH_CACHE_SIZE": "800", "MLX_PTX_CACHE_DIR": "kernels"}
    set_defaults(environment)
    assert environment == {
        "MLX_ENABLE_CACHE_THRASHING_CHECK": "0",
        "MLX_CUDA_SDPA_CACHE_SIZE": "4096",
        "MLX_CUDA_GRAPH_CACHE_SIZE": "800",
        "MLX_PTX_CACHE_DIR": "kernels",
    }


def test_half_a_kernel_is_not_met_by_the_next_engine(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    set_defaults(environment)
    folder = Path(environment["MLX_PTX_CACHE_DIR"])
    folder.mkdir(parents=True)
    drop_compiled(environment, RuntimeError("cudaGraphLaunch failed: unspecified launch failure"))
    assert folder.exists()
    half = RuntimeError("Failed to load compiled unary_ops kernel: .")
    drop_compiled(environment, half)
    assert not folder.exists()
    assert is_device_error(half), "so no check at load takes it for the model's fault"


def test_they_are_set_before_mlx_is_imported() -> None:
    """It reads them when it makes its streams."""
    program = """
import os, sys
from scheduler.engine import __main__ as engine
assert "mlx.core" not in sys.modules
def seen(environment):
    print("mlx.core" in sys.modules)
    raise SystemExit
engine.set_defaults = seen
from scheduler.shared.messages import Load
engine.make_backend(Load("mlx", "nowhere"), lambda stage: None)
"""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "False\n", done.stderr


def test_float32_weights_are_multiplied_as_such(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an M5 and on CUDA MLX would round them to 10 bits."""
    for device in (METAL, CUDA):
        monkeypatch.delenv(_NAME, raising=False)
        with forced(device):
            assert _loaded(tiny_folder, "float32").float32 == "float32"
        assert os.environ[_NAME] == "0"


def test_weights_of_16_bits_leave_it_to_mlx(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What of their float32 products is TF32's is less than they are rounded anyhow."""
    monkeypatch.delenv(_NAME, raising=False)
    with forced(CUDA):
        assert _loaded(tiny_folder, "bfloat16").float32 == "tf32"
    assert _NAME not in os.environ
    with forced(X86):
        assert _loaded(tiny_folder, "bfloat16").float32 == "float32"


def test_where_an_operator_wants_tf32_the_checks_know(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold the model to what rounding makes of it, not to 1e-3."""
    monkeypatch.setenv(_NAME, "1")
    model = random_model("qwen3")
    assert computes_in_float32(model)
    with forced(CUDA):
        assert _loaded(tiny_folder, "float32").float32 == "tf32"
        assert not computes_in_float32(model)
