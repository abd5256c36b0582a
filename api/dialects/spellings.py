"""What each server calls a field that changes the answer: one meaning, many spellings.

Clients keep the spelling of the server that they were written for. A spelling means the same in every dialect
here, and two that say different things are refused by name. `api/FIELDS.md` shows the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, StrictBool, model_validator

from api.bodies.body import Body
from api.bodies.fields import Partly, WithoutEffect
from api.bodies.unsupported import EVERYWHERE
from api.options.effort_tokens import EFFORTS
from scheduler.request import UNLIMITED_THINKING
from scheduler.structure import ANY_OBJECT, JsonText, OneOf, Pattern, Rules, Structure

OPENAI, ANTHROPIC, OPENROUTER, VLLM = "OpenAI", "Anthropic", "OpenRouter", "vLLM"
SGLANG, LLAMA_CPP, OLLAMA, LM_STUDIO, DEEPSEEK = "SGLang", "llama.cpp", "Ollama", "LM Studio", "DeepSeek"
_OF_EFFORTS = (OPENAI, OPENROUTER, VLLM, SGLANG, OLLAMA, LM_STUDIO, DEEPSEEK)
SERVERS = (OPENAI, ANTHROPIC, OPENROUTER, VLLM, SGLANG, LLAMA_CPP, OLLAMA, LM_STUDIO, DEEPSEEK)

UNBOUNDED = -1
"""A bound on tokens that bounds nothing, as llama.cpp and LM Studio write it."""

_T = TypeVar("_T")


def _as_it_is(value: Any, path: str) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Spelling(Generic[_T]):
    """One field: its path in a body, whose it is, and what a value of it there says."""

    path: str
    servers: tuple[str, ...]
    read: Callable[[Any, str], _T | None] = _as_it_is

    def asked_by(self, body: Any) -> _T | None:
        value = body
        for name in self.path.split("."):
            if (value := _member(value, name)) is None:
                return None
        return self.read(value, self.path)


class Asked(NamedTuple, Generic[_T]):
    """A value, and the path of the field that says it."""

    path: str
    value: _T


@dataclass(frozen=True, slots=True)
class Meaning(Generic[_T]):
    """What a request may ask for, and every spelling of it."""

    title: str
    spellings: tuple[Spelling[_T], ...]

    def read(self, body: BaseModel) -> Asked[_T] | None:
        """Return what the body says. Raise ValueError if it says two different things."""
        asked = [
            Asked(spelling.path, value)
            for spelling in self.spellings
            if (value := spelling.asked_by(body)) is not None
        ]
        if any(one.value != asked[0].value for one in asked):
            raise ValueError(" and ".join(one.path for one in asked) + " differ: send only one of them")
        return asked[0] if asked else None

    def asked_by(self, body: SpelledFields) -> Asked[_T] | None:
        """Return what `read` has found in the body."""
        return body.asked.get(self.title)

    def value_of(self, body: SpelledFields) -> _T | None:
        asked = self.asked_by(body)
        return None if asked is None else asked.value


def _member(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    # Pydantic's own `json` and `schema` are in the way of two fields, whose attributes end in `_`.
    fields = getattr(type(value), "model_fields", {})
    return getattr(value, name if name in fields else f"{name}_", None)


def _bound(value: int, path: str) -> int:
    return UNBOUNDED if value < 0 else value


def _budget(value: Any, path: str) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return UNLIMITED_THINKING if value < 0 else value


def _switch(value: Any, path: str) -> bool | None:
    return value if isinstance(value, bool) else None


def _off(effort: Any, path: str) -> bool | None:
    return False if effort == "none" else None


def _switch_or_effort(value: Any, path: str) -> bool | None:
    return value if isinstance(value, bool) else _off(value, path)


def _of_type(kind: str, path: str) -> bool | None:
    return {"enabled": True, "disabled": False}.get(kind)


def _effort(value: Any, path: str) -> str | None:
    return value if value in EFFORTS and value != "none" else None


def _format(asked: Any, path: str) -> Structure | None:
    """Read a format: a body of `openai/structured.py`."""
    structure: Structure | None = asked.structure(path)
    return structure


def _any_object(wanted: bool, path: str) -> Structure | None:
    return JsonText(ANY_OBJECT, path) if wanted else None


def _json_or_schema(asked: Any, path: str) -> Structure:
    return JsonText(ANY_OBJECT if asked == "json" else asked, path)


def _one_of(texts: list[str], path: str) -> Structure:
    return OneOf(tuple(texts), path)


TOKEN_BOUND: Meaning[int] = Meaning(
    "Most tokens of the answer (-1: no bound)",
    (
        Spelling("max_tokens", SERVERS, _bound),
        Spelling("max_completion_tokens", (OPENAI, OPENROUTER, VLLM, SGLANG, LLAMA_CPP), _bound),
        Spelling("max_output_tokens", (OPENAI, VLLM, SGLANG, LM_STUDIO), _bound),
        Spelling("max_new_tokens", (SGLANG,), _bound),
        Spelling("n_predict", (LLAMA_CPP,), _bound),
    ),
)
THINKING: Meaning[bool] = Meaning(
    "Whether the model thinks",
    (
        Spelling("thinking.type", (ANTHROPIC, DEEPSEEK), _of_type),
        Spelling("enable_thinking", (SGLANG,), _switch),
        Spelling("think", (OLLAMA,), _switch_or_effort),
        Spelling("reasoning.enabled", (OPENROUTER, LM_STUDIO), _switch),
        Spelling("reasoning.effort", (OPENAI, OPENROUTER, VLLM, OLLAMA, LM_STUDIO), _off),
        Spelling("reasoning_effort", _OF_EFFORTS, _off),
        Spelling("output_config.effort", (ANTHROPIC,), _off),
        Spelling("chat_template_kwargs.enable_thinking", (VLLM, SGLANG, LLAMA_CPP), _switch),
        Spelling("chat_template_kwargs.thinking", (VLLM, SGLANG, LLAMA_CPP), _switch),
    ),
)
EFFORT: Meaning[str] = Meaning(
    "How much it thinks",
    (
        Spelling("reasoning_effort", _OF_EFFORTS, _effort),
        Spelling("reasoning.effort", (OPENAI, OPENROUTER, VLLM, OLLAMA, LM_STUDIO), _effort),
        Spelling("output_config.effort", (ANTHROPIC, DEEPSEEK), _effort),
        Spelling("think", (OLLAMA,), _effort),
        Spelling("chat_template_kwargs.reasoning_effort", (VLLM, SGLANG, LLAMA_CPP), _effort),
    ),
)
THINKING_BUDGET: Meaning[int] = Meaning(
    "Most tokens of its thinking (-1: no bound)",
    (
        Spelling("thinking_token_budget", (VLLM,), _budget),
        Spelling("thinking.budget_tokens", (ANTHROPIC,), _budget),
        Spelling("reasoning.max_tokens", (OPENROUTER,), _budget),
        Spelling("thinking_budget_tokens", (LLAMA_CPP,), _budget),
        Spelling("reasoning_budget_tokens", (LLAMA_CPP,), _budget),
        Spelling("thinking_budget", (SGLANG,), _budget),
        Spelling("custom_params.thinking_budget", (SGLANG,), _budget),
        Spelling("chat_template_kwargs.thinking_budget", (VLLM, SGLANG, LLAMA_CPP), _budget),
    ),
)
CONSTRAINT: Meaning[Structure] = Meaning(
    "What the answer's text must match",
    (
        Spelling("response_format", (*_OF_EFFORTS, LLAMA_CPP), _format),
        Spelling("text.format", (OPENAI, VLLM, LM_STUDIO), _format),
        Spelling("output_config.format", (ANTHROPIC,), _format),
        Spelling("output_format", (ANTHROPIC,), _format),
        Spelling("structured_outputs.json", (VLLM,), JsonText),
        Spelling("structured_outputs.regex", (VLLM,), Pattern),
        Spelling("structured_outputs.choice", (VLLM,), _one_of),
        Spelling("structured_outputs.grammar", (VLLM,), Rules),
        Spelling("structured_outputs.json_object", (VLLM,), _any_object),
        Spelling("guided_json", (VLLM,), JsonText),
        Spelling("guided_regex", (VLLM,), Pattern),
        Spelling("guided_choice", (VLLM,), _one_of),
        Spelling("guided_grammar", (VLLM,), Rules),
        Spelling("json_schema", (LLAMA_CPP, SGLANG), JsonText),
        Spelling("grammar", (LLAMA_CPP,), Rules),
        Spelling("regex", (SGLANG,), Pattern),
        Spelling("ebnf", (SGLANG,), Rules),
        Spelling("format", (OLLAMA,), _json_or_schema),
    ),
)
REPETITION_PENALTY: Meaning[float] = Meaning(
    "Repetition penalty",
    (
        Spelling("repetition_penalty", (OPENROUTER, VLLM, SGLANG)),
        Spelling("repeat_penalty", (LLAMA_CPP, OLLAMA, LM_STUDIO)),
    ),
)
REPETITION_WINDOW: Meaning[int] = Meaning(
    "Its window in tokens (-1: the whole context)",
    (
        Spelling("repetition_context_size", ("mlx-lm",)),
        Spelling("repeat_last_n", (LLAMA_CPP, OLLAMA)),
    ),
)
MEANINGS: tuple[Meaning[Any], ...] = (
    TOKEN_BOUND,
    THINKING,
    EFFORT,
    THINKING_BUDGET,
    CONSTRAINT,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
)


class SpelledFields(Body):
    """A body with such fields: they are read once, when it is validated."""

    unsupported = EVERYWHERE

    _asked: dict[str, Asked[Any]] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        for meaning in MEANINGS:
            # A budget of thinking that is off has no effect.
            off = meaning is THINKING_BUDGET and THINKING.value_of(self) is False
            if not off and (asked := meaning.read(self)) is not None:
                self._asked[meaning.title] = asked
        return self

    @property
    def asked(self) -> dict[str, Asked[Any]]:
        """What it asks for, by the title of the meaning."""
        return self._asked


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("send a number greater than or equal to 1, or -1 for no bound but the context")
    return value


TokenBound: TypeAlias = Annotated[int, Field(ge=-1), AfterValidator(_not_zero)]


_RETENTION = "the prefix cache keeps every prefix until it needs the memory"


class CacheOptions(Body):
    prewarm: StrictBool = False
    mode: Annotated[Any, WithoutEffect(_RETENTION)] = None
    ttl: Annotated[Any, WithoutEffect(_RETENTION, named_unless=())] = None


class BoundFields(SpelledFields):
    """Every server's name of the most tokens that the answer may have."""

    max_tokens: TokenBound | None = None
    max_completion_tokens: TokenBound | None = None
    max_output_tokens: TokenBound | None = None
    max_new_tokens: TokenBound | None = None
    n_predict: Annotated[int, Field(ge=-2), AfterValidator(_not_zero)] | None = None
    prompt_cache_options: Annotated[
        CacheOptions | None, Partly(f"prewarm reads the prompt alone; for the rest, {_RETENTION}")
    ] = None


def token_bound_of(body: BoundFields) -> int | None:
    """Return the bound, or None for no bound but the context; 0 reads the prompt alone."""
    if body.prompt_cache_options is not None and body.prompt_cache_options.prewarm:
        return 0
    bound = TOKEN_BOUND.value_of(body)
    return None if bound == UNBOUNDED else bound
