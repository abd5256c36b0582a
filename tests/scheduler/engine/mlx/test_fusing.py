"""Fused projections: the same bits, the same memory, fewer operations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import mlx.core as mx
import pytest
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.switch_layers import SwitchLinear

from loadtests.step.graph import operations
from scheduler.engine.mlx import fusing
from scheduler.engine.mlx.device import ARM, CUDA, METAL, X86, forced
from scheduler.engine.mlx.loading import load
from scheduler.engine.mlx.upstream.mend import mend
from scheduler.engine.mlx.upstream.products import MANY, Product
from scheduler.models.random_qwen3 import TINY, write_model
from tests.examples import sampled
from tests.scheduler.engine.mlx.families import fused, random_model
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import ReuseEngine, words
from tests.scheduler.engine.mlx.zoo.census import build, names


def _logits(model: Any) -> list[mx.array]:
    """A chunk of three rows, two steps of them, then one row alone."""
    cache, alone = make_prompt_cache(model), make_prompt_cache(model)
    tokens = (mx.arange(3 * 40) % 61 + 1).reshape(3, 40)
    found = [model(tokens, cache=cache), *(model(tokens[:, at : at + 1], cache=cache) for at in (3, 5))]
    found += [model(tokens[:1, :7], cache=alone), model(tokens[:1, 7:8], cache=alone)]
    mx.eval(found)
    return found


def _are_equal(plain: Any, other: Any) -> bool:
    pairs = zip(_logits(plain), _logits(other), strict=True)
    return all(bool(mx.array_equal(one, two)) for one, two in pairs)


def _products(model: Any) -> set[int]:
    """The products that layers of this model share."""
    return {id(module.share.product) for _, module in model.named_modules() if "share" in vars(module)}


@pytest.mark.parametrize(
    "name",
    sampled(names(), ["qwen3", "gpt_oss", "gemma3_text", "deepseek_v3", "qwen3_next", "llama"]),
)
def test_logits_are_the_same_to_the_bit(name: str) -> None:
    model = mend(build(name)[0])
    assert _are_equal(model, fused(copy.deepcopy(model)))


@pytest.mark.parametrize("traits", [X86, METAL, CUDA], ids=["x86", "metal", "cuda"])
@pytest.mark.parametrize(
    ("family", "kind"), [("qwen3", "4 bits"), ("gpt_oss", "4 bits"), ("qwen3", "bfloat16")]
)
def test_they_are_on_each_device_and_in_few_bits(family: str, kind: str, traits: Any) -> None:
    model = random_model(family)
    if kind == "4 bits":
        quantize(model, 32, 4, class_predicate=lambda _, module: hasattr(module, "to_quantized"))
    else:
        model.set_dtype(mx.bfloat16)
    with forced(traits):
        other = fused(copy.deepcopy(model))
        assert _products(other), "layers that share products are what this is about"
        assert _are_equal(model, other)


def test_weights_are_held_once() -> None:
    """After it, and in it but for one group."""
    model = random_model("gpt_oss", hidden_size=128, intermediate_size=256)
    known = fusing.fuse(copy.deepcopy(model), {})
    largest = 2 * model.layers[0].mlp.experts.gate_proj.weight.nbytes

    def largest_of_each() -> dict[str, float]:
        flat: Any = tree_flatten(model.parameters())
        return {name: float(value.max()) for name, value in flat}

    expected, before = largest_of_each(), mx.get_active_memory()
    mx.reset_peak_memory()
    fusing.fuse(model, known)
    assert mx.get_peak_memory() - before < 1.25 * largest
    assert mx.get_active_memory() - before < largest / 8
    assert largest_of_each() == expected


def _linears(count: int = 3) -> list[Any]:
    return [Linear(8, 4 + place, bias=False) for place in range(count)]


def test_a_part_is_of_the_input_that_is_given() -> None:
    """Whatever is called in which order, and however often: an input is known by being the same object, which
    is held no longer than until all have taken their parts."""
    plain = _linears()
    members = copy.deepcopy(plain)
    Product(members).take_over(members, range(MANY + 1))
    x, y = mx.random.normal((2, 1, 8)), mx.random.normal((2, 1, 8))
    in_turn = [(0, x), (1, x), (2, x)]
    out_of_turn = [(0, x), (0, y), (1, x), (1, y), (1, y), (2, y), (0, y), (2, x)]
    for place, given in in_turn + out_of_turn:
        assert mx.array_equal(members[place](given), plain[place](given)), place
    for place in (0, 1):
        members[place](x)
    known, _ = ref(y), [member(y) for member in members]
    del y, given, in_turn, out_of_turn
    assert known() is None


def test_a_part_is_of_the_choice_of_experts_that_is_given() -> None:
    plain = [SwitchLinear(8, 4, 3, bias=False) for _ in range(2)]
    members = copy.deepcopy(plain)
    Product(members).take_over(members, range(MANY + 1))
    x, some, others = mx.random.normal((2, 1, 1, 1, 8)), mx.array([[[0]], [[1]]]), mx.array([[[2]], [[1]]])
    for place, indices in ((0, some), (1, others), (0, others), (1, some)):
        assert mx.array_equal(members[place](x, indices), plain[place](x, indices))


def test_several_rows_are_sliced_on_cuda() -> None:
    """A view of `split` says that it is as small as its numbers, and CUDA's rotary positions believe it."""
    product, one, two = Product(_linears()), mx.ones((1, 1, 15)), mx.ones((2, 1, 15))
    mx.eval(one, two)
    made = {}
    for name, traits in (("cuda", CUDA), ("metal", METAL), ("x86", X86)):
        with forced(traits):
            made[name] = [operations(product.parts(y)) for y in (one, two)]
    assert made == {"cuda": [1, 3], "metal": [1, 1], "x86": [1, 1]}


