"""`--engines join`: the port that engines on other machines connect to, and who has joined.

Imported only where the option asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import trio

from api.options.option_values import listening_addresses
from api.options.settings import ServeSettings
from scheduler.cluster.joined import JoinedEngines
from scheduler.engines.pool import Pool
from scheduler.errors import OptionError, StartupError
from scheduler.processes.listener import Listener
from scheduler.shared.hello import new_token
from scheduler.shared.user_cache import user_data_folder

_ALL_ADDRESSES = "0.0.0.0"
_PLAIN_TEXT = (
    "after the token it is plain text: prompts and answers can be read on the way; use Thunderbolt, a network"
    " that you trust or a VPN (--engine-address)"
)


class RemoteEngines:
    """The machines whose engines serve a pool. They can join while `run` runs."""

    def __init__(self, settings: ServeSettings, pool: Pool, environment: Mapping[str, str]) -> None:
        """`environment` says where the user's data is. Raise OptionError."""
        self._engines = JoinedEngines(pool)
        self._token, self._token_file = join_token(environment)
        self._listener = Listener(self._token, self._engines.arrived)
        self._addresses = listening_addresses(settings.engine_address) or [("", 0)]
        self._port = 0
        click.echo("engines    one on each machine that joins (--engines join)")

    async def run(self) -> None:
        """Listen for engines until cancelled. Raise StartupError if that is impossible."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._engines.run)
            for host, port in self._addresses:
                host, port = host or _ALL_ADDRESSES, port or self._port
                try:
                    self._port = await nursery.start(self._listener.serve, host, port)
                except OSError as error:
                    raise StartupError(f"cannot listen for engines on {host}:{port}: {error}") from error
            self._announce()

    def report(self) -> dict[str, Any]:
        """Return the part `cluster` of `/v1/scheduler`."""
        return {
            "state": "listening",
            "dials": ", ".join(host for host, _ in self._addresses if host) or None,
            "nodes": [
                {
                    "machine": one.machine,
                    "address": one.address,
                    "living": one.linked,
                    "engines": [one.engine],
                }
                for one in self._engines.machines()
            ],
            "port": self._port,
        }

    def _announce(self) -> None:
        address = self._addresses[0][0] or "THIS-MACHINE"
        click.echo(
            f"join       penstock engine --join {address}:{self._port} --token-file FILE, a copy of"
            f" {self._token_file}; {_PLAIN_TEXT}"
        )


def token_file(environment: Mapping[str, str]) -> Path:
    """Return where a server keeps the token that it has made for engines of other machines."""
    return user_data_folder(environment) / "join-token"


def join_token(environment: Mapping[str, str]) -> tuple[str, Path]:
    """Return the token that engines need, and the file that has it. Raise OptionError, also if others can
    read the file."""
    path = token_file(environment)
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(file, "w", encoding="ascii") as made:
                made.write(f"{new_token()}\n")
        if path.stat().st_mode & 0o077:
            raise OptionError(
                f"--engines join: others can read {path}, and who has the token gets prompts:"
                f" chmod 600 {path}"
            )
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise OptionError(f"--engines join: {path}: {error}") from error
    if len(token) < 16:
        raise OptionError(f"--engines join: {path} has no token of at least 16 characters")
    return token, path
