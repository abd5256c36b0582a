"""On Linux an extra chooses MLX's back end: without one, one line says which extras there are."""

from __future__ import annotations

import pytest

from api.options import back_end
from scheduler.errors import StartupError


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("package", ["mlx-cpu", "mlx-cuda-13", "mlx-metal", "mlx"])
def test_any_back_end_will_do(platform: str, package: str) -> None:
    assert back_end.missing_back_end(platform, [package]) == ""


def test_on_linux_the_extras_are_named() -> None:
    said = back_end.missing_back_end("linux", [])
    assert "penstock[cpu]" in said
    assert "penstock[cuda13]" in said
    assert "\n" not in said


def test_a_mac_is_sent_to_mlx_itself() -> None:
    said = back_end.missing_back_end("darwin", [])
    assert "pip install mlx" in said
    assert "[cpu]" not in said


def test_a_server_does_not_start_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_end, "installed_back_ends", tuple)
    with pytest.raises(StartupError):
        back_end.check_back_end()


def test_this_environment_has_one() -> None:
    """Else no test of an engine could run."""
    assert back_end.installed_back_ends()
    back_end.check_back_end()
