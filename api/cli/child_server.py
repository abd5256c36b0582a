"""`penstock serve` as the child of a command: it ends with its parent, also if that is killed.

The parent holds the other end of standard input, which the kernel closes with the process: that works on
Linux and macOS, and cannot be forgotten by a parent that has no time to say anything.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from api.cli.command_line import main


def watch_parent(descriptor: int) -> None:
    """Return when the pipe is closed; SIGTERM has been sent to this process then."""
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    main()
