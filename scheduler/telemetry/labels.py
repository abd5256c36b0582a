"""The closed sets of label values: the values that each label of a metric may have."""

from __future__ import annotations

from scheduler.statistics import DeathCause

STARTS = ("cold", "warm", "resumed")
"""How an answer started. Warm: at least half of the prompt was a prefix hit. Resumed: an engine died before
the first token."""
PIECE_IDS = ("kept", "made")
"""Whether the ids of a piece of a prompt were kept, or had to be made."""
STATES = ("submitted", "prefilling", "decoding", "cancelling")
"""States of requests that an engine holds; those that await another engine are counted separately."""
CONDITIONS = ("starting", "ready", "quarantine", "restarting", "draining", "unloaded", "failed")
"""Conditions of engines. A draining engine gets no more requests, and leaves after its last one."""
MODEL_FACTS = ("model_type", "device", "weights_dtype", "kv_cache_dtype", "fallbacks")
STEPS = ("decode", "mixed", "prefill")
"""A step by what it computed: tokens of answers, prompts, or both."""
DRAFT_SOURCES = ("grammar", "long_match", "short_match", "other")
"""Where drafted tokens come from (`scheduler/engine/drafts/row_drafts.py`: Source); the last one: whatever
another version's engine calls its own."""
RELIEF_LEVELS = ("none", "evict", "small_chunks", "hold", "preempt")
"""The memory guard's (`scheduler/engine/budget/policy.py`: Relief), as logged."""
OUTCOMES = (
    *("stop", "length", "repetition", "tool_calls"),
    *("cancelled", "deadline", "rejected", "invalid", "error"),
)
RESTART_CAUSES = tuple(cause.value for cause in DeathCause if cause is not DeathCause.STOPPED)
REJECTIONS = ("queue_full", "tenant_limit", "draining", "unavailable")
"""Why requests were rejected."""
HTTP_REFUSALS = (
    *("too_many_connections", "header_timeout", "headers_too_large", "malformed_request"),
    *("unsupported_protocol", "body_timeout", "body_too_large", "bodies_too_many"),
    *("internal_error", "write_timeout"),
)
OTHER = "other"
"""The label of tenants that the operator did not name, of unknown routes, and so on."""
TELEMETRY_PARTS = ("samples", "log", "recent", "time_line", "engine_totals")
METHODS = ("GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS")
