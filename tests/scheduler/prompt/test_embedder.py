"""What a folder's files say of an embedder or a reranker, and what of it is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler.errors import StartupError
from scheduler.prompt.embedder import Embedder, Task
from scheduler.prompt.model_folder import inspect
from scheduler.shared.pooling import PooledTokens, Pooler
from tests.fakes.embedder_folder import SHAPE, modes, write_embedder, write_modules, write_reranker


def embedder_in(folder: Path, task: Task = "auto", **options: Any) -> Embedder:
    found = inspect(folder, task, **options).embedder
    assert found is not None
    return found


def pooling(folder: Path, **content: Any) -> Path:
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(("tokens", "named"), [("last", "lasttoken"), ("mean", "mean")])
def test_both_spellings_of_pooling_are_read(tokens: PooledTokens, named: str, tmp_path: Path) -> None:
    """A switch for each mode, and sentence-transformers 5.4's one name."""
    folder = write_embedder(tmp_path / "model")
    assert embedder_in(pooling(folder, **modes(tokens))).pooler == Pooler(tokens)
    assert embedder_in(pooling(folder, pooling_mode=named)).pooler == Pooler(tokens)


def test_dense_layers_and_length_are_read(tmp_path: Path) -> None:
    """In their order; the last layer gives the number of dimensions."""
    folder = write_embedder(tmp_path / "model", "mean", dense=24)
    found = embedder_in(folder)
    assert found.pooler == Pooler("mean", ("2_Dense",), normalize=True)
    assert (found.kind, found.dimensions) == ("embedding", 24)
    plain = embedder_in(write_embedder(tmp_path / "plain", normalize=False))
    assert (plain.pooler, plain.dimensions) == (Pooler(normalize=False), SHAPE.hidden)


def test_a_reranker_names_its_tokens(tmp_path: Path) -> None:
    """A document's relevance is the softmax over both tokens' logits, or the sigmoid of the only one's."""
    found = embedder_in(write_reranker(tmp_path / "two"))
    assert (found.kind, found.pooler, found.answers) == ("rerank", None, (7, 3))
    alone = embedder_in(write_reranker(tmp_path / "one", false_token=None))
    assert alone.answers == (7,)
    assert found.relevance([-1.5, -2.75, 3.0]) == pytest.approx(1 / (1 + math.exp(-1.25)))
    assert alone.relevance([-1.5, 3.0]) == pytest.approx(1 / (1 + math.exp(-1.5)))
    assert found.relevance([0.0, -1e4, 3.0]) == 1.0


@pytest.mark.parametrize(
    ("config", "cut"),
    [({}, False), ({"is_matryoshka": True}, True), ({"matryoshka_dimensions": [8, 16]}, (8, 16))],
)
def test_config_says_whether_vectors_may_be_cut(config: dict[str, Any], cut: Any, tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "model", **config)
    assert embedder_in(folder).matryoshka == cut


def test_prompts_and_the_longest_text_are_read(tmp_path: Path) -> None:
    """A folder may bound its texts below the model's context."""
    folder = write_embedder(tmp_path / "model")
    prompts = {"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 300}))
    found = embedder_in(folder)
    assert (found.prompts, found.default_prompt) == ({"query": "Q: ", "document": ""}, "Q: ")
    assert inspect(folder).context_tokens == 300


@pytest.mark.parametrize(
    ("template", "has"),
    [
        ("{{ ns.last_query_index }} {{ document }}", False),
        ("'query' 'document'", True),
    ],
)
def test_a_template_with_roles_for_pairs_is_found(template: str, has: bool, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    assert embedder_in(folder).has_roles is has


def test_a_folder_that_says_nothing_gets_the_convention_of_the_task(tmp_path: Path) -> None:
    """mlx-lm's conversions keep none of these files. A reranker's tokens are then words of its vocabulary."""
    folder = write_embedder(tmp_path / "model")
    (folder / "modules.json").unlink()
    assert embedder_in(folder, "embedding").pooler == Pooler("last", normalize=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] |= {"yes": 40, "no": 41}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert embedder_in(folder, "rerank").answers == (40, 41)
    for template, kind in (("'query' 'document' 'user'", "chat"), ("'query' 'document'", "rerank")):
        (folder / "chat_template.jinja").write_text(template)
        assert inspect(folder).kind == kind, "a template that takes nothing but pairs is a reranker's"


def test_gemma_may_attend_both_ways_and_others_are_refused(tmp_path: Path) -> None:
    """mlx-lm's bodies attend backwards."""
    gemma: dict[str, Any] = {"use_bidirectional_attention": True, "model_type": "gemma3_text"}
    gemma["hidden_act"] = "gelu_pytorch_tanh"
    folder = write_embedder(tmp_path / "gemma", "mean", **gemma)
    assert embedder_in(folder).pooler == Pooler("mean", two_way=True)
    (folder / "modules.json").unlink()
    with pytest.raises(StartupError, match=r"no modules\.json that says how"):
        inspect(folder)
    other = write_embedder(tmp_path / "other", is_causal=False)
    with pytest.raises(StartupError, match="attends both ways, and mlx-lm's 'qwen3' only backwards"):
        inspect(other)
    with pytest.raises(StartupError, match="as an embedder"):
        inspect(folder, "rerank")


def _unpooled(**content: Any) -> Callable[[Path], Any]:
    return lambda folder: pooling(write_embedder(folder), **content)


def _made_of(*modules: tuple[str, str]) -> Callable[[Path], Any]:
    return lambda folder: write_modules(write_embedder(folder), [("", "Transformer"), *modules])


def _damaged(content: str) -> Callable[[Path], Any]:
    return lambda folder: (write_embedder(folder) / "modules.json").write_text(content)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (_unpooled(**modes("pooling_mode_max_tokens")), "pools by pooling_mode_max_tokens"),
        (
            _unpooled(**modes("last") | {"pooling_mode_mean_tokens": True}),
            "mean and lasttoken|lasttoken and mean",
        ),
        (_unpooled(pooling_mode="cls"), "pools by cls"),
        (_unpooled(), "pools by nothing"),
        (_unpooled(**modes("mean"), include_prompt=False), "leaves prompts out"),
        (_made_of(("1_Pooling", "Pooling"), ("2_LSTM", "LSTM")), "a module LSTM"),
        (_made_of(("1_Pooling", "Pooling"), ("2", "Normalize"), ("3", "Dense")), "module Dense"),
        (
            lambda folder: write_embedder(folder, architectures=["Qwen3ForSequenceClassification"]),
            "no classif",
        ),
        *((_damaged(text), r"sentence-transformers|modules\.json") for text in ("[1]", "[{}]", "nonsense")),
    ],
)
def test_what_is_not_computed_is_refused(write: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    """In one line for the operator, whatever is wrong with the files."""
    write(tmp_path / "model")
    with pytest.raises(StartupError, match=words):
        inspect(tmp_path / "model")
