"""Run one scenario against several targets, in turn, so that drift of the machine's speed affects all alike.

The order is A B C, A B C, ... Within a round all targets get the same prompts (one salt), and ratios are
taken pair by pair. Prompts change between rounds.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Awaitable, Callable, Sequence

import httpx
import trio

from loadtests.agents import MakeClient
from loadtests.driver import Driver, Progress
from loadtests.prompts import Prompts
from loadtests.record import RunRecord
from loadtests.scenario import Scenario
from loadtests.targets import Target, build_body
from loadtests.workload import Ask

OnProgress = Callable[[str, Progress], None]
_DISPLAY_SECONDS = 0.25
_PROBE_WORDS = (200, 1200)


class Comparison:
    """The runs of one scenario, which can be interrupted: `runs` has those that have ended so far."""

    def __init__(self, scenario: Scenario, make_client: MakeClient, on_progress: OnProgress) -> None:
        self._scenario = scenario
        self._make_client = make_client
        self._on_progress = on_progress
        self._driver: Driver | None = None
        self.stopped = False
        self._tokens_per_word: float | None = None
        self.runs: list[RunRecord] = []

    def interrupt(self) -> None:
        """End the current run, also during its capacity probe; start no further one."""
        self.stopped = True
        if self._driver is not None:
            self._driver.interrupt()

    async def run(self, targets: Sequence[Target], rounds: int) -> None:
        """Append to `runs`. Raise httpx.HTTPError if not even the calibration can reach a target."""
        for round_ in range(rounds):
            salt = secrets.token_hex(4) if self._scenario.fresh else "fixed"
            for target in targets:
                if self.stopped:
                    return
                await self._one(target, salt, round_)

    async def _one(self, target: Target, salt: str, round_: int) -> None:
        if self._tokens_per_word is None:
            # Measured once, with the first target: all of them must get the same words.
            self._tokens_per_word = await tokens_per_word(target, self._make_client)
        self._driver = Driver(self._scenario, target, self._make_client, salt, self._tokens_per_word)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._display, target.name, self._driver)
            self.runs.append(await self._driver.run(round_))
            nursery.cancel_scope.cancel()

    async def _display(self, name: str, driver: Driver) -> None:
        while True:
            await trio.sleep(_DISPLAY_SECONDS)
            self._on_progress(name, driver.progress())


async def tokens_per_word(target: Target, make_client: MakeClient) -> float:
    """Measure how many tokens the target's tokenizer makes of one of our words, from two prompts of known
    length.

    Return 1.5 if the target reports no usage; prompt lengths are then approximate.
    """
    text = Prompts(secrets.token_hex(4), tokens_per_word=1.0)
    counts: list[int] = []
    for words in _PROBE_WORDS:
        message = {"role": "user", "content": text.text(words, "calibration")}
        wish = Ask(messages=(message,), max_tokens=1, exact=False, sampling={})
        body = {**build_body(wish, target), "stream": False}
        body.pop("stream_options", None)
        async with make_client() as client:
            try:
                response = await client.post(target.chat_url, json=body, headers=target.headers)
                counts.append(int(response.json()["usage"]["prompt_tokens"]))
            except (httpx.HTTPError, ValueError, KeyError, TypeError):
                # A target that is down or broken is a result of the run, not a reason to skip it.
                return 1.5
    return (counts[1] - counts[0]) / (_PROBE_WORDS[1] - _PROBE_WORDS[0])


async def interruptible(comparison: Comparison, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`. The first Ctrl-C ends the measurement and keeps its results, the second kills it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(_listen, comparison)
        await work()
        nursery.cancel_scope.cancel()


async def _listen(
    comparison: Comparison, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        await anext(signals)
        comparison.interrupt()
        await anext(signals)
        raise KeyboardInterrupt
