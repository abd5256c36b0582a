"""The path that a client probably meant, for the message of a 404: most base URLs that are wrong lack `/v1`,
have it twice, or are another server's."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from api.close_match import close_match

PATHS: Mapping[str, str] = MappingProxyType(
    {
        "/v1/chat/completions": "POST",
        "/v1/completions": "POST",
        "/v1/responses": "POST",
        "/v1/conversations": "POST",
        "/v1/messages": "POST",
        "/v1/messages/count_tokens": "POST",
        "/v1/embeddings": "POST",
        "/v1/rerank": "POST",
        "/v1/tokenize": "POST",
        "/v1/detokenize": "POST",
        "/v1/models": "GET",
        "/v1/scheduler": "GET",
        "/v1/cache": "GET",
        "/health": "GET",
        "/ready": "GET",
        "/metrics": "GET",
        "/docs": "GET",
    }
)
"""The paths that clients type, and their method."""
_BASES = frozenset({"v0", "v1", "v2", "api", "openai", "anthropic"})
"""Parts of base URLs."""
_OTHERS = {
    "chat": "/v1/chat/completions",  # Ollama, LM Studio
    "generate": "/v1/completions",  # Ollama, SGLang
    "completion": "/v1/completions",  # llama.cpp
    "infill": "/v1/completions",
    "embed": "/v1/embeddings",
    "embedding": "/v1/embeddings",
    "tags": "/v1/models",
    "reranking": "/v1/rerank",
    "healthz": "/health",
}
"""What other servers call them."""
_MEANT = {**_OTHERS, **{path.removeprefix("/v1").strip("/"): path for path in PATHS}}
_BATCHES = frozenset(("batches", "files"))
_MOST_CHARACTERS = 200


def meant(path: str) -> str | None:
    """Return method and path of what was probably meant, or a command, or None."""
    if len(path) > _MOST_CHARACTERS:
        return None
    parts = [part for part in path.lower().split("/") if part and part not in _BASES]
    if parts and not _BATCHES.isdisjoint(parts[:2]):
        return "`penstock batch IN.jsonl OUT.jsonl`, which answers a file of requests"
    # The whole, something like the whole, or what it ends with.
    names = ["/".join(parts[start:]) for start in range(len(parts))]
    alike = close_match(names[0], _MEANT) if names else None
    found = next((name for name in (*names[:1], alike, *names) if name in _MEANT), None)
    if found is None:
        return None
    return f"{PATHS[_MEANT[found]]} {_MEANT[found]}"
