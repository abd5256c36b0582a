"""lm-eval's tasks through a server, in each way that it has, and through mlx-lm's own evaluation.

Reads one JSON object from standard input: `folder` of the model, `tasks` (a folder of descriptions), `ways`
(name, model arguments, task and whether the chat template is applied). Writes one line of JSON a way:
`scores`, and what the model said to each document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import lm_eval
import lm_eval.models.openai_completions  # registers its ways
import mlx.core as mx
from lm_eval.tasks import TaskManager
from mlx_lm.evaluate import MLXLM

GIVEN = json.load(sys.stdin)


def templated(model: MLXLM, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    """As lm-eval does it with a tokenizer: mlx-lm's own always tells the template to think, or not to."""
    template = model.tokenizer._tokenizer.apply_chat_template
    return template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)


MLXLM.apply_chat_template = templated
MANAGER = TaskManager(include_path=GIVEN["tasks"], include_defaults=False)


def evaluate(way: str, task: str, model: Any, arguments: Any, chat: bool) -> None:
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[task],
        task_manager=MANAGER,
        apply_chat_template=chat,
        bootstrap_iters=0,
    )
    scores = {
        name: value
        for name, value in found["results"][task].items()
        if isinstance(value, float) and "stderr" not in name
    }
    samples = sorted(found["samples"][task], key=lambda sample: sample["doc_id"])
    said = [[one[0] for one in sample["resps"]] for sample in samples]
    print(json.dumps({"way": way, "task": task, "scores": scores, "said": said}), flush=True)


alone: dict[bool, MLXLM] = {}
for name, task, arguments, chat in GIVEN["ways"]:
    if arguments is None:
        if chat not in alone:
            # One at a time: what a batch of mlx-lm's does to its rows is not asked here.
            alone[chat] = MLXLM(GIVEN["folder"], batch_size=1, use_chat_template=chat)
            alone[chat]._model.set_dtype(mx.float32)
        evaluate(name, task, alone[chat], None, chat)
    else:
        model, fields = arguments
        evaluate(name, task, model, fields, chat)
