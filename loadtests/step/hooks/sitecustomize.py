"""Profile the processes of a server that `penstock bench dev step` starts. Python loads this from PYTHONPATH;
the product knows nothing of it."""

from __future__ import annotations

import sys

from loadtests.step import record

if (folder := record.folder()) is not None:
    if "scheduler.engine" in sys.orig_argv:
        from loadtests.step.engine_profile import EngineProfile

        EngineProfile(folder)
    elif "serve" in sys.orig_argv:
        from loadtests.step.server_profile import ServerProfile

        ServerProfile(folder)
