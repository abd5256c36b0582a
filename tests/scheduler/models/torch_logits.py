"""PyTorch's results for the embedded model's weights, stored so that tests need no PyTorch.

With the `train` extra, `python -m tests.scheduler.models.torch_logits` writes `torch_logits.safetensors`: 300
token ids, and at every position each 128th logit and the logarithm of the sum of all exponentials.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np

from scheduler.models.embedded_model import EMBEDDED_FOLDER

STORED = Path(__file__).with_name("torch_logits.safetensors")
COLUMNS = slice(None, None, 128)
_TOKENS = 300
"""More than 256, from where the network takes another way to attend."""
_NETWORK = Path(__file__).parents[3] / "scheduler/models/training/network.py"


def origin() -> dict[str, str]:
    """What the numbers depend on, by content."""
    files = {"network": _NETWORK, "weights": EMBEDDED_FOLDER / "model.safetensors"}
    return {name: sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def main() -> None:
    # Only here: no environment but the one that trains has them.
    import torch
    from safetensors.numpy import save_file
    from safetensors.torch import load_file

    from scheduler.models.training.export import LONG_CONTEXT
    from scheduler.models.training.network import Shape, hidden_states, rotation

    shape = Shape()
    config = json.loads((EMBEDDED_FOLDER / "config.json").read_text("utf-8"))
    sizes = shape.config() | LONG_CONTEXT
    assert sizes.items() <= config.items(), "the network has other sizes than the model"
    weights = {
        name: tensor.float() for name, tensor in load_file(EMBEDDED_FOLDER / "model.safetensors").items()
    }
    ids = torch.randint(0, shape.vocabulary, (1, _TOKENS), generator=torch.Generator().manual_seed(2))
    hidden = hidden_states(weights, shape, ids, *rotation(shape, _TOKENS, torch.float32))
    logits = (hidden @ weights["model.embed_tokens.weight"].T)[0]
    kept = {
        "ids": ids[0].numpy().astype(np.int32),
        "logits": logits[:, COLUMNS].contiguous().numpy(),
        "sums": torch.logsumexp(logits, -1).numpy(),
    }
    save_file(kept, STORED, metadata=origin() | {"torch": torch.__version__})
    STORED.chmod(0o644)  # safetensors lets nobody else read what it writes


if __name__ == "__main__":
    main()
