"""The models on this machine's disk, as their files describe them: nothing here imports MLX or reads weights.

A place that holds no model, or half of one, is listed with the reason, in the words of `serve`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api.cli.errors import OperatorError
from api.options.model_list import EMBEDDED
from api.smollm2 import model as smollm2
from scheduler.errors import StartupError
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt import model_folder
from scheduler.prompt.model_folder import ModelFolder
from scheduler.shared.folder import weight_files

_REPO_PREFIX = "models--"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class DiskModel:
    """One model, or what looks like the place of one."""

    name: str
    """The hub's id, `ID@REVISION` of another revision than main, a folder's name, `smollm2` or `embedded`."""
    folder: Path
    """What `serve --model` takes."""
    is_given: bool = False
    """Whether its folder was named, not the model."""
    disk_bytes: int = 0
    """Size of its files; two revisions may share some."""
    reason: str = ""
    """Why it cannot be served, as far as its files show; empty if it can."""
    inspected: ModelFolder | None = None
    """What its files say; None if it cannot be served."""
    dtype: str = ""
    """Type of most of its numbers that are not packed."""
    quantization: str = ""
    """What config.json says of it: `4-bit`, `3-6 bit`, `mxfp4`; empty if nothing is packed."""


def hub_cache() -> Path:
    """Return the hub's folder of this user, as HF_HUB_CACHE and HF_HOME say."""
    # Imported here: it takes a second, and neither wrong arguments nor --help need it.
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def find(cache: Path | None = None) -> list[DiskModel]:
    """Return the embedded model, smollm2 if it was pulled, and every model of the hub's cache, in order of
    their names, without what their tokenizers say. `cache` replaces this user's. Raise nothing, whatever a
    folder may hold."""
    own = [DiskModel(EMBEDDED, EMBEDDED_FOLDER)]
    if smollm2.is_here():
        own.append(DiskModel(smollm2.NAME, smollm2.folder()))
    places = sorted(_hub_places(hub_cache() if cache is None else cache), key=lambda one: one.name.lower())
    return [described(place) for place in (*own, *places)]


def named(text: str, cache: Path | None = None) -> DiskModel:
    """Return the model of a name that `find` gives, or of a folder. Raise OperatorError if there is none."""
    for model in find(cache):
        if text == model.name:
            return model
    path = Path(text).expanduser()
    if path.is_dir():
        return described(DiskModel(path.resolve().name, path, is_given=True))
    known = text == smollm2.NAME or text.count("/") == 1
    more = f"`penstock pull {text}` gets it" if known else "`penstock pull` gets more"
    raise OperatorError(f"no model {text!r} is on this machine: `penstock models` lists them, {more}")


def described(place: DiskModel) -> DiskModel:
    """Return the model with what its files say, or with the reason why it is none."""
    if not place.is_given or (place.folder / "config.json").is_file():  # Else it may be a whole disk.
        place = replace(place, disk_bytes=_disk_bytes(place.folder))
    if place.reason:
        return place
    try:
        return _read(place)
    except (StartupError, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = str(error).removeprefix("--model: ").replace(f"{place.folder}{os.sep}", "")
        return replace(place, reason=reason.replace(str(place.folder), "the folder"))


def _read(place: DiskModel) -> DiskModel:
    inspected = model_folder.inspect(place.folder)
    if not inspected.brings_code:
        model_folder.check_type(inspected.model_type)
    reading = inspected.reading
    assert reading is not None
    return replace(
        place,
        inspected=inspected,
        dtype=_dtype(reading.weights.tensors.values()),
        quantization=quantization(reading.config),
    )


def _dtype(stored: Iterable[weight_files.StoredTensor]) -> str:
    elements: Counter[str] = Counter()
    for tensor in stored:
        elements[tensor.dtype] += tensor.elements
    by_size = [name for name, _ in elements.most_common()]
    return next((_DTYPES[name] for name in by_size if name in _DTYPES), "".join(by_size[:1]).lower())


def quantization(config: Mapping[str, Any]) -> str:
    """Return what a config.json names; empty if nothing is packed."""
    found = config.get("quantization") or config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    bits, mode = found.get("bits"), str(found.get("mode") or "affine")
    if not isinstance(bits, int):
        return str(found.get("quant_method") or "unknown")
    if mode != "affine":
        return mode
    own = [layer.get("bits") for layer in found.values() if isinstance(layer, dict)]
    used = [bits, *(one for one in own if isinstance(one, int))]
    return f"{bits}-bit" if min(used) == max(used) else f"{min(used)}-{max(used)} bit"


def _hub_places(cache: Path) -> Iterator[DiskModel]:
    """Yield each snapshot of each repository, or the repository's folder if it has none. huggingface_hub's
    `scan_cache_dir` is not used, because it leaves out a whole repository if one link is broken."""
    for repository in cache.glob(f"{_REPO_PREFIX}*"):
        name = repository.name.removeprefix(_REPO_PREFIX).replace("--", "/", 1)
        references, main = repository / "refs", ""
        with suppress(OSError, ValueError):
            main = (references / "main").read_text("utf-8").strip()
        snapshots = sorted(repository.glob("snapshots/*"))
        if not snapshots:
            yield DiskModel(name, repository, reason="it has no files: its download was cut")
        for snapshot in snapshots:
            # A lone snapshot without any reference is a download under way.
            is_main = snapshot.name == main or (len(snapshots) == 1 and not any(references.glob("*")))
            yield DiskModel(name if is_main else f"{name}@{snapshot.name[:12]}", snapshot)


def _disk_bytes(folder: Path) -> int:
    """Return the bytes of the files below, with links followed: a snapshot's files are links to blobs."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
