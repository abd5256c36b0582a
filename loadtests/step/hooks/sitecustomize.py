"""Profile the processes of a server that `penstock bench dev step` starts. Python loads this from PYTHONPATH;
the product knows nothing of it."""

from __future__ import annotations

import sys

if "scheduler.engine" in sys.orig_argv:
    from loadtests.step.engine_profile import EngineProfile

    EngineProfile()
elif "serve" in sys.orig_argv:
    from loadtests.step.server_profile import ServerProfile

    ServerProfile()
