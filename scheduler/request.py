"""What a client asked for, free of any dialect: frozen records that the api package fills in."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from scheduler.link.messages import MAX_TOP_LOGPROBS as MAX_TOP_LOGPROBS
from scheduler.link.messages import Sampling as Sampling

# How tokens are chosen crosses to the engine as it is: one type for both sides.
from scheduler.structure import Structure

Message: TypeAlias = dict[str, Any]
"""One chat message as the templates of Hugging Face models take it: `role`, `content` (text),
`reasoning_content`, `tool_calls` (whose `function.arguments` is an object, not JSON text),
`tool_call_id`, `name`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False
    """Whether its calls are held to `parameters`."""
    place: str = field(default="tools", compare=False)
    """Where the client wrote `parameters`, to be named in errors."""

    def definition(self) -> dict[str, Any]:
        """As chat templates and mlx-lm's parsers take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolChoice(StrEnum):
    """Whether the model calls a tool is its own choice, or it cannot, or it must."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Whether the model thinks before it answers (None: as its template does by itself), and how hard."""

    enabled: bool | None = None
    effort: str | None = None


PRIORITIES = range(-10, 11)
"""What `priority` may be. Few, because a request ages by one at a time, and none may take hours."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to be rendered by the model's chat template.

    `template_options` are the client's own and win over what `reasoning` would set.
    `continue_final`: the last message is the assistant's, and the answer is the rest of it.
    """

    messages: tuple[Message, ...]
    template_options: dict[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    only_tool: str | None = None
    """With REQUIRED: the one tool that is to be called, once. Else any of them."""
    parallel_tool_calls: bool = True
    reasoning: Reasoning = Reasoning()
    continue_final: bool = False

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """The tools that the model is told of, and whose calls are looked for in its answer."""
        return () if self.tool_choice is ToolChoice.NONE else self.tools


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to be continued: tokenized as it is, with no template; the answer is text only."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to be continued."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from, as logs, exemplars and traces name it; nothing is decided by it."""

    request_id: str = ""
    """Of the HTTP request that brought it, the client's own where it gave one."""
    traceparent: str | None = None
    """The client's trace (https://www.w3.org/TR/trace-context/), unchecked."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for one or more continuations of one prompt.

    `max_tokens` None means as many as the context leaves room for. `stop` are strings that end the
    answer and are not part of it. `public_id` is the id the client sees (`chatcmpl-...`).
    """

    public_id: str
    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer as the end-of-sequence token does, also where that is ignored."""
    ignore_eos: bool = False
    structure: Structure | None = None
    """What the text of the answer must be; None: anything."""
    choices: int = 1
    """Continuations of the one prompt, each with a seed of its own."""
    top_logprobs: int | None = None
    """None: no log-probabilities; 0: those of the answer's own tokens; more: of so many others too."""
    min_tokens: int = 0
    """So many tokens before one may come that ends the answer, or a stop string may be complete."""
    tenant: str = ""
    session: str | None = None
    """The agent's conversation or run, as its own headers name it; None where nothing names it."""
    priority: int = 0
    """vLLM's sign: lower is served first."""
    timeout_seconds: float | None = None
    cache_salt: str = ""
    """Prefixes are shared only among requests of one salt."""
    origin: Origin = Origin()
