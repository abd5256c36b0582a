"""What constrained rows cost the batch, measured: `python -m tests.mlx.grammar_cost [ROUNDS]`. No test.

The bench model, 32 rows; in turns with none, 4 and 32 of them held to a JSON schema that keeps them going.
Turns of one kind stand between turns of the others, so that a busy machine is busy for all.
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
from scheduler.link.messages import Retired, StepOutput, Submit
from scheduler.models.random_qwen3 import BENCH_13M, write_model
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from tests.mlx.conftest import load_of
from tests.mlx.grammar_engine import asked

ROWS = 32
TOKENS = 120
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
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_model(BENCH_13M, folder)
        backend = model_loading.load(load_of(folder), lambda stage: None)
        preparation = Preparation(HubTokenizer(folder), inspect(folder))
        loop = EngineLoop(backend, ROWS, PrefillPace(256))
        rates: dict[int, list[float]] = {0: [], 4: [], ROWS: []}
        for turn in range(rounds + 1):
            for constrained, seen in rates.items():
                rate = tokens_per_second(loop, preparation, constrained)
                print(f"{constrained:2}: {rate:.0f}", file=sys.stderr, flush=True)
                if turn:  # The first of each kind compiles and warms.
                    seen.append(rate)
        for constrained, seen in rates.items():
            ratios = [rate / without for rate, without in zip(seen, rates[0], strict=True)]
            print(
                f"{constrained:2} of {ROWS} constrained: {statistics.median(seen):7.0f} tokens/s,"
                f" {statistics.median(ratios):.3f} of none ({min(ratios):.3f} to {max(ratios):.3f})"
            )


def tokens_per_second(loop: EngineLoop, preparation: Preparation, constrained: int) -> float:
    """Of decoding alone: from the step in which all rows have begun to the first end."""
    submits = []
    for row in range(ROWS):
        request = asked(LONG if row < constrained else None, row, TOKENS)
        ready = preparation.prepare(request)
        # Nothing ends a row but its length, so that the batch is the same for all of the measurement.
        ends = ready.stop_token_ids if ready.grammar else ()
        submits.append(Submit(row, ready.prompt, TOKENS, ends, request.sampling, grammar=ready.grammar))
    begun: set[int] = set()
    ended: list[Retired] = []
    commands, tokens, started = submits, 0, 0.0
    while not ended:
        for frame in loop.turn(commands):
            assert isinstance(frame, StepOutput)
            ended += frame.retired
            if len(begun) == ROWS:
                tokens += len(frame.tokens)
            elif len(begun | {token.request_id for token in frame.tokens}) == ROWS:
                started = time.perf_counter()
            begun |= {token.request_id for token in frame.tokens}
        commands = []
    seconds = time.perf_counter() - started
    while not loop.idle:
        loop.turn(())
    assert all(retired.reason == "length" for retired in ended), ended
    return tokens / seconds


if __name__ == "__main__":
    main()
