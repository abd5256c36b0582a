"""What a client asked for, free of any dialect: frozen records that the api package fills in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

# How tokens are chosen crosses to the engine as it is: one type for both sides.
from scheduler.link.messages import Sampling as Sampling

Message: TypeAlias = dict[str, Any]
"""One chat message as the templates of Hugging Face models take it: `role`, `content`, ..."""

PRIORITIES = range(-10, 11)
"""What `priority` may be. Few, because a request ages by one at a time, and none may take hours."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Message, ...]
    template_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for one continuation.

    `max_tokens` None means as many as the context leaves room for. `stop` are strings that end the
    answer and are not part of it. `public_id` is the id the client sees (`chatcmpl-...`).
    """

    public_id: str
    prompt: ChatPrompt
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    tenant: str = ""
    session: str | None = None
    """The agent's conversation or run, as its own headers name it; None where nothing names it."""
    priority: int = 0
    """vLLM's sign: lower is served first."""
    timeout_seconds: float | None = None
    cache_salt: str = ""
    """Prefixes are shared only among requests of one salt."""
