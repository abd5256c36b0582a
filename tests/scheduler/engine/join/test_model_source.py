"""Where an engine finds the model of another machine's server, and what it refuses to load."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from scheduler.engine.join.model_source import EMBEDDED, located
from scheduler.engine.load_failure import LoadRefused
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.shared.messages import Load
from scheduler.shared.model_fingerprint import fingerprint as fingerprint_of

HOST = socket.gethostname()
HUB_ID = "owner/name"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "server" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(100))
    return folder


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This machine's cache of the hub, which is empty."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def load(folder: Path, name: str, fingerprint: str) -> Load:
    return Load("scripted", str(folder), model=name, fingerprint=fingerprint)


def test_the_servers_own_engines_load_what_they_are_given() -> None:
    """Without a look at it."""
    command = load(Path("/nowhere"), "", "")
    assert located(command) is command


def test_a_copy_is_found_by_its_content(
    model: Path, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same place, in another user's home, with the installation, or as that one of several snapshots
    in the hub's cache that the server has."""
    monkeypatch.setenv("HOME", str(tmp_path / "server"))
    snapshots = hub / "models--owner--name" / "snapshots"
    for name, config in (("older", '{"old": 1}'), ("right", "{}"), ("z-newer", '{"new": 1}')):
        shutil.copytree(model, snapshots / name)
        (snapshots / name / "config.json").write_text(config)
    for told, name, found in (
        (model, str(model), model),
        (Path("/Users/alice/model"), "~/model", model),
        (Path("/elsewhere/embedded"), EMBEDDED, EMBEDDED_FOLDER),
        (Path("/server/only"), HUB_ID, snapshots / "right"),
    ):
        assert located(load(told, name, fingerprint_of(found))).model_folder == str(found)


def test_a_model_that_is_not_there_is_named_with_what_to_do(model: Path) -> None:
    wanted = fingerprint_of(model)
    with pytest.raises(LoadRefused) as refused:
        located(load(Path("/server/only"), HUB_ID, wanted))
    assert str(refused.value) == (
        f"host {HOST} does not have the model owner/name: copy its folder to /server/only there,"
        " or run: hf download owner/name"
    )
    with pytest.raises(LoadRefused, match=r"copy its folder to /server/only there$"):
        located(load(Path("/server/only"), "/server/only", wanted))


def test_another_model_is_refused_by_its_fingerprint(model: Path) -> None:
    wanted = fingerprint_of(model)
    (model / "config.json").write_text('{"another": 1}')
    with pytest.raises(LoadRefused) as refused:
        located(load(model, str(model), wanted))
    assert str(refused.value) == (
        f"host {HOST} has another model {model} than the server, whose fingerprint is {wanted[:12]}:"
        f" {model} ({fingerprint_of(model)[:12]}); copy the server's folder there"
    )
