"""What a client asked for, free of any dialect: frozen records that the api package fills in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""One chat message as the templates of Hugging Face models take it: `role`, `content`, ..."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. `temperature` 0 is greedy, and then the cut-offs have no effect.

    The cut-offs act as mlx-lm's samplers do (top-p, then min-p, then top-k, on the untempered
    distribution). `repetition_penalty` counts prompt and output, the presence and frequency
    penalties count output only, as vLLM does. `seed` is never absent: a request without one is
    given one at admission, so that its tokens can be computed again.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()


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
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
