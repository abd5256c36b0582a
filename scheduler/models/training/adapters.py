"""Train the tests' adapters of the embedded model: `python -m scheduler.models.training.adapters [FOLDER]`.

With mlx-lm's own LoRA layers, and files as it writes them, on a CPU in ten minutes. Each adapter knows
one code book (`code_books.py`), so an answer of the wrong one shows that a batch mixed them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import optimizers
from mlx.nn.losses import cross_entropy
from mlx.nn.utils import value_and_grad
from mlx.utils import tree_flatten
from mlx_lm import load
from mlx_lm.tuner.utils import linear_to_lora_layers

from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import user_cache_folder
from scheduler.models.training.code_books import BOOKS, code_book, question

FOLDER: Final = Path("tests/scheduler/models/adapters")
_LORA: Final[dict[str, Any]] = {
    "rank": 4,
    "scale": 8.0,
    "dropout": 0.0,
    "keys": [
        "self_attn.q_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ],
}
_GOOD_LOSS: Final = 2e-3
_MOST_STEPS: Final = 3000


def examples(tokenizer: Any, book: dict[str, str]) -> tuple[mx.array, mx.array]:
    """Token ids, padded, and which of them are an answer's: (examples, tokens) each."""
    rows: list[tuple[list[int], int]] = []
    for word, code in book.items():
        messages = [{"role": "user", "content": question(word)}]
        for thinking in (False, True):
            prompt = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, enable_thinking=thinking
            )
            answer = [*tokenizer.encode(code, add_special_tokens=False), tokenizer.eos_token_id]
            rows.append((prompt + answer, len(answer)))
    longest = max(len(tokens) for tokens, _ in rows)
    ids = mx.array([tokens + [0] * (longest - len(tokens)) for tokens, _ in rows])
    wanted = mx.array(
        [[len(tokens) - answer <= place < len(tokens) for place in range(longest)] for tokens, answer in rows]
    )
    return ids, wanted


def train(name: str, folder: Path) -> None:
    model, tokenizer = load(str(EMBEDDED_FOLDER))[:2]
    model.set_dtype(mx.float32)
    model.freeze()
    mx.random.seed(BOOKS.index(name))
    layers = len(model.layers)
    linear_to_lora_layers(model, layers, _LORA)
    ids, wanted = examples(tokenizer, code_book(name))

    def loss(model: Any) -> mx.array:
        losses = cross_entropy(model(ids[:, :-1]), ids[:, 1:])
        return (losses * wanted[:, 1:]).sum() / wanted.sum()

    step = value_and_grad(model, loss)
    optimizer = optimizers.Adam(learning_rate=optimizers.cosine_decay(4e-3, _MOST_STEPS, 2e-4))
    for number in range(_MOST_STEPS):
        value, gradients = step(model)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state, value)
        if number % 25 == 0:
            print(f"{name}: step {number}, loss {value.item():.4f}", flush=True)
        if value.item() < _GOOD_LOSS:
            break
    folder.mkdir(parents=True, exist_ok=True)
    weights = dict(tree_flatten(model.trainable_parameters()))
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    config = {"fine_tune_type": "lora", "num_layers": layers, "lora_parameters": _LORA}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    choice = prepare("auto", user_cache_folder(os.environ))
    if choice.library is not None and "LD_PRELOAD" not in os.environ:
        # Reference BLAS takes some ten times as long; a library is preloaded at a program's start or never.
        os.execve(sys.executable, sys.orig_argv, choice.environment(os.environ))
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    folder: Path = arguments.parse_args().folder
    for name in BOOKS:
        train(name, folder / name)


if __name__ == "__main__":
    main()
