"""The LoRA adapters of a pool: which names requests may use, and which of them its engines hold.

A name stands for an adapter, which is known by the fingerprint of its files; two names may stand for one, and
a name that is unloaded may be loaded from other files. Engines know fingerprints only. An adapter that is
unloaded while requests have it takes no new ones, and leaves the engines with the last of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import structlog
import trio

from scheduler.engines.life import Life
from scheduler.errors import AdapterUnusable, ModelNotFound, Unavailable
from scheduler.request import GenerationRequest
from scheduler.shared.adapter_files import AdapterRefused, fingerprint, named, read_config
from scheduler.shared.messages import AdapterLoaded, AdapterSource, LoadAdapter, ToEngine, UnloadAdapter

_log = structlog.get_logger("scheduler")
_REPLY_SECONDS = 120.0
"""Bound on an engine's reply: a step may take seconds, and an adapter's files may lie on a slow disk."""
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
    """`first`: those with which the engines start; `lives`: the processes that are ready."""

    def __init__(
        self, first: Sequence[AdapterSource] = (), lives: Callable[[], Iterable[Life]] = tuple
    ) -> None:
        self._lives = lives
        self._served = {source.name: source for source in first}
        self._sources = {source.key: source for source in first}
        """All adapters that are served or in use, by key."""
        self._uses: Counter[str] = Counter()
        self._loading = trio.Lock()

    def joined(self, life: Life, first: frozenset[str], engine: str) -> None:
        """Send a process that is ready what has changed since its Load. `first`: the keys in that."""
        for key, reason in life.ready.refused_adapters:
            _log.error("adapter_lost", engine=engine, reason=reason)
            self.lost(key)
        for key in first - set(self._sources):
            life.send(UnloadAdapter(key))
        for source in self.present:
            if source.key not in first:
                life.send(LoadAdapter(0, source))

    @property
    def names(self) -> list[str]:
        """Return the names that requests may use."""
        return list(self._served)

    @property
    def present(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that a new engine loads."""
        return tuple(self._sources.values())

    @contextmanager
    def using(self, requests: Sequence[GenerationRequest]) -> Iterator[tuple[str, ...]]:
        """Yield the fingerprint of each request's adapter, or an empty string for none. The adapters stay
        loaded within this block. Raise ModelNotFound."""
        found = tuple(self._key_of(request.adapter) for request in requests)
        used = [key for key in found if key]
        self._uses.update(used)
        try:
            yield found
        finally:
            self._uses.subtract(used)
            for key in used:
                self._drop_unused(key)

    def _key_of(self, name: str) -> str:
        if not name:
            return ""
        if (source := self._served.get(name)) is None:
            raise ModelNotFound(f"the adapter {name!r} is not loaded", param="model")
        return source.key

    async def load(self, source: AdapterSource) -> None:
        """Load an adapter into all engines, or into none. Raise AdapterUnusable with the reason, and
        Unavailable if no engine answers."""
        async with self._loading:
            if source.name in self._served:
                raise AdapterUnusable(
                    f"the adapter {source.name!r} is loaded already: unload it first", param="lora_name"
                )
            if len(self._sources) >= MAX_ADAPTERS:
                raise AdapterUnusable(f"there are {len(self._sources)} adapters, as many as there may be")
            try:
                await self._load_everywhere(source)
                self._served[source.name] = self._sources[source.key] = source
            finally:
                self._drop_unused(source.key)
            # An engine that became ready meanwhile does not have it; the others do.
            self._send(LoadAdapter(0, source))
            _log.info("adapter_loaded", adapter=source.name, key=source.key)

    async def _load_everywhere(self, source: AdapterSource) -> None:
        replies: list[AdapterLoaded] = []

        async def load(life: Life) -> None:
            call = life.calls.send(lambda number: LoadAdapter(number, source), AdapterLoaded)
            if (reply := await life.calls.wait(call, _REPLY_SECONDS)) is not None:
                replies.append(reply)

        async with trio.open_nursery() as nursery:
            for life in self._lives():
                nursery.start_soon(load, life)
        if not replies:
            raise Unavailable("no engine is running that could load it", retry_after_seconds=1.0)
        if refusals := [reply.refusal for reply in replies if reply.refusal]:
            raise AdapterUnusable(refusals[0], param="lora_path")

    def unload(self, name: str) -> None:
        """Refuse this adapter to new requests; those that have it keep it. Raise ModelNotFound."""
        source = self._served.pop(name, None)
        if source is None:
            raise ModelNotFound(f"the adapter {name!r} is not loaded", param="lora_name")
        _log.info("adapter_unloaded", adapter=name, requests=self._uses[source.key])
        self._drop_unused(source.key)

    def lost(self, key: str) -> None:
        """Refuse an adapter to new requests because a new engine could not load it: its files have changed,
        or are gone. Requests that have it fail on that engine."""
        self._served = {name: source for name, source in self._served.items() if source.key != key}
        self._drop_unused(key)

    def _drop_unused(self, key: str) -> None:
        """Unload it from the engines if no request may or does use it."""
        if self._uses[key] > 0 or any(source.key == key for source in self._served.values()):
            return
        del self._uses[key]
        self._sources.pop(key, None)
        self._send(UnloadAdapter(key))

    def _send(self, message: ToEngine) -> None:
        for life in self._lives():
            life.send(message)
