"""Ids of responses and conversations: they name the server that made them.

A response is stored by one server only (a running `penstock serve`), and gateways do not know by which. So
another server that is asked for it answers with the name of the one to ask.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Literal

from api.options.option_values import SERVER_NAME

Kind = Literal["resp", "conv"]
_BYTES = 24
_NAMED = re.compile(rf"(?:resp|conv)_({SERVER_NAME})_[0-9a-f]{{{2 * _BYTES}}}")

_ITEM = re.compile(rf"[a-z]+_([0-9a-f]{{{2 * _BYTES}}})i?[0-9]{{4,}}")
"""An item's id, as `Envelope.item_id` and `input_items.listed` make it."""


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """Makes and reads ids. `server` is this server's name, or empty for ids without a name."""

    server: str = ""

    def new(self, kind: Kind = "resp") -> str:
        name = f"{self.server}_" if self.server else ""
        return f"{kind}_{name}{secrets.token_hex(_BYTES)}"

    def of_item(self, item_id: str) -> str:
        """Return the id of the response of this server that would have the item, or an empty string."""
        if (found := _ITEM.fullmatch(item_id)) is None:
            return ""
        return f"resp_{self.server}_{found[1]}" if self.server else f"resp_{found[1]}"

    def elsewhere(self, stored_id: str) -> str:
        """Return the hint to add to "not found" if the id names another server, else an empty string."""
        named = _NAMED.fullmatch(stored_id)
        if named is None or named[1] == self.server:
            return ""
        this = f"this is {self.server!r}" if self.server else "this one has no name"
        return f": it is of the server {named[1]!r}, {this}"
