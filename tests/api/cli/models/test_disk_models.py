"""The models on a disk: what their files say, and a reason for each place that holds none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from api.cli.models.disk_models import DiskModel, find, named, quantization, with_dialects
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.fakes.model_files import model_files, weights, write_files, write_repository
from tests.real_model.folder import real_model

OTHER = "f" * 40


def found(tmp_path: Path, *folders: Path) -> dict[str, DiskModel]:
    """By name, from caches below `tmp_path`, without the embedded model and smollm2."""
    models = find(folders, cache=tmp_path / "hub")
    assert models[0].name == "embedded"
    return {model.name: model for model in models[1:] if model.source != "own"}


def test_the_embedded_model_is_always_there(tmp_path: Path) -> None:
    """With what `serve` says of it: its dialects, its task, its context."""
    model, *others = find(cache=tmp_path / "none")
    assert all(other.source == "own" for other in others)
    assert (model.name, model.folder, model.reason) == ("embedded", EMBEDDED_FOLDER, "")
    assert (model.task, model.context_tokens, model.dtype) == ("chat", 131072, "bfloat16")
    read = with_dialects(model)
    assert (read.chat_template, "json_tools" in read.found) == (True, True)


def test_smollm2_is_listed_once_it_was_pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name that `serve` takes; its folder is the cache's."""
    folder = real_model()
    model = named("smollm2", cache=tmp_path / "none")
    assert model is not None
    assert (model.name, model.folder, model.source, model.reason) == ("smollm2", folder, "own", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert named("smollm2", cache=tmp_path / "none") is None


def test_a_snapshot_of_the_hub_has_its_id_and_its_commit(tmp_path: Path) -> None:
    """Blobs count once; the folder is what `serve --model` takes."""
    files = model_files()
    snapshot = write_repository(tmp_path / "hub", "owner/small--name", files)
    model = found(tmp_path)["owner/small--name"]
    assert (model.folder, model.source) == (snapshot, "hub")
    assert model.disk_bytes == sum(map(len, files.values()))
    assert (model.weights_bytes, model.wide_weights_bytes, model.dtype) == (2048, 4096, "float16")
    assert (model.reason, model.model_type, model.context_tokens) == ("", "qwen3", 4096)


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
    assert models["owner/half"].partial_bytes == 5
    assert models["owner/broken"].reason == "the folder holds no config.json"
    assert (models["owner/bare"].reason, models["owner/bare"].partial_bytes) == ("its download was cut", 3)


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
    folder = write_files(tmp_path / "given" / "broken", model_files() | {name: content})
    model = found(tmp_path, folder)["broken"]
    assert reason in model.reason
    assert str(tmp_path) not in model.reason


def test_a_model_without_weights_or_with_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    """The tokenizer is only read for the dialects."""
    files = model_files()
    bare = write_files(tmp_path / "given" / "bare", {"config.json": files["config.json"]})
    torn = write_files(tmp_path / "given" / "torn", files | {"tokenizer.json": b"{"})
    models = found(tmp_path, tmp_path / "given")
    assert models[bare.name].reason == "the folder holds no model*.safetensors"
    assert "tokenizer" in with_dialects(models[torn.name]).reason


def test_given_folders_hold_models_up_to_two_deep(tmp_path: Path) -> None:
    """LM Studio's `owner/name`, too; what holds none is listed."""
    write_files(tmp_path / "given" / "one", model_files())
    write_files(tmp_path / "given" / "owner" / "two", model_files())
    write_files(tmp_path / "given" / "notes", {"a.txt": b""})
    models = found(tmp_path, tmp_path / "given", tmp_path / "given" / "one", tmp_path / "nowhere")
    assert {name: model.reason for name, model in models.items()} == {
        "one": "",
        "owner/two": "",
        "notes": "it holds no config.json",
        str(tmp_path / "nowhere"): "there is no such folder",
    }


@pytest.mark.parametrize(
    ("config", "layers", "text"),
    [
        ({"quantization": {"bits": 4, "group_size": 64}}, 9, "4-bit"),
        ({"quantization": {"bits": 4, "mode": "mxfp4", "layer": {"bits": 8}}}, 9, "mxfp4"),
        ({"quantization": {"bits": 4, "a": {"bits": 3}, "b": {"bits": 6}, "c": False}}, 2, "3-6 bit"),
        ({"quantization": {"bits": 4, "router": {"bits": 8}}}, 100, "4-8 bit"),
        ({"quantization": {"bits": 4, "router": {"bits": 8}}}, 1, "8-bit"),
        ({"quantization_config": {"quant_method": "awq"}}, 9, "awq"),
        ({"quantization": "strange"}, 9, ""),
    ],
)
def test_quantization_is_what_the_configuration_says(
    config: dict[str, object], layers: int, text: str
) -> None:
    """mlx-lm's own form and the hub's. mlx-lm's recipes name every layer, and a default that none has."""
    assert quantization(config, layers) == text


def test_a_model_is_found_by_its_name_or_its_folder(tmp_path: Path) -> None:
    """And by nothing else."""
    cache = tmp_path / "hub"
    snapshot = write_repository(cache, "owner/name", model_files())
    folder = write_files(tmp_path / "elsewhere", model_files())
    for text, expected in (("owner/name", snapshot), (str(folder), folder), ("embedded", EMBEDDED_FOLDER)):
        model = named(text, cache=cache)
        assert model is not None
        assert (model.folder, "json_tools" in with_dialects(model).found) == (expected, True)
    assert named("owner/other", cache=cache) is None


def test_reading_models_needs_no_mlx(tmp_path: Path) -> None:
    """Neither do the tokenizers."""
    program = (
        "import sys; from pathlib import Path; from api.cli.models.disk_models import find, with_dialects;"
        f"none = Path({str(tmp_path)!r}); found = with_dialects(find(cache=none)[0]).chat_template;"
        "print(found, 'mlx.core' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "False"]
