"""Agents in threads: they send requests to a server until the block is left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def agent_threads(agent: Callable[[int, threading.Event], None], count: int) -> Iterator[None]:
    """Run `agent(number, over)` in a thread for each of `count` agents; set `over` after the block."""
    over = threading.Event()
    threads = [threading.Thread(target=agent, args=(number, over)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
