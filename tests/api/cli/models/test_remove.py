"""`penstock rm`: what goes, what stays, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli.command_line import penstock
from api.cli.errors import OperatorError
from api.cli.models import disk_models
from tests.fakes.model_files import model_files, write_files, write_repository

OTHER = "f" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk_models, "hub_cache", lambda: tmp_path / "hub")
    return tmp_path / "hub"


def run(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(penstock, ["rm", *arguments], input=answer, catch_exceptions=False)


def test_an_id_goes_with_all_its_revisions_and_half_files(cache: Path) -> None:
    """And the bytes are said."""
    files = model_files()
    snapshot = write_repository(cache, "owner/name", files)
    write_repository(cache, "owner/name", files, OTHER, "old")
    write_files(snapshot.parents[1] / "blobs", {"abc.incomplete": b"1" * 1000})
    other = write_repository(cache, "owner/other", files)
    assert run("owner/name", "--yes").output.startswith("deleted owner/name: 475 kB freed")
    assert [path.name for path in cache.iterdir()] == ["models--owner--other"]
    assert (other / "config.json").exists()


def test_one_revision_leaves_what_others_use(cache: Path) -> None:
    """Blobs of its own go, and references to it."""
    snapshot = write_repository(cache, "owner/name", model_files())
    old = write_repository(cache, "owner/name", {"config.json": b"{}"}, OTHER, "old")
    (old / "tokenizer.json").symlink_to((snapshot / "tokenizer.json").readlink())
    run(f"owner/name@{OTHER[:12]}", "--yes")
    assert not old.exists()
    assert (snapshot / "tokenizer.json").exists()
    assert not list(snapshot.parents[1].glob(f"blobs/{OTHER[:8]}*"))
    assert [path.name for path in (snapshot.parents[1] / "refs").iterdir()] == ["main"]


def test_nobody_is_asked_where_nobody_can_answer(cache: Path) -> None:
    """Then nothing goes."""
    snapshot = write_repository(cache, "owner/name", model_files())
    with pytest.raises(OperatorError, match="give --yes"):
        run("owner/name")
    assert snapshot.exists()


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_a_terminal_is_asked(answer: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bytes; only yes deletes."""
    snapshot = write_repository(cache, "owner/name", model_files())
    monkeypatch.setattr("api.cli.models.remove._is_terminal", lambda: True)
    asked = run("owner/name", answer=answer)
    assert "Delete owner/name and free 237 kB? [y/N]" in asked.output
    assert asked.exit_code == 1
    assert snapshot.exists()
    assert "deleted" in run("owner/name", answer="y\n").output
    assert not snapshot.exists()


def test_other_folders_stay(cache: Path, tmp_path: Path) -> None:
    """Nor does the embedded model, nor a cache that is a link to elsewhere."""
    own = write_files(tmp_path / "own", model_files())
    for name, words in ((str(own), "delete it yourself"), ("embedded", "a part of the program")):
        with pytest.raises(OperatorError, match=words):
            run(name, "--yes")
    assert (own / "config.json").exists()
    elsewhere = write_repository(tmp_path / "elsewhere", "owner/name", model_files())
    cache.mkdir()
    (cache / "models--owner--name").symlink_to(elsewhere.parents[1])
    with pytest.raises(OperatorError, match="delete it yourself"):
        run("owner/name", "--yes")
    assert elsewhere.exists()
