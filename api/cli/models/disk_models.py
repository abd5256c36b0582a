"""The models on this machine's disk, as their files describe them: nothing here imports MLX or reads weights.

A place that holds no model, or half of one, is listed with the reason, in the words of `serve`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from api.options.model_list import EMBEDDED
from api.smollm2 import model as smollm2
from scheduler.errors import StartupError
from scheduler.fleet.memory_need import weights_bytes
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt import model_folder
from scheduler.shared.folder import weight_files
from scheduler.shared.pooling import ModelKind

Source: TypeAlias = Literal["hub", "folder", "own", "embedded"]
_REPO_PREFIX = "models--"
_MAIN = "main"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class DiskModel:
    """One model, or what looks like the place of one."""

    name: str
    """The hub's id, `ID@REVISION` of another revision than main, a folder's name, `smollm2` (source `own`),
    or `embedded`."""
    folder: Path
    """What `serve --model` takes."""
    source: Source
    disk_bytes: int = 0
    """Size of its files; two revisions may share some."""
    partial_bytes: int = 0
    """Size of downloads that were cut, which `pull` resumes."""
    reason: str = ""
    """Why it cannot be served, as far as its files show; empty if it can."""
    model_type: str = ""
    task: ModelKind = "chat"
    weights_bytes: int = 0
    """Size in memory, of the type that is stored."""
    wide_weights_bytes: int = 0
    """Size in memory in float32, which a CPU computes with (`Traits.wide_weights`)."""
    packed_weights_bytes: int = 0
    """Size in memory with quantised weights as they are and all else in float32: `--weights-dtype packed`."""
    dtype: str = ""
    """Type of most of its numbers that are not packed."""
    quantization: str = ""
    """What config.json says of it: `4-bit`, `3-6 bit`, `mxfp4`; empty if nothing is packed."""
    context_tokens: int = 0
    most_context_tokens: int = 0
    """The longest context that `--max-model-len` can name."""
    positions: str = ""
    """How tokens get their positions, in words."""
    notes: tuple[str, ...] = ()
    """What an operator should know of how the folder is read."""
    unread_fields: tuple[str, ...] = ()
    """The fields of config.json that mlx-lm does not read."""
    chat_template: bool = False
    template_verdicts: tuple[str, ...] = ()
    """What is unusual in what the chat template writes of conversations."""
    found: str = ""
    """The notations of calls and of reasoning, the tokens that end an answer, and what is not read."""

    @property
    def is_model(self) -> bool:
        return not self.reason


def hub_cache() -> Path:
    """Return the hub's folder of this user, as HF_HUB_CACHE and HF_HOME say."""
    # Imported here: it takes a second, and neither wrong arguments nor --help need it.
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def find(folders: Iterable[Path] = (), *, cache: Path | None = None) -> list[DiskModel]:
    """Return the embedded model, smollm2 if it was pulled, and every model of the hub's cache and of
    `folders`, in order of their names, without what their tokenizers say. `cache` replaces this user's. Raise
    nothing, whatever a folder may hold."""
    places = [
        *_hub_places(hub_cache() if cache is None else cache),
        *_folder_places(folders),
    ]
    places.sort(key=lambda place: place.name.lower())
    own = [DiskModel(EMBEDDED, EMBEDDED_FOLDER, "embedded")]
    if smollm2.is_here():
        own.append(DiskModel(smollm2.NAME, smollm2.folder(), "own"))
    return [described(place) for place in _distinct([*own, *places])]


def named(text: str, folders: Iterable[Path] = (), *, cache: Path | None = None) -> DiskModel | None:
    """Return the model of a name that `find` gives, or of a folder, or None if there is none."""
    for model in find(folders, cache=cache):
        if text == model.name:
            return model
    path = Path(text).expanduser()
    return described(DiskModel(path.resolve().name, path, "folder")) if path.is_dir() else None


