"""Load the options of `penstock serve` from flags and variables into checked settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from api.options.settings import ServeSettings
from scheduler.errors import OptionError

ENVIRONMENT_PREFIX = "PENSTOCK_"
OTHER_VARIABLES = ("PENSTOCK_URL", "PENSTOCK_JOIN_TOKEN")
"""Variables that other commands read; `serve` has no such options."""
_AUTO = "auto"
"""How an amount that the server chooses is written."""


@dataclass(frozen=True, slots=True)
class Option:
    """One field of ServeSettings on the command line."""

    field: str
    aliases: tuple[str, ...]
    """Other names of the field; each is a flag and a variable, too."""
    group: str
    help: str
    default: Any
    choices: tuple[str, ...]
    repeated: bool
    """Whether it may be given several times."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return all names, the field's first."""
        return (self.field, *self.aliases)

    @property
    def flags(self) -> list[str]:
        return [flag(name) for name in self.names]

    @property
    def default_text(self) -> str:
        """Return the default as written on the command line. Empty if `help` describes the behaviour without
        the option."""
        match self.default:
            case None:
                return ""
            case int() if self.field.endswith("_bytes"):
                return _size(self.default)
            case float() if self.field == "memory_limit":
                return _AUTO if self.default == 0 else f"{self.default:g}"
            case float():
                return f"{self.default:g}"
            case str() | int():
                return str(self.default)
            case _:
                return ""


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _size(count: int) -> str:
    if count < 0:
        return _AUTO
    for unit, shift in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift}{unit}"
    return str(count)


def options() -> Iterator[Option]:
    """Return all options, in the order of the fields."""
    for name, field in ServeSettings.model_fields.items():
        extra: Any = field.json_schema_extra
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        aliases = tuple(extra["aliases"])
        help_ = field.description or ""
        yield Option(name, aliases, extra["group"], help_, field.default, choices, extra["repeated"])


def load(given: Mapping[str, str], fallback: Mapping[str, str] | None = None) -> ServeSettings:
    """Make settings from values as text, by an option's name or alias. `fallback` (the environment) applies
    if `given` (the command line) has no value. Raise OptionError naming the option."""
    try:
        return ServeSettings.model_validate({**_by_field(fallback or {}, variable), **_by_field(given, flag)})
    except ValidationError as error:
        field, reason = first_fault(error)
        aliases = next((option.aliases for option in options() if option.field == field), ())
        others = ", ".join([*map(flag, aliases), variable(field)])
        raise OptionError(f"{flag(field)} (or {others}): {reason}") from error


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the field that a value does not fit, and why."""
    first = error.errors()[0]
    reason = first["msg"].removeprefix("Value error, ")
    return str(first["loc"][0]), f"{reason}, not {first['input']!r}"


def _by_field(given: Mapping[str, str], spelling: Callable[[str], str]) -> dict[str, str]:
    """Return `given` under the fields' own names. Raise OptionError if one option has different values under
    two names: either would silently override the other."""
    left = dict(given)
    found: dict[str, str] = {}
    for option in options():
        values = {name: left.pop(name) for name in option.names if name in left}
        if len(set(values.values())) > 1:
            raise OptionError(f"{' and '.join(map(spelling, values))} are one option, with different values")
        for value in values.values():
            found[option.field] = value
    return found | left


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """Raise OptionError for an unknown PENSTOCK_ variable: a misspelt one would be ignored silently."""
    known = {*OTHER_VARIABLES, *(variable(name) for option in options() for name in option.names)}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            raise OptionError(f"{name}: there is no such option")
