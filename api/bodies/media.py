"""Pictures, sounds and files in messages, as one line of text for a model that reads text only.

`[image, 48213 bytes: this model reads text only]`. Nothing is fetched or decoded, so that a screenshot costs
what its line costs. The same part is always the same line: agents send a screenshot again with every later
turn, and the prefix cache must find it.
"""

from __future__ import annotations

_LONGEST_NAME = 120


def note(kind: str, what: str = "", name: str | None = None) -> str:
    """Return the line. `kind`: image, audio, video or document; `what`: from `of_data` or `of_url`; `name`:
    the file's, as the client gives it."""
    return f"[{kind}{_quoted(name)}{what}: this model reads text only]"


def of_url(url: str) -> str:
    """Return the note about a URL, which may be a `data:` URL. Others are neither fetched nor quoted."""
    if url[:5].lower() != "data:":
        return " by URL"
    comma = url.find(",", 0, 1024)
    if comma < 0 or not url[:comma].lower().endswith(";base64"):
        return f", {len(url)} bytes"
    return of_data(url, comma + 1)


def of_file(data: str) -> str:
    """Return the note about a file, which comes as a `data:` URL or as its base64 text alone."""
    return of_url(data) if data[:5].lower() == "data:" else of_data(data)


def of_data(data: str, start: int = 0) -> str:
    """Return the note about the base64 text in `data` from `start` on."""
    padding = 2 if data.endswith("==") else int(data.endswith("="))
    return f", {max(0, (len(data) - start) * 3 // 4 - padding)} bytes"


def _quoted(name: str | None) -> str:
    """Quote a string on one line, whatever is in it."""
    plain = " ".join("".join(letter if letter.isprintable() else " " for letter in name or "").split())
    return f' "{plain[:_LONGEST_NAME]}"' if plain else ""
