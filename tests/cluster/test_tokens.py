"""Ray has to check tokens: a head that answers without one is left, with what to do about it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.engine.join.joining import TOKEN_VARIABLE
from tests.cluster.machines import machines

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(300),
]


def test_a_head_that_answers_without_a_token_is_left(tmp_path: Path) -> None:
    with machines(tmp_path, more=(), tokens=False) as cluster:
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        done = subprocess.run(
            [sys.executable, "-m", "api", "engine", "--ray", cluster.address, "--join", "127.0.0.1:9"],
            capture_output=True,
            text=True,
            timeout=200,
            env={**own, TOKEN_VARIABLE: "0" * 64, **cluster.environment},
        )
    said = done.stderr
    assert done.returncode == 1, done
    assert "answers without a token" in said
    assert "ray get-auth-token" in said
