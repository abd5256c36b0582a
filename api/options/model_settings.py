"""The options of a model: its folder, its names, and the defaults of bodies.

With several models each may have its own (`model_list.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
)

from api.options.effort_tokens import EFFORT_TOKENS
from api.options.model_defaults import (
    SETTINGS,
    Defaults,
    DefaultSettings,
    Source,
    checked,
    from_file,
    named_presets,
    resolve,
)
from api.options.option_values import named_folders, readable_by
from scheduler.answer.answer_format import REASONING_PARSERS
from scheduler.config import ThinkingConfig
from scheduler.grammar.answer_grammar import HoldCalls
from scheduler.prompt.embedder import Task
from scheduler.repetition import Repetition
from scheduler.shared.messages import KvCacheDtype, WeightsDtype


def option(group: str, help_: str, default: Any, *, repeated: bool = False, **bounds: Any) -> Any:
    """Make the field. `repeated`: it may be given several times; its values are joined by commas."""
    extra: dict[str, Any] = {"group": group, "repeated": repeated}
    return Field(default=default, description=help_, json_schema_extra=extra, **bounds)


_T = TypeVar("_T", bound=BaseModel)
_HELP = {
    "temperature": "temperature of requests that say none, nor does the name of the model that they ask for.",
    "thinking": "thinking of such requests; auto: as the chat template does where nobody asks.",
}


def _as_in_a_name(given: Any, info: ValidationInfo) -> Any:
    return checked(str(info.field_name).removeprefix("default_"), given, text=isinstance(given, str))


def _with_defaults(settings: type[_T]) -> type[_T]:
    """Add an option for each setting that a served name may have."""
    made: dict[str, Any] = {}
    for name, field in SETTINGS.items():
        help_ = _HELP.get(name, f"{name} of such requests.")
        made[f"default_{name}"] = field.annotation, option("Defaults", help_, field.default)
    check = {"check": field_validator(*made, mode="before")(_as_in_a_name)}
    return create_model(
        settings.__name__, __base__=settings, __module__=__name__, __validators__=check, **made
    )


@_with_defaults
class ModelSettings(BaseModel):
    """Checked when made; frozen afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    model: str | None = option(
        "Model",
        "Folder or Hugging Face hub id of the model; several times (in the variable: with commas) for several"
        " models. smollm2: SmolLM2-135M-Instruct, fetched once; embedded: the model for tests. smollm2 if not"
        " given.",
        None,
        repeated=True,
    )
    models: Path | None = option(
        "Model",
        "TOML file of several models, a table [[model]] for each: name, model, pinned, idle_seconds, and any"
        " option that is not the server's.",
        None,
    )
    idle_seconds: float | None = option(
        "Model",
        "Unload a model after this time without a request; 0: never. If not given: never the first one,"
        " others after 900.",
        None,
        ge=0,
        le=1e9,
    )
    served_model_name: Annotated[str | None, readable_by(named_presets)] = option(
        "Model",
        "Model name in requests, or several with commas, each with defaults of its own where it has some:"
        " name,coder:temperature=0.2,thinking=off. The model's own name if not given.",
        None,
    )
    adapter: Annotated[str | None, readable_by(named_folders)] = option(
        "Model",
        "LoRA adapter as name=folder, requested as model:name; several times, or with commas.",
        None,
        repeated=True,
    )
    weights_dtype: WeightsDtype = option(
        "Model",
        "Type of the weights in memory; auto: float32 on a CPU, as stored on a GPU. packed: quantised weights"
        " stay quantised and all else is float32, for a CPU with little memory; many times slower with"
        " several rows and long prompts.",
        "auto",
    )
    kv_cache_dtype: KvCacheDtype = option(
        "Model",
        "Type of keys and values in memory and on disk; auto: as the model computes them. q8, k8v4 (keys in 8"
        " bits, values in 4) and q4 take 0.53, 0.41 and 0.28 of what 16 bits take. Sliding windows and"
        " recurrent states stay as they are.",
        "auto",
    )
    max_model_len: int | None = option(
        "Model",
        "Longest prompt and answer together, in tokens. As the model's config.json says if not given.",
        None,
        ge=1,
    )
    task: Task = option(
        "Model",
        "What the model is for; auto: as the sentence-transformers files in its folder say, chat where there"
        " are none.",
        "auto",
    )

    tool_parser: str = option(
        "Model",
        "Format of the model's tool calls: a parser of mlx-lm (json_tools, ...), dsml, harmony, generic"
        " (tools described in the system prompt, calls as JSON) or none; auto: detected from the chat"
        " template, generic where it has no tools.",
        "auto",
    )
    hold_calls: HoldCalls = option(
        "Model",
        "Which tool calls a grammar holds to their schema: auto: all, from their opening mark on; strict:"
        " those of requests with a strict tool; off: none. A call that a request requires is always held.",
        "strict",
    )
    reasoning_parser: str = option(
        "Model", f"Format of the model's reasoning: {', '.join(REASONING_PARSERS)}.", "auto"
    )

    thinking_tokens: int | None = option(
        "Model",
        "Thinking budget of requests that name none, in tokens: then the end of reasoning is forced."
        " Any number of tokens if not given.",
        None,
        ge=0,
    )
    repetition_tokens: int = option(
        "Model",
        "End an answer when its last tokens, this many of them, are one phrase over and over (of up to 256"
        " tokens, at least eight times); 0: never. A request decides by repetition_detection; with ignore_eos"
        " it is never ended so.",
        1024,
        ge=0,
    )
    generation_config: Literal["auto", "none"] = option(
        "Defaults",
        "Whether the model's generation_config.json gives the sampling that a body omits: temperature, top_p,"
        " top_k, min_p, repetition_penalty; do_sample: false is temperature 0.",
        "auto",
    )

    def thinking(self) -> ThinkingConfig:
        return ThinkingConfig(self.thinking_tokens, EFFORT_TOKENS)

    def repetition(self) -> Repetition | None:
        return Repetition(self.repetition_tokens) if self.repetition_tokens else None

    def adapters(self) -> dict[str, Path]:
        """Return folders by name, in their order."""
        return {name: Path(folder) for name, folder in named_folders(self.adapter)}

    def served_names(self, own_name: str) -> Mapping[str, DefaultSettings]:
        """Return what each served name says; `own_name` is the only one where the option names none."""
        return named_presets(self.served_model_name) if self.served_model_name else {own_name: {}}

    def defaults(
        self, own_name: str, generation_config: Mapping[str, Any]
    ) -> tuple[dict[str, Defaults], dict[str, str]]:
        """Return the defaults of each served name, and by key why a value of the model's file is ignored."""
        file, ignored = from_file(generation_config if self.generation_config == "auto" else {})
        fields = {name: f"default_{name}" for name in SETTINGS}
        given = {
            name: getattr(self, field) for name, field in fields.items() if field in self.model_fields_set
        }
        names = self.served_names(own_name)
        every_name = {Source.OPTION: given, Source.FILE: file}
        return {name: resolve({Source.NAME: says, **every_name}) for name, says in names.items()}, ignored
