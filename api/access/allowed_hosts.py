"""The names under which clients may reach the server: `Host` headers, and origins of the same host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+?)\.?(?::(?P<port>[0-9]*))?")
_DEFAULT_PORTS = {"http": "80", "https": "443"}
EVERY = "*"
_LOOPBACK_SUFFIX = ".localhost"
"""Browsers themselves resolve these names to loopback (RFC 6761), so no page can have one."""
_PRIVATE_SUFFIXES = (".local", ".internal")
"""Names that the public DNS never has (RFC 6762; ICANN's reservation of 2024), `host.docker.internal` among
them. Only who answers for names in the local network can give one to a page."""
_UNSPECIFIED = "0.0.0.0"
"""People type what the server binds. An address cannot be rebound."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The names that `Host` may have, with any port. `names` is None if any name is allowed."""

    names: frozenset[str] | None = None
    addresses: bool = False
    """Whether IP addresses other than loopback are allowed too: DNS rebinding needs a name."""
    private: bool = False
    """Whether names that only a local network can have are allowed too."""

    @classmethod
    def of(
        cls, given: Sequence[str], *, listen_host: str, is_loopback: bool, own_name: str = ""
    ) -> AllowedHosts:
        """Make the check from `given`, the value of --allowed-hosts. Without it only loopback listeners
        check names: the server does not know which names clients have for an address of the network.
        `own_name`: the machine's. Its first label counts, which no public name has; a network can assign the
        rest."""
        if EVERY in given or not (given or is_loopback):
            return cls()
        names = {host_name(one) or one for one in (*given, listen_host)}
        if not given and (own := host_name(own_name.partition(".")[0])):
            names.add(own)
        return cls(frozenset(names), addresses=not is_loopback, private=not given)

    def allow(self, host: str) -> bool:
        if self.names is None:
            return True
        name = host_name(host)
        if name is None:
            return False
        if name in ("localhost", _UNSPECIFIED) or name in self.names or name.endswith(_LOOPBACK_SUFFIX):
            return True
        if self.private and name.endswith(_PRIVATE_SUFFIXES):
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self.addresses or address.is_loopback


ANY_HOST = AllowedHosts()


def host_name(host: str) -> str | None:
    """Return the name of `name:port` in lower case, an IPv6 address without its brackets; None if it is not a
    host."""
    found = _HOST.fullmatch(host.strip().lower())
    return None if found is None else found["name"].strip("[]")


def is_same_origin(origin: str, host: str) -> bool:
    """Compare host and port only: behind a proxy that terminates TLS, the browser's scheme is not the
    server's."""
    scheme, separator, authority = origin.lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    ours, theirs = _HOST.fullmatch(host.lower()), _HOST.fullmatch(authority)
    if not separator or default is None or ours is None or theirs is None:
        return False
    return ours["name"] == theirs["name"] and (ours["port"] or default) == (theirs["port"] or default)
