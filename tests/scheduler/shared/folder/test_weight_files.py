"""Files of weights are checked by their lengths and headers before an engine reads them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import StartupError
from scheduler.shared.folder.weight_files import INDEX, read_weights


def safetensors(header: object, data_bytes: int) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + bytes(data_bytes)


WHOLE = safetensors(
    {
        "__metadata__": {"format": "mlx"},
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": [8, 20]},
    },
    20,
)


@given(kept=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_is_named(kept: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(WHOLE[:kept])
        with pytest.raises(StartupError, match=r"model\.safetensors is cut short: .* download it again"):
            read_weights(Path(folder))


@given(content=st.binary(min_size=8, max_size=200))
def test_other_bytes_are_refused_in_words(content: bytes) -> None:
    """No other exception, whatever the file holds."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(content)
        with pytest.raises(StartupError, match=r"cut short|no safetensors file"):
            read_weights(Path(folder))


def test_a_file_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    """A download that stopped between two files."""
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(of("a"))
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(StartupError, match=r"lacks model-00002-of-00002\.safetensors"):
        read_weights(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": []}', "{}"])
def test_an_index_that_is_none_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(StartupError, match="is not an index of weights"):
        read_weights(tmp_path)


def of(*names: str) -> bytes:
    """A file with these tensors, a number each."""
    return safetensors(
        {
            name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]}
            for at, name in enumerate(names)
        },
        4 * len(names),
    )


def write(folder: Path, files: dict[str, bytes], index: dict[str, str] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if index is not None:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


SHARDS = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


@pytest.mark.parametrize(
    ("files", "index"),
    [
        ({"model.safetensors": of("a", "b")}, SHARDS),
        ({"model.safetensors": of("language_model.a", "language_model.a.scales")}, SHARDS),
        (
            {SHARDS["a"]: of("a"), SHARDS["b"]: of("b")},
            {"a": "model-00001-of-00005.safetensors", "c": "model-00005-of-00005.safetensors"},
        ),
        (
            {"model.safetensors": of("a.weight", "a.scales")},
            {"a.weight": "model.safetensors", "v": "model.safetensors"},
        ),
    ],
    ids=["one file", "one file, other names", "other shards", "the same name, other tensors"],
)
def test_an_index_of_another_model_is_not_used(
    files: dict[str, bytes], index: dict[str, str], tmp_path: Path
) -> None:
    """Conversions to MLX carry the index of their source along: the tensors that are there decide."""
    found = read_weights(write(tmp_path, files, index))
    assert found.names == tuple(sorted(files))
    assert found.notes == (f"{INDEX} is not this model's: it is not used",)
    assert found.is_whole_folder


def test_with_a_right_index_only_its_files_are_loaded(tmp_path: Path) -> None:
    """An older copy beside them, with the same tensors, changes nothing."""
    files = {SHARDS["a"]: of("a"), SHARDS["b"]: of("b"), "model_old.safetensors": of("a", "b", "c")}
    found = read_weights(write(tmp_path, files, SHARDS))
    assert found.names == (SHARDS["a"], SHARDS["b"])
    assert found.tensors.keys() == {"a", "b"}
    assert found.notes == (f"model_old.safetensors is not in {INDEX} and not loaded",)
    assert not found.is_whole_folder


@pytest.mark.parametrize("index", [None, {"a": "model-00001-of-00003.safetensors"}])
def test_a_tensor_in_two_files_is_refused_by_name(index: dict[str, str] | None, tmp_path: Path) -> None:
    """Nobody knows which of them is meant."""
    files = {"model.safetensors": of("a", "b"), "model_old.safetensors": of("b")}
    words = "has the tensor b twice, in model.safetensors and in model_old.safetensors: take one"
    with pytest.raises(StartupError, match=words):
        read_weights(write(tmp_path, files, index))
