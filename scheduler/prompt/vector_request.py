"""The checks of a request for a vector, and of one that asks the wrong kind of model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.errors import InvalidRequest
from scheduler.prompt.embedder import Embedder
from scheduler.request import GenerationRequest, ModelKind

ENDPOINTS: Mapping[ModelKind, Sequence[str]] = {
    "chat": (
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
        *("/v1/decisions", "/v1/systemone", "/v1/rerank", "/v1/score"),
    ),
    "embedding": ("/v1/embeddings",),
    "rerank": ("/v1/rerank", "/v1/score"),
}
"""What a model of each kind answers."""


def check_kind(request: GenerationRequest, kind: ModelKind) -> None:
    """Raise InvalidRequest for a request that a model of `kind` cannot answer."""
    if request.kind != kind:
        raise InvalidRequest(
            f"this is a model for {kind}: it answers {', '.join(ENDPOINTS[kind])}", param="model"
        )


def check_dimensions(dimensions: int, embedder: Embedder) -> None:
    """Raise InvalidRequest if the model's vectors cannot be cut to this number of dimensions; 0 keeps all."""
    most, cuts = embedder.dimensions, embedder.matryoshka
    allowed = cuts if isinstance(cuts, tuple) else range(1, most if cuts else 0)
    if dimensions not in (0, most) and dimensions not in allowed:
        which = f"1 to {most}" if cuts is True else " or ".join(map(str, sorted({*allowed, most})))
        hint = "" if cuts else ": no is_matryoshka in config.json says that fewer mean anything"
        raise InvalidRequest(f"dimensions must be {which}, not {dimensions}{hint}", param="dimensions")


def truncated_length(request: GenerationRequest, context_tokens: int) -> int | None:
    """Return the number of tokens that its prompt is cut to, or None if it is not cut. Raise
    InvalidRequest."""
    if request.truncate_tokens is None:
        return None
    if request.truncate_tokens > context_tokens:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {request.truncate_tokens}, and the model's context {context_tokens}",
            param="truncate_prompt_tokens",
        )
    return request.truncate_tokens or context_tokens


def truncated(tokens: Sequence[int], most: int, around: Sequence[int]) -> list[int]:
    """Return the first `most` tokens, but keep at the end what the tokenizer puts after a text (the end of
    `around`): an embedder's vector may be that of the last token."""
    kept = 0
    while kept < min(len(around), most) and around[-kept - 1] == tokens[-kept - 1]:
        kept += 1
    return [*tokens[: most - kept], *tokens[len(tokens) - kept :]]
