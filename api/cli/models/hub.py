"""What the Hugging Face hub has under an id: files, sizes and checksums."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TypeAlias

from api.cli.errors import OperatorError
from api.options.model_list import own_name_alike
from scheduler.prompt.hub_refusals import refusal
from scheduler.prompt.model_folder import FILES

_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_PATTERNS = (*FILES, "README.md", "LICENSE*")
"""Patterns of the files that a model is served from, and of those that name its authors and terms."""
_WEIGHTS = "model*.safetensors"
_SECONDS = 20.0
Sha: TypeAlias = str


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository. `etag` is the SHA-256 of a large file, git's SHA-1 of others, and the name of
    its blob in the cache."""

    path: str
    nbytes: int
    etag: Sha

    @property
    def is_large(self) -> bool:
        """Return whether it is stored apart from git, with a SHA-256."""
        return len(self.etag) == 64


@dataclass(frozen=True, slots=True)
class HubListing:
    """One commit of a repository, and those of its files that a model is served from."""

    model: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)


def check_id(model: str) -> None:
    """Raise OperatorError if `model` cannot be a hub id."""
    if _ID.fullmatch(model) is None or ".." in model or "--" in model:
        raise OperatorError(
            f"{model!r} is no hub id: write it as owner/name, as mlx-community/Qwen3-4B-4bit"
            f"{own_name_alike(model)}"
        )


def list_files(model: str, revision: str, endpoint: str | None = None) -> HubListing:
    """Ask the hub for the files of a revision. Without `endpoint`, HF_ENDPOINT applies. Raise OperatorError,
    also where the repository holds no weights that can be served."""
    check_id(model)
    if not _is_safe(revision):
        raise OperatorError(f"{revision!r} is no revision: it is a branch, a tag or a commit")
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=endpoint).model_info(
            model, revision=revision, files_metadata=True, timeout=_SECONDS
        )
    except Exception as error:  # The hub's HTTP library is its own choice, and so are its errors.
        raise OperatorError(refusal(error, model, revision)) from error
    siblings = list(info.siblings or ())
    found = []
    for one in siblings:
        if any(fnmatch(one.rfilename, pattern) for pattern in _PATTERNS):
            etag = one.lfs.sha256 if one.lfs is not None else one.blob_id
            nbytes = one.lfs.size if one.lfs is not None else one.size
            if etag is None or nbytes is None or not _is_safe(one.rfilename) or not etag.isalnum():
                raise OperatorError(f"the hub's answer about {one.rfilename!r} of {model} has no use")
            found.append(HubFile(one.rfilename, int(nbytes), etag))
    if info.sha is None or not info.sha.isalnum():
        raise OperatorError(f"the hub names no commit for {model}: is HF_ENDPOINT a hub?")
    if not any(fnmatch(file.path, _WEIGHTS) for file in found):
        raise OperatorError(f"{model} holds no {_WEIGHTS}{_instead([one.rfilename for one in siblings])}")
    if not any(file.path == "config.json" for file in found):
        raise OperatorError(f"{model} holds no config.json, so it is not a model that mlx-lm can load")
    # Small files first: they may show that the model cannot be served.
    return HubListing(model, revision, info.sha, tuple(sorted(found, key=lambda file: file.nbytes)))


def _is_safe(path: str) -> bool:
    """Return whether a file stays in the folder that it is written to."""
    return not path.startswith("/") and ".." not in path.split("/") and "\\" not in path and "\0" not in path


def _instead(names: list[str]) -> str:
    kinds = [
        kind for kind in (".gguf", ".bin", ".pth", ".onnx") if any(name.endswith(kind) for name in names)
    ]
    return f", only {' and '.join(kinds)} files: take a version in safetensors" if kinds else ""
