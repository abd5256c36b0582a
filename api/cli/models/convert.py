"""`penstock convert SOURCE`: mlx-lm's own conversion, in a child process. Its folder appears whole."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from api.cli.errors import OperatorError
from api.cli.machine import child_environment
from api.cli.models import disk_models
from api.cli.models.disk_models import DiskModel
from api.cli.models.download import existing
from api.cli.models.listing import lines
from api.cli.models.reading import find_one, folders_option, read
from scheduler.fleet.memory_need import weights_bytes
from scheduler.shared.folder.weight_files import StoredTensor, read_weights
from scheduler.shared.gigabytes import gigabytes

_CONVERTER = (sys.executable, "-m", "scheduler.engine.mlx.conversion")
_BITS = ("2", "3", "4", "5", "6", "8")
_GROUPS = ("32", "64", "128")
_MODES = {"affine": (None, None), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}
"""Bits and group size of each mode that has only one of each; (None, None) for a free choice."""
_RECIPES = ("mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6")
_DTYPES = ("float16", "bfloat16", "float32")
_DEFAULT_GROUP = 64
_SCALE_BITS = 32
"""Scale and bias of a group, 16 bits each."""
_SPARE_BYTES = 256 << 20
_TAIL_LINES = 6
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Conversion:
    """What the weights become. Without `bits` and `recipe` they are not packed."""

    bits: int | None = None
    group_size: int | None = None
    mode: str = "affine"
    recipe: str | None = None
    dtype: str | None = None
    dequantize: bool = False

    @property
    def suffix(self) -> str:
        """Return the suffix of the result's name."""
        if self.recipe is not None:
            return self.recipe
        if self.mode != "affine":
            return self.mode
        return f"{self.bits}bit" if self.bits is not None else self.dtype or "unpacked"

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of `mlx_lm convert`."""
        found = ["--dequantize"] if self.dequantize else []
        if self.bits is not None or self.recipe is not None:
            found += ["--quantize", "--q-mode", self.mode]
        if self.bits is not None:
            found += ["--q-bits", str(self.bits)]
        if self.group_size is not None:
            found += ["--q-group-size", str(self.group_size)]
        if self.recipe is not None:
            found += ["--quant-predicate", self.recipe]
        return [*found, *(["--dtype", self.dtype] if self.dtype is not None else [])]


def target_of(
    q_bits: str | None,
    q_group_size: str | None,
    q_mode: str,
    recipe: str | None,
    dtype: str | None,
    unpack: bool,
) -> Conversion:
    """Return the target of these options. Raise click's UsageError if they say nothing or contradict each
    other."""
    bits = None if q_bits is None else int(q_bits)
    group = None if q_group_size is None else int(q_group_size)
    of_mode = _MODES[q_mode]
    if q_mode != "affine":
        if recipe is not None or bits not in (None, of_mode[0]) or group not in (None, of_mode[1]):
            raise click.UsageError(
                f"--q-mode {q_mode} has {of_mode[0]} bits in groups of {of_mode[1]}, and no recipe"
            )
        bits, group = of_mode
    if recipe is not None and bits is not None:
        raise click.UsageError("--recipe says how many bits each layer has: leave out --q-bits")
    if unpack and (bits is not None or recipe is not None):
        raise click.UsageError("--dequantize unpacks: leave out --q-bits, --q-mode and --recipe")
    if group is not None and bits is None and recipe is None:
        raise click.UsageError("--q-group-size needs --q-bits")
    if not unpack and bits is None and recipe is None and dtype is None:
        raise click.UsageError("say what to convert to: --q-bits 4, --recipe, --dtype or --dequantize")
    return Conversion(bits, group, q_mode, recipe, dtype, unpack)


@click.command()
@click.argument("source")
@folders_option
@click.option("--q-bits", type=click.Choice(_BITS), help="Bits of a packed weight.")
@click.option("--q-group-size", type=click.Choice(_GROUPS), help="Weights with one scale.  [default: 64]")
@click.option(
    "--q-mode",
    type=click.Choice(list(_MODES)),
    default="affine",
    show_default=True,
    help="How they are packed.",
)
@click.option("--recipe", type=click.Choice(_RECIPES), help="More bits for some layers.")
@click.option(
    "--dtype", type=click.Choice(_DTYPES), help="Type of what is not packed.  [default: the source's]"
)
@click.option("--dequantize", is_flag=True, help="Unpack a quantised model.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder of the result, which must not exist.  [default: in Penstock's cache]",
)
def convert(
    source: str,
    folders: tuple[Path, ...],
    q_bits: str | None,
    q_group_size: str | None,
    q_mode: str,
    recipe: str | None,
    dtype: str | None,
    dequantize: bool,
    out: Path | None,
) -> None:
    """Quantise or convert a model with mlx-lm's own converter.

    SOURCE is a name that `penstock models` lists, or a folder. The result is listed by `penstock models`.
    """
    target = target_of(q_bits, q_group_size, q_mode, recipe, dtype, dequantize)
    model = find_one(source, folders)
    refuse_source(model, target)
    name = f"{model.name.split('@')[0].rpartition('/')[2]}-{target.suffix}"
    folder = disk_models.made_models_folder() / name if out is None else out.expanduser()
    if os.path.lexists(folder):
        raise OperatorError(f"{folder} exists: delete it (penstock rm {folder.name}), or give another --out")
    check_disk(converted_bytes(model, target), folder, shutil.disk_usage(existing(folder)).free)
    try:
        run(model.folder, folder, target)
    except KeyboardInterrupt:
        click.echo("stopped; nothing is left of it", err=True)
        raise
    reading = read([disk_models.described(DiskModel(folder.name, folder, "folder"))])
    for line in list(lines(reading))[1:3]:
        click.echo(line)
    click.echo(f"serve it with: penstock serve --model {folder}")


def refuse_source(model: DiskModel, target: Conversion) -> None:
    """Raise OperatorError if mlx-lm cannot convert this source to the target."""
    if not model.is_model:
        raise OperatorError(f"{model.name} cannot be converted: {model.reason}")
    packs = target.bits is not None or target.recipe is not None
    if packs and model.quantization is not None:
        raise OperatorError(
            f"{model.name} is {model.quantization} already, and packing it again would lose twice:\n"
            "take the model that it was made of, or unpack it first (--dequantize)"
        )
    if target.dequantize and model.quantization is None:
        raise OperatorError(f"{model.name} is not quantised: there is nothing to unpack")


def converted_bytes(model: DiskModel, target: Conversion) -> int:
    """Return about how much disk the result takes."""
    if target.dequantize:
        return weights_bytes(model.folder, target.dtype or "bfloat16", None)
    stored = read_weights(model.folder).tensors.values()
    return sum(_converted(tensor, target) for tensor in stored)


def _converted(tensor: StoredTensor, target: Conversion) -> int:
    bits = target.bits if target.recipe is None else 6
    if bits is not None and tensor.nbytes >= _DEFAULT_GROUP * _DEFAULT_GROUP:  # Norms are not packed.
        return int(tensor.elements * (bits + _SCALE_BITS / (target.group_size or _DEFAULT_GROUP)) / 8)
    if target.dtype is None or not tensor.dtype.startswith(("F", "BF")):
        return tensor.nbytes
    return tensor.elements * (4 if target.dtype == "float32" else 2)


def check_disk(needed_bytes: int, folder: Path, free_bytes: int) -> None:
    """Raise OperatorError if the result does not fit on the disk."""
    if needed_bytes + _SPARE_BYTES > free_bytes:
        raise OperatorError(
            f"the result takes about {gigabytes(needed_bytes)} in {folder.parent}, and"
            f" {gigabytes(_SPARE_BYTES)} to spare; {gigabytes(free_bytes)} are free:\n"
            "make room (penstock models, penstock rm), or give --out on another disk"
        )


def run(source: Path, folder: Path, target: Conversion, environment: Mapping[str, str] | None = None) -> None:
    """Convert `source` into `folder`, which appears whole or not at all. Raise OperatorError with the
    converter's last words."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OperatorError(f"{folder.parent} cannot be written: {error.strerror}") from error
    partial = folder.parent / f".{folder.name}.{secrets.token_hex(4)}.partial"
    command = [*_CONVERTER, "--hf-path", str(source), "--mlx-path", str(partial), *target.arguments]
    try:
        with _child(command, environment or os.environ) as child:
            words = _relay(child)
            status = child.wait()
        if status != 0:
            raise OperatorError("mlx-lm could not convert it:\n" + "\n".join(words[-_TAIL_LINES:]))
        partial.rename(folder)
    except OSError as error:
        raise OperatorError(f"{folder} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _child(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start a child in a session of its own; leaving the block kills the whole session's process group."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Unbuffered: else its output would follow the reason of a failure, and push it out of the last lines.
        env={**child_environment(environment), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        with child:
            try:
                yield child
            finally:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
    finally:
        child.wait(_STOP_SECONDS)


def _relay(child: subprocess.Popen[str]) -> list[str]:
    """Show what the converter does; return all that it wrote."""
    words = []
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip():
            words.append(line.rstrip())
        if (stage := re.match(r"\[INFO\] (.+)", line)) is not None:
            click.echo(f"mlx-lm: {stage[1]}", err=True)
    return words
