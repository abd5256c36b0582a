"""A model on disk: its folder and its configuration, read before any weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scheduler.errors import StartupError
from scheduler.prompt.embedder import Embedder, Task, read_embedder
from scheduler.shared.folder.context import chosen
from scheduler.shared.folder.mlx_lm_module import module_of, package_folder
from scheduler.shared.folder.reading import FolderReading, named_ends, read_folder
from scheduler.shared.pooling import ModelKind

FILES = (
    *("*.json", "model*.safetensors", "*/model*.safetensors", "*.py"),
    *("*.model", "*.tiktoken", "*.txt", "*.jsonl", "*.jinja"),
)
"""The files that mlx-lm needs; others (PyTorch weights, a second copy of all weights, images) are not
downloaded."""

_PAGE = "https://huggingface.co"
_INSTEAD_OF_GGUF = (
    "take the model as a folder of safetensors, as mlx-community on the Hugging Face hub has it in 4 and 8"
    " bits, or make one of its original with `mlx_lm.convert`"
)


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that holds a model, and its configuration."""

    path: Path
    vocabulary: int
    """The number of token ids; 0 if it is not configured (mlx-lm then has a default for the architecture)."""
    context_tokens: int
    """Longest sequence that is served."""
    eos_token_ids: frozenset[int]
    """Ids from the configuration files; the tokenizer may add its own."""
    model_type: str = ""
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    """The content of generation_config.json, unchecked: who made the model may have written anything."""
    brings_code: bool = False
    """Whether it names a Python file of its own for mlx-lm to run (`model_file`)."""
    embedder: Embedder | None = None
    """Set if the model is an embedder or a reranker; None if it writes tokens."""
    reading: FolderReading | None = field(default=None, compare=False, repr=False)
    """All that the folder says."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What an operator should know of how it was read."""
        return () if self.reading is None else self.reading.notes

    @property
    def kind(self) -> ModelKind:
        return "chat" if self.embedder is None else self.embedder.kind


def find(model: str) -> Path:
    """Return the folder of `model`: itself if it is a folder, else a snapshot from the Hugging Face hub.

    Shows the hub's progress bars on standard error while it downloads. Raise StartupError if there is none.
    """
    path = Path(model).expanduser()
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:
        raise StartupError(f"--model: {model!r} cannot be read: {error}") from error
    whole = any(path.glob("*.gguf")) and not (path / "config.json").exists()
    if whole if path.is_dir() else path.suffix.lower() == ".gguf":
        raise StartupError(f"--model: {model!r} is GGUF, which is not served: {_INSTEAD_OF_GGUF}")
    if is_folder:
        return path
    if exists or model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise StartupError(
            f"--model: {model!r} is neither a folder nor a hub id like 'owner/name';"
            " `penstock models` lists the models on this machine"
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=list(FILES)))
    except Exception as error:  # The hub's HTTP library is its own choice, and so are its errors.
        raise StartupError(f"--model: {refusal(error, model)}") from error


def refusal(error: Exception, model: str, revision: str = "main") -> str:
    """Return what an error of huggingface_hub means, and what to do."""
    from huggingface_hub import errors

    match error:
        case errors.LocalEntryNotFoundError(__cause__=Exception() as cause):
            return refusal(cause, model, revision)
        case errors.GatedRepoError():
            terms = f"accept its terms at {_PAGE}/{model},\nand set HF_TOKEN to a token of that account"
            return f"{model} is gated: {terms}"
        case errors.RevisionNotFoundError():
            return f"{model} has no revision {revision!r}: see {_PAGE}/{model}/commits"
        case errors.RepositoryNotFoundError():
            remedy = "check the spelling; for a private one set HF_TOKEN"
            return f"the hub has no model {model!r}, or none that you may see:\n{remedy}"
        case errors.HFValidationError():
            return f"{model!r} is no hub id: {error}"
        case errors.OfflineModeIsEnabled():
            return "the hub is off: HF_HUB_OFFLINE is set, unset it to download"
        case errors.HfHubHTTPError():
            status = error.response.status_code
            return f"the hub answers {status} for {model}: try again later, or see status.huggingface.co"
        case OSError(errno=int()) if not isinstance(error, ConnectionError | TimeoutError):
            return f"{model} cannot be written: {error}"
        case _:
            words = " ".join(str(error).split())[:200] or type(error).__name__
            return f"the hub cannot be reached ({words})\ncheck the network, HTTPS_PROXY and HF_ENDPOINT"


def inspect(path: Path, task: Task = "auto", *, max_model_len: int | None = None) -> ModelFolder:
    """Read the model in `path`. `task`: the operator's name for its use; `max_model_len`: the operator's
    context. Raise StartupError if something in it is invalid, or has an effect that is not computed."""
    reading = read_folder(path)
    try:
        embedder = read_embedder(path, reading.text, task)
        context = chosen(reading.context, max_model_len)
        return ModelFolder(
            path=path,
            vocabulary=int(reading.text.get("vocab_size") or 0),
            context_tokens=min(context, context if embedder is None else embedder.most_tokens or context),
            eos_token_ids=named_ends(reading.config, reading.generation_config),
            model_type=reading.model_type,
            generation_config=reading.generation_config,
            brings_code=bool(reading.config.get("model_file")),
            embedder=embedder,
            reading=reading,
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise StartupError(f"--model: {path / 'config.json'} has a value of a wrong type: {error}") from error


def check_type(model_type: str) -> None:
    """Raise StartupError for the `model_type` of a config.json that the installed mlx-lm does not know. Where
    there is none the engine reports it."""
    if not model_type:
        raise StartupError("--model: config.json names no model_type: download the model again")
    if package_folder() is not None and module_of(model_type) is None:
        raise StartupError(
            f"--model: mlx-lm {version('mlx-lm')} has no model of type {model_type!r}:"
            " upgrade mlx-lm, or serve another model"
        )
