"""The item that stands for a conversation that was cut short: `POST /v1/responses/compact` makes it.

The item carries the summary itself, so that any Penstock can go on from it, in the member that the API has
for what only the server reads.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

_MARK = "penstock-summary:"


def sealed(summary: str) -> str:
    """Return a summary as an item carries it."""
    return _MARK + base64.b64encode(summary.encode("utf-8", "replace")).decode()


def summary_of(sealed_text: Any) -> str | None:
    """Return the summary, or None for what another provider has encrypted."""
    if not isinstance(sealed_text, str) or not sealed_text.startswith(_MARK):
        return None
    try:
        return base64.b64decode(sealed_text.removeprefix(_MARK), validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None
