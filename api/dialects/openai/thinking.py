"""The fields of a body that switch thinking on or off, or bound it (`dialects/spellings.py`)."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, field_validator

from api.bodies.body import Body
from api.bodies.fields import JsonObject, Partly, WithoutEffect
from api.bodies.unknown_fields import ignore
from api.dialects.spellings import EFFORT, THINKING, THINKING_BUDGET, SpelledFields
from api.options.effort_tokens import EffortName
from scheduler.request import GenerationRequest, Reasoning
from scheduler.service import Scheduler

MAX_THINKING_TOKENS = 2**31 - 1

_TEMPLATES_OWN = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "tokenizer_kwargs"),
        *("processor_kwargs", "sanitize_control_tokens"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner"),
        *("loop", "self", "caller", "varargs", "kwargs"),
    )
)
"""Reserved names for `chat_template_kwargs`: what the body has fields for or refuses, parameters of
transformers' `apply_chat_template`, and functions that templates call. Special tokens end in `_token`."""
_SUMMARY = Partly("in Responses, where any value asks for the reasoning itself as its summary")


def _named_effort(value: Any) -> Any:
    """Read an effort that names none as an absent one: frameworks send it for "the model's own"."""
    return None if value in ("", "default") else value


Effort: TypeAlias = Annotated[EffortName | None, BeforeValidator(_named_effort)]


class ReasoningOptions(Body):
    """OpenAI's object in Responses, with OpenRouter's members."""

    effort: Effort = None
    enabled: StrictBool | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_THINKING_TOKENS)
    exclude: StrictBool | None = None
    summary: Annotated[Any, _SUMMARY] = None
    generate_summary: Annotated[Any, _SUMMARY] = None
    context: Annotated[
        Literal["auto", "current_turn", "all_turns"] | None,
        WithoutEffect("the chat template decides what reasoning it keeps"),
    ] = None


class ThinkingSwitch(Body):
    """Anthropic's and DeepSeek's switch. `adaptive` and `auto` leave it to the model's default."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: int | None = Field(default=None, ge=1, le=MAX_THINKING_TOKENS)
    display: Literal["summarized", "omitted"] | None = None


class ThinkingFields(SpelledFields):
    reasoning_effort: Effort = None
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingSwitch | None = None
    enable_thinking: StrictBool | None = None
    thinking_token_budget: Annotated[int | None, Field(ge=-1, le=MAX_THINKING_TOKENS)] = None
    chat_template_kwargs: JsonObject | None = None

    @field_validator("chat_template_kwargs")
    @classmethod
    def _no_override(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name in value or {}:
            if name in _TEMPLATES_OWN or name.startswith("return_") or name.endswith(("_token", "_tokens")):
                raise ValueError(f"a request cannot set {name!r}")
        return value


def reasoning_of(body: ThinkingFields) -> Reasoning:
    """Return whether the body wants thinking, and how much. An effort or OpenRouter's budget wants it where
    nothing else says so; Anthropic's effort does not."""
    enabled, effort = THINKING.value_of(body), EFFORT.asked_by(body)
    if enabled is None:
        wanted = effort is not None and effort.path != "output_config.effort"
        bounded = body.reasoning is not None and body.reasoning.max_tokens is not None
        enabled = True if wanted or bounded else None
    return Reasoning(enabled=enabled, effort=None if effort is None else effort.value)


def name_unkept_budget(
    scheduler: Scheduler,
    requests: list[GenerationRequest],
    scope: MutableMapping[str, Any],
    body: SpelledFields,
) -> None:
    """If a request's own budget has no effect, its field joins the ignored ones of `scope`'s HTTP request,
    and the log line names it. It is not refused: Claude Code sends one to every model."""
    budget = THINKING_BUDGET.asked_by(body)
    for number, request in enumerate(requests):
        if budget is not None and not scheduler.preparation.thinking.keeps(request):
            origin = replace(request.origin, ignored_fields=ignore(scope, budget.path))
            requests[number] = replace(request, origin=origin)
