"""The defaults of sampling and thinking, which apply where a body names none.

Each field has the value of the first source that names it: the body, the settings of the served name, the
options (`--default-temperature`, ...), the model's `generation_config.json`, else the neutral value, which
changes nothing. Of the file only keys that are there count, as with vLLM: transformers would add its own
defaults for the others (top_k 50, greedy).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import structs
from pydantic import ConfigDict, TypeAdapter, ValidationError

from api.bodies import sampling_values
from scheduler.request import Reasoning, Sampling

Thinking: TypeAlias = Literal["on", "off", "auto"]
"""auto leaves it to the chat template."""

_T = TypeVar("_T")


class Source(StrEnum):
    """The source of a default, the first one first."""

    NAME = "served_model_name"
    OPTION = "option"
    FILE = "generation_config"
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class DefaultSettings:
    """What one source sets; None where it sets nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    thinking: Thinking | None = None


SETTINGS = tuple(each.name for each in fields(DefaultSettings))
_OF_SAMPLING = tuple(name for name in SETTINGS if name != "thinking")
_OF_FILE = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Template options that turn thinking on or off."""


_KINDS: Mapping[str, Any] = {
    "temperature": sampling_values.Temperature,
    "top_p": sampling_values.TopP,
    "top_k": sampling_values.TopK,
    "min_p": sampling_values.MinP,
    "repetition_penalty": sampling_values.RepetitionPenalty,
    "presence_penalty": sampling_values.PresencePenalty,
    "frequency_penalty": sampling_values.FrequencyPenalty,
    "thinking": Thinking,
}
"""The type of each setting, with the bounds that it has in a body."""
_ADAPTERS = {
    name: TypeAdapter[Any](kind, config=None if name == "thinking" else ConfigDict(allow_inf_nan=False))
    for name, kind in _KINDS.items()
}


@dataclass(frozen=True, slots=True)
class Defaults:
    """The resolved defaults of one served name. `sampling` has no seed and no bias: those are a request's."""

    sampling: Sampling = field(default_factory=Sampling)
    thinking: bool | None = None
    """Whether the model thinks; None leaves it to the chat template."""
    sources: Mapping[str, Source] = field(default_factory=lambda: dict.fromkeys(SETTINGS, Source.NEUTRAL))

    def sampling_for(
        self,
        *,
        seed: int,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        repetition_context: int | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: tuple[tuple[int, float], ...] = (),
    ) -> Sampling:
        """Return the body's values, and the defaults where it has None. Every dialect's decoder calls
        this."""
        default = self.sampling
        return Sampling(
            temperature=_given(temperature, default.temperature),
            top_p=_given(top_p, default.top_p),
            top_k=max(0, _given(top_k, default.top_k)),
            min_p=_given(min_p, default.min_p),
            seed=seed,
            repetition_penalty=_given(repetition_penalty, default.repetition_penalty),
            repetition_context=repetition_context or 0,
            presence_penalty=_given(presence_penalty, default.presence_penalty),
            frequency_penalty=_given(frequency_penalty, default.frequency_penalty),
            logit_bias=logit_bias,
        )

    def reasoning_for(self, asked: Reasoning, template_options: Mapping[str, Any] | None = None) -> Reasoning:
        """Return `asked`, with the default if neither it nor the body's template options turn thinking on or
        off."""
        says = asked.enabled is not None or not _SWITCHES.isdisjoint(template_options or ())
        return asked if says or self.thinking is None else replace(asked, enabled=self.thinking)

    def described(self) -> dict[str, Any]:
        """Return the defaults for `/v1/models` and the log."""
        return {
            "default_sampling_params": {name: getattr(self.sampling, name) for name in _OF_SAMPLING},
            "default_thinking": {None: "auto", True: "on", False: "off"}[self.thinking],
            "default_sources": {name: source.value for name, source in self.sources.items()},
        }


NEUTRAL = Defaults()


def resolve(preset: DefaultSettings, options: DefaultSettings, file: DefaultSettings) -> Defaults:
    """Return each field from the first that sets it: the preset of the served name, the options, the file,
    neutral."""
    values: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, Source.NEUTRAL)
    for source, says in ((Source.FILE, file), (Source.OPTION, options), (Source.NAME, preset)):
        for name in SETTINGS:
            if (value := getattr(says, name)) is not None:
                values[name], sources[name] = value, source
    thinking: bool | None = {"on": True, "off": False}.get(values.pop("thinking", "auto"))
    if "top_k" in values:
        values["top_k"] = max(0, values["top_k"])
    return Defaults(structs.replace(Sampling(), **values), thinking, sources)


def checked(name: str, value: Any) -> Any:
    """Check `value` for the setting `name`, and return it. Raise ValueError if no body may have it."""
    return _validated(_ADAPTERS[name].validate_python, value, strict=True)


def from_text(name: str, text: str) -> Any:
    """Check the value as `checked`, from its text in an option."""
    return _validated(_ADAPTERS[name].validate_strings, text)


def _validated(validate: Any, value: Any, **options: Any) -> Any:
    try:
        return validate(value, **options)
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False)[0]["msg"]) from None


def from_file(content: Mapping[str, Any]) -> tuple[DefaultSettings, dict[str, str]]:
    """Return the settings in `generation_config.json`, and by key why a value in it is ignored. Never raises:
    the file is the model's author's, and a server without one of its values is better than none."""
    values: dict[str, Any] = {}
    ignored: dict[str, str] = {}
    for name in _OF_FILE:
        # Exporters write null for what they do not say.
        if (value := content.get(name)) is not None:
            try:
                values[name] = checked(name, value)
            except ValueError as error:
                ignored[name] = f"{value!r:.40}: {error}"
    match content.get("do_sample"):
        case False:
            # Also if the file has a temperature, which transformers then ignores.
            values["temperature"] = 0.0
        case True | None:
            pass
        case other:
            ignored["do_sample"] = f"{other!r:.40}: neither true nor false"
    return DefaultSettings(**values), ignored


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value
