"""A LoRA adapter's folder, as mlx-lm writes it, as far as it can be judged without the model.

Both processes read it: the server names an adapter by its fingerprint, and the engine refuses files that are
no longer those. Nothing here imports MLX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapters.safetensors"
MAX_RANK = 1024
_PIECE_BYTES = 1 << 20
_MARK = "\0adapter:"
_LORA_FIELDS = ("rank", "scale", "keys", "dropout", "alpha")
"""mlx-lm reads the first three of `lora_parameters`; dropout is for training, and alpha is in the scale."""
_OTHER_KINDS = (
    "use_dora",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "layer_replication",
)
"""Fields that say, wherever they are, that the factors are used in another way."""


class AdapterRefused(Exception):
    """The adapter cannot be used; the message is a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What mlx-lm reads of `adapter_config.json`."""

    rank: int
    scale: float
    layers: int
    """It applies to this many of the last layers; 0 or less: to all."""
    keys: tuple[str, ...] | None
    """Paths of modules, within a layer or from the model on, or None for every module of a layer that can
    have one."""


def fingerprint(folder: Path) -> str:
    """Return 64 hex digits over all bytes of both files. Raise AdapterRefused if one cannot be read."""
    digest = blake2b(digest_size=32)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        contents = blake2b()
        try:
            with (folder / name).open("rb", buffering=0) as file:
                while piece := file.read(_PIECE_BYTES):
                    contents.update(piece)  # Releases the GIL.
        except OSError as error:
            raise AdapterRefused(f"{name} cannot be read: {error.strerror or error}") from error
        digest.update(contents.digest())
    return digest.hexdigest()


def weights_bytes(folder: Path) -> int:
    """Return about the bytes of an adapter's factors, or 0 if they cannot be read."""
    try:
        return (folder / WEIGHTS_FILE).stat().st_size
    except OSError:
        return 0


def check_unchanged(folder: Path, key: str) -> None:
    """Raise AdapterRefused if the files have another fingerprint than `key`."""
    if fingerprint(folder) != key:
        raise AdapterRefused("its files have changed since it was named")


@contextmanager
def named(name: str) -> Iterator[None]:
    """Let refusals from within this block name the adapter."""
    try:
        yield
    except AdapterRefused as refused:
        raise AdapterRefused(f"the adapter {name!r} cannot be used: {refused}") from refused


def read_config(folder: Path) -> AdapterConfig:
    """Return what `adapter_config.json` has. Raise AdapterRefused, which names the field."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_bytes())
    except OSError as error:
        raise AdapterRefused(f"{CONFIG_FILE} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise AdapterRefused(f"{CONFIG_FILE} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdapterRefused(f"{CONFIG_FILE} is not an object")
    kind = config.get("fine_tune_type", "lora")
    if kind != "lora":
        raise AdapterRefused(f"fine_tune_type is {kind!r}, and only 'lora' can share a batch with others")
    lora = config.get("lora_parameters")
    if not isinstance(lora, dict):
        raise AdapterRefused(f"{CONFIG_FILE} has no lora_parameters: is it an adapter of mlx-lm?")
    for fields in (config, lora):
        if other := next((name for name in _OTHER_KINDS if fields.get(name)), None):
            raise AdapterRefused(f"{other} is {fields[other]!r}, and only plain factors are computed")
    if unknown := sorted(name for name in lora.keys() - set(_LORA_FIELDS) if lora[name] is not None):
        raise AdapterRefused(f"lora_parameters has {', '.join(unknown)}, whose effect is not known")
    return AdapterConfig(
        _whole(lora, "rank", least=1, most=MAX_RANK),
        _scale(lora.get("scale")),
        _whole(config, "num_layers", least=-1, most=1 << 20),
        _keys(lora.get("keys")),
    )


def _whole(fields: dict[str, Any], name: str, *, least: int, most: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise AdapterRefused(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def _scale(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise AdapterRefused(f"scale must be a number, not {value!r}")
    return float(value)


def _keys(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise AdapterRefused("keys must be a list of module names")
    return tuple(value)


def salted(adapter: str, salt: str) -> str:
    """Return the salt under which a request's prefixes are cached. `adapter`: its fingerprint, or an empty
    string without one.

    No two pairs give the same salt, for any salt that a client sends: a salt that begins with NUL, as ours
    do, gets one more.
    """
    if adapter:
        return f"{_MARK}{adapter}\0{salt}"
    return f"\0{salt}" if salt.startswith("\0") else salt


def tenant_of(salt: str) -> str:
    """Return the tenant in a salt, or an empty text where tenants share prefixes: there the salt is a
    client's own, which names nobody."""
    if salt.startswith(_MARK):
        salt = salt[len(_MARK) :].partition("\0")[2]
    tenant, mark, _ = salt.partition("\0")
    return tenant if mark else ""
