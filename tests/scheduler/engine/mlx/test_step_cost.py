"""What the host does in a step, counted: operations of the graph, Python calls, files opened."""

from __future__ import annotations

import sys
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

from loadtests.step.graph import operations
from loadtests.step.steps import counted_calls
from scheduler.engine.device import Traits
from scheduler.engine.drafts.speculation import Speculation
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.device import CUDA, METAL, X86, forced
from scheduler.engine.pace import PrefillPace
from scheduler.shared.messages import Submit
from tests.contracts.journal import Rows, prompt_of, request
from tests.scheduler.engine.mlx.conftest import SHAPE, Tiny
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, words


def _operations(model: Any, cache: list[Any], rows: int) -> int:
    """Return how many operations of the graph a model call has, for one token of each row."""
    mx.eval([layer.state for layer in cache])
    return operations(model(mx.array([[7]] * rows), cache=cache))


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("traits", [X86, METAL, CUDA], ids=["x86", "metal", "cuda"])
def test_a_decode_step_has_no_more_operations_than_a_bare_batch(
    tiny: Tiny, traits: Traits, rows: int
) -> None:
    """One short row, or four of one length: mlx-lm's BatchGenerator makes a mask, for padding that is not
    there."""
    prompts = [prompt_of(20, number) for number in range(rows)]
    with forced(traits):
        ours = Rows(tiny.backend())
        for number, prompt in enumerate(prompts):
            ours.admit(request(number, prompt, 50))
        ours.step()
        batch: Any = ours.backend
        mine = _operations(tiny.model, batch._batch._generation_batch.prompt_cache, rows)
    with forced(METAL):  # There attention and gate are mlx-lm's.
        bare = BatchGenerator(tiny.model, completion_batch_size=rows)
        bare.insert([list(prompt) for prompt in prompts], max_tokens=[50] * rows)
        while len(bare.next()[1]) < rows:
            pass
        assert mine <= _operations(tiny.model, bare._generation_batch.prompt_cache, rows)
        bare.close()


def _layer_operations(prompts: list[list[int]], first: list[int], taken_back: tuple[int, ...] = ()) -> int:
    """Return how many operations one layer has in a decode step of these rows, after `first` was cached.
    `taken_back`: how many drafts of each row were not chosen in the step before."""
    counts = []
    for layers in (2, 3):
        engine = ReuseEngine(random_model("qwen3", num_hidden_layers=layers), "qwen3", group_cost_tokens=20)
        engine.ask(engine.submit(first))
        submits = [engine.submit(prompt, max_tokens=50) for prompt in prompts]
        engine.iterate(submits)
        while engine.batch.decoding < len(prompts):
            engine.iterate()
        cache = engine.batch._generation_batch.prompt_cache
        for layer in cache if taken_back else ():
            layer.trim(taken_back)
        counts.append(_operations(engine.model, cache, len(prompts)))
    return counts[1] - counts[0]


def test_what_is_equal_in_all_layers_is_made_once_a_step(device_of_its_own: None) -> None:
    """Each operation is host time on a GPU. Where rows end at columns of their own, a layer has a reshape and
    a scatter for a slice update, twice; where some rows are not behind a shared run, it gathers what the
    others ask, twice, and puts what they get among all (7 operations)."""
    padded = [words(20 + seed, seed) for seed in range(4)]
    plain = _layer_operations(padded, words(9, 9))
    assert _layer_operations(padded, words(9, 9), taken_back=(1, 0, 2, 0)) <= plain + 2
    shared = words(40, 7)
    behind = [[*shared, *words(3, seed)] for seed in range(4)]
    grouped = _layer_operations(behind, shared)
    strangers = [words(4, seed) for seed in (11, 12)]
    assert _layer_operations([*behind, *strangers], shared) <= grouped + 7


@pytest.mark.parametrize("rows", [1, 2])
def test_a_step_is_one_evaluation(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """A second one would make the device wait for the host twice."""
    loop, evaluated = _steady(tiny, rows), list[str]()
    for name in ("eval", "async_eval"):
        whole = getattr(mx, name)

        def counted(*arrays: Any, whole: Any = whole, name: str = name) -> None:
            evaluated.append(name)
            whole(*arrays)

        monkeypatch.setattr(mx, name, counted)
    loop.iterate(())
    assert evaluated == ["async_eval"]


def _steady(tiny: Tiny, rows: int) -> EngineLoop:
    loop = EngineLoop(tiny.backend(), 64, PrefillPace(1024), lambda: 1.0, speculation=Speculation())
    commands: list[Submit] = [request(number, prompt_of(20, number), 500) for number in range(rows)]
    for _ in range(8):
        loop.iterate(commands)
        commands = []
    return loop


def _turn_calls(tiny: Tiny, rows: int) -> int:
    loop, model = _steady(tiny, rows), type(tiny.model).__call__.__code__
    with counted_calls(lambda code: code is model) as calls:
        loop.iterate(())
    assert calls.model > 100, "the model runs in this turn"
    return calls.others


def test_a_turn_costs_few_calls_beside_the_model(tiny: Tiny) -> None:
    """Python functions: planning, sampling and reporting, for one row and for each more."""
    one, many = _turn_calls(tiny, 1), _turn_calls(tiny, 33)
    assert one <= 400
    assert (many - one) / 32 <= 60


def test_a_layer_costs_few_calls_more_than_mlx_lms_own(tiny: Tiny) -> None:
    """Python functions in the model's call, for one short row: our caches, attention and gate in each
    layer."""
    loop, model = _steady(tiny, 1), type(tiny.model).__call__.__code__
    with counted_calls(lambda code: code is model) as ours:
        loop.iterate(())
    with forced(METAL):  # There attention and gate are mlx-lm's.
        bare = BatchGenerator(tiny.model, completion_batch_size=1)
        bare.insert([list(prompt_of(20, 0))], max_tokens=[50])
        while not bare.next()[1]:
            pass
        with counted_calls(lambda code: code is model) as theirs:
            assert bare.next()[1]
        bare.close()
    assert theirs.model > 50
    assert (ours.model - theirs.model) / SHAPE.layers <= 16


def test_a_turn_without_a_reading_opens_no_file(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is read four times a second, not in each step."""
    loop, opened = _steady(tiny, 1), list[str]()
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    before = len(opened)
    for _ in range(20):
        loop.iterate(())
    assert len(opened) == before
