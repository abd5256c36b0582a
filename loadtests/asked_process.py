"""A model in a process of its own, with other patches than ours: it answers a line of JSON with one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Question = dict[str, Any]
Answer = dict[str, Any]


def answer_each(answer: Callable[[Question], Answer]) -> None:
    """Say that this process is ready, and answer what it is asked until nothing more can come."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


@contextmanager
def asked_process(
    module: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Callable[[Question], Answer]]:
    """Start a module that calls `answer_each`, yield how it is asked, and let it end. Raises ValueError where
    it has ended instead of answering."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        asking, answers = process.stdin, process.stdout
        json.loads(answers.readline())

        def ask(question: Question) -> Answer:
            print(json.dumps(question), file=asking, flush=True)
            answer: Answer = json.loads(answers.readline())
            return answer

        yield ask
        asking.close()
