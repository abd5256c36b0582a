"""A preparation process: `python -m api.preparers --fd N`, N being its end of the link.

Only `api/preparers/process.py` starts it.
"""

from __future__ import annotations

import gc
from typing import NoReturn

from api.preparers.messages import preparer_inbound
from api.preparers.preparer import Preparer
from scheduler.engine.inbox import Inbox, link_of_process


def main() -> NoReturn:
    inbox = Inbox(link_of_process("python -m api.preparers"), preparer_inbound())
    inbox.start()
    preparer = Preparer(inbox.send)
    preparer.handle(inbox.wait())
    # What is loaded stays: no collection need walk it.
    gc.collect()
    gc.freeze()
    while True:
        preparer.handle(inbox.wait())


if __name__ == "__main__":
    main()
