"""`penstock serve` as the child of a command: it ends when the command does, even if that is killed.

The command holds the other end of standard input, and the kernel closes it when the command's process ends:
this works on Linux and macOS, and needs no action of a process that is being killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from api.cli.command_line import main


def watch_parent(descriptor: int) -> None:
    """Wait until the pipe is closed, and send SIGTERM to this process."""
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch_parent, args=(sys.stdin.fileno(),), daemon=True).start()
    main()
