"""Follow a request while its engine is killed again and again."""

from __future__ import annotations

import trio
import trio.testing

from scheduler.config import SupervisionConfig
from scheduler.service import Scheduler
from tests.cancellation.bench import Client
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import running

STEP_SECONDS = 0.01
"""The engine's step, and the pause between two looks at the answer's length."""
SUPERVISION = SupervisionConfig(backoff_limit_seconds=0.1)
"""The next engine comes as soon after many deaths as after one."""


async def follow_through_deaths(
    client: Client, scheduler: Scheduler, launcher: LoopbackLauncher, lives_tokens: int | None
) -> None:
    """Run `client` to its end; kill the engine after every `lives_tokens` tokens, or never."""
    async with running(scheduler) as nursery:
        nursery.start_soon(client.follow, scheduler)
        await trio.testing.wait_all_tasks_blocked()
        killed_at = 0
        while not client.finals:
            await trio.sleep(STEP_SECONDS)
            tokens = next((record.output_tokens for record in scheduler.pool.records), 0)
            if lives_tokens is not None and tokens >= killed_at + lives_tokens:
                killed_at = tokens
                launcher.kill()
                await trio.testing.wait_all_tasks_blocked()
                await scheduler.wait_ready()
        await scheduler.wait_idle()
