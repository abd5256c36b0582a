"""Make one step of the engine slow, or let it hang, and let clients leave at that moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import httpx
import trio

from loadtests.chaos.crowd import Crowd, Visit
from loadtests.chaos.questions import Question
from loadtests.chaos.slow_steps import CEILING_SECONDS, SLOW_SECONDS, Guest, Leaving, SlowStep
from loadtests.chaos.victim import Victim
from loadtests.chaos.waits import Span

_POLL_SECONDS = 0.05
_BEGIN_SECONDS = 60.0
"""The longest wait for a step that the order is for."""
_DEATH_SECONDS = CEILING_SECONDS + 20.0
_COME = 3
"""Questions that are sent during the step."""


@dataclass(frozen=True, slots=True)
class SlowMoment:
    """`span`: from the step's begin until all were ready again. `missed`: no such step came, or it hung and
    its engine lived on."""

    step: SlowStep
    span: Span
    visits: tuple[Visit, ...]
    missed: bool = False


async def strike_slowly(
    step: SlowStep,
    questions: Mapping[Guest, Question],
    server: Victim,
    http: httpx.AsyncClient,
    crowd: Crowd,
    nursery: trio.Nursery,
) -> SlowMoment:
    """Return when the engine, or the next one, is ready again. `nursery` asks on for who stays."""
    visits = {guest: Visit(question) for guest, question in questions.items()}
    come: set[Guest] = set()

    def comes(*guests: Guest) -> None:
        for guest in guests:
            if guest not in come:
                come.add(guest)
                nursery.start_soon(visits[guest].ask, http, server.url)

    async def begin(guest: Guest) -> None:
        comes(guest)
        answer = visits[guest].answer
        while not (answer.deltas or answer.ended or answer.error):  # noqa: ASYNC110 (another process)
            await trio.sleep(_POLL_SECONDS)

    def leave(when: Leaving) -> None:
        if when is step.leaving:
            for guest in step.leavers:
                visits[guest].leave()

    while not await server.ready(http) or (step.alone and await server.holdings(http)):  # noqa: ASYNC110
        await trio.sleep(_POLL_SECONDS)
    if step.work != "decode":
        # The long prompt was computed in the undisturbed runs.
        await http.delete(f"{server.url}/v1/cache")
    if not step.alone or step.leaving is Leaving.BEFORE:
        await begin(Guest.ANSWERED)
    if step.work == "decode":
        await begin(Guest.LONG)
        leave(Leaving.BEFORE)
    server.slow_down(step)
    comes(Guest.LONG)
    leave(Leaving.BEFORE)
    with trio.move_on_after(_BEGIN_SECONDS):
        while not server.slowed():
            crowd.due += not step.alone and crowd.in_flight < 2
            await trio.sleep(_POLL_SECONDS)
    began = trio.current_time()
    pid, missed = server.engine_pid(), not server.slowed()
    comes(*Guest)
    crowd.due += _COME
    if not missed:
        await trio.sleep(SLOW_SECONDS / 4)
        leave(Leaving.AMID)
        with trio.move_on_after(_DEATH_SECONDS):
            # The server continues a stopped process when it ends it.
            while (step.hangs or server.slowed()) and server.engine_pid() == pid:  # noqa: ASYNC110
                await trio.sleep(_POLL_SECONDS)
        if step.hangs and pid is not None and server.engine_pid() == pid:
            missed = True
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    leave(Leaving.AFTER)
    server.withdraw()
    while not await server.ready(http):  # noqa: ASYNC110 (another process)
        await trio.sleep(_POLL_SECONDS)
    return SlowMoment(step, (began, trio.current_time()), tuple(visits.values()), missed)
