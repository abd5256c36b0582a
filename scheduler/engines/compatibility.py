"""Decides whether an engine may join its pool: any engine must be able to continue a request of another."""

from __future__ import annotations

from scheduler.shared.messages import Ready

_ALIKE = {
    "fingerprint": "model",
    "vocabulary": "vocabulary",
    "weights_dtype": "weights dtype",
    "kv_cache_dtype": "KV cache dtype",
}
"""Fields that must be equal, and their names for people. The protocol version is checked where an engine
connects."""


_OF_OPTIONS = ("weights_dtype", "kv_cache_dtype")


def refusal(first: Ready, other: Ready) -> str:
    """Return why `other` cannot serve beside `first`, a sentence for the operator, or an empty string if it
    can."""
    different = [
        f"{name} {_shown(getattr(other, field))}, not {_shown(getattr(first, field))}"
        for field, name in _ALIKE.items()
        if _differ(first, other, field)
    ]
    if not different:
        return ""
    options = [f"--{field.replace('_', '-')}" for field in _OF_OPTIONS if _differ(first, other, field)]
    remedy = f" (one for all: {', '.join(options)})" if options else ""
    here, there = other.host or "this machine", first.host or "this machine"
    return (
        f"the engine on {here} is unlike this pool's, whose first one runs on {there}:"
        f" {'; '.join(different)}{remedy}"
    )


def _differ(first: Ready, other: Ready, field: str) -> bool:
    found: bool = getattr(other, field) != getattr(first, field)
    return found


def _shown(value: str | int) -> str:
    # Twelve digits of a fingerprint are enough to tell two apart.
    return value[:12] if isinstance(value, str) else str(value)
