"""The fingerprint: two models never have the same one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.disk.model_fingerprint import fingerprint, portable_fingerprint

WEIGHTS = "model-00001-of-00002.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / WEIGHTS).write_bytes((16).to_bytes(8, "little") + bytes(100_000))
    (folder / "model-00002-of-00002.safetensors").write_bytes(bytes(1000))
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapters.safetensors").write_bytes(b"low rank")
    return folder


def printed(model: Path, adapter: Path | None = None, whole_bytes: int = 1 << 30) -> str:
    return fingerprint(model, "float32", adapter, "mlx-lm 0.32.2", whole_bytes=whole_bytes)


def overwrite(file: Path, at: int) -> None:
    """Flip a byte; size and time of modification stay."""
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_same_model_has_the_same_fingerprint_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    first = printed(model)
    assert first == printed(model.rename(tmp_path / "elsewhere"))
    assert len(bytes.fromhex(first)) == 32


@pytest.mark.parametrize("at", [0, 9, 50_000, 100_007])
def test_one_changed_byte_of_the_weights_shows_when_size_and_time_are_the_same(model: Path, at: int) -> None:
    before = printed(model)
    overwrite(model / WEIGHTS, at)
    assert printed(model) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda model: overwrite(model / "config.json", 3),
        lambda model: (model / "own_code.py").write_text("class Model: ..."),
        lambda model: (model / "model-00003-of-00002.safetensors").write_bytes(b""),
        lambda model: (model / WEIGHTS).rename(model / "model-0.safetensors"),
        lambda model: (model / WEIGHTS).unlink(),
    ],
)
def test_every_file_that_shapes_the_model_counts(model: Path, change: Callable[[Path], object]) -> None:
    before = printed(model)
    change(model)
    assert printed(model) != before


def test_what_does_not_shape_the_model_does_not_count(model: Path) -> None:
    before = printed(model)
    (model / "tokenizer.json").write_text("{}")
    (model / "README.md").write_text("a model")
    os.utime(model / WEIGHTS)
    assert printed(model) == before


def test_weights_dtype_adapter_and_software_count(model: Path, adapter: Path) -> None:
    prints = {
        fingerprint(model, "float32", None, "mlx-lm 0.32.2"),
        fingerprint(model, "bfloat16", None, "mlx-lm 0.32.2"),
        fingerprint(model, "float32", None, "mlx-lm 0.32.3"),
        fingerprint(model, "float32", adapter, "mlx-lm 0.32.2"),
    }
    assert len(prints) == 4


def test_a_changed_adapter_shows_be_it_a_folder_or_a_file(model: Path, adapter: Path) -> None:
    file = adapter / "adapters.safetensors"
    before = printed(model, adapter), printed(model, file)
    overwrite(file, 2)
    after = printed(model, adapter), printed(model, file)
    assert not set(before) & set(after)


def test_a_large_models_header_and_samples_are_read_and_its_times_count(model: Path) -> None:
    """A time that a program can set is not enough: the one of the last change counts too."""
    before = printed(model, whole_bytes=1000)
    assert before == printed(model, whole_bytes=1000)
    os.utime(model / WEIGHTS)
    touched = printed(model, whole_bytes=1000)
    overwrite(model / WEIGHTS, 9)
    assert len({before, touched, printed(model, whole_bytes=1000)}) == 3


@given(content=st.binary(max_size=40))
def test_any_bytes_may_be_weights(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whether they can be loaded is the loader's affair."""
    folder = tmp_path_factory.mktemp("any")
    (folder / "model.safetensors").write_bytes(content)
    assert printed(folder, whole_bytes=-1) != printed(folder)


def test_a_file_that_cannot_be_read_is_an_error(model: Path) -> None:
    (model / "model-x.safetensors").symlink_to(model / "nowhere")
    with pytest.raises(OSError, match=r"nowhere|model-x"):
        printed(model)


def test_a_copy_has_the_same_portable_fingerprint(tmp_path: Path) -> None:
    """Whatever its times, its owner, and files that no token depends on."""
    first = _model(tmp_path / "first")
    copy = _model(tmp_path / "second")
    for path in copy.iterdir():
        os.utime(path, (1, 1))
    (copy / "README.md").write_text("another")
    (copy / "tokenizer_config.json").write_text('{"chat_template": "another"}')
    assert portable_fingerprint(copy) == portable_fingerprint(first)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "code.py", "model.safetensors"])
@pytest.mark.parametrize("change", ["byte", "longer", "gone", "renamed"])
def test_another_model_has_another_portable_fingerprint(tmp_path: Path, name: str, change: str) -> None:
    folder = _model(tmp_path / "model")
    before = portable_fingerprint(folder)
    path = folder / name
    content = path.read_bytes()
    match change:
        case "byte":
            path.write_bytes(content[:-1] + b"#")
        case "longer":
            path.write_bytes(content + b"#")
        case "gone":
            path.unlink()
        case _:
            path.rename(folder / f"another-{name}")
    assert portable_fingerprint(folder) != before


def _model(folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "code.py"):
        (folder / name).write_text(f"{{{name}}}")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(100))
    return folder
