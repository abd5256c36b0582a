"""Where an engine finds the model of another machine's server, and what it refuses to load."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.model_source import EMBEDDED, located
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.shared.messages import Load, ScriptedPlan
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
    plan = ScriptedPlan()
    return Load(
        "scripted",
        str(folder),
        4,
        512,
        8,
        "auto",
        plan,
        model=name,
        fingerprint=fingerprint,
    )


def test_the_servers_own_engines_load_what_they_are_given() -> None:
    """Without a look at it."""
    command = load(Path("/nowhere"), "", "")
    assert located(command) is command


def test_a_copy_in_the_same_place_is_found(model: Path) -> None:
    command = load(model, str(model), fingerprint_of(model))
    assert located(command).model_folder == str(model)


def test_a_copy_in_the_hubs_cache_is_found_by_its_content(model: Path, hub: Path) -> None:
    """It is the one of several snapshots that the server has."""
    snapshots = hub / "models--owner--name" / "snapshots"
    for name, config in (("older", '{"old": 1}'), ("right", "{}"), ("z-newer", '{"new": 1}')):
        shutil.copytree(model, snapshots / name)
        (snapshots / name / "config.json").write_text(config)
    command = load(Path("/server/only"), HUB_ID, fingerprint_of(model))
    assert located(command).model_folder == str(snapshots / "right")


def test_a_folder_in_the_home_of_another_user_is_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "server"))
    command = load(Path("/Users/alice/model"), "~/model", fingerprint_of(model))
    assert located(command).model_folder == str(model)


def test_the_embedded_model_comes_with_every_installation() -> None:
    command = load(Path("/elsewhere/embedded"), EMBEDDED, fingerprint_of(EMBEDDED_FOLDER))
    assert located(command).model_folder == str(EMBEDDED_FOLDER)


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
