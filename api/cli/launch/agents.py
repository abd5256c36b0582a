"""What each agent's command line gets for a server: its environment, arguments and files. Pure.

Its page in `docs/agents/` shows the same; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from api.cli.errors import OperatorError
from api.cli.running_server import ListedModel, RunningServer

NO_KEY = "dummy"
"""The key sent to a server without keys, because agents refuse to start without one."""
_IDLE_MS = 3_600_000
"""Idle timeout for agents whose default ends a stream after five minutes without an event and sends the
request again: a long prefill may take longer, and they do not count keep-alive comments as events."""
_BYTES_A_TOKEN = 4
_OUTPUT_SHARE = 4
_MOST_OUTPUT_TOKENS = 32_000
"""The default of Claude Code and OpenCode."""


@dataclass(frozen=True, slots=True)
class LaunchTarget:
    """A server, and what an agent uses of it."""

    url: str
    """The server's address without `/v1`."""
    key: str = field(repr=False)
    model: ListedModel
    small: ListedModel
    """The model for titles, summaries and the like."""
    models: tuple[ListedModel, ...]
    """The models that an agent may switch to."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True)
class Setup:
    """What one agent gets for one target."""

    environment: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    """They come before the user's own."""
    files: Mapping[str, Any] = field(default_factory=dict)
    """JSON, by the variable that names the file."""
    removed: tuple[str, ...] = ()
    """Variables that would lead it elsewhere, or send another provider's key to the server."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent with a command line."""

    name: str
    """In `penstock launch NAME`, and of its executable."""
    title: str
    install: str
    """The command that installs it."""
    first_kilobytes: int
    """The body of its first request for a short question: its own prompt and tools."""
    setup: Callable[[LaunchTarget], Setup]

    @property
    def first_tokens(self) -> int:
        """Return about how many tokens that request has."""
        return self.first_kilobytes * 1000 // _BYTES_A_TOKEN


def target_of(server: RunningServer, model: str | None) -> LaunchTarget:
    """Return what an agent uses: the model of this name for everything, else the first one and the second.
    Raise OperatorError."""
    main = server.model(model)
    if main not in server.chat_models:
        raise OperatorError(f"{main.name} is a model for {main.task}, which agents cannot use")
    small = main if model else (server.chat_models[1:] or (main,))[0]
    return LaunchTarget(server.url, server.key or NO_KEY, main, small, server.chat_models)


def output_tokens(context_tokens: int) -> int:
    """Return how much of a context one answer may take: a quarter, at most 32,000."""
    return min(_MOST_OUTPUT_TOKENS, max(1, context_tokens // _OUTPUT_SHARE))


def _claude(target: LaunchTarget) -> Setup:
    environment = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_AUTH_TOKEN": target.key,
        "ANTHROPIC_MODEL": target.model.name,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": target.model.name,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": target.model.name,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": target.small.name,
        # With this, Claude Code ignores another provider in the `env` of the user's settings.json.
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Its default would be the first model with a context of a million.
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(_IDLE_MS),
    }
    if (context := target.model.context_tokens) is not None:
        environment["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(context)
        environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(output_tokens(context))
    providers = ("ANTHROPIC_AWS", "BEDROCK", "FOUNDRY", "MANTLE", "VERTEX")
    removed = (
        *("ANTHROPIC_API_KEY", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_SMALL_FAST_MODEL"),
        *("ANTHROPIC_UNIX_SOCKET", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_SUBAGENT_MODEL"),
        *(f"CLAUDE_CODE_USE_{provider}" for provider in providers),
    )
    return Setup(environment, removed=removed)


def _codex(target: LaunchTarget) -> Setup:
    key, context = "PENSTOCK_API_KEY", target.model.context_tokens
    settings = {
        "model": target.model.name,
        "model_provider": "penstock",
        **({} if context is None else {"model_context_window": context}),
        "model_providers.penstock.name": "Penstock",
        "model_providers.penstock.base_url": target.openai_url,
        "model_providers.penstock.env_key": key,
        "model_providers.penstock.wire_api": "responses",
        "model_providers.penstock.stream_idle_timeout_ms": _IDLE_MS,
    }
    # Not CODEX_HOME: in another folder Codex would find neither the user's settings nor the sessions. A JSON
    # string is a TOML string, but for surrogates in pairs and DEL.
    pairs = [
        f"{name}={json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
        for name, value in settings.items()
    ]
    return Setup({key: target.key}, tuple(part for pair in pairs for part in ("-c", pair)))


def _opencode(target: LaunchTarget) -> Setup:
    settings = {
        "provider": {
            "penstock": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Penstock",
                "options": {"baseURL": target.openai_url, "apiKey": target.key},
                "models": {
                    model.name: {"name": model.name, **_limit(model, "context", "output", "limit")}
                    for model in target.models
                },
            }
        },
        "model": f"penstock/{target.model.name}",
        "small_model": f"penstock/{target.small.name}",
    }
    # OpenCode merges it with the user's own files, and reads it after them.
    return Setup({"OPENCODE_CONFIG_CONTENT": json.dumps(settings)})


def _qwen(target: LaunchTarget) -> Setup:
    environment = {"OPENAI_BASE_URL": target.openai_url, "OPENAI_API_KEY": target.key}
    arguments = ("--auth-type", "openai", "--model", target.model.name)
    if (context := target.model.context_tokens) is None:
        return Setup(environment, arguments)
    environment["QWEN_CODE_MAX_OUTPUT_TOKENS"] = str(output_tokens(context))
    # Defaults, which the user's own settings override.
    settings = {"model": {"generationConfig": {"contextWindowSize": context}}}
    return Setup(environment, arguments, {"QWEN_CODE_SYSTEM_DEFAULTS_PATH": settings})


def _aider(target: LaunchTarget) -> Setup:
    # litellm names a model by its provider, then its name.
    main, small = (f"openai/{model.name}" for model in (target.model, target.small))
    free = {
        "litellm_provider": "openai",
        "mode": "chat",
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }
    known = {
        name: {**free, **_limit(model, "max_input_tokens", "max_output_tokens")}
        for name, model in ((main, target.model), (small, target.small))
    }
    return Setup(
        # aider's own variables: a project's `.env` overrides OPENAI_API_BASE and OPENAI_API_KEY.
        {"AIDER_OPENAI_API_BASE": target.openai_url, "AIDER_OPENAI_API_KEY": target.key},
        ("--model", main, "--weak-model", small),
        {"AIDER_MODEL_METADATA_FILE": known},
    )


def _limit(model: ListedModel, context: str, output: str, under: str = "") -> dict[str, Any]:
    if model.context_tokens is None:
        return {}
    limits = {context: model.context_tokens, output: output_tokens(model.context_tokens)}
    return {under: limits} if under else limits


AGENTS = {
    agent.name: agent
    for agent in (
        Agent("claude", "Claude Code", "npm install -g @anthropic-ai/claude-code", 76, _claude),
        Agent("codex", "Codex", "npm install -g @openai/codex", 41, _codex),
        Agent("opencode", "OpenCode", "npm install -g opencode-ai", 30, _opencode),
        Agent("qwen", "Qwen Code", "npm install -g @qwen-code/qwen-code", 76, _qwen),
        Agent("aider", "aider", "python -m pip install aider-install && aider-install", 10, _aider),
    )
}
"""Name -> agent."""
