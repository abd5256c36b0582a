"""mlx-lm is changed by `load`, and by nothing before it."""

from __future__ import annotations

import subprocess
import sys

from tests.repo.tree import ROOT
from tests.scheduler.engine.mlx.conftest import Tiny

_UNCHANGED = """
from mlx_lm.generate import BatchGenerator
from mlx_lm.models import activations, base, llama, qwen3
before = base.scaled_dot_product_attention, activations.swiglu, vars(BatchGenerator).copy()

def now():
    return base.scaled_dot_product_attention, activations.swiglu, vars(BatchGenerator).copy()

import scheduler.engine.mlx.loading, scheduler.engine.mlx.pooling.loading
from scheduler.engine.__main__ import make_backend
assert now() == before
assert (llama.swiglu, qwen3.scaled_dot_product_attention) == (before[1], before[0])
"""
_CHANGED = """
from pathlib import Path
from scheduler.engine.mlx import loading
loading.unread_bytes(Path(FOLDER), "float32")
assert now() == before
from tests.scheduler.engine.mlx.loads import load_of
backend = loading.load(load_of(Path(FOLDER)), lambda stage: None)
ours = base.scaled_dot_product_attention
assert ours is not before[0] and activations.swiglu is not before[1]
assert llama.swiglu is activations.swiglu, "of a module that was imported before"
from mlx_lm.models import qwen2, gemma3_text
assert qwen2.scaled_dot_product_attention is ours, "of one that is imported later"
from scheduler.engine.mlx.upstream.apply import apply
apply()
assert base.scaled_dot_product_attention is ours
"""


def test_importing_our_packages_changes_nothing_and_load_changes_what_models_call_once(tiny: Tiny) -> None:
    """In modules that were imported before, and in those that are imported later. In a process of its own:
    here `conftest.py` has changed it."""
    source = _UNCHANGED + _CHANGED.replace("FOLDER", repr(str(tiny.folder)))
    subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=True, timeout=120)
