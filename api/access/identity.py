"""The tenant and the session of a request. Only this file reads them from headers.

A *tenant* is the unit of fair shares. It is the owner of the API key, if the server has keys; else the value
of the header that `--tenant-header` names, which a proxy must set, or a client could claim any name; else all
requests belong to one tenant. A *session* is one agent's conversation or run, within its tenant. Agents name
theirs in headers of their own; a false name gains nothing, because a tenant's sessions share what the tenant
has.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler.errors import InvalidRequest
from scheduler.request import Origin

SESSION_HEADERS = (
    # A router's choice has precedence over the agent's own.
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-smg-routing-key",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "x-session-id",
)
"""Headers in order of precedence: the first that is present and not empty names the session."""
TIMEOUT_HEADER = "x-request-timeout"
MAX_ID_CHARACTERS = 256
MAX_TIMEOUT_SECONDS = 86_400.0

_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CREDENTIALS = ("authorization", "x-api-key", "cookie", "proxy-authorization")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    tenant: str = ""
    session: str | None = None
    timeout_seconds: float | None = None
    origin: Origin = field(default_factory=Origin)
    may_go_first: bool = True
    """Whether its requests may ask to be served before others' by default."""

    def fields(self, adapter: str, timeout_seconds: float | None = None, priority: int = 0) -> dict[str, Any]:
        """Return the fields of a `GenerationRequest` that its body does not say: tenant, session and origin,
        the `adapter` of the model that it names, the shorter of the header's timeout and the body's, and the
        body's priority. Raise InvalidRequest for one that the caller may not have."""
        if priority < 0 and not self.may_go_first:
            raise InvalidRequest("priority: one below 0 needs an operator's key", param="priority")
        given = [seconds for seconds in (self.timeout_seconds, timeout_seconds) if seconds is not None]
        return {
            "tenant": self.tenant,
            "session": self.session,
            "timeout_seconds": min(given, default=None),
            "origin": self.origin,
            "priority": priority,
            "adapter": adapter,
        }


ANYBODY = Caller()


@dataclass(frozen=True, slots=True)
class Identity:
    """The headers that name tenant, session and timeout."""

    tenant_header: str | None = None

    def caller(
        self,
        headers: Mapping[str, str],
        tenant_of_key: str | None = None,
        request_id: str = "",
        ignored_fields: tuple[str, ...] = (),
        *,
        is_operator: bool = False,
    ) -> Caller:
        """Return the caller. `headers` have names in lower case; `tenant_of_key` is the tenant of the
        request's key, or None if the server has no keys. Raise InvalidRequest naming the header."""
        origin = Origin(request_id, ignored_fields)
        # Where there is one tenant, nobody is before others.
        may_go_first = is_operator or (tenant_of_key is None and self.tenant_header is None)
        tenant = self.tenant(headers, tenant_of_key)
        return Caller(tenant, _session(headers), _timeout(headers), origin, may_go_first)

    def tenant(self, headers: Mapping[str, str], tenant_of_key: str | None) -> str:
        """Return the tenant of a request, "" by default. Raise InvalidRequest naming the header."""
        if tenant_of_key is not None:
            return tenant_of_key
        if self.tenant_header is None or not (value := headers.get(self.tenant_header)):
            return ""
        if self.tenant_header.lower() in _CREDENTIALS:
            # Tenant names are logged and shown to operators; secrets are not.
            return "key-" + hashlib.sha256(value.encode()).hexdigest()[:16]
        return _checked(self.tenant_header, value)


def _session(headers: Mapping[str, str]) -> str | None:
    for name in SESSION_HEADERS:
        if value := headers.get(name):
            return _checked(name, value)
    return None


def _checked(name: str, value: str) -> str:
    if len(value) > MAX_ID_CHARACTERS or not _ID.fullmatch(value):
        raise InvalidRequest(
            f"the header {name} must be at most {MAX_ID_CHARACTERS} printable ASCII characters", param=name
        )
    return value


def _timeout(headers: Mapping[str, str]) -> float | None:
    if not (value := headers.get(TIMEOUT_HEADER)):
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise InvalidRequest(
            f"the header {TIMEOUT_HEADER} must be seconds, more than 0 and at most {MAX_TIMEOUT_SECONDS:g}",
            param=TIMEOUT_HEADER,
        )
    return seconds
