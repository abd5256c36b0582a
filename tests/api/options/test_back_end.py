"""On Linux an extra chooses MLX's back end: without one, one line says which extras there are."""

from __future__ import annotations

import pytest

from api.options import back_end
from scheduler.errors import StartupError


@pytest.mark.parametrize(
    ("platform", "named", "other"),
    [("linux", ("penstock[cpu]", "penstock[cuda13]"), "\n"), ("darwin", ("pip install mlx",), "[cpu]")],
)
def test_what_is_missing_is_named(platform: str, named: tuple[str, ...], other: str) -> None:
    """Any back end will do. A Mac is sent to mlx itself."""
    said = back_end.missing_back_end(platform, [])
    assert all(name in said for name in named)
    assert other not in said
    assert back_end.missing_back_end(platform, ["mlx-cuda-13"]) == ""


def test_a_server_does_not_start_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """This environment has one, or no test of an engine could run."""
    back_end.check_back_end()
    monkeypatch.setattr(back_end, "installed_back_ends", tuple)
    with pytest.raises(StartupError):
        back_end.check_back_end()
