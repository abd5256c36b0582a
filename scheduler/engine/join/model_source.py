"""Find on this machine the model that an engine for another machine's server should load.

The server names a folder of its own, what the operator called the model, and the fingerprint of the files. A
copy may be in the same place, or in this machine's cache of the Hugging Face hub; nothing is downloaded, and
no weights are loaded before it is known that they are the right ones.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import structs

from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.messages import Load
from scheduler.shared.model_fingerprint import fingerprint
from scheduler.shared.user_cache import user_cache_folder

EMBEDDED = "penstock-embedded"
"""The name of the model for tests. It comes with this package."""
_PULLED = "smollm2"
"""What `penstock pull smollm2` keeps in the user's cache (`api/smollm2/model.py`)."""
_EMBEDDED_FOLDER = Path(__file__).parents[2] / "models" / "embedded"


def located(command: Load) -> Load:
    """Return `command` with folders of this machine. All of a model's files may be read for that. Raise
    LoadRefused with the remedy, or OSError if the folder cannot be read."""
    if not command.fingerprint:
        return command
    cache_folder = user_cache_folder(os.environ)
    found: dict[Path, str] = {}
    for folder in _candidates(command, os.environ):
        if folder not in found and (folder / "config.json").is_file():
            found[folder] = fingerprint(folder, cache_folder)
            if found[folder] == command.fingerprint:
                return structs.replace(command, model_folder=str(folder), cache_folder=str(cache_folder))
    host, name = socket.gethostname(), command.model or command.model_folder
    get = "hf download" if _is_hub_id(name) else "penstock pull" if name == _PULLED else ""
    if not found:
        raise LoadRefused(
            f"host {host} does not have the model {name}: copy its folder to {command.model_folder} there"
            f"{f', or run: {get} {name}' if get else ''}"
        )
    others = ", ".join(f"{folder} ({digest[:12]})" for folder, digest in found.items())
    raise LoadRefused(
        f"host {host} has another model {name} than the server, whose fingerprint is"
        f" {command.fingerprint[:12]}: {others}; copy the server's folder there"
    )


def _candidates(command: Load, environment: Mapping[str, str]) -> Iterator[Path]:
    yield Path(command.model_folder)
    if command.model == EMBEDDED:
        yield _EMBEDDED_FOLDER
    elif command.model == _PULLED:
        yield from sorted(user_cache_folder(environment).glob("smollm2-135m-instruct-*"))
    elif _is_hub_id(command.model):
        snapshots = _hub_cache(environment) / f"models--{command.model.replace('/', '--')}" / "snapshots"
        yield from sorted(snapshots.glob("*"))
    elif command.model:
        yield Path(command.model).expanduser()


def _is_hub_id(model: str) -> bool:
    return model.count("/") == 1 and not model.startswith((".", "/", "~"))


def _hub_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder that huggingface_hub uses, whose import takes longer than all of this."""
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    caches = Path(environment.get("XDG_CACHE_HOME") or "~/.cache")
    return (Path(environment.get("HF_HOME") or caches / "huggingface") / "hub").expanduser()
