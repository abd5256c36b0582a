"""Ray has to check tokens: a head that answers without one is left, with what to do about it."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.engine.joining import TOKEN_VARIABLE
from tests.cluster.machines import machines

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: 'make cluster'"),
    pytest.mark.timeout(300),
]


def refusal(address: str, environment: dict[str, str]) -> str:
    """Return what `penstock engine --ray` says when it ends with 1. The server's port is nobody's."""
    command = [sys.executable, "-m", "api", "engine", "--ray", address, "--join", "127.0.0.1:9"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=200,
        env={**own, TOKEN_VARIABLE: "0" * 64, **environment},
    )
    assert done.returncode == 1, done
    return done.stderr


def test_a_head_that_answers_without_a_token_is_left(tmp_path: Path) -> None:
    with machines(tmp_path, more=(), tokens=False) as cluster:
        said = refusal(cluster.address, cluster.environment)
    assert "answers without a token" in said
    assert "ray get-auth-token" in said


def test_a_head_that_is_not_there_is_named() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        assert address in refusal(address, {"RAY_AUTH_MODE": "token"})
