"""Decides which hosts and web pages may send requests: the guard against DNS rebinding and foreign pages.

A page whose name is rebound to 127.0.0.1 is same-origin for its browser; only its name in `Host` reveals it.
A page of another site names itself in `Origin`. If a browser sends none (images, frames, links),
`Sec-Fetch-Site` reveals it. Clients other than browsers send neither, so only `Host` is checked. Ollama
checks hosts in the same way (CVE-2024-28224); Go's `http.CrossOriginProtection` checks the other two.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.access.allowed_hosts import EVERY, AllowedHosts, is_same_origin
from api.answers.errors import ApiError, host_not_allowed, origin_not_allowed

_ANY_OF_SCHEME = "://*"
APPLICATION_ORIGINS = (
    "app://*",
    "capacitor://*",
    "file://*",
    "ionic://*",
    "tauri://*",
    "vscode-file://*",
    "vscode-webview://*",
)
"""Origins of desktop applications (Obsidian, Tauri, VS Code): no web site can have one of these schemes, so
no page can pretend. Ollama allows most of them, too. A browser's extensions are installed beside pages, and
`null` is what any page's sandboxed frame sends: both only by --cors-origins."""


def origin_pattern(allowed: Sequence[str]) -> str:
    """Return the regular expression of these origins, of which `scheme://*` is every one of its scheme."""
    return "|".join(
        f"{re.escape(one.removesuffix('*'))}.*" if one.endswith(_ANY_OF_SCHEME) else re.escape(one)
        for one in allowed
    )


class OriginCheck:
    """ASGI middleware: 403 for unknown hosts and for pages outside `allowed_origins`.

    It wraps CORS and authentication, so that it checks preflights and the paths without a key as well.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: AllowedHosts,
        allowed_origins: Sequence[str],
        is_open: Callable[[str], bool],
        answer: Callable[[Scope, ApiError], Response],
    ) -> None:
        """`is_open` returns whether other sites may link to a path."""
        self._app = app
        self._hosts = hosts
        self._lets_all_in = EVERY in allowed_origins
        self._is_allowed = re.compile(origin_pattern(allowed_origins)).fullmatch
        self._is_open = is_open
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (error := self._fault(scope)) is not None:
            await self._answer(scope, error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        # A request without a Host, or with an empty one, does not come from a browser: HTTP/1.0 does not
        # require it.
        if (host := headers.get("host", "")) and not self._hosts.allow(host):
            return host_not_allowed(host)
        if self._lets_all_in:
            return None
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        if site == "same-origin":
            # Behind a proxy that does not keep Host, the two below would differ.
            return None
        if origin is not None:
            is_known = is_same_origin(origin, host) or (origin and self._is_allowed(origin))
            return None if is_known else origin_not_allowed(origin)
        if site in (None, "none") or self._is_link(scope, headers):
            return None
        return origin_not_allowed("another site")

    def _is_link(self, scope: Scope, headers: Headers) -> bool:
        """Return whether the request follows a link. A page cannot read the target, so it may link to paths
        that cost nothing. Frames are not links."""
        return (
            scope["method"] in ("GET", "HEAD")
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest", "document") == "document"
            and self._is_open(scope["path"])
        )
