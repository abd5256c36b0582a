"""The fingerprint: two models never have the same one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.shared import model_fingerprint
from scheduler.shared.folder.weight_files import INDEX
from scheduler.shared.model_fingerprint import fingerprint
from tests.scheduler.shared.folder.test_weight_files import of, write

WEIGHTS = "model-00001-of-00002.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "code.py"):
        (folder / name).write_text(f"{{{name}}}")
    (folder / WEIGHTS).write_bytes((16).to_bytes(8, "little") + bytes(100_000))
    (folder / "model-00002-of-00002.safetensors").write_bytes(bytes(1000))
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that keeps the digests of files which are as new as a test's."""
    monkeypatch.setattr(model_fingerprint, "_TICKS_NS", -(10**12))
    return tmp_path / "cache"


def flip(file: Path, at: int) -> None:
    """Change one byte; size and time of modification stay."""
    before = file.stat()
    with file.open("r+b") as opened:
        (byte,) = os.pread(opened.fileno(), 1, at)
        os.pwrite(opened.fileno(), bytes([byte ^ 1]), at)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_copy_has_the_same_fingerprint_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    """Whatever its times, its owner, and files that no token depends on."""
    first = fingerprint(model)
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere"))
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    (copy / "README.md").write_text("another")
    (copy / "tokenizer_config.json").write_text('{"chat_template": "another"}')
    (copy / "consolidated.safetensors").write_text("a second copy of all weights, which is not loaded")
    (copy / "onnx").mkdir()
    (copy / "onnx" / "config.json").write_text("for another program")
    assert fingerprint(copy) == first
    assert len(bytes.fromhex(first)) == 32


@pytest.mark.parametrize(
    "change",
    [
        lambda model: (model / "own_code.py").write_text("class Model: ..."),
        lambda model: (model / "model-00003-of-00002.safetensors").write_bytes(b""),
        lambda model: (model / "2_Dense" / "config.json").write_text('{"bias": true}'),
        lambda model: (model / "2_Dense" / "model.safetensors").write_bytes(b"another layer"),
    ],
)
def test_a_file_more_that_shapes_the_model_counts(model: Path, change: Callable[[Path], object]) -> None:
    (model / "2_Dense").mkdir()
    (model / "2_Dense" / "config.json").write_text("{}")
    (model / "2_Dense" / "model.safetensors").write_bytes(b"a layer behind the pooling")
    before = fingerprint(model)
    change(model)
    assert fingerprint(model) != before


def test_a_file_that_cannot_be_read_is_an_error(model: Path) -> None:
    (model / "model-x.safetensors").symlink_to(model / "nowhere")
    with pytest.raises(OSError, match=r"nowhere|model-x"):
        fingerprint(model)


# --- kept digests


class Reads:
    """Which files were read whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        read = model_fingerprint._read

        def counted(path: Path) -> tuple[str, os.stat_result]:
            self.names.append(path.name)
            return read(path)

        monkeypatch.setattr(model_fingerprint, "_read", counted)

    def weights(self) -> list[str]:
        found = [name for name in self.names if name.endswith(".safetensors")]
        self.names.clear()
        return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.mark.parametrize("at", [0, 9, 50_000, 100_007])
def test_an_edit_shows_when_size_and_time_of_modification_are_set_back(
    model: Path, cache: Path, reads: Reads, at: int
) -> None:
    """The file system's own time of change counts."""
    before = fingerprint(model, cache)
    reads.names.clear()
    flip(model / WEIGHTS, at)
    assert fingerprint(model, cache) != before
    assert reads.weights() == [WEIGHTS]


def test_what_has_just_changed_is_not_kept(model: Path, tmp_path: Path, reads: Reads) -> None:
    """A second edit within the same tick of the file system's clock would not show."""
    fingerprint(model, tmp_path / "cache")
    fingerprint(model, tmp_path / "cache")
    assert len(reads.weights()) == 4


@pytest.mark.parametrize("damage", [b"", b"{", b'{"path": 1}', b"\xff"])
def test_a_damaged_cache_costs_another_reading(model: Path, cache: Path, reads: Reads, damage: bytes) -> None:
    first = fingerprint(model, cache)
    for entry in (cache / "weights").iterdir():
        entry.write_bytes(damage)
    reads.names.clear()
    assert fingerprint(model, cache) == first
    assert len(reads.weights()) == 2
    fingerprint(model, cache)
    assert reads.weights() == []


def test_what_is_not_loaded_has_no_part_in_it(tmp_path: Path) -> None:
    """Two folders with the same files and another index load other weights; a stray file loads none."""
    files = {"model.safetensors": of("a"), "model_old.safetensors": of("b", "a")}
    one = write(tmp_path / "both", files)
    alone = fingerprint(write(tmp_path / "alone", {"model.safetensors": of("a")}))
    found = set()
    for file, tensors in (("model.safetensors", "a"), ("model_old.safetensors", "ab")):
        (one / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file)}))
        found.add(fingerprint(one))
    assert len(found) == 2
    assert alone in found
