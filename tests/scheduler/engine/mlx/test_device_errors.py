"""An error of the device ends the engine, whatever was being tried: nothing that it left unwritten is sent,
cached or stored, and nothing is concluded from it of the model, an adapter or a file."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from loadtests.chaos.device_faults import TEXTS, DeviceFault, failing
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.engine.mlx.device import METAL, forced
from scheduler.engine.mlx.loading import load
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.shared.device_errors import is_device_error
from tests.fakes.embedder_folder import write_embedder
from tests.scheduler.engine.mlx.adapters.adapted import write_adapter
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.pooling.embedding_engine import EmbeddingEngine
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of, words

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


def _served(tried: _Try, folder: Path) -> bool:
    """Serve until the fault ends the engine; then another one reads what it stored. Return whether the fault
    came to be."""
    long = words(290, 3)
    prompts = [long, [*long[:270], *words(9, 4)], words(5, 5)]
    with forced(METAL):
        engine = _serving(folder)
        submits = [engine.submit(prompt) for prompt in prompts]
        expected = [engine.alone(submit) for submit in submits]
        ended = False
        with failing(tried.fault) as fault:
            try:
                engine.turn(submits[:2])
                engine.turn(submits[2:])
                engine.finish()
                while not engine.loop.resting:
                    engine.turn()
            except RuntimeError as error:
                ended = is_device_error(error)
        assert ended == fault.raised, "somebody caught it"
        for submit, tokens in zip(submits, expected, strict=True):
            heard = engine.heard[submit.request_id].tokens
            assert heard == tokens[: len(heard)]
        disk = engine.backend.disk
        assert disk is not None
        assert disk.tier.close(_SOON)
        second = _serving(folder)
        second.ask(*[second.submit(prompt) for prompt in prompts])
        assert second.backend.disk is not None
        second.backend.disk.tier.close(_SOON)
    return fault.raised


@pytest.mark.parametrize("tried", _some(6, 25, seed=1))
def test_no_token_and_no_block_is_of_a_failed_evaluation(tried: _Try, tmp_path: Path) -> None:
    assert _served(tried, tmp_path)


@pytest.mark.long
def test_none_in_five_hundred_runs(tmp_path: Path) -> None:
    raised = sum(_served(tried, tmp_path / str(at)) for at, tried in enumerate(_some(_RUNS, 40, seed=2)))
    assert raised > 0.5 * _RUNS, raised


@pytest.mark.parametrize("text", TEXTS)
def test_each_text_is_the_device_s(text: str) -> None:
    assert is_device_error(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("[matmul] Last dimension of first input with shape (1,3) must match"),
        RuntimeError("[metal::Device] Unable to load kernel sdpa_vector"),
        AttributeError("'MallocCache' object has no attribute 'offset'"),
    ],
)
def test_what_a_model_raises_is_its_own(error: Exception) -> None:
    """The check at load falls back for it."""
    assert not is_device_error(error)


@pytest.mark.parametrize("number", [8, 20, 60])
def test_a_load_check_concludes_nothing_from_it(number: int, tmp_path: Path) -> None:
    """The load fails and keeps no verdict; the next one finds the model right."""
    command = load_of(EMBEDDED_FOLDER, cache_folder=str(tmp_path), prefill_rows=4)
    with forced(METAL):
        with failing(DeviceFault(number, TEXTS[0])) as fault, pytest.raises(RuntimeError) as raised:
            load(command, lambda stage: None)
        assert fault.raised
        assert is_device_error(raised.value)
        assert not list(tmp_path.rglob("*.json"))
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
    adapters.unload(source.key)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("number", [1, 2])
def test_no_vector_is_of_a_failed_evaluation(number: int, late: bool, tmp_path: Path) -> None:
    with forced(METAL):
        embedder = write_embedder(tmp_path / "embedder")
        engine = EmbeddingEngine(embedder)
        prompts = [words(9, 1), words(100, 2)]
        expected = engine.vectors(prompts)
        with (
            failing(DeviceFault(number, TEXTS[1], late)),
            pytest.raises(RuntimeError, match="Timeout"),
        ):
            engine.vectors(prompts)
        again = EmbeddingEngine(embedder).vectors(prompts)
    assert all(np.array_equal(*pair) for pair in zip(expected, again, strict=True))


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
