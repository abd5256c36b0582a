"""How often the embedded model is right: `python -m scheduler.models.training.evaluation [FOLDER]`.

Held-out questions, greedy, float32 on a CPU, by mlx-lm alone: nothing of Penstock's engine has a part in it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx_lm import load
from mlx_lm.generate import stream_generate

from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import user_cache_folder
from scheduler.models.training.cases import Case, cases

MOST_ANSWER_TOKENS: Final = 160


class Reader:
    """The model, asked as a client would ask it."""

    def __init__(self, folder: Path) -> None:
        self._model, self.tokenizer = load(str(folder))[:2]
        self._model.set_dtype(mx.float32)

    def answer(self, case: Case) -> tuple[str, str | None]:
        """The text, special tokens included, and why it ended."""
        # Named in any case: mlx-lm's wrapper, left alone, turns thinking on for every model that can.
        prompt = self.tokenizer.apply_chat_template(
            list(case.messages),
            tools=list(case.tools) or None,
            add_generation_prompt=True,
            enable_thinking=case.thinking,
        )
        text, reason = "", None
        for piece in stream_generate(self._model, self.tokenizer, prompt, max_tokens=MOST_ANSWER_TOKENS):
            text, reason = text + piece.text, piece.finish_reason
        return text, reason

    def calls(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Text before the first call, and the calls; what cannot be read is a call of nothing."""
        before, *rest = text.split(self.tokenizer.tool_call_start)
        found = []
        for part in rest:
            try:
                found.append(self.tokenizer.tool_parser(part.split(self.tokenizer.tool_call_end)[0], None))
            except ValueError:
                found.append({})
        return before, found


def evaluate(folder: Path, each: int, seed: int, show: bool) -> dict[str, dict[str, float]]:
    """Return, for each metric, its cases, the share that is right, and the share that ended by itself."""
    reader = Reader(folder)
    seen: Counter[str] = Counter()
    right: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for case in cases(seed, each, lambda text: len(reader.tokenizer.encode(text))):
        said, reason = reader.answer(case)
        thought, mark, text = said.rpartition("</think>\n\n")
        text, found = reader.calls(text)
        # The prompt opens the thought, so an answer that thinks has its end, and no other has one.
        good = case.is_right(text, found) and bool(mark) is bool(case.thinking) and len(thought) < 200
        seen[case.metric] += 1
        right[case.metric] += good
        ended[case.metric] += reason == "stop"
        if show and not good:
            print(
                case.metric,
                "|",
                case.messages[-1]["content"][-160:],
                "|",
                said,
                "|",
                case.turn,
                file=sys.stderr,
            )
    return {
        metric: {
            "cases": count,
            "right": round(right[metric] / count, 4),
            "ended": round(ended[metric] / count, 4),
        }
        for metric, count in seen.items()
    }


def main() -> None:
    choice = prepare("auto", user_cache_folder(os.environ))
    if choice.library is not None and "LD_PRELOAD" not in os.environ:
        # Reference BLAS takes some ten times as long; a library is preloaded at a program's start or never.
        os.execve(sys.executable, sys.orig_argv, choice.environment(os.environ))
    parser = argparse.ArgumentParser(description="Ask the embedded model what it was not trained on.")
    parser.add_argument("--each", type=int, default=100, help="cases of each metric")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print what was wrong")
    parser.add_argument("folder", type=Path, nargs="?", default=EMBEDDED_FOLDER)
    arguments = parser.parse_args()
    figures = evaluate(arguments.folder, arguments.each, arguments.seed, arguments.show)
    print(json.dumps({"seed": arguments.seed, "metrics": figures}, indent=1))


if __name__ == "__main__":
    main()
