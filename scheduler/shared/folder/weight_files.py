"""The safetensors files of a model: which of them are loaded, and which tensors they hold.

Only lengths and headers are read, some KiB a file; the weights themselves are not. The tensors decide: an
index that names files or tensors that are not there is another model's (conversions to MLX carry that of
their source along) unless files of its own are there. What is cut short, missing, or there twice is refused
by name.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.errors import StartupError

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The format's own bound."""
INDEX = "model.safetensors.index.json"
PATTERN = "model*.safetensors"
"""The files that mlx-lm looks for."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`dtype` as safetensors spells it: F32, BF16, U32."""

    dtype: str
    elements: int
    nbytes: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files that are loaded, in order, what they hold, and what an operator should know of the others."""

    names: tuple[str, ...]
    tensors: Mapping[str, StoredTensor]
    notes: tuple[str, ...] = ()

    @property
    def is_whole_folder(self) -> bool:
        """Whether no file is left out."""
        return not any("not loaded" in note for note in self.notes)


def read_weights(folder: Path) -> WeightFiles:
    """Return the files of weights in `folder`. Raise StartupError if one is missing, cut short, or no
    safetensors file, and for a tensor that is in two of them."""
    try:
        index = _index(folder)
        headers: dict[str, dict[str, StoredTensor]] = {}
        for path in sorted(folder.glob(PATTERN)):
            found = _header(path)
            if isinstance(found, str):
                raise StartupError(f"--model: {path} {found}: download it again")
            headers[path.name] = found
    except OSError as error:
        raise StartupError(f"--model: the weights in {folder} cannot be read: {error}") from error
    return chosen(str(folder), index, headers)


def chosen(
    folder: str, index: Mapping[str, str], headers: Mapping[str, Mapping[str, StoredTensor]]
) -> WeightFiles:
    """Return which of these files are loaded. `index`: the file of each tensor, empty without one. `headers`:
    the tensors of each file. Pure. Raise as `read_weights`."""
    notes: list[str] = []
    names = sorted(headers)
    if index and all(name in headers.get(file, {}) for name, file in index.items()):
        others = sorted(headers.keys() - set(index.values()))
        names = sorted(set(index.values()))
        notes += [f"{name} is not in {INDEX} and not loaded" for name in others]
    else:
        if index:
            _check_index(folder, index, headers)
            notes.append(f"{INDEX} is not this model's: it is not used")
    tensors: dict[str, StoredTensor] = {}
    owner: dict[str, str] = {}
    for file in names:
        for name, tensor in headers[file].items():
            if name in tensors:
                raise StartupError(
                    f"--model: {folder} has the tensor {name} twice, in {owner[name]} and in {file}: take one"
                    " of these files away"
                )
            tensors[name], owner[name] = tensor, file
    return WeightFiles(tuple(names), tensors, tuple(notes))


def _check_index(
    folder: str, index: Mapping[str, str], headers: Mapping[str, Mapping[str, StoredTensor]]
) -> None:
    """Raise StartupError if the index is of these files, and some are missing: a download that was cut."""
    absent = sorted(set(index.values()) - headers.keys())
    held = {name for tensors in headers.values() for name in tensors}
    if absent and len(absent) < len(set(index.values())) and not index.keys() <= held:
        raise StartupError(f"--model: {folder} lacks {absent[0]}, which {INDEX} names: download it again")


def _index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor that the index names; nothing without an index."""
    try:
        content = json.loads((folder / INDEX).read_text("utf-8"))
        return {str(name): str(file) for name, file in content["weight_map"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StartupError(f"--model: {folder / INDEX} is not an index of weights: {error!r}") from error


def _header(path: Path) -> dict[str, StoredTensor] | str:
    """Return what a file holds, or what is wrong with it, as the end of a sentence."""
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        return f"is cut short: it has {size} bytes"
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
        if header_bytes > _MAX_HEADER_BYTES:
            return "is no safetensors file"
        if header_bytes > size - _LENGTH_BYTES:
            return f"is cut short: it has {size} bytes, and its header alone {header_bytes}"
        header = file.read(header_bytes)
    try:
        ends, tensors = [0], {}
        for name, entry in json.loads(header).items():
            if name != "__metadata__":
                start, end = (int(offset) for offset in entry["data_offsets"])
                shape = tuple(int(length) for length in entry["shape"])
                ends.append(end)
                tensors[name] = StoredTensor(str(entry["dtype"]), math.prod(shape), end - start, shape)
    except (ValueError, TypeError, KeyError, AttributeError):
        return "is no safetensors file: its header is damaged"
    wanted = _LENGTH_BYTES + header_bytes + max(ends)
    return tensors if size >= wanted else f"is cut short: it has {size} of {wanted} bytes"
