"""A process that writes and checks clients' grammars: `python -m scheduler.grammar.trial --fd N`.

What a client may ask for takes our own code and the library any time, memory and stack. Here that ends this
process, which has limits on them and nothing that anybody else needs; the server starts another
(`trials.py`). What was written here without reaching a limit, an engine compiles within it.
"""

from __future__ import annotations

import os
import pickle
import resource
import socket
import sys
import time
from math import ceil
from threading import Thread
from typing import Any

from scheduler.grammar.answer_grammar import GrammarWriter

LENGTH_BYTES = 4
MOST_BYTES = 256 << 20
"""Memory beyond what the process has with its tokenizer. Real agents' tools take up to 20 MB."""
OUT_OF_MEMORY = 3
"""Exit status."""
_LOOK_SECONDS = 0.02
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


def framed(value: Any) -> bytes:
    """Return a frame. Both ends are this server: what a client sent is data in it, never code."""
    text = pickle.dumps(value)
    return len(text).to_bytes(LENGTH_BYTES, "big") + text


def main() -> None:
    with socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1])) as link:
        file = link.makefile("rb")

        def receive() -> Any:
            head = file.read(LENGTH_BYTES)
            if len(head) < LENGTH_BYTES:
                os._exit(0)  # The server has ended, or wants no more.
            return pickle.loads(file.read(int.from_bytes(head, "big")))

        cpu_seconds, setup = receive()
        writer = GrammarWriter(*setup)
        del setup
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        Thread(target=_end_above, args=(_peak_bytes() + MOST_BYTES,), daemon=True).start()
        while True:
            asked = receive()
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(time.process_time()) + cpu_seconds, hard))
            link.sendall(framed(writer(asked)))


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def _end_above(most_bytes: int) -> None:
    """No limit of the system's is on the memory of a process, on all systems."""
    while _peak_bytes() <= most_bytes:
        time.sleep(_LOOK_SECONDS)
    os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
