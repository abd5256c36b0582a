"""How Codex is pointed at a server: its environment, options and files."""

from __future__ import annotations

import json
from collections.abc import Mapping

from api.cli.launch.agent import IDLE_MS, Agent, KeptSettings, LaunchTarget, Setup, Tried

_KEY = "PENSTOCK_API_KEY"
_PROVIDER = "model_providers.penstock"


def _settings(target: LaunchTarget) -> dict[str, str | int]:
    context = target.model.context_tokens
    return {
        "model": target.model.name,
        "model_provider": "penstock",
        **({} if context is None else {"model_context_window": context}),
        f"{_PROVIDER}.name": "Penstock",
        f"{_PROVIDER}.base_url": target.openai_url,
        f"{_PROVIDER}.env_key": _KEY,
        f"{_PROVIDER}.wire_api": "responses",
        f"{_PROVIDER}.stream_idle_timeout_ms": IDLE_MS,
    }


def setup(target: LaunchTarget) -> Setup:
    # Not CODEX_HOME: in another folder Codex would find neither the user's settings nor the sessions.
    pairs = [f"{key}={_toml(value)}" for key, value in _settings(target).items()]
    return Setup({_KEY: target.key}, tuple(part for pair in pairs for part in ("-c", pair)))


def _toml(value: str | int) -> str:
    # A JSON string is a TOML string, but for surrogates in pairs and DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _file(target: LaunchTarget) -> str:
    settings = _settings(target)
    return "\n".join(
        [
            *_lines({key: value for key, value in settings.items() if "." not in key}),
            f"[{_PROVIDER}]",
            *_lines({key: value for key, value in settings.items() if "." in key}),
        ]
    )


def _lines(settings: Mapping[str, str | int]) -> list[str]:
    return [f"{key.rpartition('.')[2]} = {_toml(value)}" for key, value in settings.items()]


AGENT = Agent(
    name="codex",
    title="Codex",
    executable="codex",
    install="npm install -g @openai/codex",
    speaks="OpenAI responses",
    tried=Tried("0.171.0", "2026-11-27", 41),
    setup=setup,
    example=(
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        "What does note.txt say?",
    ),
    kept=KeptSettings("~/.codex/config.toml", "toml", _file),
    notes="""\
It warns that it has no metadata for the model; `model_context_window` says what it needs of them. Another
`CODEX_HOME` would hide your own settings and sessions, so that `launch` gives arguments.

Without `stream_idle_timeout_ms` it connects again where a prefill takes more than five minutes; with it, an
answer whose first token came after 520 s was read at once.

Where the provider's settings say `supports_websockets = true`, as those of OpenAI's own do, it asks
`/v1/responses` for a WebSocket first. 426 is the one answer after which it posts at once: a warm "Hello"
then took 1.4 s; it was 7.7 s with 405, after which it asked six times more. Without that line it never
asks.

Its tools in namespaces are offered to the model as `namespace__name`, and called by both names. The web
search that it offers to every model is offered to none.
""",
)
