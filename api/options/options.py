"""Load the options of `penstock serve` from flags and variables into checked settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    group: str
    help: str
    default: Any
    choices: tuple[str, ...]
    repeated: bool
    """Whether it may be given several times."""

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
        help_ = field.description or ""
        yield Option(name, extra["group"], help_, field.default, choices, extra["repeated"])


def load(given: Mapping[str, str], fallback: Mapping[str, str] | None = None) -> ServeSettings:
    """Make settings from values as text, by an option's name. `fallback` (the environment) applies if `given`
    (the command line) has no value. Raise OptionError naming the option."""
    try:
        return ServeSettings.model_validate({**(fallback or {}), **given})
    except ValidationError as error:
        field, reason = first_fault(error)
        raise OptionError(f"{flag(field)} (or {variable(field)}): {reason}") from error


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Return the field that a value does not fit, and why."""
    first = error.errors()[0]
    reason = first["msg"].removeprefix("Value error, ")
    return str(first["loc"][0]), f"{reason}, not {first['input']!r}"


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """Raise OptionError for an unknown PENSTOCK_ variable: a misspelt one would be ignored silently."""
    known = {*OTHER_VARIABLES, *(variable(option.field) for option in options())}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            raise OptionError(f"{name}: there is no such option")
