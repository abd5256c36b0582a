"""What needs no Ray: what is insisted on, and what an engine's environment is."""

from __future__ import annotations

import importlib.util

import pytest

from scheduler.cluster.ray_engines import engine_environment, keep_engines
from scheduler.errors import StartupError


@pytest.mark.parametrize("mode", [None, "disabled", ""])
def test_ray_without_tokens_is_refused(mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody who reaches Ray's port may otherwise run code on every machine."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(StartupError, match=r"get-auth-token --generate.* RAY_AUTH_MODE=token"):
        keep_engines("auto", "127.0.0.1:9", "0" * 64)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {"RAY_AUTH_MODE": "token"})
    with pytest.raises(StartupError, match=r"penstock\[cluster\]"):
        keep_engines("auto", "127.0.0.1:9", "0" * 64)


def test_an_engine_gets_its_machines_environment() -> None:
    """Not what Ray sets for an actor without CPUs and cards."""
    own = {"PATH": "/bin", "HF_HOME": "/models", "PENSTOCK_DEVICE": "1"}
    rays = {"RAY_JOB_ID": "1", "RAY_AUTH_TOKEN": "secret", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert engine_environment(own | rays) == own
    assert engine_environment({"CUDA_VISIBLE_DEVICES": "1"}) == {"CUDA_VISIBLE_DEVICES": "1"}
