"""Files of weights are checked by their lengths before an engine reads them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import StartupError
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt import weight_files


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


def test_whole_files_pass(tmp_path: Path) -> None:
    """A real one, one by hand, and one without a tensor."""
    weight_files.check(EMBEDDED_FOLDER)
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(WHOLE)
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(safetensors({}, 0))
    weight_files.check(tmp_path)


@given(kept=st.integers(0, len(WHOLE) - 1))
@settings(derandomize=True)
def test_a_file_cut_anywhere_is_named(kept: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(WHOLE[:kept])
        with pytest.raises(StartupError, match=r"model\.safetensors is cut short: .* download it again"):
            weight_files.check(Path(folder))


@given(content=st.binary(min_size=8, max_size=200))
@settings(derandomize=True)
def test_other_bytes_are_refused_in_words(content: bytes) -> None:
    """No other exception, whatever the file holds."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(content)
        with pytest.raises(StartupError, match=r"cut short|no safetensors file"):
            weight_files.check(Path(folder))


@pytest.mark.parametrize(
    "header", [[], 1, {"a": 1}, {"a": {"data_offsets": 1}}, {"a": {"data_offsets": ["x", "y"]}}]
)
def test_a_header_that_is_none_is_refused(header: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, 8))
    with pytest.raises(StartupError, match="header is damaged"):
        weight_files.check(tmp_path)


def test_a_file_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    """A download that stopped between two files."""
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(WHOLE)
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / weight_files.INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(StartupError, match=r"lacks model-00002-of-00002\.safetensors"):
        weight_files.check(tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", '{"weight_map": []}', "{}"])
def test_an_index_that_is_none_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    (tmp_path / weight_files.INDEX).write_text(index)
    with pytest.raises(StartupError, match="is not an index of weights"):
        weight_files.check(tmp_path)
