"""`penstock engine --join`: offer this machine's device to a server on another one."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import click

from scheduler.engine.join.joining import TOKEN_VARIABLE
from scheduler.errors import OptionError
from scheduler.shared.own_path import with_own_path


@click.command()
@click.option("--join", "address", metavar="HOST:PORT", required=True, help="The server's port for engines.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the server's token: a copy of the file that the server names when it starts."
    f"  [default: the token itself in {TOKEN_VARIABLE}]",
)
@click.option("--device", default="0", show_default=True, help="Which of this machine's devices.")
@click.option("--name", default="", help="This machine's name at the server.  [default: its host name]")
@click.option(
    "--ray",
    "ray_address",
    metavar="ADDRESS",
    help="Do it on each unit of the resource mlx of this Ray cluster (host:port, or auto), not here.",
)
def engine(
    address: str,
    token_file: Path | None,
    device: str,
    name: str,
    ray_address: str | None,
) -> None:
    """Compute for a server on another machine that was started with --engines join.

    The engine finds the model that the server names on this machine, by its fingerprint, and ends when the
    connection does. `penstock service install --engine` keeps one running.
    """
    environment = with_own_path(os.environ)
    if token_file is not None:
        try:
            if token_file.stat().st_mode & 0o077:
                raise OptionError(f"--token-file: others can read {token_file}: chmod 600 {token_file}")
            environment[TOKEN_VARIABLE] = token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            raise OptionError(f"--token-file: {token_file}: {error}") from error
    if not environment.get(TOKEN_VARIABLE):
        raise OptionError(f"the server's token is needed: --token-file FILE or {TOKEN_VARIABLE}")
    if ray_address is not None:
        from scheduler.cluster.ray_engines import keep_engines

        keep_engines(ray_address, address, environment[TOKEN_VARIABLE])
    command = [sys.executable, "-m", "scheduler.engine", "--join", address, "--device", device]
    command += ["--name", name]
    if sys.platform == "darwin":
        # Its server cannot wake a Mac that sleeps. caffeinate ends with this process, whose place the engine
        # takes (exec).
        with suppress(OSError):
            subprocess.Popen(["caffeinate", "-i", "-w", str(os.getpid())], stdin=subprocess.DEVNULL)
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)
