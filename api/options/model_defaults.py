"""The defaults of sampling and thinking, which apply where a body names none.

A setting has the value of the body, else of the first `Source` that says it. All say the same settings, with
the bounds of a body. Of the file only keys that are there count, as with vLLM: transformers would add its own
defaults for the others (top_k 50, greedy).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Literal, TypeAlias

from msgspec import structs
from pydantic import BaseModel, ValidationError

from api.bodies.sampling_values import SamplingFields
from scheduler.request import Reasoning, Sampling

Thinking: TypeAlias = Literal["on", "off", "auto"]
"""auto leaves it to the chat template."""


class Source(StrEnum):
    """What says a default, the first one first."""

    NAME = "served_model_name"
    """The settings of the name that the request asks for."""
    OPTION = "option"
    """`--default-temperature` and the others."""
    FILE = "generation_config"
    """The model's generation_config.json."""
    NEUTRAL = "neutral"
    """Nobody: the value that changes nothing."""


class _Values(SamplingFields):
    """Every setting, with the bounds that it has in a body."""

    thinking: Thinking = "auto"


SETTINGS = {name: field for name, field in _Values.model_fields.items() if name != "seed"}
DefaultSettings: TypeAlias = Mapping[str, Any]
"""The values that one source says, by their names in SETTINGS; each is `checked`."""
_OF_SAMPLING = tuple(name for name in SETTINGS if name != "thinking")
_NOT_OF_FILE = ("presence_penalty", "frequency_penalty", "thinking")
_SWITCHES = frozenset({"enable_thinking", "thinking"})
"""Template options that turn thinking on or off."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """The resolved defaults of one served name. `sampling` has no seed and no bias: those are a request's."""

    sampling: Sampling = field(default_factory=Sampling)
    thinking: bool | None = None
    """Whether the model thinks; None leaves it to the chat template."""
    sources: Mapping[str, Source] = field(default_factory=lambda: dict.fromkeys(SETTINGS, Source.NEUTRAL))

    def sampling_for(self, body: BaseModel, **others: Any) -> Sampling:
        """Return the values of the body's sampling fields and `others`, which have precedence, and the
        defaults where these are None. Every dialect's decoder calls this."""
        given = {name: getattr(body, name, None) for name in _OF_SAMPLING} | others
        values = {name: value for name, value in given.items() if value is not None}
        return structs.replace(self.sampling, **values)

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


def resolve(settings: Mapping[Source, DefaultSettings]) -> Defaults:
    """Return each setting from the first source that says it."""
    values: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, Source.NEUTRAL)
    for source in reversed(Source):
        values |= settings.get(source, {})
        sources |= dict.fromkeys(settings.get(source, {}), source)
    thinking: bool | None = {"on": True, "off": False}.get(values.pop("thinking", "auto"))
    return Defaults(structs.replace(Sampling(), **values), thinking, sources)


def checked(name: str, given: Any, *, text: bool = False) -> Any:
    """Return the value of the setting `name`, from its text or as JSON and TOML have it. Raise ValueError if
    no body may have it."""
    validate = _Values.model_validate_strings if text else partial(_Values.model_validate, strict=True)
    try:
        return getattr(validate({name: given}), name)
    except ValidationError as error:
        raise ValueError(error.errors(include_url=False)[0]["msg"]) from None


def from_file(content: Mapping[str, Any]) -> tuple[DefaultSettings, dict[str, str]]:
    """Return the settings in `generation_config.json`, and by key why a value in it is ignored. Never raises:
    the file is the model's author's, and a server without one of its values is better than none."""
    values: dict[str, Any] = {}
    ignored: dict[str, str] = {}
    for name in SETTINGS:
        # Exporters write null for what they do not say. vLLM, too, reads no other names.
        if name not in _NOT_OF_FILE and (value := content.get(name)) is not None:
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
    return values, ignored


def named_presets(text: str) -> Mapping[str, DefaultSettings]:
    """Return what each name of `--served-model-name` says, in their order. Raise ValueError, which quotes the
    bad part.

    `penstock,coder:temperature=0.2,thinking=off,qwen3:8b` are three names, the second with two settings. A
    part with an `=` is a setting: of the name before its last `:`, or else of the last name that has
    settings. So neither the `:` of a tag nor a `/` means anything, and only a name with an `=` cannot be
    given.
    """
    found: dict[str, dict[str, Any]] = {}
    last: dict[str, Any] | None = None
    for part in filter(None, map(str.strip, text.split(","))):
        left, equals, value = map(str.strip, part.partition("="))
        name, colon, key = (part, "", "") if not equals else map(str.strip, left.rpartition(":"))
        if not equals or colon:
            if not name:
                raise ValueError(f"{part!r} has no name")
            if name in found:
                raise ValueError(f"the name {name!r} is there twice")
            found[name] = {}
            last = found[name] if equals else None
        if not equals:
            continue
        if key not in SETTINGS:
            raise ValueError(f"{part!r}: there is no setting {key!r}, only {', '.join(SETTINGS)}")
        if last is None:
            raise ValueError(f"{part!r} belongs to no name; write NAME:{part}")
        if key in last:
            raise ValueError(f"{part!r}: {[*found][-1]!r} has {key} already")
        try:
            last[key] = checked(key, value, text=True)
        except ValueError as error:
            raise ValueError(f"{part!r}: {error}") from error
    if not found:
        raise ValueError("it contains no name")
    return found
