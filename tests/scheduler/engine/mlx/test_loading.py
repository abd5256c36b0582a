"""From a model folder to a back end: weights, its description, and other kinds of cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from scheduler.engine.budget.limits import PROCESS_BYTES
from scheduler.engine.device import Traits
from scheduler.engine.disk.block_chain import states_fingerprint
from scheduler.engine.mlx import loading as model_loading
from scheduler.engine.mlx.backend import MlxBackend
from scheduler.engine.mlx.batching import ONE_ROW, Batching
from scheduler.engine.mlx.device import ARM, CUDA, METAL, X86, forced
from scheduler.engine.mlx.kept_verdicts import StoredVerdict
from scheduler.fleet.memory_need import need_bytes, weights_bytes
from scheduler.models.random_qwen3 import Shape, random_weights, write_model
from scheduler.shared.messages import PROTOCOL_VERSION, Ready
from tests.contracts.journal import alone, prompt_of, request
from tests.scheduler.engine.mlx.conftest import SHAPE, Tiny
from tests.scheduler.engine.mlx.loads import load_of
from tests.scheduler.engine.mlx.reuse import disk_of
from tests.scheduler.engine.mlx.zoo.census import write
from tests.scheduler.engine.mlx.zoo.tiny import LAYERS

_QUANTISABLE = Shape(
    hidden=64, layers=1, heads=2, kv_heads=1, head_dim=32, feed_forward=64, vocabulary=512, seed=2
)
on_cpu = pytest.mark.skipif(mx.default_device() != mx.cpu, reason="what the CPU does best")


def _load(folder: Path, weights_dtype: str) -> MlxBackend:
    """Unchecked: what these models are right in is not asked here."""
    load = load_of(folder, weights_dtype=weights_dtype, load_check="off")
    return model_loading.load(load, lambda stage: None)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model stored in three ways."""
    folder = tmp_path_factory.mktemp("stored")
    folders = {"float32": folder / "float32", "bfloat16": folder / "bfloat16", "4-bit": folder / "4-bit"}
    write_model(_QUANTISABLE, folders["float32"])
    model, config = load_model(folders["float32"])
    model.set_dtype(mx.bfloat16)
    _save(folders["bfloat16"], model, config)
    model, config = load_model(folders["float32"])
    model, config = quantize_model(model, config, group_size=32, bits=4)
    _save(folders["4-bit"], model, config)
    return folders


def _save(folder: Path, model: Any, config: dict[str, Any]) -> None:
    save_model(folder, model)
    save_config(dict(config), config_path=folder / "config.json")


@pytest.mark.parametrize(
    ("device", "kind", "dtypes"),
    [
        (METAL, "bfloat16", "bfloat16"),
        (METAL, "4-bit", "float32, uint32"),
        (CUDA, "bfloat16", "bfloat16"),
        (ARM, "4-bit", "float32"),
        (X86, "bfloat16", "float32"),
    ],
)
def test_auto_is_what_the_device_computes_fastest(
    stored: dict[str, Path], device: Traits, kind: str, dtypes: str
) -> None:
    """A GPU has fast paths for 16-bit and packed weights, a CPU has not."""
    with forced(device):
        assert _load(stored[kind], "auto").describe().weights_dtype == dtypes


@on_cpu
def test_packed_keeps_what_is_quantised_and_computes_in_float32(stored: dict[str, Path]) -> None:
    """The same tokens as with the weights multiplied out, in a fifth of the memory."""
    packed, wide = _load(stored["4-bit"], "packed"), _load(stored["4-bit"], "float32")
    assert packed.describe().weights_dtype == "float32, uint32"
    assert _load(stored["bfloat16"], "packed").describe().weights_dtype == "float32"
    assert packed.describe().kv_bytes_per_token == wide.describe().kv_bytes_per_token
    assert packed.describe().weights_bytes < 0.25 * wide.describe().weights_bytes
    asked = request(1, prompt_of(30, 62), 12)
    assert alone(packed, asked) == alone(wide, asked)


@on_cpu
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "4-bit"])
@pytest.mark.parametrize("dtype", ["auto", "stored", "packed", "float16"])
def test_the_files_say_what_will_be_loaded(stored: dict[str, Path], kind: str, dtype: str) -> None:
    """Exactly, before any process has read them."""
    ready = _load(stored[kind], dtype).describe()
    assert weights_bytes(stored[kind], dtype, ready.device) == ready.weights_bytes
    assert need_bytes(stored[kind], dtype, ready.device) == ready.memory_floor_bytes


