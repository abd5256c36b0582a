"""The network that trains, on weights of its own: with the `train` extra only."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from mlx_lm.utils import load_model

from scheduler.models.training.export import export
from scheduler.models.training.network import Shape, hidden_states, initial_weights, rotation
from scheduler.models.training.tokenizer import VOCABULARY


def test_the_network_computes_what_mlx_lm_computes(tmp_path: Path) -> None:
    """Equal logits from one folder, so what was trained is what is served."""
    shape = Shape(layers=2)
    weights = initial_weights(shape, torch.Generator().manual_seed(1))
    weights = {name: tensor.to(torch.bfloat16).float() for name, tensor in weights.items()}
    torch.save({"weights": weights}, tmp_path / "checkpoint.pt")
    (tmp_path / "log.jsonl").write_text("")
    export(tmp_path, tmp_path / "model", shape)
    ids = torch.randint(0, VOCABULARY, (1, 300), generator=torch.Generator().manual_seed(2))
    hidden = hidden_states(weights, shape, ids, *rotation(shape, 300, torch.float32))
    ours = (hidden @ weights["model.embed_tokens.weight"].T).numpy()
    model, _ = load_model(tmp_path / "model")
    model.set_dtype(mx.float32)
    theirs = np.array(model(mx.array(ids.numpy())))
    assert np.abs(ours - theirs).max() < 1e-3 * np.abs(theirs).max()
