"""The server that answers the examples of `docs/`: its first model is played, by the table below; beside it a
small model, an embedder and a reranker, which the scripted engine computes.

Prompts, queue, grammars, parsers, usage and errors are the product's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from api.served_models import ServedModels
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.prompt.embedder import Embedder
from scheduler.shared.messages import ScriptedPlan
from scheduler.shared.pooling import Pooler
from scheduler.telemetry.metrics import Metrics
from tests.api.client import MODEL
from tests.api.dialects.test_chat_tools import HERMES
from tests.clients.sessions import allowed
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.fakes.played_server import PlayedServer, playing_models
from tests.fakes.scheduling import FOLDER, make_scheduler

ANSWERS: Mapping[str, str] = {
    "What is the capital of Norway?": "The capital of Norway is Oslo.",
    "Name a city with its population.": '{"name": "Bergen", "population": 291940}',
    "Is this a question?": "yes",
    "When did Norway leave the union?": "1905-06-07",
    "What is the weather in Oslo?": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    ),
    "4 degrees, rain": "It rains in Oslo, at 4 degrees.",
    "What is in the picture?": "I cannot see it: I read text only.",
    "What is 17 times 23?": (
        "<think>\n17 times 20 is 340, and 17 times 3 is 51.\n</think>\n\n17 times 23 is 391."
    ),
}
"""The end of a prompt's newest question -> what the model writes, thoughts and calls included."""
CONTEXT_TOKENS = 131_072


def _written(number: int, prompt: str) -> str:
    """Return the text of the question that comes last in the prompt, or none if no question is in it."""
    question = max(ANSWERS, key=prompt.rfind)
    return ANSWERS[question] if question in prompt else ""


def _models(engine: Playback) -> ServedModels:
    metrics = Metrics()
    embedder = Embedder(Pooler(), 1024, matryoshka=(4, 1024))
    reranker = Embedder(None, 1, has_roles=True, answers=(7, 3))
    folder = replace(FOLDER, context_tokens=CONTEXT_TOKENS)
    plan = ScriptedPlan(prefill_tokens_per_step=CONTEXT_TOKENS)
    chat = make_scheduler(
        engine,
        plan,
        answer_format=HERMES,
        folder=folder,
        kv_cache_bytes=1 << 30,
        max_slots=32,
        metrics=metrics.of_model("coder"),
    )
    others = {
        name: make_scheduler(
            LoopbackLauncher(),
            plan,
            folder=replace(folder, embedder=kind),
            load_at_start=False,
            must_start=False,
            metrics=metrics.of_model(name),
        )
        for name, kind in {"titles": None, "embedder": embedder, "reranker": reranker}.items()
    }
    fleet = Fleet([Model(name, scheduler) for name, scheduler in {"coder": chat, **others}.items()])
    return ServedModels(
        fleet,
        {
            "coder": replace(MODEL, names=("coder",)),
            "titles": replace(MODEL, names=("titles",)),
            "embedder": replace(MODEL, names=("embedder",), embedder=embedder),
            "reranker": replace(MODEL, names=("reranker",), embedder=reranker),
        },
    )


@contextmanager
def documented_server() -> Iterator[PlayedServer]:
    """Serve until the block is left."""
    written: list[str] = []

    def choose(number: int, prompt: str) -> str:
        written.append(_written(number, prompt))
        return written[-1]

    with playing_models(choose, _models) as played:
        yield played
        for submit, text in zip(played.engine.submits, written, strict=True):
            assert not submit.grammar or allowed(submit.grammar, text), text
