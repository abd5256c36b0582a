"""`penstock convert`: what may be asked for, the room it takes, and a folder that appears whole or not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from api.cli import machine
from api.cli.command_line import penstock
from api.cli.errors import OperatorError
from api.cli.machine import Answers, Machine
from api.cli.models import convert, disk_models
from api.cli.models.convert import Conversion, check_disk, converted_bytes, refuse_source, run, target_of
from api.cli.models.disk_models import DiskModel, Quantization, described
from scheduler.models.random_qwen3 import TINY, write_model
from scheduler.shared.folder.weight_files import INDEX, read_weights
from tests.fakes.model_files import model_files, weights, write_files

GB = 10**9


@pytest.mark.parametrize(
    ("options", "target", "suffix"),
    [
        (("4", None, "affine", None, None, False), Conversion(4), "4bit"),
        (("8", "32", "affine", None, "bfloat16", False), Conversion(8, 32, dtype="bfloat16"), "8bit"),
        ((None, None, "mxfp4", None, None, False), Conversion(4, 32, "mxfp4"), "mxfp4"),
        ((None, None, "affine", "mixed_3_6", None, False), Conversion(recipe="mixed_3_6"), "mixed_3_6"),
        ((None, None, "affine", None, "float16", False), Conversion(dtype="float16"), "float16"),
        ((None, None, "affine", None, None, True), Conversion(dequantize=True), "unpacked"),
    ],
)
def test_options_say_one_target(options: Any, target: Conversion, suffix: str) -> None:
    """And the end of its name."""
    assert target_of(*options) == target
    assert target.suffix == suffix


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((None, None, "affine", None, None, False), "say what to convert to"),
        (("8", None, "mxfp4", None, None, False), "mxfp4 has 4 bits in groups of 32"),
        (("4", None, "affine", "mixed_3_6", None, False), "leave out --q-bits"),
        (("4", None, "affine", None, None, True), "--dequantize unpacks"),
        ((None, "64", "affine", None, None, False), "needs --q-bits"),
    ],
)
def test_options_that_say_nothing_or_two_things_are_refused(options: Any, words: str) -> None:
    """As click's own, with exit code 2."""
    with pytest.raises(click.UsageError, match=words):
        target_of(*options)


def test_arguments_are_mlx_lms() -> None:
    """By its own names."""
    assert Conversion(4, 64, dtype="bfloat16").arguments == [
        *("--quantize", "--q-mode", "affine", "--q-bits", "4", "--q-group-size", "64"),
        *("--dtype", "bfloat16"),
    ]
    assert Conversion(recipe="mixed_3_6").arguments[-2:] == ["--quant-predicate", "mixed_3_6"]
    assert Conversion(dequantize=True).arguments == ["--dequantize"]


@pytest.mark.parametrize(
    ("target", "nbytes"),
    [(Conversion(4), 4_500_000), (Conversion(8, 32), 9_000_000), (Conversion(dtype="float32"), 32_000_000)],
)
def test_the_room_is_counted_from_shapes(target: Conversion, nbytes: int, tmp_path: Path) -> None:
    """Eight million numbers: bits, and 32 more for each group."""
    folder = write_files(tmp_path, model_files() | {"model.safetensors": weights(8_000_000)})
    assert converted_bytes(DiskModel("m", folder, "folder"), target) == nbytes


def test_a_disk_without_room_is_refused_with_figures(tmp_path: Path) -> None:
    """Before the converter is started."""
    check_disk(4 * GB, tmp_path / "out", 5 * GB)
    with pytest.raises(OperatorError, match=r"takes about 4\.0 GB in .*; 3\.0 GB are free"):
        check_disk(4 * GB, tmp_path / "out", 3 * GB)


@pytest.mark.parametrize(
    ("model", "target", "words"),
    [
        (
            DiskModel("m", Path("m"), "folder", reason="it is half"),
            Conversion(4),
            "cannot be converted: it is half",
        ),
        (
            DiskModel("m", Path("m"), "folder", quantization=Quantization(4, 64, "affine")),
            Conversion(8),
            "is 4-bit already",
        ),
        (DiskModel("m", Path("m"), "folder"), Conversion(dequantize=True), "nothing to unpack"),
    ],
)
def test_a_source_of_which_nothing_can_be_made_is_refused(
    model: DiskModel, target: Conversion, words: str
) -> None:
    """With what to take instead."""
    with pytest.raises(OperatorError, match=words):
        refuse_source(model, target)


@pytest.mark.slow
def test_a_conversion_is_listed_and_a_folder_that_exists_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By mlx-lm's real converter. What it takes of memory is asked elsewhere (`test_machine.py`)."""
    monkeypatch.setattr(machine, "ask", lambda folders=(): Answers(Machine("cpu", "cpu", True, 16 * GB)))
    monkeypatch.setattr(disk_models, "hub_cache", lambda: tmp_path / "hub")
    monkeypatch.setattr(disk_models, "made_models_folder", lambda: tmp_path / "made")
    write_model(TINY, tmp_path / "tiny")
    arguments = ["convert", str(tmp_path / "tiny"), "--q-bits", "4", "--dtype", "bfloat16"]
    output = CliRunner().invoke(penstock, arguments, catch_exceptions=False).output
    made = described(DiskModel("tiny-4bit", tmp_path / "made" / "tiny-4bit", "folder"))
    assert (made.reason, made.quantization, made.dtype) == ("", Quantization(4, 64, "affine"), "bfloat16")
    assert f"penstock serve --model {made.folder}" in output
    assert [path.name for path in made.folder.parent.iterdir()] == ["tiny-4bit"]
    with pytest.raises(OperatorError, match="tiny-4bit exists"):
        CliRunner().invoke(penstock, arguments, catch_exceptions=False)


@pytest.mark.slow
def test_a_conversion_reads_the_folder_as_the_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older copy of the weights beside the indexed ones is no part of it."""
    monkeypatch.setattr(machine, "ask", lambda folders=(): Answers(Machine("cpu", "cpu", True, 16 * GB)))
    source = tmp_path / "tiny"
    write_model(TINY, source)
    held = read_weights(source)
    stored = (source / "model.safetensors").read_bytes()
    (source / "model_old.safetensors").write_bytes(stored[:-64] + bytes(64))
    (source / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(held.tensors, "model.safetensors")}))
    run(source, tmp_path / "made", Conversion(dtype="float32"))
    made, own = load_file(tmp_path / "made" / "model.safetensors"), load_file(source / "model.safetensors")
    assert all((made[name] == own[name]).all() for name in made)
    assert len(made) == len(held.tensors)


@pytest.mark.slow
def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says the converter's last words, which may be many."""
    program = "import os, sys; os.mkdir(sys.argv[4]); print(*range(90), sep='\\n'); sys.exit('no such layer')"
    monkeypatch.setattr(convert, "_CONVERTER", (sys.executable, "-c", program))
    with pytest.raises(OperatorError, match=r"could not convert it:\n85\n(.*\n)+no such layer") as caught:
        run(tmp_path / "a", tmp_path / "out" / "b", Conversion(4))
    assert len(str(caught.value).splitlines()) == 7
    assert list((tmp_path / "out").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file is where its folder should be."""
    (tmp_path / "file").write_text(json.dumps(None))
    with pytest.raises(OperatorError, match="cannot be written"):
        run(tmp_path / "a", tmp_path / "file" / "b", Conversion(4))
