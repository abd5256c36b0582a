"""What constrained rows cost the batch, measured: `python -m tests.mlx.grammar_cost [STEPS]`. No test.

The bench model, three batches of 32 rows, with none, 4 and 32 of them held to a JSON schema that keeps them
going. They take their steps by turns, so that a busy machine is busy for all.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from scheduler.engine import model_loading
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.grammar.structure import JsonText
from scheduler.link import fast_blas
from scheduler.link.messages import StepOutput, Submit
from scheduler.models.random_qwen3 import BENCH_13M, write_model
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from tests.mlx.grammar_engine import asked
from tests.mlx.loads import load_of

ROWS = 32
LONG = JsonText(
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "size": {"type": "number"}, "ok": {"type": "boolean"}},
            "required": ["name", "size", "ok"],
            "additionalProperties": False,
        },
        "minItems": 200,
    },
    "x",
)


def main() -> None:
    if "PENSTOCK_BLAS_READY" not in os.environ:
        choice = fast_blas.prepare("auto", Path(tempfile.gettempdir()))
        environment = {**choice.environment(os.environ), "PENSTOCK_BLAS_READY": "1"}
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.mlx.grammar_cost", *sys.argv[1:]], environment
        )
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_model(BENCH_13M, folder)
        preparation = Preparation(HubTokenizer(folder), inspect(folder))
        loops = {count: decoding(folder, preparation, count, steps) for count in (0, 4, ROWS)}
        seconds: dict[int, list[float]] = {count: [] for count in loops}
        for _ in range(steps):
            for count, loop in loops.items():
                started = time.perf_counter()
                (frame,) = loop.turn(())
                seconds[count].append(time.perf_counter() - started)
                assert isinstance(frame, StepOutput)
                assert len(frame.tokens) == ROWS, "a row has ended"
    for count, taken in seconds.items():
        for name, of in (("median", statistics.median), ("lower quartile", lower_quartile)):
            ratio = of(seconds[0]) / of(taken)
            print(f"{count:2} of {ROWS} held: {name} {1000 * of(taken):.2f} ms, {ratio:.3f} of the speed")


def lower_quartile(values: list[float]) -> float:
    return statistics.quantiles(values, n=4)[0]


def decoding(folder: Path, preparation: Preparation, constrained: int, steps: int) -> EngineLoop:
    """A batch of its own in which all rows decode, and none ends in so many steps."""
    loop = EngineLoop(model_loading.load(load_of(folder), lambda stage: None), ROWS, PrefillPace(256))
    submits = []
    for row in range(ROWS):
        request = asked(LONG if row < constrained else None, row, steps + 100)
        ready = preparation.prepare(request)
        # Free rows must not end by themselves; held ones cannot, for their list is too long.
        ends = ready.stop_token_ids if ready.grammar else ()
        submits.append(Submit(row, ready.prompt, steps + 100, ends, request.sampling, grammar=ready.grammar))
    frames = loop.turn(submits)
    while not any(isinstance(frame, StepOutput) and len(frame.tokens) == ROWS for frame in frames):
        frames = loop.turn(())
    return loop


if __name__ == "__main__":
    main()
