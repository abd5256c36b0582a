"""A client's request, independent of any API: frozen records that the api package fills in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from scheduler.repetition import Repetition
from scheduler.shared.messages import MAX_TOP_LOGPROBS as MAX_TOP_LOGPROBS
from scheduler.shared.messages import Sampling as Sampling
from scheduler.shared.pooling import ModelKind as ModelKind
from scheduler.structure import Pattern, Rules, Structure

Message: TypeAlias = dict[str, Any]
"""One chat message in the form that templates of Hugging Face models take: `role`, `content` (text),
`reasoning_content`, `tool_calls` (whose `function.arguments` is an object, not JSON text), `tool_call_id`,
`name`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False
    """Whether a grammar constrains its arguments to `parameters`."""
    place: str = field(default="tools", compare=False)
    """The request field of `parameters`, for error messages."""
    text: Pattern | Rules | None = None
    """What its one argument, the text `input`, must match, where the client says."""

    def definition(self) -> dict[str, Any]:
        """Return the definition in the form that chat templates and mlx-lm's parsers take."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolChoice(StrEnum):
    """Whether the model may, cannot or must call a tool."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Whether the model reasons before it answers (None for the template's default), and with which
    effort."""

    enabled: bool | None = None
    effort: str | None = None


UNLIMITED_THINKING = -1
"""No budget, whatever the operator's defaults: `GenerationRequest.thinking_tokens` in vLLM's spelling."""

PRIORITIES = range(-10, 11)
"""Values of `priority`. Few, because bands age by one at a time and no request may wait for hours."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template.

    `template_options` are the client's and override what `reasoning` would set.
    `continue_final`: the last message is the assistant's, and the answer is the rest of it.
    """

    messages: tuple[Message, ...]
    template_options: dict[str, Any] = field(default_factory=dict)
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice.AUTO
    only_tool: str | None = None
    """The one tool that must be called, once, with REQUIRED; None allows any of them."""
    parallel_tool_calls: bool = True
    reasoning: Reasoning = Reasoning()
    continue_final: bool = False

    @property
    def offered_tools(self) -> tuple[Tool, ...]:
        """Return the tools that are in the prompt, and whose calls are parsed from the answer."""
        return () if self.tool_choice is ToolChoice.NONE else self.tools


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A text to continue, tokenized without a template. The answer is text only."""

    text: str
    add_special_tokens: bool = True
    """Whether what the tokenizer puts before a text (BOS) stands before it, unless the text begins with
    that."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids to continue."""

    token_ids: tuple[int, ...]


Prompt: TypeAlias = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a request, for logs only."""

    request_id: str = ""
    """The id of the HTTP request: the client's own if it sent one."""
    ignored_fields: tuple[str, ...] = ()
    """The body's fields that the dialect does not know."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A wish to keep what was computed of a prompt, up to and with its first `messages` messages (all of it
    for None), for `seconds` after the answer."""

    messages: int | None
    seconds: float


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request for one or more continuations of one prompt.

    Without `max_tokens` the context is the only bound; with 0 the prompt is read, and the answer is empty.
    `stop`: strings that end the answer. `public_id`: the id that the client sees (`chatcmpl-...`).
    """

    public_id: str
    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer like the end-of-sequence token, also with `ignore_eos`."""
    includes_stop: bool = False
    """Whether the answer has the stop string that ends it."""
    ignore_eos: bool = False
    structure: Structure | None = None
    """Constraint on the text of the answer, if there is one."""
    choices: int = 1
    """Number of continuations of the prompt, each with its own seed."""
    top_logprobs: int | None = None
    """Log-probabilities: None for none, 0 for the answer's tokens alone, N for the N likeliest alternatives
    too."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
    min_tokens: int = 0
    """The least number of tokens before an end token or a stop string may end the answer."""
    repetition: Repetition | None = None
    """The repetition that ends the answer; None for the operator's, or for none if `ignore_eos` is set."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning. UNLIMITED_THINKING allows any number; None leaves it to the effort, or the
    operator's default."""
    tenant: str = ""
    session: str | None = None
    """The agent's conversation or run, from the headers that agents send; None if there is none."""
    priority: int = 0
    """vLLM's sign: lower is served first."""
    timeout_seconds: float | None = None
    cache_salt: str = ""
    """Only requests with equal salts share prefixes; and of one tenant, where tenants share none."""
    origin: Origin = Origin()
    adapter: str = ""
    """The name of its LoRA adapter; empty without one."""
    kind: ModelKind = "chat"
    """What is asked for; the model must be of this kind. For "embedding" the answer is a vector, and
    `max_tokens` is 0."""
    dimensions: int = 0
    """Truncate the vector to this many dimensions; 0 keeps all."""
    labels: tuple[str, ...] | tuple[int, ...] = ()
    """Ask how likely each of these is as the beginning of the answer, instead of an answer: the natural
    logarithms of the probabilities of their first tokens are its vector, with that of the sum that made them
    behind (`Submit.labels`), and `max_tokens` is 0. Numbers are tokens, right behind the prompt."""
    begun: str = ""
    """What the answer has before labels that are texts."""
    field: str = ""
    """The body's field of the prompt, for error messages; empty for the usual one of its kind of prompt."""
    holds: tuple[Hold, ...] = ()
    """At most one per `ttl` value of the dialect."""
    truncate_tokens: int | None = None
    """Keep the first N tokens of the prompt. 0 keeps as many as the context has; with None all must fit."""

    def tokenized(self) -> GenerationRequest:
        """Return what is left to know of a request whose prompt is tokens: none of its texts, nor tools and
        schemas, which an answer of minutes would hold."""
        match self.prompt:
            case ChatPrompt(parallel_tool_calls=parallel):
                bare: Prompt = ChatPrompt((), parallel_tool_calls=parallel)
            case TextPrompt():
                bare = TextPrompt("")
            case TokenPrompt():
                bare = TokenPrompt(())
        return replace(self, prompt=bare, structure=None)

    @property
    def only_prompt(self) -> bool:
        """Return whether nothing but its prompt is of interest: the answer is empty."""
        return self.max_tokens == 0
