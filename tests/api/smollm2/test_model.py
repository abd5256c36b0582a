"""The default model: where it is, and what is served where it cannot be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api import assembly
from api.options.model_list import models_of
from api.options.options import load
from api.smollm2 import model
from scheduler.errors import StartupError
from tests.real_model.folder import real_model


def found(**options: str) -> assembly._Found:
    (only,) = models_of(load(options))
    return assembly._find_model(only)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new user, whom pip's settings keep from any registry."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


def test_the_default_is_smollm2_which_answers_greedily() -> None:
    """Under its own name, from the folder that was pulled, once."""
    folder = real_model()
    for default in (found(), found(model="smollm2")):
        assert (default.folder.path, default.name) == (folder, "smollm2")
        assert default.folder.generation_config["temperature"] == 0.0
        assert "98 MB" in default.note
        assert "for tests" not in default.note


@pytest.mark.parametrize("options", [{}, {"model": "smollm2"}])
def test_who_asks_for_it_gets_no_other_model(options: dict[str, str], offline: None) -> None:
    """Nor who names none: a service with another model answers 404 to all that it was set up for."""
    with pytest.raises(StartupError, match="allow no registry"):
        found(**options)


def test_a_folder_of_models_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(StartupError, match="so it is no model's folder: name one in it"):
        found(model=str(tmp_path))


def test_the_embedded_model_is_named_and_asks_no_registry(offline: None) -> None:
    for options in ({"model": "embedded"}, {"engine": "scripted"}):
        assert found(**options).name == "penstock-embedded"
    assert not list(Path(os.environ["XDG_CACHE_HOME"]).iterdir())


def test_the_folder_is_the_one_that_earlier_releases_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is fetched again."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert model.folder() == Path("/cache/penstock/smollm2-135m-instruct-a4fae1b82e13ab79")


def test_a_cache_that_cannot_be_written_is_said_with_what_to_do(offline: None, tmp_path: Path) -> None:
    (tmp_path / "penstock").write_text("a file")
    with pytest.raises(StartupError, match=r"needs 300 MB .* cannot be written to .*XDG_CACHE_HOME"):
        model.ensure(print)
