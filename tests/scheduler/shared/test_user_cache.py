"""Where this user's files are: where the system empties caches, apart from what cannot be made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.remote_engines import token_file
from scheduler.shared.user_cache import user_cache_folder, user_data_folder

HOME = {"HOME": "/home/a"}
XDG = {"XDG_CACHE_HOME": "/xdg", **HOME}


@pytest.mark.parametrize(
    ("platform", "cache", "data"),
    [
        ("darwin", "/home/a/Library/Caches/penstock", "/home/a/Library/Application Support/penstock"),
        ("linux", "/home/a/.cache/penstock", "/home/a/.cache/penstock"),
    ],
)
def test_what_cannot_be_had_again_is_in_no_folder_that_macos_empties(
    platform: str, cache: str, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the token that engines on other machines have a copy of."""
    monkeypatch.setattr("sys.platform", platform)
    assert user_cache_folder(HOME) == Path(cache)
    assert user_data_folder(HOME) == Path(data)
    assert token_file(HOME) == Path(data) / "join-token"
    assert user_cache_folder(XDG) == user_data_folder(XDG) == Path("/xdg/penstock")
