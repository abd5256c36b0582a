"""Targets: which server is measured, and how an `Ask` becomes a request that this server supports.

It defines `--target`, the known servers, and the body of a request; it opens no connection and starts no
process (`launch.py` does). Fields that a target does not honour are omitted, so that no server is slowed or
fails for a field without effect; the honoured ones were tested with the release that `peers/` pins.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from loadtests.workload import Ask

_NO_EOS: Final = -100.0
"""OpenAI's own limit: "should result in a ban"."""
_GRAMMAR: Final = (
    "write NAME=URL, NAME=preset:PRESET (to launch it) or NAME=preset:PRESET:URL, "
    "with options such as ,model=... after it"
)
EVERYTHING: Final = frozenset(
    {
        *("stream_options", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos"),
        *("logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
)
"""Every optional field that is ever sent; vLLM and its forks honour all of them."""
OPENAI: Final = EVERYTHING - {"ignore_eos", "top_k", "min_p", "repetition_penalty"}
"""The fields of the API reference: what an unknown server gets."""
SERVED_NAME: Final = "loadtest"


class TargetError(Exception):
    """A `--target` is invalid; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One server program. `arguments` are filled in with {model}, {port} and {slots}. They give all
    servers the same number of slots and otherwise keep each one's defaults, because people run them so."""

    name: str
    arguments: tuple[str, ...]
    knows: frozenset[str] = EVERYTHING
    """Optional request fields that change a streamed answer as they should."""
    variable: str = ""
    """The environment variable that names a peer's virtual environment or program."""
    model: str = SERVED_NAME
    """The model's name in requests."""
    ready_path: str = "/health"
    metrics_path: str | None = "/metrics"
    is_ours: bool = False
    """Penstock preloads the fast BLAS itself, into its engine alone."""


_HERE: Final = ("--host", "127.0.0.1", "--port", "{port}")
PRESETS: Final = {
    preset.name: preset
    for preset in (
        Preset(
            "penstock",
            (
                *("serve", "--model", "{model}", "--served-model-name", SERVED_NAME, *_HERE),
                *("--max-slots", "{slots}"),
            ),
            ready_path="/ready",
            is_ours=True,
        ),
        Preset(
            "mlx_lm.server",
            ("--model", "{model}", *_HERE, "--decode-concurrency", "{slots}"),
            # A stop string ends an answer only if the model happens to write it in the tokens that the
            # tokenizer would use; otherwise it is cut out and decoding goes on.
            EVERYTHING - {"ignore_eos", "stop"},
            "PENSTOCK_BENCH_MLX_LM",
            # Any other name is looked up on the hub.
            model="default_model",
            metrics_path=None,
        ),
        Preset(
            "rapid-mlx",
            (
                *("--no-telemetry", "serve", "{model}", "--served-model-name", SERVED_NAME, *_HERE),
                # Without the last flag it writes its whole prefix cache to disk when it stops.
                *("--max-num-seqs", "{slots}", "--disable-disk-caches"),
            ),
            # logit_bias is refused with 400, ignore_eos is dropped, and penalties reach a request only if the
            # previous request had some too.
            EVERYTHING
            - {"ignore_eos", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"},
            "PENSTOCK_BENCH_RAPID_MLX",
        ),
    )
}


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
    eos_token_ids: tuple[int, ...] = ()
    """Tokens to bias away if an exact length is wanted and the target does not support ignore_eos."""

    def url_of(self, questions: int = 0) -> str:
        """Return where a chat goes, or this many questions."""
        return f"{self.url.rstrip('/')}/v1/{'decisions' if questions else 'chat/completions'}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class Launch:
    """A server that is started first."""

    name: str
    preset: Preset
    arguments: tuple[str, ...] = ()
    """Appended to the preset's own, so they win."""
    commit: str | None = None
    """The commit of this repository whose Penstock it is; None is the one that runs."""


def build_body(ask: Ask, target: Target) -> dict[str, Any]:
    """Return the body of `POST /v1/chat/completions`, streamed, or of `POST /v1/decisions`."""
    if ask.questions:
        texts = [f"Statement {number} holds." for number in range(ask.questions)]
        asked = [{"type": "predicate", "instructions": text} for text in texts]
        return {"model": target.model, "input": list(ask.messages), "questions": asked}
    body: dict[str, Any] = {
        "model": target.model,
        "messages": list(ask.messages),
        "max_tokens": ask.max_tokens,
        "stream": True,
    }
    if "stream_options" in target.knows:
        body["stream_options"] = {"include_usage": True}
    body |= {name: value for name, value in ask.sampling.items() if name in target.knows}
    if ask.exact and "ignore_eos" in target.knows:
        body["ignore_eos"] = True
    elif ask.exact and target.eos_token_ids and "logit_bias" in target.knows:
        body["logit_bias"] = {str(token): _NO_EOS for token in target.eos_token_ids}
    return body


def parse(text: str, environment: Mapping[str, str]) -> Target | Launch:
    """Parse one `--target`. Options, each after a comma: `model=NAME`, `key_env=VARIABLE` (holds the API key)
    and `knows=all` for a running server; `commit=REVISION` and `args=...` for one to be launched. Raise
    TargetError if it is invalid.
    """
    name, equals, rest = text.partition("=")
    url, *pairs = rest.split(",")
    if not (equals and re.fullmatch(r"[\w.-]+", name) and url):
        raise TargetError(f"--target {text}: {_GRAMMAR}")
    if strange := [pair for pair in pairs if "=" not in pair]:
        raise TargetError(f"--target {text}: {strange[0]!r} is not an option; {_GRAMMAR}")
    options = {option.strip(): value.strip() for option, _, value in (pair.partition("=") for pair in pairs)}
    preset: Preset | None = None
    if url.startswith("preset:"):
        preset_name, _, url = url.removeprefix("preset:").partition(":")
        if (preset := PRESETS.get(preset_name)) is None:
            known = ", ".join(PRESETS)
            raise TargetError(f"--target {text}: there is no preset {preset_name!r}, only {known}")
        if not url:
            return _launch(text, name, preset, options)
    if not re.match(r"https?://[^/]", url):
        raise TargetError(f"--target {text}: {url!r} is not an http:// or https:// address; {_GRAMMAR}")
    url = url.rstrip("/").removesuffix("/v1")
    _refuse_others(text, options, ("model", "key_env", "knows"))
    api_key = None
    if (variable := options.get("key_env")) and not (api_key := environment.get(variable)):
        raise TargetError(f"--target {text}: the environment has no {variable}")
    if options.get("knows", "all") != "all":
        raise TargetError(f"--target {text}: there is knows=all, or none")
    # A server started by hand has its own name for its model, except the one that accepts only this.
    own_name = preset.model if preset and preset.model != SERVED_NAME else ""
    return Target(
        name,
        url,
        options.get("model", own_name),
        api_key,
        EVERYTHING if "knows" in options else preset.knows if preset else OPENAI,
        url + preset.metrics_path if preset and preset.metrics_path else None,
    )


def _launch(text: str, name: str, preset: Preset, options: dict[str, str]) -> Launch:
    _refuse_others(text, options, ("args", "commit") if preset.is_ours else ("args",))
    try:
        arguments = tuple(shlex.split(options.get("args", "")))
    except ValueError as error:
        raise TargetError(f"--target {text}: args: {error}") from error
    return Launch(name, preset, arguments, options.get("commit"))


def _refuse_others(text: str, options: Mapping[str, str], known: tuple[str, ...]) -> None:
    if others := [name for name in options if name not in known]:
        there = ", ".join(known)
        raise TargetError(f"--target {text}: no option {', '.join(others)} here; there are {there}")
