"""The models on a disk: what their files say, and a reason for each place that holds none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.cli.errors import OperatorError
from api.cli.models.disk_models import DiskModel, find, named, quantization
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.fakes.model_files import model_files, weights, write_files, write_repository
from tests.real_model.folder import real_model

OTHER = "f" * 40


def found(tmp_path: Path) -> dict[str, DiskModel]:
    """By name, from the cache below `tmp_path`, without the embedded model and smollm2."""
    models = find(tmp_path / "hub")
    assert (models[0].name, models[0].folder, models[0].reason) == ("embedded", EMBEDDED_FOLDER, "")
    return {model.name: model for model in models[1:] if model.name != "smollm2"}


def test_smollm2_is_listed_once_it_was_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that `serve` takes; its folder is the cache's."""
    folder = real_model()
    model = named("smollm2", tmp_path / "none")
    assert (model.name, model.folder, model.reason) == ("smollm2", folder, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(OperatorError, match="penstock pull smollm2"):
        named("smollm2", tmp_path / "none")


def test_a_snapshot_of_the_hub_has_its_id_and_its_commit(tmp_path: Path) -> None:
    """Blobs count once; the folder is what `serve --model` takes."""
    files = model_files()
    snapshot = write_repository(tmp_path / "hub", "owner/small--name", files)
    model = found(tmp_path)["owner/small--name"]
    assert model.folder == snapshot
    assert model.disk_bytes == sum(map(len, files.values()))
    assert (model.reason, model.dtype) == ("", "float16")
    assert model.inspected is not None
    assert (model.inspected.model_type, model.inspected.context_tokens) == ("qwen3", 4096)


def test_another_revision_has_a_row_of_its_own(tmp_path: Path) -> None:
    """Named by its commit: `main` is what the id means."""
    write_repository(tmp_path / "hub", "owner/name", model_files())
    write_repository(tmp_path / "hub", "owner/name", model_files(), OTHER, "old")
    write_repository(tmp_path / "hub", "owner/tagged", model_files(), OTHER, "v1")
    names = ["owner/name", f"owner/name@{OTHER[:12]}", f"owner/tagged@{OTHER[:12]}"]
    assert sorted(found(tmp_path)) == names


def test_half_a_download_is_listed_with_what_is_missing(tmp_path: Path) -> None:
    """Neither it nor a broken link hides the others."""
    shards = [f"model-0000{at}-of-00002.safetensors" for at in (1, 2)]
    index = {"weight_map": {"model.embed_tokens.weight": shards[0], "a": shards[1]}}
    files = model_files() | {"model.safetensors.index.json": json.dumps(index).encode()}
    files[shards[0]] = files.pop("model.safetensors")
    half = write_repository(tmp_path / "hub", "owner/half", files)
    blobs = half.parents[1] / "blobs"
    (blobs / "abc.incomplete").write_bytes(b"12345")
    broken = write_repository(tmp_path / "hub", "owner/broken", model_files())
    (broken / "config.json").resolve().unlink()
    bare = tmp_path / "hub/models--owner--bare/blobs"
    write_files(bare, {"abc.incomplete": b"123"})
    models = found(tmp_path)
    assert "lacks model-00002-of-00002.safetensors" in models["owner/half"].reason
    assert models["owner/broken"].reason == "the folder holds no config.json"
    assert "its download was cut" in models["owner/bare"].reason


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", b"{", "config.json cannot be read"),
        ("config.json", b"[]", "config.json is not a JSON object"),
        ("config.json", b"\xff\xfe", "config.json cannot be read"),
        ("config.json", b'{"model_type": "bert_of_mars"}', "has no model of type 'bert_of_mars'"),
        ("config.json", b'{"model_type": "qwen3", "vocab_size": "many"}', "has a value of a wrong type"),
        ("model.safetensors", weights()[:-1], "model.safetensors is cut short"),
        ("model.safetensors", b"\xff" * 40, "model.safetensors is no safetensors file"),
    ],
)
def test_a_broken_folder_says_what_is_wrong(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    """In the words of `serve`, without the path."""
    model = named(str(write_files(tmp_path / "broken", model_files() | {name: content})))
    assert reason in model.reason
    assert str(tmp_path) not in model.reason


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"quantization": {"bits": 4, "group_size": 64}}, "4-bit"),
        ({"quantization": {"bits": 4, "mode": "mxfp4", "layer": {"bits": 8}}}, "mxfp4"),
        ({"quantization": {"bits": 4, "a": {"bits": 3}, "b": {"bits": 6}, "c": False}}, "3-6 bit"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization": "strange"}, ""),
    ],
)
def test_quantization_is_what_the_configuration_says(config: dict[str, object], text: str) -> None:
    """mlx-lm's own form and the hub's."""
    assert quantization(config) == text


def test_a_model_is_found_by_its_name_or_its_folder(tmp_path: Path) -> None:
    """And by nothing else."""
    cache = tmp_path / "hub"
    snapshot = write_repository(cache, "owner/name", model_files())
    folder = write_files(tmp_path / "elsewhere", model_files())
    for text, expected in (("owner/name", snapshot), (str(folder), folder), ("embedded", EMBEDDED_FOLDER)):
        assert named(text, cache).folder == expected
    with pytest.raises(OperatorError, match=r"no model 'owner/other' .*penstock pull owner/other"):
        named("owner/other", cache)
