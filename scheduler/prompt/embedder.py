"""Whether a model's folder holds an embedder or a reranker, how its vectors are made, and what a reranker
reads.

sentence-transformers' files decide: `modules.json` names what follows the model, each module with a
`config.json` in a folder of its own (`1_Pooling`, `2_Dense`, `3_Normalize`, `1_LogitScore`), and
`config_sentence_transformers.json` has the texts to put before an input. Conversions often lack them; then
`--task` names what the model is, with the convention of its kind: the last token's state at length 1, or
Qwen3-Reranker's "yes" against "no", which is also that of a folder whose chat template takes nothing but
pairs. What is written there and cannot be computed is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from scheduler.errors import InvalidRequest, StartupError
from scheduler.request import ChatPrompt, Prompt, TextPrompt
from scheduler.shared.folder.reading import read_json, read_value
from scheduler.shared.pooling import ModelKind, PooledTokens, Pooler

Task: TypeAlias = Literal["auto", "chat", "embedding", "rerank"]
"""The operator's name for the use of a model; auto: what its folder shows."""
MODULES = "modules.json"
_MODES: dict[str, tuple[PooledTokens, str]] = {
    "lasttoken": ("last", "pooling_mode_lasttoken"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
}
"""The pooling modes that are supported, by their names in sentence-transformers 5.4 and later, and each one's
switch of before."""
_ROLE = re.compile(r"""['"](query|document|user)['"]""")
"""A role as a string of a template; Qwen3's own has a variable `last_query_index`."""
_PAIR = {"query", "document"}
_TWO_WAY_TYPES = ("gemma3_text",)
"""The types of models in which the engine can let each token attend to those after it, too."""
_ACTIVATIONS = ("Identity", "Tanh")

_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_HEAD = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the"
    ' Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
"""After an empty reasoning section the next token is the answer."""


@dataclass(frozen=True, slots=True)
class Embedder:
    """What the server needs to know of an embedder or a reranker."""

    pooler: Pooler | None
    """How an embedder's vector is made; None for a reranker."""
    dimensions: int
    """How many numbers a vector has."""
    matryoshka: tuple[int, ...] | bool = False
    """Whether vectors can be cut: to any length (True), to these lengths, or not at all (False)."""
    most_tokens: int | None = None
    """The bound that the files set on a text's tokens, if they do."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts to put before an input, by name."""
    default_prompt: str = ""
    """The text for inputs that name none."""
    has_roles: bool = False
    """Whether the chat template takes a reranker's pair, as messages of the roles query and document."""
    answers: tuple[int, ...] = ()
    """The tokens that a reranker's answer is about: its one number is the probability of the first against
    the second. Where there is none, the logit of the first alone decides."""

    @property
    def kind(self) -> ModelKind:
        return "rerank" if self.pooler is None else "embedding"

    def text_before(self, name: str | None) -> str:
        """Return the prompt of this name, which goes before each input. Raise InvalidRequest."""
        if name is None:
            return self.default_prompt
        if name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InvalidRequest(f"the model has no prompt {name!r}; it has {known}", param="prompt_name")
        return self.prompts[name]

    def relevance(self, logarithms: Sequence[float]) -> float:
        """Return a reranker's number: `logarithms` of its answers, and of the sum that made them
        probabilities."""
        logit = logarithms[0] + logarithms[1] if len(self.answers) == 1 else logarithms[0] - logarithms[1]
        return (1 + math.tanh(logit / 2)) / 2

    def pair(self, query: str, document: str, instruction: str | None = None) -> Prompt:
        """Return the prompt in which a reranker reads a query and a document.

        The model's chat template writes it if that has the roles query and document (as sentence-transformers
        5.4 writes them), with the instruction as the system message; otherwise it has the form of
        Qwen3-Reranker's model card. Without `instruction`, the model's own is used.
        """
        instruction = self.default_prompt if instruction is None else instruction
        if not self.has_roles:
            instruction = instruction or _INSTRUCTION
            pair = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
            return TextPrompt(_HEAD + pair + _TAIL, add_special_tokens=False)
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if instruction:
            messages.insert(0, {"role": "system", "content": instruction})
        return ChatPrompt(tuple(messages))


def read_embedder(path: Path, config: Mapping[str, Any], task: Task) -> Embedder | None:
    """Return the embedder or reranker that the model in `path` is, or None if it writes tokens. `config` is
    the text part of its config.json.

    Raise StartupError if a file is damaged, or asks for what is not supported.
    """
    if task == "chat":
        return None
    try:
        return _embedder(path, config, task)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise StartupError(
            f"--model: the sentence-transformers files in {path} lack something, or have a value of a wrong"
            f" type ({type(error).__name__}: {error}); --task chat does not read them"
        ) from error


def _embedder(path: Path, config: Mapping[str, Any], task: Task) -> Embedder | None:
    modules = _modules(path)
    two_way = config.get("use_bidirectional_attention") is True or config.get("is_causal") is False
    roles = set(_ROLE.findall(_template(path)))
    if task == "auto" and modules is None and roles != _PAIR:
        if config.get("use_bidirectional_attention") is True:
            raise StartupError(
                f"--model: {path} holds an embedder, which attends both ways, and no {MODULES} that says how"
                " its vectors are made: download the original folder"
            )
        return None
    folders = {name: path / folder for name, folder in modules or ()}
    kind = task if task != "auto" else "rerank" if modules is None or "LogitScore" in folders else "embedding"
    _check_body(path, config, both_ways=two_way, embeds=kind == "embedding")
    dimensions = 1 if kind == "rerank" else int(config["hidden_size"])
    pooler: Pooler | None = None
    if kind == "embedding":
        pooler = Pooler() if modules is None or "Pooling" not in folders else _pooler(path, modules)
        if pooler.dense:
            dimensions = int((read_json(path / pooler.dense[-1] / "config.json") or {})["out_features"])
        if two_way:
            pooler = Pooler(pooler.tokens, pooler.dense, pooler.normalize, two_way=True)
    written = read_json(path / "config_sentence_transformers.json") or {}
    prompts = {str(name): str(text) for name, text in (written.get("prompts") or {}).items()}
    most = (read_json(path / "sentence_bert_config.json") or {}).get("max_seq_length")
    # As vLLM reads them.
    cuts = tuple(int(size) for size in config.get("matryoshka_dimensions") or ())
    return Embedder(
        pooler,
        dimensions,
        cuts or bool(config.get("is_matryoshka")),
        None if most is None else int(most),
        prompts,
        prompts.get(str(written.get("default_prompt_name")), ""),
        roles >= _PAIR,
        _answers(path, folders.get("LogitScore")) if kind == "rerank" else (),
    )


def _check_body(path: Path, config: Mapping[str, Any], *, both_ways: bool, embeds: bool) -> None:
    architectures = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith("ForSequenceClassification") for name in architectures):
        raise StartupError(
            f"--model: {path} holds {architectures[0]}, and mlx-lm loads no classification head: serve the"
            " model that writes tokens (Qwen3-Reranker, not its -seq-cls conversion)"
        )
    if both_ways and not (embeds and config.get("model_type") in _TWO_WAY_TYPES):
        raise StartupError(
            f"--model: {path} attends both ways, and mlx-lm's {config.get('model_type')!r} only backwards;"
            f" of such models {', '.join(_TWO_WAY_TYPES)} is served, as an embedder"
        )


