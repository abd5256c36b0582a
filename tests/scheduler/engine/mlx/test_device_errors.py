"""An error of the device ends the engine, whatever was being tried: nothing that it left unwritten is sent,
cached or stored, and nothing is concluded from it of the model, an adapter or a file."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadtests.chaos.device_faults import TEXTS, DeviceFault, failing
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.engine.mlx.device import METAL, forced
from scheduler.engine.mlx.kv import prefix_disk
from scheduler.engine.mlx.loading import load
from scheduler.shared.device_errors import is_device_error
from tests.fakes.embedder_folder import write_embedder
from tests.scheduler.engine.mlx.adapters.adapted import write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.pooling.embedding_engine import EmbeddingEngine
from tests.scheduler.engine.mlx.reuse import ReuseEngine, disk_of, engine_of, words

_SOON = 20.0
_RUNS = 500


@dataclass(frozen=True, slots=True)
class _Try:
    number: int
    text: str
    late: bool

    @property
    def fault(self) -> DeviceFault:
        return DeviceFault(self.number, self.text, self.late)


def _some(count: int, most: int, seed: int) -> list[_Try]:
    generator = random.Random(seed)
    return [
        _Try(generator.randint(1, most), generator.choice(TEXTS), generator.random() < 0.5)
        for _ in range(count)
    ]


def _serving(folder: Path) -> ReuseEngine:
    return engine_of("qwen3", tier=DiskTier(folder, "qwen3", 1 << 30), prefill_chunk_tokens=64)


def _at_rest(engine: ReuseEngine) -> None:
    engine.finish()
    while not engine.loop.resting:
        engine.iterate()


def _served(tried: _Try, folder: Path) -> DeviceFault:
    """Serve until the fault ends the engine; then another one reads what it stored."""
    long = words(290, 3)
    prompts = [long, [*long[:270], *words(9, 4)], words(5, 5)]
    with forced(METAL):
        engine = _serving(folder)
        submits = [engine.submit(prompt) for prompt in prompts]
        expected = [engine.alone(submit) for submit in submits]
        ended = False
        with failing(tried.fault) as fault:
            try:
                engine.iterate(submits[:2])
                engine.iterate(submits[2:])
                _at_rest(engine)
            except RuntimeError as error:
                ended = is_device_error(error)
        assert ended == fault.raised, "somebody caught it"
        for submit, tokens in zip(submits, expected, strict=True):
            heard = engine.heard[submit.request_id].tokens
            assert heard == tokens[: len(heard)]
        disk = disk_of(engine.backend)
        assert disk.tier.close(_SOON)
        second = _serving(folder)
        second.ask(*[second.submit(prompt) for prompt in prompts])
        disk_of(second.backend).tier.close(_SOON)
    return fault


@pytest.mark.parametrize("tried", _some(12, 30, seed=1))
def test_no_token_and_no_block_is_of_a_failed_evaluation(tried: _Try, tmp_path: Path) -> None:
    _served(tried, tmp_path)


def test_no_block_is_of_an_evaluation_that_failed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None follows that would raise: what is written waits for the device."""
    fault = DeviceFault(1 << 30, TEXTS[0])
    with forced(METAL):
        engine = _serving(tmp_path)
        disk = disk_of(engine.backend)
        write = disk._write_next

        def late(path: Any) -> bool:
            fault.pending = True
            return write(path)

        monkeypatch.setattr(disk, "_write_next", late)
        engine.iterate([engine.submit(words(290, 3))])
        with failing(fault), pytest.raises(RuntimeError, match="Insufficient"):
            _at_rest(engine)
        assert disk.tier.close(_SOON)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_no_log_probability_of_a_prompt_is_of_a_failed_evaluation() -> None:
    """They leave with their chunk."""
    with forced(METAL):
        engine = engine_of("qwen3")
        submit = engine.submit(words(30, 2), prompt_logprobs=1)
        engine.iterate([submit])
        known = len(engine.heard[submit.request_id].prompt_logprobs)
        with failing(DeviceFault(1, TEXTS[0], late=True)), pytest.raises(RuntimeError, match="Insufficient"):
            engine.iterate()
    assert len(engine.heard[submit.request_id].prompt_logprobs) == known


def test_a_block_that_is_read_is_no_miss_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = _serving(tmp_path), words(290, 3)
    engine.ask(engine.submit(prompt))
    _at_rest(engine)
    assert disk_of(engine.backend).tier.close(_SOON)

    def failed(*_: object) -> None:
        raise RuntimeError(TEXTS[0])

    second = _serving(tmp_path)
    monkeypatch.setattr(prefix_disk, "layers_of", failed)
    with pytest.raises(RuntimeError, match="Insufficient"):
        second.ask(second.submit(prompt))
    disk_of(second.backend).tier.close(_SOON)


@pytest.mark.parametrize("text", TEXTS)
def test_each_text_is_the_device_s(text: str) -> None:
    assert is_device_error(RuntimeError(text))


@pytest.mark.parametrize("number", [8, 20, 60])
def test_a_load_check_concludes_nothing_from_it(number: int, tiny_folder: Path, tmp_path: Path) -> None:
    """The load fails and keeps no verdict; the next one finds the model right."""
    command = load_of(tiny_folder, cache_folder=str(tmp_path), prefill_rows=4)
    with forced(METAL):
        with failing(DeviceFault(number, TEXTS[0])) as fault, pytest.raises(RuntimeError) as raised:
            load(command, lambda stage: None)
        assert fault.raised
        assert is_device_error(raised.value)
        kept = [file.read_text() for file in tmp_path.rglob("*.json")]
        assert not [one for one in kept if "batching" in one], "what was found of products may stay"
        assert load(command, lambda stage: None).describe().fallbacks == ()


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_no_adapter_is_refused_for_it(number: int, tmp_path: Path) -> None:
    """It is raised wherever it happens: while files are read, while factors are added, in the probe."""
    source = write_adapter(random_model("qwen3"), tmp_path)
    adapters = Adapters(random_model("qwen3"))
    with (
        failing(DeviceFault(number, TEXTS[4])) as fault,
        pytest.raises(RuntimeError, match="InnocentVictim"),
    ):
        adapters.load(source)
    assert fault.raised


@pytest.mark.parametrize("late", [False, True])
def test_no_vector_is_of_a_failed_evaluation(late: bool, tmp_path: Path) -> None:
    """Any evaluation of a step may fail, up to the last."""
    with forced(METAL):
        engine = EmbeddingEngine(write_embedder(tmp_path / "embedder"))
        prompts = [words(9, 1), words(100, 2)]
        expected = engine.vectors(prompts)
        for number in range(1, 20):
            engine = EmbeddingEngine(tmp_path / "embedder")
            try:
                with failing(DeviceFault(number, TEXTS[1], late)) as fault:
                    vectors = engine.vectors(prompts)
            except RuntimeError:
                assert fault.raised
                continue
            assert all(np.array_equal(*pair) for pair in zip(expected, vectors, strict=True))
            break
    assert number > 2


def test_the_memory_guard_lets_it_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """It catches all else: accounting ends no stream. On Metal what it frees waits for the steps before."""
    with forced(METAL):
        engine = engine_of("qwen3")
        watch = engine.loop._memory_watch

        def failed() -> None:
            raise RuntimeError(TEXTS[0])

        monkeypatch.setattr(watch, "_reading", failed)
        with pytest.raises(RuntimeError, match="Insufficient Memory"):
            watch.look(1.0)
