"""What changes the answer and has several names in the APIs: one meaning, many spellings.

A spelling means the same in every dialect here, and two that say different things are refused by name. What
other servers call it is refused by name, too (`bodies/unsupported.py`). `api/FIELDS.md` shows the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, Field, PrivateAttr, model_validator

from api.bodies.body import Body
from api.bodies.unsupported import EVERYWHERE
from api.options.effort_tokens import EFFORTS
from scheduler.request import UNLIMITED_THINKING
from scheduler.structure import ANY_OBJECT, JsonText, OneOf, Pattern, Rules, Structure

UNBOUNDED = -1
"""A bound on tokens that bounds nothing, as llama.cpp and LM Studio write it."""

_T = TypeVar("_T")


class Asked(NamedTuple, Generic[_T]):
    """A value, and the path of the field that says it."""

    path: str
    value: _T


@dataclass(frozen=True, slots=True)
class Meaning(Generic[_T]):
    """What a request may ask for."""

    title: str
    spellings: Mapping[str, Callable[[Any, str], _T | None]]
    """By the path of each field in a body: what a value there says."""

    def read(self, body: BaseModel) -> Asked[_T] | None:
        """Return what the body says. Raise ValueError if it says two different things."""
        asked = [
            Asked(path, meant)
            for path, read in self.spellings.items()
            if (value := value_at(body, path)) is not None and (meant := read(value, path)) is not None
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


def value_at(body: Any, path: str) -> Any:
    value = body
    for name in path.split("."):
        if isinstance(value, dict):
            value = value.get(name)
        else:
            # Pydantic's own `json` is in the way of a field, whose attribute ends in `_`.
            fields = getattr(type(value), "model_fields", {})
            value = getattr(value, name if name in fields else f"{name}_", None)
        if value is None:
            return None
    return value


def _bound(value: int, path: str) -> int:
    return UNBOUNDED if value < 0 else value


def _budget(value: int, path: str) -> int:
    return UNLIMITED_THINKING if value < 0 else value


def _switch(value: Any, path: str) -> bool | None:
    return value if isinstance(value, bool) else None


def _off(effort: Any, path: str) -> bool | None:
    return False if effort == "none" else None


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


def _one_of(texts: list[str], path: str) -> Structure:
    return OneOf(tuple(texts), path)


TOKEN_BOUND: Meaning[int] = Meaning(
    "Most tokens of the answer (-1: no bound)",
    dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _bound),
)
THINKING: Meaning[bool] = Meaning(
    "Whether the model thinks",
    {
        "thinking.type": _of_type,
        **dict.fromkeys(("reasoning_effort", "reasoning.effort", "output_config.effort"), _off),
        "reasoning.enabled": _switch,
        "enable_thinking": _switch,
        "chat_template_kwargs.enable_thinking": _switch,
        "chat_template_kwargs.thinking": _switch,
    },
)
EFFORT: Meaning[str] = Meaning(
    "How much it thinks",
    {
        **dict.fromkeys(("reasoning_effort", "reasoning.effort", "output_config.effort"), _effort),
        "chat_template_kwargs.reasoning_effort": _effort,
    },
)
THINKING_BUDGET: Meaning[int] = Meaning(
    "Most tokens of its thinking (-1: no bound)",
    dict.fromkeys(("thinking_token_budget", "thinking.budget_tokens", "reasoning.max_tokens"), _budget),
)
CONSTRAINT: Meaning[Structure] = Meaning(
    "What the answer's text must match",
    {
        **dict.fromkeys(("response_format", "text.format", "output_config.format", "output_format"), _format),
        "structured_outputs.json": JsonText,
        "structured_outputs.regex": Pattern,
        "structured_outputs.choice": _one_of,
        "structured_outputs.grammar": Rules,
        "structured_outputs.json_object": _any_object,
    },
)
MEANINGS: tuple[Meaning[Any], ...] = (TOKEN_BOUND, THINKING, EFFORT, THINKING_BUDGET, CONSTRAINT)


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


class BoundFields(SpelledFields):
    """Every name of the most tokens that the answer may have."""

    max_tokens: TokenBound | None = None
    max_completion_tokens: TokenBound | None = None
    max_output_tokens: TokenBound | None = None


def token_bound_of(body: BoundFields) -> int | None:
    """Return the bound, or None for no bound but the context; 0 reads the prompt alone."""
    bound = TOKEN_BOUND.value_of(body)
    return None if bound == UNBOUNDED else bound
