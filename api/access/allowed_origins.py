"""The origins whose pages may use the API from a browser or an application's web view."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
