"""A tokenizer's file for the grammar library, in which no text spells a special token.

The library tokenizes what a grammar forces as the tokenizer would, special tokens included, and then refuses
them: a special token is not the bytes of its name. A schema whose constant is `<|im_end|>` asks for these
bytes. Grammars name special tokens by their ids, so their names are free: here they are random.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec


def without_spellings(tokenizer_json: str) -> str:
    """Return the text of tokenizer.json with other names for what the library takes for special."""
    read: dict[str, Any] = msgspec.json.decode(tokenizer_json)
    salt = secrets.token_hex(16)
    # By the library's rule: also what looks like a mark.
    names = {
        str(token["content"]): f"<{salt}{token['id']}>"
        for token in read.get("added_tokens") or []
        if token.get("special") or (token["content"].startswith("<") and token["content"].endswith(">"))
    }
    for token in read.get("added_tokens") or []:
        token["content"] = names.get(token["content"], token["content"])
    model: dict[str, Any] = read["model"]
    match model.get("vocab"):
        case dict() as ids:
            model["vocab"] = {names.get(name, name): number for name, number in ids.items()}
        case list() as scores:
            model["vocab"] = [[names.get(name, name), score] for name, score in scores]
    if (unknown := model.get("unk_token")) is not None:
        model["unk_token"] = names.get(unknown, unknown)
    if model.get("merges"):
        model["merges"] = [merge for merge in model["merges"] if not _parts(merge) & names.keys()]
    return msgspec.json.encode(read).decode()


def _parts(merge: str | list[str]) -> set[str]:
    """Return both tokens of a merge, and what becomes of them."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return {left, right, left + right}
