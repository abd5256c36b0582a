"""A model folder: its configuration, and folders that are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import StartupError
from scheduler.prompt.model_folder import ModelFolder, check_type, find, inspect
from tests.scheduler.shared.folder.test_weight_files import safetensors


def write(folder: Path, config: Any, generation: Any = None) -> Path:
    """Write a folder in the form for `inspect`."""
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "model-00001-of-00001.safetensors").write_bytes(safetensors({}, 0))
    return folder


def test_a_model_with_a_vision_part_keeps_its_text_settings_deeper(tmp_path: Path) -> None:
    """Vocabulary, context and end of sequence: `text_config` wins over the fields beside it; both name ends
    of sequence."""
    text = {"vocab_size": 100, "max_position_embeddings": 50, "eos_token_id": 3}
    found = inspect(write(tmp_path, {"vocab_size": 7, "eos_token_id": 2, "text_config": text}))
    assert found == ModelFolder(tmp_path, 100, 50, frozenset({2, 3}))


@pytest.mark.parametrize(
    ("config", "generation", "eos"),
    [
        ({"eos_token_id": [2, 3]}, None, {2, 3}),
        ({"eos_token_id": 2}, {"eos_token_id": [4, 5]}, {2, 4, 5}),
        ({"eos_token_id": None}, {"eos_token_id": None}, set()),
        ({"eos_token_id": 0}, None, {0}),
    ],
)
def test_every_way_of_naming_the_end_is_understood(
    config: dict[str, Any], generation: dict[str, Any] | None, eos: set[int], tmp_path: Path
) -> None:
    """One id, a list, in either file, zero, null, nowhere."""
    assert inspect(write(tmp_path, config, generation)).eos_token_ids == eos


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    """Immediately here, not in the engine a minute later."""
    (write(tmp_path, {}) / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(StartupError, match="holds no model"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    ("name", "broken", "words"),
    [
        ("config.json", b"{", "cannot be read"),
        ("config.json", b'{"a": "\xff"}', "cannot be read"),
        ("generation_config.json", b"[1]", "is not a JSON object"),
    ],
)
def test_a_broken_file_is_refused_by_name(name: str, broken: bytes, words: str, tmp_path: Path) -> None:
    """Truncated downloads are the usual cause."""
    (write(tmp_path, {}) / name).write_bytes(broken)
    with pytest.raises(StartupError, match=f"{name} {words}"):
        inspect(tmp_path)


def test_a_folder_is_found_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative, or under the home directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "owner" / "name").mkdir(parents=True)
    for model in (str(tmp_path), "owner/name", "./owner", "~/owner"):
        assert find(model).is_dir()


@pytest.mark.parametrize(
    "model", ["./none", "/no/such/folder", "~/none", "a/b/c", "gpt2", "../x/y", "a-file"]
)
def test_what_can_be_no_hub_id_is_refused_without_asking_anybody(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped path must not become a network request."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a-file").touch()
    with pytest.raises(StartupError, match="neither a folder nor a hub id"):
        find(model)


@pytest.mark.parametrize("model", ["m.gguf", "none/M.GGUF", "owner/name/m.gguf", "folder"])
def test_gguf_is_refused_with_what_to_do(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a folder as other servers have it; beside safetensors such a file is none of ours."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file in ("m.gguf", "folder/m.gguf"):
        (tmp_path / file).touch()
    with pytest.raises(StartupError, match=r"GGUF, which is not served: .*mlx-community.*`mlx_lm.convert`"):
        find(model)
    (tmp_path / "folder" / "config.json").touch()
    assert find("folder").is_dir()


@pytest.mark.parametrize(
    "wrong",
    [
        {"vocab_size": "many"},
        {"max_position_embeddings": float("inf")},
        {"eos_token_id": ["x"]},
        {"text_config": [1]},
    ],
)
def test_a_value_of_a_wrong_type_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"config\.json has a value of a wrong type"):
        inspect(write(tmp_path, wrong))


@pytest.mark.parametrize("model_type", ["martian", "../utils", "qwen3.py", ""])
def test_an_unknown_type_is_named_with_what_to_do(model_type: str) -> None:
    """A known one passes by its module, or by another name for it (mlx-lm's MODEL_REMAPPING)."""
    check_type("qwen3")
    check_type("lfm2-vl")
    words = f"no model of type '{model_type}': upgrade mlx-lm" if model_type else "names no model_type"
    with pytest.raises(StartupError, match=re.escape(words)):
        check_type(model_type)
