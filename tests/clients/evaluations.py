"""lm-eval through a server, against mlx-lm's own evaluation of the same model: of the embedded one, and
of a tiny random one with each kind of cache:

    python -m tests.clients.evaluations --environment /tmp/lm-eval

lm-eval brings 740 MB along (two minutes to install), so that no test of CI runs it: there, `tests/scheduler/
engine/mlx/test_evaluation.py` sends what it sends. The environment is made where it is not there. The tasks
are made here, of facts as the embedded model is trained on: nothing is downloaded. All is in float32. Exits 1
where a score differs, or an answer, or a log-likelihood by more than CLOSE.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.models.random_qwen3 import TINY, TOKENIZER_FILES, TOKENIZER_FOLDER
from tests.end_to_end.serving import serving
from tests.scheduler.engine.mlx.zoo.census import SMALL, write
from tests.scheduler.models.facts import NAMES

AT_ONCE = 16
DOCUMENTS = 24
CHOICES = 4
CLOSE = 1e-3
"""Bound on the difference of log-likelihoods of some ten tokens, natural logarithms."""
PROGRAM = Path(__file__).parent / "programs" / "use_lm_eval.py"
PROGRAM_SECONDS = 900
INSTALL_SECONDS = 900
MODEL = "penstock-embedded"
FAMILIES = ("qwen3", "gpt_oss", "deepseek_v3", "qwen3_next", "rwkv7")
"""Keys and values of every token, sliding windows, a latent form, states beside attention, states only."""

Way: TypeAlias = tuple[str, str, list[str] | None, bool]
"""Its name, the task, lm-eval's model and its arguments or nothing where mlx-lm evaluates, and whether the
chat template is applied."""


def write_tasks(folder: Path, count: int) -> None:
    rng = random.Random(46)
    documents = []
    for _ in range(count):
        subjects = rng.sample(NAMES, CHOICES)
        codes = [rng.randrange(100, 1000) for _ in subjects]
        label = rng.randrange(CHOICES)
        answers = [f"The code of {subjects[label]} is {code}." for code in codes]
        text = " ".join(f"The code of {subjects[n]} is {codes[n]}." for n in range(CHOICES))
        question = f"{text} What is the code of {subjects[label]}?"
        documents.append({"question": question, "answers": answers, "label": label, "answer": answers[label]})
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    choice = {
        "output_type": "multiple_choice",
        "doc_to_target": "label",
        "doc_to_choice": "answers",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }
    generation = {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n", "What", "Q:"], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    for name, task in (("choice", choice), ("generation", generation)):
        # JSON is YAML, which is how a task is described.
        (folder / f"{name}.yaml").write_text(json.dumps({"task": name, **common, **task}))


def ways(url: str, folder: Path) -> Iterator[Way]:
    """The first way of a task, with or without the template, is mlx-lm's."""
    several = f"model={MODEL},num_concurrent={AT_ONCE},max_length=2048"
    known = f"base_url={url}/v1/completions,tokenizer={folder},tokenizer_backend=huggingface,{several}"
    completions = {
        "token ids": known,
        "token ids, four a body": f"{known},batch_size=4",
        "text": f"{known},tokenized_requests=False",
        "text, four a body": f"{known},tokenized_requests=False,batch_size=4",
    }
    # No choice behind a template: there lm-eval counts the template's last line break to the continuation,
    # mlx-lm to the context.
    for task, templated in (("choice", False), ("generation", False), ("generation", True)):
        yield "mlx-lm", task, None, templated
        for name, arguments in completions.items():
            # It has no template where it sends text: the server has, in the way below.
            if not (templated and "text" in name):
                yield f"completions, {name}", task, ["local-completions", arguments], templated
    chat = f"base_url={url}/v1/chat/completions,{several}"
    yield "chat completions", "generation", ["local-chat-completions", chat], True


def compared(found: Sequence[dict[str, Any]], asked: Sequence[Way]) -> Iterator[tuple[str, bool]]:
    """Yield a line a way, and whether it is as mlx-lm says."""
    expected: dict[tuple[str, bool], dict[str, Any]] = {}
    for one, (name, task, arguments, templated) in zip(found, asked, strict=True):
        if arguments is None:
            expected[task, templated] = one
        known = expected[task, templated]
        largest, others = 0.0, 0
        for said, alone in zip(one["said"], known["said"], strict=True):
            for own, right in zip(said, alone, strict=True):
                if isinstance(right, str):
                    others += own != right
                else:
                    largest = max(largest, abs(own[0] - right[0]))
                    others += own[1] != right[1]
        scores = ", ".join(
            f"{metric.partition(',')[0]} {value:.4f}" for metric, value in one["scores"].items()
        )
        line = (
            f"{task}{', templated' if templated else ''}: {name}: {scores}; {others} differ, by {largest:.1e}"
        )
        yield line, one["scores"] == known["scores"] and not others and largest <= CLOSE


def installed(environment: Path) -> Path:
    """Return its Python. mlx-lm is the one that serves."""
    python = environment / "bin" / "python"
    if not python.exists():
        print("installing lm-eval")
        venv.create(environment, with_pip=True)
        back_end = "mlx[cpu]" if sys.platform == "linux" else "mlx"
        packages = ["lm-eval[api]", f"{back_end}=={version('mlx')}", f"mlx-lm=={version('mlx-lm')}"]
        pip = [str(python), "-m", "pip", "install", "--quiet", *packages]
        subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
    return python


def evaluated(python: Path, folder: Path, tasks: Path) -> bool:
    """Serve the model, evaluate it, and say what was found. Return whether all is as mlx-lm says."""
    arguments = ("--model", str(folder), "--served-model-name", MODEL, "--weights-dtype", "float32")
    with serving(*arguments, trained=True) as served:
        asked = list(ways(served.url, folder))
        ran = subprocess.run(
            [python, PROGRAM],
            input=json.dumps({"folder": str(folder), "tasks": str(tasks), "ways": asked}),
            stdout=subprocess.PIPE,
            text=True,
            timeout=PROGRAM_SECONDS,
            env={
                **os.environ,
                "HF_HUB_OFFLINE": "1",
                "HF_DATASETS_CACHE": str(tasks / "cache"),
                "OPENAI_API_KEY": "unused",
            },
            check=True,
        )
        deaths = served.metric("penstock_engine_deaths_total")
    found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"way"')]
    right = not deaths
    for line, equal in compared(found, asked):
        print(f"  {'' if equal else 'WRONG '}{line}", flush=True)
        right &= equal
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--only", choices=("embedded", *FAMILIES), action="append")
    parser.add_argument("--documents", type=int, default=DOCUMENTS)
    given = parser.parse_args()
    python = installed(given.environment.resolve())
    right = True
    with TemporaryDirectory() as place:
        tasks = Path(place, "tasks")
        tasks.mkdir()
        write_tasks(tasks, given.documents)
        for name in given.only or ("embedded", *FAMILIES):
            folder = EMBEDDED_FOLDER
            if name != "embedded":
                folder = Path(place, name)
                folder.mkdir()
                write(name, folder, vocab_size=TINY.vocabulary, **SMALL)
                for file in TOKENIZER_FILES:
                    shutil.copy(TOKENIZER_FOLDER / file, folder)
            print(name, flush=True)
            right &= evaluated(python, folder, tasks)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
