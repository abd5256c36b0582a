"""After a death the next engine reads the saved prefixes from disk, and computes only the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio

from tests.end_to_end.raw_client import Answer, ask
from tests.end_to_end.serving import Served, eventually, serving
from tests.fakes.faulty_backend import holding_in_engine_process

AGENTS = 8
BLOCK_TOKENS = 256
OWN_TOKENS = 32
"""The bound on each agent's tokens behind the shared ones, and the template's."""
SHARED = "You are one of several agents who look after the mill by the river. " * 90
"""Scaled down: eight agents behind 1,500 tokens, for 32 behind 8,000."""


def _tokens_of(served: Served, text: str) -> int:
    _, body = served.post(messages=[{"role": "user", "content": text}], max_tokens=1)
    return int(body["usage"]["prompt_tokens"])


@pytest.mark.timeout(240)
def test_agents_behind_one_prefix_compute_only_what_was_not_saved(tmp_path: Path) -> None:
    """All are resumed; they recompute their own prompts, their answers so far, and less than a block of the
    prefix."""
    source = holding_in_engine_process(AGENTS, AGENTS * 20, tmp_path)
    (tmp_path / "sitecustomize.py").write_text(source)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])}
    options = ("--kv-disk", str(tmp_path / "kv"), "--max-slots", str(AGENTS))
    with serving(*options, environment=environment) as served:
        shared_tokens = _tokens_of(served, SHARED)
        assert shared_tokens > 4 * BLOCK_TOKENS
        eventually(lambda: served.get("/v1/cache")[1]["disk"]["pending_bytes"] == 0, 30)
        start = served.metric("penstock_generated_tokens_total")
        answers: list[Answer] = []

        async def agent(number: int) -> None:
            answers.append(await ask(served.port, f"{SHARED}\nAgent {number}.", max_tokens=150))

        def said() -> float:
            return served.metric("penstock_generated_tokens_total") - start

        hold, held = tmp_path / "hold", tmp_path / "held"

        async def main() -> tuple[float, float]:
            """Return the answers and the computed tokens at the engine's death."""
            hold.touch()
            async with trio.open_nursery() as nursery:
                for number in range(AGENTS):
                    nursery.start_soon(agent, number)
                await trio.to_thread.run_sync(eventually, held.exists)
                os.kill(served.engine_pid(), signal.SIGKILL)
                hold.unlink()
                await trio.to_thread.run_sync(eventually, lambda: served.get("/ready")[0] == 503)
                return said(), served.metric("penstock_prefilled_tokens_total")

        said_before, computed_before = trio.run(main)
        assert [(answer.errors, answer.finish_reason) for answer in answers] == [([], "length")] * AGENTS
        assert served.metric("penstock_resumed_requests_total") == AGENTS
        again = served.metric("penstock_prefilled_tokens_total") - computed_before
        saved = shared_tokens // BLOCK_TOKENS * BLOCK_TOKENS
        assert served.metric("penstock_prefix_disk_hit_tokens_total") >= saved
        assert again <= (shared_tokens - saved) + AGENTS * OWN_TOKENS + said_before
