"""`penstock models` and `show`: what stands on a terminal of 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from api.cli import machine
from api.cli.command_line import penstock
from api.cli.errors import OperatorError
from api.cli.machine import Answer, Machine, ModelMemory
from api.cli.models import disk_models
from scheduler.shared.row_bytes import RowBytes
from tests.fakes.model_files import model_files, write_files, write_repository

LARGE = "mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit"
GB = 10**9
MAC = Machine("Apple M4", "metal", False, 16 * GB, {"max_recommended_working_set_size": 12 * GB})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with a model that fits, one that does not, and half of one, on a Mac of 16 GB."""
    quantized = {"quantization": {"bits": 4, "group_size": 64}}
    small = write_repository(tmp_path / "hub", "owner/small", model_files())
    large = write_repository(tmp_path / "hub", LARGE, model_files(**quantized))
    write_files(tmp_path / "hub" / "models--owner--half" / "blobs", {"a.incomplete": b"123"})
    found = {small: ModelMemory(GB, RowBytes(100_000)), large: ModelMemory(17 * GB, RowBytes(100_000))}
    monkeypatch.setattr(disk_models, "hub_cache", lambda: tmp_path / "hub")
    monkeypatch.setattr(machine, "ask", lambda folder: Answer(MAC, found.get(folder)))
    return tmp_path / "hub"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(penstock, arguments, catch_exceptions=False)


def test_the_listing_fits_eighty_columns(cache: Path) -> None:
    """A model with a long name, too; what is no model has its reason."""
    lines = run("models").output.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[lines.index(LARGE) + 1].split() == ["237", "kB", "qwen3", "4-bit", "4,096"]
    half = lines.index("owner/half") + 1
    assert lines[half] == "  3 B, cannot be served: it has no files: its download was cut"


def test_show_says_how_the_folder_is_read(cache: Path) -> None:
    """Its positions, the longest context, and what of config.json is not read."""
    longrope = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = {"model_type": "phi3", "rope_theta": 1e4, "rope_scaling": longrope, "warp_factor": 9}
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    write_repository(cache, "owner/phi", model_files(**config, **lengths))
    output = run("show", "owner/phi").output
    assert "context     4,096 tokens, up to 131,072 with --max-model-len\n" in output
    assert "positions   rotary, base 10,000, scaled (longrope)\n" in output
    assert re.search(r"config      mlx-lm does not read [^.]*warp_factor", output)


def test_show_says_what_the_template_makes_of_conversations(cache: Path) -> None:
    """A line for each verdict, where it is not as usual."""
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content[0]['text'] }}{% endfor %}"
    )
    write_repository(cache, "owner/strict", {**model_files(), "chat_template.jinja": template.encode()})
    output = " ".join(run("show", "owner/strict").output.split())
    assert "it reads messages of assistant, user as parts" in output


def test_show_counts_agents(cache: Path) -> None:
    """As many as the KV cache holds at a time; a model that does not fit says by how much."""
    output = run("show", "owner/small", "--tokens", "3000").output
    found = re.search(r"of it ([0-9.]+) GB of KV cache", output)
    assert found is not None
    assert f"{float(found[1]) * GB // (3_000 * 100_000):.0f} at a time with 3,000 tokens each" in output
    assert "penstock serve --model owner/small" in output
    assert "the weights take 17.0 GB" in " ".join(run("show", LARGE).output.split())
    assert "served      no: it has no files: its download was cut" in run("show", "owner/half").output


def test_agents_have_no_more_tokens_than_the_context(cache: Path) -> None:
    """Without --tokens, too, whose default is more than this one has."""
    usual, beyond = run("show", "owner/small"), run("show", "owner/small", "--tokens", "10000")
    assert usual.output == run("show", "owner/small", "--tokens", "4096").output
    assert "4,096 tokens each that share nothing" in usual.stdout
    assert "32,768" not in usual.output
    assert beyond.output == usual.output


def test_show_says_what_quantised_weights_take_on_a_processor(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways, and what the smaller one costs; a GPU has one way."""
    assert "--weights-dtype packed" not in run("show", LARGE).output
    monkeypatch.setattr(machine, "ask", lambda _: Answer(Machine("cpu", "cpu", True, 16 * GB), None))
    output = run("show", LARGE).output
    assert "of weights, in float32 on processors" in output
    assert "of weights with --weights-dtype packed" in output
    assert "many times slower with several rows and long prompts" in output
    small = run("show", "owner/small").output
    assert "memory      4.1 kB of weights, in float32 on processors" in small, "twice what its file holds"
    assert "--weights-dtype packed" not in small


def test_a_model_is_shown_where_mlx_does_not_work(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what it takes is not known."""

    def broken(folder: Path) -> Answer:
        raise OperatorError("MLX does not work on this machine")

    monkeypatch.setattr(machine, "ask", broken)
    assert "memory      not known: MLX does not work on this machine" in run("show", "owner/small").output


def test_a_model_that_cannot_be_loaded_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files look well, and a tensor is missing, or its tokenizer is none."""
    missing = ModelMemory(error="ValueError: Missing 3 parameters\n" + "tensor " * 99)
    monkeypatch.setattr(machine, "ask", lambda _: Answer(MAC, missing))
    said = " ".join(run("show", "owner/small").output.split())
    assert "served no: mlx-lm cannot load it: ValueError: Missing 3 parameters tensor" in said
    assert len(said) < 500
    write_repository(cache, "owner/torn", {**model_files(), "tokenizer.json": b"{"})
    assert "served      no: " in run("show", "owner/torn").output