def test_layers_multiply_by_themselves_where_bits_would_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe counts for each number of tokens; experts cannot multiply by themselves any more."""
    whole = fusing._is_equal
    monkeypatch.setattr(fusing, "_is_equal", lambda *them: them[-1] != 2 and whole(*them))
    model = random_model("gpt_oss")
    other = fused(copy.deepcopy(model))
    assert _are_equal(model, other)
    experts = [module for name, module in other.named_modules() if name.endswith("experts.gate_proj")]
    assert experts
    assert not any("share" in vars(one) for one in experts)
    counts = [operations(other(mx.array([[1]] * rows))) for rows in (2, 3)]
    assert counts[0] >= counts[1] + 2 * len(other.layers), "two products of q, k and v more in each layer"


@pytest.mark.parametrize("tokens", [1, 3], ids=["always", "in chunks"])
def test_layers_with_inputs_of_their_own_share_nothing(tokens: int) -> None:
    model = random_model("qwen3")
    for layer in model.layers:
        for name in ("k_proj", "v_proj"):
            setattr(layer.self_attn, name, _OnCopies(getattr(layer.self_attn, name), tokens))
    assert len(_products(fused(model))) == len(model.layers), "gate and up"


class _OnCopies(Linear):
    """A layer that reads a copy of an input of at least this number of tokens."""

    def __init__(self, inner: Any, tokens: int) -> None:
        super().__init__(1, 1, bias=False)
        self.inner, self.tokens = inner, tokens

    def __call__(self, x: mx.array) -> mx.array:
        y: mx.array = self.inner(x + 0 if x.shape[1] >= self.tokens else x)
        return y


def test_what_was_probed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(TINY, tmp_path / "model")
    command = load_of(tmp_path / "model", cache_folder=str(tmp_path / "cache"))
    first = load(command, lambda stage: None)._model
    with monkeypatch.context() as patched:
        patched.setattr(fusing, "_is_equal", lambda *args: pytest.fail("it is known"))
        second = load(command, lambda stage: None)._model
    assert len(_products(first)) == len(_products(second)) == 2 * len(first.layers)
    other = fused(random_model("qwen3"), {"another shape": ()})
    assert _products(other)
    unchecked = load_of(tmp_path / "model", load_check="off")
    assert not _products(load(unchecked, lambda stage: None)._model)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MLX's fused operations are one each, as on a GPU; what they compute is nonsense."""

    def one(x: mx.array, *others: Any, **fields: Any) -> mx.array:
        arrays = [array for array in (*others, *fields.values()) if isinstance(array, mx.array)]
        found: mx.array = mx.depends(x, arrays or [mx.array(0)])
        return found

    for name in ("rms_norm", "rope", "scaled_dot_product_attention"):
        monkeypatch.setattr(mx.fast, name, one)
    with forced(METAL):
        yield


_OF_A_LAYER = {
    "qwen3": (50.0, 28.0, 36.0),
    "llama": (48.0, 26.0, 34.0),
    "gemma3_text": (67.5, 33.5, 41.5),
    "qwen3_moe": (72.0, 45.0, 51.0),
    "gpt_oss": (85.5, 49.5, 58.5),
}
"""Operations of a layer in a decode step: of a bare `BatchGenerator`, ours on a GPU, and ours for several
rows on a CPU."""


def _of_a_step(model: Any, cache: Any, rows: int) -> int:
    mx.eval(model(mx.array([[7]] * rows), cache=cache), [layer.state for layer in cache])
    return operations(model(mx.array([[7]] * rows), cache=cache))


def _bare(model: Any, rows: int) -> int:
    generator = BatchGenerator(model, completion_batch_size=rows)
    generator.insert([words(20, seed) for seed in range(rows)], max_tokens=[50] * rows)
    while len(generator.next()[1]) < rows:
        pass
    found = _of_a_step(model, generator._generation_batch.prompt_cache, rows)
    generator.close()
    return found


def _ours(model: Any, family: str, rows: int) -> int:
    engine = ReuseEngine(model, family, group_cost_tokens=10_000)
    engine.iterate([engine.submit(words(20, seed), max_tokens=50) for seed in range(rows)])
    while engine.batch.decoding < rows:
        engine.iterate()
    return _of_a_step(model, engine.batch._generation_batch.prompt_cache, rows)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("family", _OF_A_LAYER)
def test_a_layer_has_no_more_operations_than_are_noted(family: str, rows: int, as_on_a_gpu: None) -> None:
    """Each is host time: some microseconds to build, and some to submit."""
    biases = {"attention_bias": False, "mlp_bias": False} if family == "llama" else {}
    models = [build(family, num_hidden_layers=layers, **biases)[0] for layers in (2, 4)]
    few, many = (_bare(model, rows) for model in models)
    bare, on_a_gpu, on_a_cpu = _OF_A_LAYER[family]
    assert (many - few) / 2 == bare, "what mlx-lm's own modules take"
    for traits, expected in ((METAL, on_a_gpu), (ARM, on_a_gpu if rows == 1 else on_a_cpu)):
        with forced(traits):
            few, many = (_ours(fused(copy.deepcopy(model)), family, rows) for model in models)
            assert (many - few) / 2 == expected
            assert few - expected * 2 < 45, "what a step has beside its layers"
