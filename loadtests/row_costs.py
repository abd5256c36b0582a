"""What rows with a feature (log-probabilities, a grammar or a held call) cost a decoding batch.

`penstock bench row-costs`, or `python -m loadtests.row_costs logprobs|grammar|calls MODEL_FOLDER STEPS` in a
process that was started with the engine's BLAS. Batches of 32 rows, of which none, a few and all have the
feature, take turns of 8 steps, so that other work on the machine slows all of them. It prints medians of
ratios, each of one turn to the plain batch's turn in the same round; on a busy machine the ratio of processor
time is more reliable. On a GPU a turn's first step includes the rest of the previous turn's last one.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any, Literal

from msgspec import structs

from scheduler.config import EngineConfig, load_message
from scheduler.engine.loop import EngineLoop
from scheduler.engine.mlx import loading as model_loading
from scheduler.engine.pace import PrefillPace
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.request import ChatPrompt, GenerationRequest, Reasoning, Sampling, Tool, ToolChoice
from scheduler.shared.messages import GrammarTokenizer, StepOutput, Submit
from scheduler.structure import JsonText

Feature = Literal["logprobs", "grammar", "calls"]
ROWS = 32
FEATURED_ROWS: dict[Feature, tuple[int, ...]] = {
    "logprobs": (0, 1, ROWS),
    "grammar": (0, 4, ROWS),
    "calls": (0, 8, ROWS),
}
"""Numbers of rows with the feature, by feature; the first is the plain batch."""
_STEPS_A_TURN = 8
_TOP_LOGPROBS = 20
_ENDLESS: dict[str, Any] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "number"}, "ok": {"type": "boolean"}},
        "required": ["name", "size", "ok"],
        "additionalProperties": False,
    },
    "minItems": 200,
}
_ENDLESS_JSON = JsonText(_ENDLESS, "row-costs")
_ENDLESS_CALL = Tool(
    "write",
    parameters={
        "properties": {"path": {"type": "string", "maxLength": 40}, "rows": _ENDLESS},
        "required": ["path", "rows"],
    },
)


def measure(feature: Feature, folder: Path, steps: int) -> dict[int, list[tuple[float, float]]]:
    """Return wall-clock and processor seconds a step, of each turn, by the number of rows with the
    feature."""
    # The dialect that most coding models write, in which a string is bare text.
    tokenizer = HubTokenizer(folder, tool_parser="qwen3_coder")
    preparation = Preparation(tokenizer, inspect(folder))
    masks = tokenizer.for_grammars()
    loops = {}
    # The tool is in every row's prompt, so that all rows have the same context.
    tools = (_ENDLESS_CALL,) if feature == "calls" else ()
    for rows in FEATURED_ROWS[feature]:
        features = [feature if row < rows else None for row in range(ROWS)]
        loops[rows] = _decoding(
            folder,
            masks,
            [_submit(preparation, row, each, steps, tools) for row, each in enumerate(features)],
        )
    turns: dict[int, list[tuple[float, float]]] = {rows: [] for rows in loops}
    for _ in range(max(1, steps // _STEPS_A_TURN)):
        for rows, loop in loops.items():
            turns[rows].append(_turn(loop))
    return turns


def described(turns: dict[int, list[tuple[float, float]]]) -> list[str]:
    """Return a line for each batch."""
    plain = next(iter(turns.values()))
    lines = []
    for rows, own in turns.items():
        pairs = list(zip(own, plain, strict=True))
        clock = statistics.median(mine[0] / theirs[0] for mine, theirs in pairs)
        processor = statistics.median(mine[1] / theirs[1] for mine, theirs in pairs)
        step_ms = 1000 * statistics.median(turn[0] for turn in own)
        lines.append(
            f"{rows:2} of {ROWS} rows: {step_ms:.2f} ms a step, {clock:.3f} of a plain batch's,"
            f" {processor:.3f} of its processor time"
        )
    return lines


def _turn(loop: EngineLoop) -> tuple[float, float]:
    started, worked = time.perf_counter(), time.process_time()
    steps = 0
    while steps < _STEPS_A_TURN:
        # A turn of the loop that only reads the device's pending result has no tokens.
        for frame in loop.turn(()):
            assert isinstance(frame, StepOutput)
            assert len(frame.tokens) == ROWS, "a row has ended"
            steps += 1
    return (time.perf_counter() - started) / _STEPS_A_TURN, (time.process_time() - worked) / _STEPS_A_TURN


def _submit(
    preparation: Preparation, row: int, feature: Feature | None, steps: int, tools: tuple[Tool, ...]
) -> Submit:
    """Return a row's request, which outlasts `steps` and the steps that prefill other rows."""
    max_tokens = steps + 100
    request = GenerationRequest(
        f"row-{row}",
        ChatPrompt(
            ({"role": "user", "content": f"say {row}"},),
            tools=tools,
            tool_choice=ToolChoice.REQUIRED if feature == "calls" else ToolChoice.AUTO,
            reasoning=Reasoning(enabled=False),
        ),
        sampling=Sampling(temperature=1.0, seed=row),
        max_tokens=max_tokens,
        structure=_ENDLESS_JSON if feature == "grammar" else None,
    )
    ready = preparation.prepare(request)
    # Free rows must not end by themselves; constrained ones cannot, because their list is too long.
    stops = ready.stop_token_ids if ready.grammar else ()
    top = _TOP_LOGPROBS if feature == "logprobs" else None
    return Submit(
        row, ready.prompt, max_tokens, stops, request.sampling, top_logprobs=top, grammar=ready.grammar
    )


def _decoding(folder: Path, masks: GrammarTokenizer, submits: list[Submit]) -> EngineLoop:
    """Return a batch in which all rows decode."""
    load = load_message(EngineConfig("mlx", str(folder), weights_dtype="float32", kv_cache_bytes=1 << 30))
    backend = model_loading.load(structs.replace(load, tokenizer=masks), lambda stage: None)
    loop = EngineLoop(backend, ROWS, PrefillPace(load.prefill_chunk_tokens))
    frames = loop.turn(submits)
    while not any(isinstance(frame, StepOutput) and len(frame.tokens) == ROWS for frame in frames):
        frames = loop.turn(())
    return loop


def main() -> None:
    name, folder, steps = sys.argv[1:]
    (feature,) = (known for known in FEATURED_ROWS if known == name)
    for line in described(measure(feature, Path(folder), int(steps))):
        print(line, flush=True)


if __name__ == "__main__":
    main()
