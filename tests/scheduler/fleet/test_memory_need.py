"""What a model will take, from its files: as much as an engine then reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.fleet.memory_need import weights_bytes
from tests.scheduler.shared.folder.test_weight_files import safetensors


def folder_of(path: Path, config: object, **tensors: tuple[str, list[int], int]) -> Path:
    """Tensors by name, with "_" for the last dot: type, shape, bytes."""
    header, end = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[".".join(name.rsplit("_", 1))] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [end, end + nbytes],
        }
        end += nbytes
    (path / "model.safetensors").write_bytes(safetensors(header, end))
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        ("auto", "cpu", 400),
        ("auto", "Apple M4", 200),
        ("auto", None, 400),
        ("stored", "cpu", 200),
        ("float16", "cpu", 200),
        ("float32", "Apple M4", 400),
    ],
)
def test_the_type_decides(tmp_path: Path, dtype: str, device: str | None, expected: int) -> None:
    """On a CPU, or where it is not known, 16 bits become 32."""
    folder = folder_of(tmp_path, {}, a_weight=("BF16", [10, 10], 200))
    assert weights_bytes(folder, dtype, device) == expected


def test_packed_weights_are_unpacked(tmp_path: Path) -> None:
    """Some layers have bits of their own; scales and biases are multiplied in, and what is no float stays."""
    folder = folder_of(
        tmp_path,
        {"quantization": {"group_size": 32, "bits": 4, "b": {"group_size": 32, "bits": 8}}},
        a_weight=("U32", [8, 4], 128),
        a_scales=("BF16", [8, 1], 16),
        a_biases=("BF16", [8, 1], 16),
        b_weight=("U32", [8, 8], 256),
        b_scales=("BF16", [8, 1], 16),
        norm_weight=("F32", [8], 32),
        table_ids=("I32", [5], 20),
    )
    stored = 128 + 16 + 16 + 256 + 16 + 32 + 20
    assert weights_bytes(folder, "stored", None) == stored
    assert weights_bytes(folder, "float16", None) == 2 * (8 * 32 + 8 * 32 + 8) + 20