def described(place: DiskModel) -> DiskModel:
    """Return the model with all that its files say except the dialects, or with the reason why it is none."""
    if place.source != "folder" or _is_candidate(place.folder):  # Else it may be a whole disk.
        place = replace(place, disk_bytes=_disk_bytes(place.folder))
    if place.reason:
        return place
    try:
        return _read(place)
    except (StartupError, OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = str(error).removeprefix("--model: ").replace(f"{place.folder}{os.sep}", "")
        return replace(place, reason=reason.replace(str(place.folder), "the folder"))


def _read(place: DiskModel) -> DiskModel:
    folder = place.folder
    inspected = model_folder.inspect(folder)
    if not inspected.brings_code:
        model_folder.check_type(inspected.model_type)
    reading = inspected.reading
    assert reading is not None
    stored = reading.weights.tensors
    return replace(
        place,
        model_type=inspected.model_type,
        task=inspected.kind,
        weights_bytes=weights_bytes(folder, "stored", None),
        wide_weights_bytes=weights_bytes(folder, "float32", None),
        packed_weights_bytes=weights_bytes(folder, "packed", None),
        dtype=_dtype(stored.values()),
        quantization=quantization(
            reading.config,
            sum(name.endswith(".scales") for name in stored),
        ),
        context_tokens=inspected.context_tokens,
        most_context_tokens=reading.context.most_tokens,
        positions=reading.positions,
        notes=reading.notes,
        unread_fields=reading.unread,
    )


def with_dialects(model: DiskModel) -> DiskModel:
    """Return the model with the facts of its tokenizer, or with the reason why it cannot be loaded, which
    takes a second for a large one. The dialects are those that `serve` finds for `auto`."""
    if not model.is_model:
        return model
    from scheduler.prompt.tokenizer import HubTokenizer

    try:
        tokenizer = HubTokenizer(model.folder, model_type=model.model_type)
    except (StartupError, OSError) as error:
        return replace(model, reason=str(error).removeprefix("--model: "))
    return replace(
        model,
        chat_template=tokenizer.has_chat_template,
        template_verdicts=tokenizer.template_verdicts,
        found=tokenizer.found,
    )


def _dtype(stored: Iterable[weight_files.StoredTensor]) -> str:
    elements: Counter[str] = Counter()
    for tensor in stored:
        elements[tensor.dtype] += tensor.elements
    floats = {name: count for name, count in elements.items() if name in _DTYPES}
    if not floats:
        return max(elements, key=elements.__getitem__, default="").lower()
    return _DTYPES[max(floats, key=floats.__getitem__)]


def quantization(config: Any, packed_layers: int) -> str:
    """Return what a config.json names for a model with this many packed layers; empty if none is packed."""
    found = config.get("quantization") or config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    bits, mode = found.get("bits"), str(found.get("mode") or "affine")
    if not isinstance(bits, int):
        return str(found.get("quant_method") or "unknown")
    if mode != "affine":
        return mode
    own = [layer["bits"] for layer in found.values() if isinstance(layer, dict) and "bits" in layer]
    # A recipe names every packed layer, and leaves a default in the file that applies to none.
    used = [
        one for one in (own if own and len(own) >= packed_layers else [bits, *own]) if isinstance(one, int)
    ]
    fewest, most = min(used, default=bits), max(used, default=bits)
    return f"{fewest}-bit" if fewest == most else f"{fewest}-{most} bit"


def _hub_places(cache: Path) -> Iterator[DiskModel]:
    """Yield each snapshot of each repository, or the repository's folder if it has none. huggingface_hub's
    `scan_cache_dir` is not used, because it leaves out a whole repository if one link is broken."""
    for repository in _subfolders(cache):
        if not repository.name.startswith(_REPO_PREFIX):
            continue
        name = repository.name.removeprefix(_REPO_PREFIX).replace("--", "/", 1)
        partial = sum(map(_size, _children(repository / "blobs", ".incomplete")))
        main = _text(repository / "refs" / _MAIN)
        snapshots = list(_subfolders(repository / "snapshots"))
        if not snapshots:
            reason = "its download was cut" if partial else "it has no files"
            yield DiskModel(name, repository, "hub", partial_bytes=partial, reason=reason)
        for snapshot in snapshots:
            # A lone snapshot without any reference is a download under way.
            is_main = snapshot.name == main or (len(snapshots) == 1 and not _children(repository / "refs"))
            own = name if is_main else f"{name}@{snapshot.name[:12]}"
            yield DiskModel(own, snapshot, "hub", partial_bytes=partial)


def _folder_places(folders: Iterable[Path]) -> Iterator[DiskModel]:
    """Yield each folder that is a model, or the models in it, at most two deep (`owner/name`). A folder
    without models is yielded, too, with the reason."""
    for folder in folders:
        folder = folder.expanduser()
        if not folder.is_dir():
            yield DiskModel(str(folder), folder, "folder", reason="there is no such folder")
            continue
        if _is_candidate(folder):
            yield DiskModel(folder.resolve().name, folder, "folder")
            continue
        inside = list(_places_in(folder))
        if not inside:
            yield DiskModel(folder.resolve().name, folder, "folder", reason="it holds no config.json")
        yield from inside


def _places_in(folder: Path) -> Iterator[DiskModel]:
    for child in _subfolders(folder):
        if child.name.startswith((".", _REPO_PREFIX)):
            continue
        deeper = [one for one in _subfolders(child) if _is_candidate(one)]
        if _is_candidate(child) or not deeper:
            reason = "" if _is_candidate(child) else "it holds no config.json"
            yield DiskModel(child.name, child, "folder", reason=reason)
        else:
            yield from (DiskModel(f"{child.name}/{one.name}", one, "folder") for one in deeper)


def _is_candidate(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _distinct(places: Iterable[DiskModel]) -> list[DiskModel]:
    """Return one place for each folder, the first, since several options may name the same folder."""
    found: dict[str, DiskModel] = {}
    for place in places:
        found.setdefault(os.path.realpath(place.folder), place)
    return list(found.values())


def _disk_bytes(folder: Path) -> int:
    """Return the bytes of the files below, with links followed: a snapshot's files are links to blobs, and
    each blob counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for base, _, names in os.walk(folder, onerror=None):
        for name in names:
            try:
                status = os.stat(os.path.join(base, name))
            except OSError:
                continue  # A broken link, or one that is gone.
            sizes[(status.st_dev, status.st_ino)] = status.st_size
    return sum(sizes.values())


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _children(folder) if path.is_dir()]


def _children(folder: Path, suffix: str = "") -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.endswith(suffix))
    except OSError:
        return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""
