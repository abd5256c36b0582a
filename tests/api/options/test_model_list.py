"""Which models the options name."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.options.model_list import IDLE_SECONDS, ModelOptions, models_of
from api.options.options import load
from scheduler.errors import OptionError


def listed(tmp_path: Path, text: str, **flags: str) -> tuple[ModelOptions, ...]:
    path = tmp_path / "models.toml"
    path.write_text(text)
    return models_of(load({"models": str(path), **flags}))


@pytest.mark.parametrize(
    ("given", "models"),
    [
        ({}, {None: None}),
        ({"model": "embedded,owner/two"}, {"embedded": None, "owner/two": IDLE_SECONDS}),
        ({"model": "a/b,c/d", "idle_seconds": "60"}, {"a/b": 60.0, "c/d": 60.0}),
        ({"model": "a/b,c/d", "idle_seconds": "0"}, {"a/b": None, "c/d": None}),
    ],
)
def test_the_first_model_stays_and_others_go_when_idle(
    given: dict[str, str], models: dict[str | None, float | None]
) -> None:
    """But where the operator says for how long."""
    found = models_of(load(given))
    assert {one.settings.model: one.idle_seconds for one in found} == models
    assert not any(one.pinned for one in found)


def test_a_folder_with_a_comma_in_its_name_is_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "one,two"
    folder.mkdir()
    assert [one.settings.model for one in models_of(load({"model": str(folder)}))] == [str(folder)]


def test_a_file_names_models_with_options_of_their_own(tmp_path: Path) -> None:
    text = """
        [[model]]
        name = "coder,coder-cold:temperature=0.2"
        model = "owner/coder"
        pinned = true
        max-slots = 8

        [[model]]
        model = "owner/titles"
        idle_seconds = 300
        kv_cache_bytes = "1GiB"
    """
    coder, titles = listed(tmp_path, text, max_slots="64")
    assert (coder.pinned, coder.settings.max_slots) == (True, 8)
    assert [*coder.settings.served_names("")] == ["coder", "coder-cold"]
    assert (titles.pinned, titles.idle_seconds, titles.settings.max_slots) == (False, 300.0, 64)
    assert titles.settings.kv_cache_bytes == 1 << 30


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"must have a table \[\[model\]\]"),
        ("model = 3", r"must have a table \[\[model\]\]"),
        ("[[model]]\n[[models]]", "not 'models'"),
        ("[[model]", "cannot be read"),
        ("[[model]]\nport = 1", "model 1: a model has no option 'port'"),
        ("[[model]]\n[[model]]\nmemory_limit = 1", "model 2: a model has no option 'memory_limit'"),
        ("[[model]]\nmax_slots = 0", "model 1: max_slots"),
        ("[[model]]\npinned = 1", "pinned is true or false, not 1"),
        ("[[model]]\nmodle = 'x'", "a model has no option 'modle'"),
    ],
)
def test_a_wrong_file_is_refused_by_its_fault(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        listed(tmp_path, text)
    with pytest.raises(OptionError, match=r"--models: .*none.toml cannot be read"):
        models_of(load({"models": "none.toml"}))


@pytest.mark.parametrize("flags", [{"model": "a/b"}, {"served_model_name": "x"}])
def test_a_file_and_flags_do_not_mix(tmp_path: Path, flags: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="belong in its file"):
        listed(tmp_path, "[[model]]", **flags)


def test_one_name_for_two_models_is_refused() -> None:
    with pytest.raises(OptionError, match="for one model"):
        models_of(load({"model": "a/b,c/d", "served_model_name": "x"}))


@pytest.mark.parametrize(
    ("name", "value", "needed", "completed"),
    [
        ("scripted", "step_seconds=0.02", "--engine scripted", {"engine": "scripted"}),
        ("kv_disk_bytes", "1GiB", "--kv-disk", {"kv_disk": "kept"}),
        ("engine_address", "10.0.0.1,[fe80::1]:9100,:9", "--engines join", {"engines": "join"}),
    ],
)
def test_an_option_without_effect_is_refused(
    name: str, value: str, needed: str, completed: dict[str, str], tmp_path: Path
) -> None:
    """With several models it has an effect if it has one on any of them."""
    with pytest.raises(OptionError, match=f"^--{name.replace('_', '-')} has no effect without {needed}$"):
        models_of(load({name: value}))
    models_of(load({name: value, **completed}))
    if "engines" not in completed:
        ((own, text),) = completed.items()
        listed(tmp_path, f'[[model]]\n[[model]]\n{own} = "{text}"', **{name: value})
