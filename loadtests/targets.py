"""Targets: which server is measured, and how an `Ask` becomes a request that this server supports.

It defines `--target` and the body of a request; it opens no connection and starts no process (`launch.py`
does). Fields that a target does not honour are omitted, so that no server is slowed or fails for a field
without effect.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from loadtests.presets import EVERYTHING, OPENAI, PRESETS, Preset
from loadtests.workload import Ask

_NO_EOS: Final = -100.0
"""OpenAI's own limit: "should result in a ban"."""

_GRAMMAR: Final = (
    "write NAME=URL, NAME=preset:PRESET (to launch it) or NAME=preset:PRESET:URL, "
    "with options such as ,model=... after it"
)


class TargetError(Exception):
    """A `--target` is invalid; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running server to send requests to."""

    name: str
    url: str
    model: str
    """The model's name; if empty, the first that the server lists (`launch.find_model`)."""
    api_key: str | None = field(default=None, repr=False)
    knows: frozenset[str] = OPENAI
    """Optional request fields that it honours."""
    metrics_url: str | None = None
    ready_path: str = "/v1/models"
    eos_token_ids: tuple[int, ...] = ()
    """Tokens to bias away if an exact length is wanted and the target does not support ignore_eos."""

    @property
    def chat_url(self) -> str:
        return f"{self.url.rstrip('/')}/v1/chat/completions"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A server that is started first."""

    name: str
    preset: Preset
    program: Path | None = None
    """Its virtual environment or the program itself; None looks at the preset's variable, then PATH."""
    arguments: tuple[str, ...] = ()
    """Appended to the preset's own, so they win."""


def build_body(ask: Ask, target: Target) -> dict[str, Any]:
    """Return the body of `POST /v1/chat/completions`, streamed."""
    body: dict[str, Any] = {
        "model": target.model,
        "messages": list(ask.messages),
        "max_tokens": ask.max_tokens,
        "stream": True,
    }
    if "stream_options" in target.knows:
        body["stream_options"] = {"include_usage": True}
    body |= {name: value for name, value in ask.sampling.items() if name in target.knows}
    if ask.exact:
        if "ignore_eos" in target.knows:
            body["ignore_eos"] = True
        elif target.eos_token_ids and "logit_bias" in target.knows:
            biases = {str(token): _NO_EOS for token in target.eos_token_ids}
            body["logit_bias"] = {**body.get("logit_bias", {}), **biases}
    return body


def parse(text: str, environment: Mapping[str, str]) -> Target | Launch:
    """Parse one `--target`. Options, each after a comma:

    `model=NAME`, `key_env=VARIABLE` (holds the API key), `knows=all` or `knows=seed+top_k+...`,
    `metrics=URL`, `eos=ID+ID` for a running server; `program=PATH`, `args=...` for one to be launched.
    Raise TargetError if it is invalid.
    """
    name, equals, rest = text.partition("=")
    place, *pairs = rest.split(",")
    if not (equals and re.fullmatch(r"[\w.-]+", name) and place):
        raise TargetError(f"--target {text}: {_GRAMMAR}")
    options = dict(_option(text, pair) for pair in pairs)
    preset: Preset | None = None
    url = place
    if place.startswith("preset:"):
        preset_name, _, url = place.removeprefix("preset:").partition(":")
        preset = PRESETS.get(preset_name)
        if preset is None:
            raise TargetError(
                f"--target {text}: there is no preset {preset_name!r}, only {', '.join(PRESETS)}"
            )
        if not url:
            return _launch(text, name, preset, options)
    if not re.match(r"https?://[^/]", url):
        raise TargetError(f"--target {text}: {url!r} is not an http:// or https:// address; {_GRAMMAR}")
    return _running(text, name, url.rstrip("/").removesuffix("/v1"), preset, options, environment)


def _option(text: str, pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise TargetError(f"--target {text}: {pair!r} is not an option; {_GRAMMAR}")
    return name.strip(), value.strip()


def _launch(text: str, name: str, preset: Preset, options: dict[str, str]) -> Launch:
    program = options.pop("program", None)
    try:
        arguments = tuple(shlex.split(options.pop("args", "")))
    except ValueError as error:
        raise TargetError(f"--target {text}: args: {error}") from error
    _refuse_others(text, options, "program, args")
    return Launch(name, preset, Path(program) if program else None, arguments)


def _running(
    text: str,
    name: str,
    url: str,
    preset: Preset | None,
    options: dict[str, str],
    environment: Mapping[str, str],
) -> Target:
    api_key = None
    if variable := options.pop("key_env", None):
        api_key = environment.get(variable)
        if not api_key:
            raise TargetError(f"--target {text}: the environment has no {variable}")
    knows = preset.knows if preset else OPENAI
    if named := options.pop("knows", None):
        knows = EVERYTHING if named == "all" else frozenset(named.split("+"))
        if strange := knows - EVERYTHING:
            known = ", ".join(sorted(EVERYTHING))
            raise TargetError(f"--target {text}: knows={'+'.join(sorted(strange))}: there are {known}")
    metrics = url + preset.metrics_path if preset and preset.metrics_path else None
    try:
        eos_token_ids = tuple(int(word) for word in options.pop("eos", "").split("+") if word)
    except ValueError as error:
        raise TargetError(f"--target {text}: eos: {error}") from error
    target = Target(
        name=name,
        url=url,
        # A server started by hand has its own name for its model, except the one that accepts only this.
        model=options.pop("model", preset.model if preset and preset.model == "default_model" else ""),
        api_key=api_key,
        knows=knows,
        metrics_url=options.pop("metrics", metrics),
        ready_path=preset.ready_path if preset else "/v1/models",
        eos_token_ids=eos_token_ids,
    )
    _refuse_others(text, options, "model, key_env, knows, metrics, eos")
    return target


def _refuse_others(text: str, options: dict[str, str], known: str) -> None:
    if options:
        raise TargetError(f"--target {text}: no option {', '.join(options)} here; there are {known}")
