"""A folder that transformers can load gives here what it gives there: the same tokens, with the same
log-probabilities, whichever version wrote it and however its weights are saved.

`make folder-references` keeps transformers' answers, made with PyTorch in float32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.mlx.loading import load
from scheduler.prompt.model_folder import inspect
from scheduler.shared.folder.weight_files import INDEX
from tests.contracts.journal import answers, request
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.references.answers import Reference, made_by, read
from tests.scheduler.engine.mlx.references.folders import (
    FOLDERS,
    NEW_TOKENS,
    SPELLINGS,
    Folder,
    Spelling,
    prompt,
)
from tests.scheduler.engine.mlx.references.tensors import Tensor, digest, weights

_NATS = 1e-4


def _save(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    arrays = {name: mx.array(one) for name, one in tensors.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, metadata={"format": "pt"})


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: one.name)
def test_an_answer_is_that_of_transformers(folder: Folder, spelling: Spelling, tmp_path: Path) -> None:
    reference = read(folder.family)[1][folder.name]
    tensors = weights(reference.shapes)
    _save(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(folder.config(spelling)))
    served = inspect(tmp_path, max_model_len=folder.max_model_len)
    assert served.context_tokens >= max(folder.prompts) + NEW_TOKENS
    backend = load(load_of(tmp_path, load_check="off", max_model_len=folder.max_model_len), lambda stage: None)
    submits = [
        msgspec.structs.replace(request(at, prompt(one.prompt_tokens, one.seed), NEW_TOKENS), top_logprobs=0)
        for at, one in enumerate(reference.answers)
    ]
    for at, course in answers(backend, submits).items():
        expected = reference.answers[at]
        found = [one.chosen for one in course.logprobs]
        print(at, np.abs(np.array(found)-np.array(expected.logprobs)).max())
        assert course.tokens == list(expected.tokens)
        assert np.allclose(found, expected.logprobs, rtol=0, atol=_NATS)
