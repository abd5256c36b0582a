"""The fields that change an answer and that the server does not have, of every API, with the values that ask
for nothing.

With such a value a field is as if absent, in every dialect; with another one the body is refused by the
field's name. What a schema knows is the schema's. `api/FIELDS.md` shows the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

NOTHING: tuple[Any, ...] = (False, "", "auto", "none", "default", "off", [], {})
"""Asks for nothing in most fields."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    why: str
    also: tuple[Any, ...] = ()
    """What asks for nothing here, beside `NOTHING`."""
    only: tuple[Any, ...] | None = None
    """All that asks for nothing here, if not `NOTHING`."""
    equals: str = ""
    """The field whose value asks for nothing here, too."""

    @property
    def neutral(self) -> tuple[Any, ...]:
        return (*NOTHING, *self.also) if self.only is None else self.only

    def asks(self, value: Any, body: Mapping[str, Any]) -> bool:
        """Return whether the value asks for something of this body."""
        # By type too: True equals 1 in Python, but not to a client.
        return value is not None and not any(
            isinstance(value, bool) == isinstance(one, bool) and value == one
            for one in (*self.neutral, body.get(self.equals) if self.equals else None)
        )


Fields: TypeAlias = Mapping[str, Unsupported]

_TEXT_ONLY = Unsupported("the model writes text only", (["text"],))
_NO_CODE = Unsupported("the server runs no code from requests")
_NO_BEAMS = "the server has no beam search"
_NO_SAMPLER = "the server has no such sampler"
_NO_MARKS = Unsupported("the text never contains special tokens", only=(True,))
_NEVER_CUT = Unsupported("the server refuses a prompt that is too long, and never cuts it", (-1,))
_WHOLE = Unsupported("a cut document may lose what it is asked for: send shorter ones")

EVERYWHERE: Fields = {
    "skip_special_tokens": _NO_MARKS,
    "spaces_between_special_tokens": _NO_MARKS,
    "return_token_ids": Unsupported("the server returns text only"),
    "return_tokens_as_token_ids": Unsupported("log-probabilities name tokens by text and bytes"),
    "use_beam_search": Unsupported(_NO_BEAMS),
    "length_penalty": Unsupported(_NO_BEAMS, (1,)),
    "best_of": Unsupported("use n: the server returns every answer that it generates", (1,), equals="n"),
    "bad_words": Unsupported("use logit_bias to exclude tokens"),
    "allowed_token_ids": Unsupported("use a grammar to restrict the answer"),
    "truncate_prompt_tokens": _NEVER_CUT,
    "prompt_logprobs": Unsupported("use echo and logprobs of /v1/completions"),
    "logits_processors": _NO_CODE,
    "custom_logit_processor": _NO_CODE,
    "container": _NO_CODE,
    "structural_tag": Unsupported("use tools with strict: true"),
    **dict.fromkeys(("max_new_tokens", "n_predict"), Unsupported("use max_tokens", (-1,))),
    "think": Unsupported("use reasoning_effort", only=()),
    **dict.fromkeys(
        ("thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens"),
        Unsupported("use thinking_token_budget", (-1,)),
    ),
    **dict.fromkeys(
        (
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern"),
            *("json_schema", "grammar", "regex", "ebnf", "format"),
        ),
        Unsupported("use response_format, or vLLM's structured_outputs"),
    ),
    "repeat_penalty": Unsupported("use repetition_penalty", (1,)),
    "no_stop_trim": Unsupported("use include_stop_str_in_output"),
    "stop_regex": Unsupported("use stop, with texts"),
    "adapters": Unsupported("name the adapter in model, as model:adapter"),
    **dict.fromkeys(
        ("xtc_probability", "top_a", "mirostat", "dynatemp_range", "dry_multiplier"),
        Unsupported(_NO_SAMPLER, (0,)),
    ),
    **dict.fromkeys(("typical_p", "tfs_z"), Unsupported(_NO_SAMPLER, (1,))),
    "top_n_sigma": Unsupported(_NO_SAMPLER, (-1,)),
    "repetition_context_size": Unsupported("the penalty counts the whole context", (0,)),
    "modalities": _TEXT_ONLY,
    "audio": _TEXT_ONLY,
    "separate_reasoning": Unsupported("the server returns reasoning in its own field", only=(True,)),
    "echo": Unsupported("the answer never repeats the last message"),
    "add_special_tokens": Unsupported("the chat template adds the special tokens"),
    "chat_template": Unsupported("the server uses the model's own chat template"),
    "documents": Unsupported("put documents into messages"),
    "suffix": Unsupported("the server does not fill in between two texts"),
    "prompt_embeds": Unsupported("send text or token ids"),
    "moderation": Unsupported("the server does not moderate content"),
    "web_search_options": Unsupported("the server has no web search", only=()),
    "mcp_servers": Unsupported("the server connects to no MCP servers"),
    "functions": Unsupported("deprecated: use tools"),
    "function_call": Unsupported("deprecated: use tool_choice"),
    "speed": Unsupported("the server has one speed", ("standard",)),
    "inference_geo": Unsupported("the server has one location", ("global",)),
}
RESPONSES: Fields = {
    **EVERYWHERE,
    "prompt": Unsupported("the server stores no prompts"),
    "conversation": Unsupported("send previous_response_id, or the items"),
    "context_management": Unsupported("the server never removes parts of a conversation"),
}
EMBEDDINGS: Fields = {
    "add_special_tokens": Unsupported("a text gets what the model's tokenizer puts around it", only=(True,)),
    "messages": Unsupported("send texts or token ids as input"),
}
RERANK: Fields = {
    **dict.fromkeys(("max_tokens_per_doc", "max_tokens_per_query", "max_chunks_per_doc"), _WHOLE),
    **dict.fromkeys(("truncate_prompt_tokens", "truncation"), _WHOLE),
    "rank_fields": Unsupported("a document is one text: join its fields"),
    "instruct": Unsupported("write instruction"),
    "use_activation": Unsupported("scores are probabilities", only=(True,)),
}
SYSTEM_ONE: Fields = dict.fromkeys(("images", "assets", "audio", "videos"), _TEXT_ONLY)
TOKENIZE: Fields = {**EVERYWHERE, "return_token_strs": Unsupported("use /detokenize")}
STRUCTURED_OUTPUTS: Fields = {
    "disable_additional_properties": Unsupported("set additionalProperties: false in the schema"),
    "structural_tag": EVERYWHERE["structural_tag"],
}
CITED: Fields = {"citations": Unsupported("the server generates no citations", ({"enabled": False},))}
"""Fields of Anthropic's documents."""
