"""Start a host process on this machine, for those who place engines. Blocking, without trio and Ray."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from scheduler.cluster.host import DIAL_SECONDS, FAILED, STARTED
from scheduler.cluster.order import HostOrder
from scheduler.engine.mlx.cpu.fast_blas import prepare
from scheduler.errors import OptionError
from scheduler.own_path import with_own_path
from scheduler.user_cache import user_cache_folder

BLAS_VARIABLE = "PENSTOCK_BLAS"
"""What a machine's own environment says of it comes before the order's `blas`."""
_START_SECONDS = DIAL_SECONDS + 20.0
"""Python's start and imports on a busy machine, and the connection to the front."""


class HostNotStarted(Exception):
    """There is no host process: a sentence for the operator."""


@dataclass(frozen=True, slots=True)
class StartedHost:
    """A host process. It is no child of this process, and outlives it."""

    pid: int
    _stdout: IO[bytes] = field(repr=False)
    """It has the other end for as long as it lives, and writes nothing more. No process id is asked whether
    it lives: nobody may wait for an orphan in a container, and ids are given again."""

    @property
    def lives(self) -> bool:
        return not self.wait(0)

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it has ended within this time; None: when it has ended."""
        if not self._stdout.closed and select.select([self._stdout], [], [], seconds)[0]:
            self._stdout.close()
        return self._stdout.closed

    def close(self) -> None:
        """Ask no more."""
        self._stdout.close()


def start_host(order: HostOrder, environment: Mapping[str, str] | None = None) -> StartedHost:
    """Start a host process that carries `order` out. Return when it has connected to the front.

    `environment`: of the machine; None: this process's. Raise HostNotStarted.
    """
    environment = with_own_path(os.environ if environment is None else environment)
    blas = {**environment, **dict(order.environment)}.get(BLAS_VARIABLE, order.blas)
    if blas != "off":
        try:
            environment = prepare(blas, user_cache_folder(environment)).environment(environment)
        except OptionError as error:
            raise HostNotStarted(str(error)) from error
    try:
        starter = subprocess.Popen(
            [sys.executable, "-m", "scheduler.cluster.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Signals to this process's session are not for the engine.
            start_new_session=True,
        )
    except OSError as error:
        raise HostNotStarted(f"no host process could be started: {error}") from error
    assert starter.stdin is not None
    assert starter.stdout is not None
    try:
        with suppress(BrokenPipeError), starter.stdin as stdin:
            stdin.write(order.encode())
        answered, _, _ = select.select([starter.stdout], [], [], _START_SECONDS)
        line = starter.stdout.readline().decode("utf-8", "replace").rstrip() if answered else ""
        word, _, rest = line.partition(" ")
        if word != STARTED:
            reason = rest if word == FAILED else "it ended without a word" if answered else "it hangs"
            raise HostNotStarted(f"no host process could be started: {reason}")
    except BaseException:
        starter.kill()
        starter.stdout.close()
        raise
    finally:
        # It has ended, or is killed: the host process is its child.
        starter.wait()
    return StartedHost(int(rest), starter.stdout)
