"""The LoRA adapters of a pool: which names requests may use.

A name stands for an adapter, which is known by the fingerprint of its files; two names may stand for one.
Engines know fingerprints only, and load all of them with the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scheduler.errors import ModelNotFound
from scheduler.shared.adapter_files import AdapterRefused, fingerprint, named, read_config
from scheduler.shared.messages import AdapterSource

MAX_ADAPTERS = 64
"""Each has a part in every adapted layer's stack, in use or not."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""An adapter's name has no colon, which stands between the model's name and it."""


def source_of(name: str, folder: Path) -> AdapterSource:
    """Read the folder, as far as that needs no model. Raise AdapterRefused, which names the adapter."""
    with named(name):
        if not NAME.fullmatch(name):
            raise AdapterRefused("a name has letters, digits, '.', '_' and '-', at most 128")
        if not _is_folder(folder):
            raise AdapterRefused(f"{folder} is not a folder")
        read_config(folder)
        return AdapterSource(name, str(folder.absolute()), fingerprint(folder))


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # A name that no file may have.
        return False


class PoolAdapters:
    """`first`: those with which the engines start."""

    def __init__(self, first: Sequence[AdapterSource] = ()) -> None:
        self._served = {source.name: source for source in first}

    @property
    def names(self) -> list[str]:
        """Return the names that requests may use."""
        return list(self._served)

    @property
    def present(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that a new engine loads."""
        return tuple({source.key: source for source in self._served.values()}.values())

    def key_of(self, name: str) -> str:
        """Return the fingerprint of a request's adapter, or an empty string for none. Raise ModelNotFound."""
        if not name:
            return ""
        if (source := self._served.get(name)) is None:
            raise ModelNotFound(f"the adapter {name!r} is not loaded", param="model")
        return source.key

    def lost(self, key: str) -> None:
        """Refuse an adapter to new requests because a new engine could not load it: its files have changed,
        or are gone. Requests that have it fail on that engine."""
        self._served = {name: source for name, source in self._served.items() if source.key != key}
