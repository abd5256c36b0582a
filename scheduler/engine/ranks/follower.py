"""A rank other than 0: `python -m scheduler.engine.ranks.follower --fd N`, N being its end of the socket,
or the process of a machine that has joined, which dials rank 0.

It carries out rank 0's plans. A thread reads the socket, so that the end of rank 0 ends this process
immediately, also while the main thread waits for rank 0 in a collective.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import NoReturn

from scheduler.engine.backend import Backend
from scheduler.engine.backend_choice import make_backend
from scheduler.engine.dial import DialFailed, dial
from scheduler.engine.inbox import Inbox, inherited_link
from scheduler.engine.load_failure import in_one_line
from scheduler.engine.model_source import located
from scheduler.engine.ranks.messages import LoadReport, LoadReports, RankFailed, Start, ToRank
from scheduler.engine.ranks.other_rank import OtherRank, PlanClock, RanksDisagree, joined
from scheduler.shared.framing import FrameReader, message_decoder
from scheduler.shared.hello import HelloRefused, rank_role
from scheduler.shared.messages import Follow

RANK_SECONDS = 120.0
"""Bound on dialing rank 0, which may have to wait for the other machines."""
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of <sys/prctl.h>."""


def main() -> NoReturn:
    arguments = argparse.ArgumentParser(prog="python -m scheduler.engine.ranks.follower")
    arguments.add_argument("--fd", type=int, required=True)
    link = inherited_link(arguments.parse_args().fd)
    _die_with_parent()
    _follow(link)


def follow(order: Follow) -> NoReturn:
    """Dial rank 0, which listens once it has its Load, and compute this rank of the model. Ends the
    process."""
    address, _, port = order.control.rpartition(":")
    role, host = rank_role(order.rank), socket.gethostname()
    try:
        link = dial([address], int(port), order.token, role, host=host, seconds=RANK_SECONDS)
    except (DialFailed, HelloRefused) as error:
        print(f"rank {order.rank}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    _follow(link)


def _follow(link: socket.socket) -> NoReturn:
    inbox = Inbox[ToRank](link, FrameReader(message_decoder(ToRank)))
    inbox.start()
    try:
        clock = PlanClock()
        backend = _load(inbox, clock)
        gc.collect()
        gc.freeze()
        inbox.send(joined(backend))
        rank = OtherRank(backend, clock, inbox.send)
        while True:
            rank.carry_out(inbox.wait())
    except Exception as error:
        _end(inbox, RankFailed(f"{type(error).__name__}: {error}", traceback.format_exc()))


def _load(inbox: Inbox[ToRank], clock: PlanClock) -> Backend:
    first = inbox.wait()
    if not isinstance(first, Start):
        raise RanksDisagree(f"the first message must be Start, not {type(first).__name__}")
    try:
        load = located(first.load)
        return make_backend(load, lambda stage: None, clock, first.rank, partial(_exchange, inbox))
    except Exception as error:
        _end(inbox, RankFailed(in_one_line(error), traceback.format_exc()))


def _exchange(inbox: Inbox[ToRank], mine: bytes) -> list[bytes]:
    inbox.send(LoadReport(mine))
    answer = inbox.wait()
    if not isinstance(answer, LoadReports):
        raise RanksDisagree(f"{type(answer).__name__} while the model is loaded")
    return list(answer.reports)


def _end(inbox: Inbox[ToRank], failed: RankFailed) -> NoReturn:
    with suppress(OSError):  # Rank 0 may be gone, which is why this rank failed.
        inbox.send(failed)
    sys.stderr.flush()
    # No interpreter shutdown: the inbox thread is blocked in a read, MLX's destructors take seconds.
    os._exit(1)


def _die_with_parent() -> None:
    """Let Linux end this process with rank 0, also while this one is stopped and reads no end of file. Rank 0
    starts it from its main thread, which lives as long as its process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL))


if __name__ == "__main__":
    main()
