"""The description of an agent's command line, and the setup that makes it work with a server.

`penstock launch` starts agents by these, and `api/AGENTS.md` is written from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from api.cli.errors import OperatorError
from api.cli.running_server import ListedModel, RunningServer

NO_KEY = "dummy"
"""The key sent to a server without keys, because agents refuse to start without one."""
FOLDER = "{folder}"
"""Prefix of a value that stands for the folder of `Setup.files`."""
IDLE_MS = 3_600_000
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
    removed: tuple[str, ...] = ()
    """Variables that would lead it elsewhere, or send another provider's key to the server."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of files that exist while it runs, in a temporary folder."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A run that used a tool, where the agent has tools."""

    version: str
    date: str
    first_kilobytes: int
    """The body of its first request for a short question: its own prompt and tools."""

    @property
    def first_tokens(self) -> int:
        """Return about how many tokens that is."""
        return self.first_kilobytes * 1000 // _BYTES_A_TOKEN


@dataclass(frozen=True, slots=True)
class KeptSettings:
    """The same settings in the user's own configuration, for those who want them there."""

    path: str
    language: str
    text: Callable[[LaunchTarget], str]


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent with a command line."""

    name: str
    """The name in `penstock launch NAME`."""
    title: str
    executable: str
    install: str
    """The command that installs it."""
    speaks: str
    tried: Tried
    setup: Callable[[LaunchTarget], Setup]
    example: tuple[str, ...]
    """Its own arguments for one question without asking back."""
    notes: str
    """Markdown."""
    kept: KeptSettings | None = None


def target_of(server: RunningServer, model: str | None, small_model: str | None) -> LaunchTarget:
    """Return what an agent uses: the models of these names, else the first one and the second. Raise
    OperatorError."""
    main = _chats(server, server.model(model))
    if small_model is not None:
        small = _chats(server, server.model(small_model))
    elif model is None:
        small = (server.chat_models[1:] or (main,))[0]
    else:
        # A user who names one model means it for everything.
        small = main
    return LaunchTarget(server.url, server.key or NO_KEY, main, small, server.chat_models)


def _chats(server: RunningServer, model: ListedModel) -> ListedModel:
    if model not in server.chat_models:
        raise OperatorError(f"{model.name} is a model for {model.task}, which agents cannot use")
    return model


def output_tokens(context_tokens: int) -> int:
    """Return how much of a context one answer may take: a quarter, at most 32,000."""
    return min(_MOST_OUTPUT_TOKENS, max(1, context_tokens // _OUTPUT_SHARE))