def test_ready_says_what_was_loaded(tiny: Tiny) -> None:
    """Every number an admission or an operator counts on is the model's."""
    expected = Ready(
        version=PROTOCOL_VERSION,
        device=tiny.ready.device,
        model_type="qwen3",
        vocabulary=SHAPE.vocabulary,
        kv_bytes_per_token=SHAPE.kv_bytes_per_token,
        weights_bytes=sum(weight.nbytes for weight in random_weights(SHAPE).values()),
        weights_dtype="float32",
        memory_limit_bytes=tiny.ready.memory_limit_bytes,
        memory_floor_bytes=tiny.ready.memory_floor_bytes,
    )
    assert tiny.ready == expected
    assert expected.weights_bytes + PROCESS_BYTES < expected.memory_floor_bytes < expected.memory_limit_bytes
    assert tiny.ready.device


@pytest.mark.parametrize(("size", "found"), [(64, "q8"), (16, "auto")])
def test_keys_and_values_are_packed_where_they_can_be(
    size: int, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the operator reads why, and all figures are those of the model as it is."""
    write("qwen3", tmp_path, head_dim=size)
    ready = model_loading.load(load_of(tmp_path, kv_cache_dtype="q8"), lambda stage: None).describe()
    assert ready.kv_cache_dtype == found
    one_number = 4 if found == "auto" else (64 + 8) / 64
    assert ready.kv_bytes_per_token == 2 * LAYERS * size * one_number
    told = "keys and values are not packed: a head of 16 numbers is no multiple of 32"
    assert (told in capsys.readouterr().err) is (found == "auto")
    assert ready.fallbacks == ()


def test_rows_that_run_one_at_a_time_are_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have mlx-lm's own caches, and are charged for these."""
    monkeypatch.setattr(model_loading, "_verdict", lambda *_: StoredVerdict(ONE_ROW))
    write("qwen3", tmp_path, head_dim=64)
    backend = model_loading.load(load_of(tmp_path, kv_cache_dtype="q8"), lambda stage: None)
    ready = backend.describe()
    assert (ready.kv_cache_dtype, ready.fallbacks) == ("auto", ("one_row",))
    token_bytes = 2 * LAYERS * 64 * 4
    assert ready.kv_bytes_per_token == backend.facts.row_bytes.token_bytes == token_bytes
    assert "not packed: the model runs one row at a time" in capsys.readouterr().err


def test_an_engine_starts_where_few_files_may_be_open() -> None:
    """mlx-lm asks for 4,096 when it is imported; here at most 512 are allowed, and the limits stay."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512));"
        "from scheduler.engine.mlx_lm_import import file_limits_kept\n"
        "with file_limits_kept():\n    from scheduler.engine.mlx import loading as model_loading\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE), model_loading.load.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(256, 512) load", done.stderr


def test_a_tier_of_weights_that_were_read_before_is_there_at_once(
    stored: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = load_of(stored["float32"], kv_disk=str(tmp_path / "disk"), kv_disk_bytes=1 << 20)
    first = model_loading.load(command, lambda stage: None)
    second = model_loading.load(command, lambda stage: None)
    assert second._disk is None, "the folder is locked"
    assert "the disk tier is not available" in capsys.readouterr().err
    assert disk_of(first).tier.close(20)


def test_states_of_other_positions_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longrope's short and long factors, in either spelling: prefixes on disk of the one are misses for the
    other."""
    software: list[str] = []

    def fingerprinted(model: str, dtype: str, parts: str) -> str:
        software.append(parts)
        return states_fingerprint(model, dtype, parts)

    monkeypatch.setattr(model_loading, "states_fingerprint", fingerprinted)
    folder = tmp_path / "model"
    folder.mkdir()
    write("phi3", folder)
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    lengths = {"original_max_position_embeddings": 64, "max_position_embeddings": 256}
    config = json.loads((folder / "config.json").read_text()) | lengths | {"rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(config))
    for served in (None, 64, 256):
        disk = {"kv_disk": str(tmp_path / f"disk-{served}"), "kv_disk_bytes": 1 << 20, "load_check": "off"}
        model_loading.load(load_of(folder, max_model_len=served, **disk), lambda stage: None)
    assert software[0] == software[1] != software[2]


def test_what_another_macos_computed_is_not_trusted(
    stored: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metal's kernels change with it: the model is checked again, and prefixes on disk are misses."""
    states: list[str] = []

    def fingerprinted(model: str, dtype: str, software: str) -> str:
        states.append(states_fingerprint(model, dtype, software))
        return states[-1]

    monkeypatch.setattr(model_loading, "states_fingerprint", fingerprinted)
    monkeypatch.setattr(model_loading, "_checked", lambda *_: Batching())
    disk = {"kv_disk": str(tmp_path / "disk"), "kv_disk_bytes": 1 << 20, "cache_folder": str(tmp_path)}
    for release in ("", "26.1", "26.2", "26.2"):
        monkeypatch.setattr("platform.mac_ver", lambda release=release: (release, ("", "", ""), "arm64"))
        backend = model_loading.load(load_of(stored["float32"], **disk), lambda stage: None)
        assert disk_of(backend).tier.close(20)
    assert len(list((tmp_path / "load-checks").iterdir())) == 2 * 3, "of the batch, and of fused projections"
    assert len(set(states)) == 3