def _pooler(path: Path, modules: list[tuple[str, str]]) -> Pooler:
    dense: list[str] = []
    normalize = False
    for name, folder in modules:
        match name:
            case "Transformer" | "Pooling":
                pass
            case "Dense" if not normalize:
                dense.append(folder)
                module = read_json(path / folder / "config.json") or {}
                if not (found := str(module.get("activation_function", "Identity"))).endswith(_ACTIVATIONS):
                    raise StartupError(
                        f"--model: {path / folder} has the activation {found}, not supported here"
                    )
            case "Normalize":
                normalize = True
            case _:
                raise StartupError(
                    f"--model: {path / MODULES} has a module {name}, which is not supported here"
                )
    return Pooler(_tokens(path / dict(modules)["Pooling"]), tuple(dense), normalize)


def _tokens(folder: Path) -> PooledTokens:
    config = read_json(folder / "config.json") or {}
    mode = config.get("pooling_mode")
    chosen = [mode] if isinstance(mode, str) else list(mode or ())
    if mode is None:
        names = {switch: name for name, (_, switch) in _MODES.items()}
        switches = (name for name, value in config.items() if name.startswith("pooling_mode_") and value)
        chosen = [names.get(name, name) for name in switches]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        pools = " and ".join(map(str, chosen)) or "nothing"
        raise StartupError(f"--model: {folder} pools by {pools}; supported are {', '.join(_MODES)}")
    if config.get("include_prompt") is False:
        raise StartupError(f"--model: {folder} leaves prompts out of its mean, which is not supported here")
    return _MODES[chosen[0]][0]


def _answers(path: Path, folder: Path | None) -> tuple[int, ...]:
    if folder is not None:
        score = read_json(folder / "config.json") or {}
        true, false = score["true_token_id"], score.get("false_token_id")
        return (int(true),) if false is None else (int(true), int(false))
    vocabulary: Any = ((read_json(path / "tokenizer.json") or {}).get("model") or {}).get("vocab")
    for text in ("yes", "no"):
        if not isinstance(vocabulary, dict) or text not in vocabulary:
            raise StartupError(
                f"--task rerank: {path} has no 1_LogitScore, and {text!r} is no token of its vocabulary:"
                " nothing says how it scores"
            )
    return int(vocabulary["yes"]), int(vocabulary["no"])


def _template(path: Path) -> str:
    """Return the chat template's text, or an empty string without one."""
    try:
        return (path / "chat_template.jinja").read_text("utf-8")
    except OSError:
        return str((read_json(path / "tokenizer_config.json") or {}).get("chat_template") or "")


def _modules(path: Path) -> list[tuple[str, str]] | None:
    """Return name and folder of each module, in their order, or None if no file names any."""
    if (listed := read_value(path / MODULES)) is None:
        return None
    return [(str(module["type"]).rsplit(".", 1)[-1], str(module["path"])) for module in listed]
