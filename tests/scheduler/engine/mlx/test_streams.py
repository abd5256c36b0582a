"""Every MLX operation of an engine runs on one stream.

With two, each join and leave is an event between them, an error on one is not seen on the other, and
upstream reports hangs (mlx#3830). On a CPU a stream is a thread of its own, made at its first use.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_SCENE = """
import os, sys
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import generation_stream

from loadtests.processes import threads
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx.loading import load
from scheduler.engine.pace import PrefillPace
from tests.contracts.journal import prompt_of, request
from tests.scheduler.engine.mlx.loads import load_of


def refuse(*args, **fields):
    raise AssertionError("a second stream")


for name in ("stream", "new_stream", "new_thread_local_stream", "set_default_stream"):
    ordinary = getattr(mx, name)
    setattr(mx, name, refuse)
    if name == "stream":
        stream = ordinary

loop = EngineLoop(load(load_of(Path(sys.argv[1])), lambda stage: None), 4, PrefillPace(16))
long = prompt_of(40, 1)
loop.iterate([request(1, long, 9), request(2, long[:20], 4), request(3, [5], 6)])
while not loop.idle:
    loop.iterate([])
loop.iterate([request(4, long, 3)])
while not loop.idle:
    loop.iterate([])
mx.eval(mx.ones((4,)) + 1)
before = threads(os.getpid())
with stream(generation_stream):
    mx.eval(mx.ones((4,)) + 1)
print(threads(os.getpid()) - before)
"""


def test_mlx_lms_own_stream_is_never_used(tiny_folder: Path) -> None:
    """Its thread is made only after all that an engine does: a load with its checks, prompts that join,
    decode and share a prefix."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    program = [sys.executable, "-c", _SCENE, str(tiny_folder)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
