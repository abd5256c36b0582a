"""How many tokens a model's context has, by the rules of vLLM. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.errors import StartupError
from scheduler.shared.folder.rotary import Rotary
from scheduler.shared.folder.weight_files import StoredTensor

_LENGTHS: Final = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len", "max_context_length"),
)
"""Names of the longest sequence; where there are several the smallest counts."""
_OWN = "model_max_length"
"""This one counts before all others."""
_NOT_SCALED: Final = ("default", "longrope", "llama3")
"""Kinds of rotary positions whose configured length is the scaled one."""
_DEFAULT_TOKENS = 32768
_ANY_TOKENS = 1 << 30
"""Where nothing is configured, an operator may name any length."""
_TABLES: Final = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight")
"""Ends of names of tensors that hold one vector a position."""


@dataclass(frozen=True, slots=True)
class Context:
    """Bounds on a sequence's tokens."""

    tokens: int = _DEFAULT_TOKENS
    """The context unless the operator names another one."""
    most_tokens: int = _DEFAULT_TOKENS
    """The longest that an operator can name."""
    short_tokens: int | None = None
    """Up to this context a longrope model takes its short factors, and one of the dynamic type its own base;
    None for others."""


def context_of(part: Mapping[str, Any], rotary: Rotary, table_positions: int | None) -> Context:
    """Return the context of a model whose text part of config.json is `part`, with rotary positions, or with
    a table of `table_positions`. Raise StartupError for a length that is none."""
    lengths = {name: _length(name, part[name]) for name in _LENGTHS if part.get(name) is not None}
    configured = lengths.get(_OWN) or min(lengths.values(), default=None)
    if table_positions is not None:
        tokens = min(configured or table_positions, table_positions)
        return Context(tokens, tokens)
    if configured is None:
        return Context(most_tokens=_ANY_TOKENS)
    if rotary.kind == "longrope":
        short = _original(part, rotary) or configured
        return Context(min(short, configured), configured, min(short, configured))
    # The lengths of Gemma 3 are those after scaling.
    if rotary.kind in _NOT_SCALED or "gemma3" in str(part.get("model_type", "")):
        return Context(configured, max(configured, lengths.get(_OWN, 0)))
    base = (_original(part, rotary) or configured) if rotary.kind == "yarn" else configured
    tokens = int(base * rotary.factor)
    return Context(configured, tokens, configured) if rotary.grows else Context(tokens, tokens)


def chosen(context: Context, max_model_len: int | None) -> int:
    """Return the context that is served. Raise StartupError if the operator names a longer one than the model
    can have."""
    if max_model_len is None:
        return context.tokens
    if max_model_len > context.most_tokens:
        raise StartupError(
            f"--max-model-len {max_model_len}: the model's context is {context.most_tokens} by its"
            " config.json: name less, or scale its rotary positions there (rope_scaling)"
        )
    return max_model_len


def table_positions(tensors: Mapping[str, StoredTensor]) -> int | None:
    """Return the positions of a learnt table among a model's tensors, or None if there is none."""
    shapes = [one.shape for name, one in tensors.items() if name.endswith(_TABLES)]
    return min((shape[0] for shape in shapes if len(shape) == 2), default=None)


def _original(part: Mapping[str, Any], rotary: Rotary) -> int | None:
    name = "original_max_position_embeddings"
    value = (rotary.scaling or {}).get(name) or part.get(name)
    return None if value is None else _length(name, value)


def _length(name: str, value: Any) -> int:
    if (tokens := int(value)) < 1:
        raise StartupError(f"--model: config.json says {name} {value!r}, which is no length")
    return tokens
