"""The API keys of clients, from the options to a lookup in constant time."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from scheduler.errors import OptionError

_ENTRY = re.compile(r"(?:(?P<name>[^\s:]+):)?(?P<key>[^\s:]+)(?P<admin>\s+admin)?")
DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key and its tenant. A tenant may have several keys, so that a key can be rotated."""

    tenant: str
    digest: bytes = field(repr=False)
    admin: bool = False
    """Whether it may use the operators' endpoints: the state of queue and cache."""


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """The keys of all clients. Without keys, every client may do everything."""

    keys: tuple[ApiKey, ...] = ()

    @property
    def tenants(self) -> frozenset[str]:
        return frozenset(key.tenant for key in self.keys)

    def find(self, given: str) -> ApiKey | None:
        """Return the matching key. The time reveals nothing about any key: all digests are compared, and have
        one length."""
        digest = _digest(given)
        found = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def load_keys(given: str | None, file: Path | None) -> ApiKeys:
    """Load the keys: `given` separates entries by commas, `file` has one a line. Raise OptionError, without
    quoting a key."""
    keys: list[ApiKey] = []
    if given is not None:
        keys.extend(_read("--api-key", enumerate(given.split(","), 1)))
        if not keys:
            raise OptionError("--api-key (or PENSTOCK_API_KEY): there is no key in it")
    if file is not None:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeError) as error:
            raise OptionError(f"--api-keys-file: {file} cannot be read: {error}") from error
        from_file = list(_read("--api-keys-file", enumerate(lines, 1), named=True))
        if not from_file:
            # An empty list would admit everybody.
            raise OptionError(f"--api-keys-file: there is no key in {file}")
        keys.extend(from_file)
    if len({key.digest for key in keys}) != len(keys):
        raise OptionError("--api-key, --api-keys-file: a key is there twice")
    return ApiKeys(tuple(keys))


def client_key(given: str) -> str | None:
    """Return the key that a client on the server's machine sends: the first operator's key of a list as
    `load_keys` reads it, or else its first key. Any other text is a key by itself."""
    entries = [_ENTRY.fullmatch(entry.strip()) for entry in given.split(",") if entry.strip()]
    known = [entry for entry in entries if entry is not None]
    if len(known) < len(entries) or not known:
        return given.strip() or None
    return next((entry for entry in known if entry["admin"]), known[0])["key"]


def _read(option: str, entries: Iterable[tuple[int, str]], *, named: bool = False) -> Iterator[ApiKey]:
    for number, entry in entries:
        text = entry.strip()
        if not text or text.startswith("#"):
            continue
        found = _ENTRY.fullmatch(text)
        if found is None or (named and found["name"] is None):
            raise OptionError(f"{option}: entry {number} is not 'name:key' or 'name:key admin'")
        yield ApiKey(found["name"] or DEFAULT_TENANT, _digest(found["key"]), found["admin"] is not None)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
