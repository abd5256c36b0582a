"""A folder that transformers can load gives here what it gives there: the same tokens, with the same
log-probabilities, whichever version wrote it and however its weights are saved.

`make folder-references` keeps transformers' answers, made with PyTorch in float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx
import msgspec
import numpy as np
import pytest

from scheduler.engine.mlx import folder_model
from scheduler.engine.mlx.loading import load
from scheduler.prompt.model_folder import inspect
from scheduler.shared.folder.weight_files import INDEX
from tests.contracts.journal import answers, request
from tests.examples import sampled
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.references.answers import Reference, read
from tests.scheduler.engine.mlx.references.folders import (
    FOLDERS,
    NEW_TOKENS,
    SPELLINGS,
    Folder,
    Spelling,
    prompt,
)
from tests.scheduler.engine.mlx.references.tensors import Tensor, weights

_NATS = 1e-4
_WAYS = ("one file", "shards", "an older copy", "more tensors")
_BY_NAME = {folder.name: folder for folder in FOLDERS}


def _cases() -> list[tuple[str, Spelling, str]]:
    return [(folder.name, spelling, way) for folder in FOLDERS for spelling in SPELLINGS for way in _WAYS]


def _sample() -> list[tuple[str, Spelling, str]]:
    """Every folder; spellings and ways in turn."""
    pairs = [(spelling, way) for way in _WAYS for spelling in SPELLINGS]
    return [(folder.name, *pairs[at % len(pairs)]) for at, folder in enumerate(FOLDERS)]


def _save(path: Path, way: str, tensors: Mapping[str, Tensor], tied: bool) -> None:
    arrays = {name: mx.array(one) for name, one in tensors.items()}
    names, whole = sorted(arrays), "model.safetensors"
    parts = {whole: arrays}
    index: dict[str, str] = {}
    match way:
        case "shards":
            files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
            parts = {file: {name: arrays[name] for name in names[at::2]} for at, file in enumerate(files)}
            index = {name: file for file, part in parts.items() for name in part}
        case "an older copy":
            parts["model_old.safetensors"] = {name: one + 1 for name, one in arrays.items()}
            index = dict.fromkeys(names, whole)
        case "more tensors":
            parts[whole] = arrays | _redundant(arrays, tied)
        case _:
            pass
    for file, part in parts.items():
        mx.save_safetensors(str(path / file), part, metadata={"format": "pt"})
    if index:
        (path / INDEX).write_text(json.dumps({"weight_map": index}))


def _redundant(arrays: Mapping[str, mx.array], tied: bool) -> dict[str, mx.array]:
    """What earlier versions of transformers saved besides."""
    found: dict[str, mx.array] = {}
    for name, one in arrays.items():
        if name.endswith("self_attn.q_proj.weight"):
            found[f"{name.rsplit('.', 2)[0]}.rotary_emb.inv_freq"] = mx.ones((8,))
        if name.endswith("attn.c_attn.weight"):
            found[f"{name.rsplit('.', 2)[0]}.masked_bias"] = mx.array(-1e4)
        if tied and name.endswith(("embed_tokens.weight", "wte.weight")):
            found["lm_head.weight"] = mx.array(one)
    return found


@pytest.mark.parametrize("case", sampled(_cases(), _sample()), ids=", ".join)
def test_an_answer_is_that_of_transformers(case: tuple[str, Spelling, str], tmp_path: Path) -> None:
    """The short prompt and the long one, which is beyond windows, chunks of prefill and original contexts."""
    name, spelling, way = case
    folder, config = _BY_NAME[name], _BY_NAME[name].config(spelling)
    reference = read(folder.family)[name]
    _save(tmp_path, way, weights(reference.shapes), bool(config.get("tie_word_embeddings")))
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = inspect(tmp_path, max_model_len=folder.max_model_len)
    assert served.context_tokens >= max(folder.prompts) + NEW_TOKENS
    assert _differences(folder, reference, tmp_path) == []


def _differences(folder: Folder, reference: Reference, path: Path) -> list[str]:
    command = load_of(path, load_check="off", max_model_len=folder.max_model_len)
    backend, found = load(command, lambda stage: None), list[str]()
    for expected in reference.answers:
        asked = request(1, prompt(expected.prompt_tokens, expected.seed), NEW_TOKENS)
        course = answers(backend, [msgspec.structs.replace(asked, top_logprobs=0)])[1]
        logprobs = [one.chosen for one in course.logprobs if one is not None]
        if course.tokens != list(expected.tokens):
            found.append(f"{course.tokens} for {expected.tokens} behind {expected.prompt_tokens}")
        elif not np.allclose(logprobs, expected.logprobs, rtol=0, atol=_NATS):
            off = np.abs(np.subtract(logprobs, expected.logprobs)).max()
            found.append(f"log-probabilities behind {expected.prompt_tokens} off by {off:.2g}")
    return found


_CHANGES = {
    **dict.fromkeys(("ernie4_5_moe", "gpt2", "gpt_oss", "olmo_hybrid"), "as_the_module_reads"),
    "glm": "turn_as_configured",
}
"""By family what puts its module of mlx-lm right."""


@pytest.mark.parametrize("family", _CHANGES)
def test_mlx_lm_alone_answers_otherwise(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this fails, a release of mlx-lm has made our change needless."""
    folder, reference = _BY_NAME[family], read(family)[family]
    _save(tmp_path, "one file", weights(reference.shapes), tied=False)
    (tmp_path / "config.json").write_text(json.dumps(folder.config("transformers 5")))
    monkeypatch.setattr(folder_model, _CHANGES[family], lambda model, weights, *_: weights)
    try:
        assert _differences(folder, reference, tmp_path) != []
    except ValueError as error:
        assert "parameters not in model" in str(error)  # noqa: PT017  # it answers, or it does not load
