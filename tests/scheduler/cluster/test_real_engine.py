"""The real engine on what is another machine to it: it finds the model by name and fingerprint, and gives the
tokens that a child process gives."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import trio

from scheduler.engine.join.model_source import EMBEDDED
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.processes.channel import Channel
from scheduler.processes.process import EngineLauncher, ProcessLauncher
from scheduler.shared.messages import (
    Begun,
    Load,
    Loading,
    Ready,
    ScriptedPlan,
    StepOutput,
)
from scheduler.shared.model_fingerprint import fingerprint as fingerprint_of
from tests.contracts.journal import request
from tests.fakes.joined_machine import OverTcp

PROMPT = list(range(300, 340))
TOKENS = 12


def load(folder: str, fingerprint: str = "") -> Load:
    plan = ScriptedPlan()
    return Load(
        "mlx",
        folder,
        4,
        512,
        8,
        "auto",
        plan,
        load_check="off",
        model=EMBEDDED if fingerprint else "",
        fingerprint=fingerprint,
    )


async def answer(channel: Channel, command: Load) -> tuple[Ready, list[int]]:
    channel.send_nowait(command)
    tokens: list[int] = []
    ready: Ready | None = None
    while len(tokens) < TOKENS:
        match await channel.receive():
            case Ready() as ready:
                channel.send_nowait(request(1, PROMPT, TOKENS))
            case StepOutput() as output:
                tokens += [one.token for one in output.tokens]
            case Loading() | Begun():
                pass
            case other:
                raise AssertionError(other)
    assert ready is not None
    return ready, tokens


def ask(launcher: EngineLauncher, command: Load) -> tuple[Ready, list[int]]:
    answers: list[tuple[Ready, list[int]]] = []

    async def session(channel: Channel) -> None:
        answers.append(await answer(channel, command))

    trio.run(launcher.run, session)
    return answers[0]


def test_a_remote_engine_gives_the_tokens_of_a_child_process(tmp_path: Path) -> None:
    """It runs the model that it has found for itself, where the server's folder does not exist."""
    fingerprint = fingerprint_of(EMBEDDED_FOLDER)
    here, expected = ask(ProcessLauncher(os.environ, 10.0), load(str(EMBEDDED_FOLDER)))
    there, tokens = ask(OverTcp(tmp_path), load("/the/servers/own", fingerprint))
    assert tokens == expected
    assert (there.fingerprint, there.host) == (fingerprint, socket.gethostname())
    assert (here.fingerprint, here.host) == ("", socket.gethostname())
    assert (there.vocabulary, there.weights_dtype) == (here.vocabulary, here.weights_dtype)
