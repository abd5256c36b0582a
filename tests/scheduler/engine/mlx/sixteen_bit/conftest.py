"""Every check of this folder runs with the branches of Metal and CUDA forced."""

from __future__ import annotations

import mlx.core as mx
import pytest

SIXTEEN_BIT = {"bfloat16": mx.bfloat16, "float16": mx.float16}


@pytest.fixture(autouse=True)
def gpu_branches(device_of_its_own: None) -> None:
    """MLX's own exponential and gate, penalties and draws in the graph, a step ahead of its tokens."""


@pytest.fixture(params=sorted(SIXTEEN_BIT))
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    return SIXTEEN_BIT[request.param]
