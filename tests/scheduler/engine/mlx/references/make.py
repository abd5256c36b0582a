"""`make folder-references`: answer each tiny folder with transformers and PyTorch, and store the answers.

`python -m tests.scheduler.engine.mlx.references.make [FAMILY ...]` in an environment with PyTorch. In float32
on the CPU, without a cache: each token is the first choice behind all tokens before it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.scheduler.engine.mlx.references.answers import Answer, Reference, write
from tests.scheduler.engine.mlx.references.folders import (
    FOLDERS,
    NEW_TOKENS,
    SPELLINGS,
    Folder,
    Spelling,
    prompt,
)
from tests.scheduler.engine.mlx.references.tensors import weights

_LIBRARY: Any = transformers  # Some of its functions have no types.
_LEAD = 2e-3
"""Nats by which each token leads: another order of additions chooses the same one."""
_SEEDS = 50


def _shapes(folder: Folder) -> dict[str, tuple[int, ...]]:
    """Return the tensors that transformers saves for this folder."""
    with tempfile.TemporaryDirectory() as saved:
        (Path(saved) / "config.json").write_text(json.dumps(folder.config("transformers 5")))
        config = transformers.AutoConfig.from_pretrained(saved)
        _LIBRARY.AutoModelForCausalLM.from_config(config).save_pretrained(saved)
        found: dict[str, tuple[int, ...]] = {}
        for path in sorted(Path(saved).glob("*.safetensors")):
            with safe_open(path, "np") as file:
                found |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping
    return found


def _model(path: Path, folder: Folder, spelling: Spelling) -> Any:
    (path / "config.json").write_text(json.dumps(folder.config(spelling)))
    model, loading = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    wrong = {name: found for name, found in loading.items() if found}
    if wrong:
        raise ValueError(f"{folder.name}: {wrong}")
    return model.eval()


def _answer(models: Mapping[Spelling, Any], tokens: int, name: str) -> Answer:
    for seed in range(_SEEDS):
        found = [_greedy(model, prompt(tokens, seed)) for model in models.values()]
        if all(lead > _LEAD for one in found for lead in one[2]):
            if any(one[0] != found[0][0] for one in found):
                raise ValueError(f"{name}: transformers reads the two spellings differently")
            chosen, logprobs, _ = found[0]
            return Answer(tokens, seed, tuple(chosen), tuple(round(one, 6) for one in logprobs))
    raise ValueError(f"{name}: no prompt has a clear answer")


def _greedy(model: Any, ids: list[int]) -> tuple[list[int], list[float], list[float]]:
    """Return the first choices, their logarithms, and by how much they lead."""
    ids, chosen, logprobs, leads = list(ids), list[int](), list[float](), list[float]()
    for _ in range(NEW_TOKENS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.log_softmax(logits.double(), -1).topk(2)
        chosen.append(int(best.indices[0]))
        logprobs.append(float(best.values[0]))
        leads.append(float(best.values[0] - best.values[1]))
        ids.append(chosen[-1])
    return chosen, logprobs, leads


def _reference(folder: Folder) -> Reference:
    shapes = _shapes(folder)
    tensors = weights(shapes)
    with tempfile.TemporaryDirectory() as path:
        save_file(tensors, Path(path) / "model.safetensors", {"format": "pt"})
        models = {spelling: _model(Path(path), folder, spelling) for spelling in SPELLINGS}
        answers = [_answer(models, tokens, folder.name) for tokens in folder.prompts]
    return Reference(shapes, tuple(answers))


def main() -> None:
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    _LIBRARY.utils.logging.set_verbosity_error()
    _LIBRARY.utils.logging.disable_progress_bar()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    for family in sys.argv[1:] or dict.fromkeys(folder.family for folder in FOLDERS):
        folders = [folder for folder in FOLDERS if folder.family == family]
        write(family, {folder.name: _reference(folder) for folder in folders}, versions)
        print(family, ", ".join(folder.name for folder in folders))


if __name__ == "__main__":
    main()
