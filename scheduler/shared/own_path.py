"""The environment in which `python -m` finds our packages, and not others of the same name.

`-m` looks into the working folder first, and the one in which `penstock` is called may have a `scheduler` or
an `api` of its own.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])


def with_own_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python process that runs a module of ours, and of its own children."""
    child = {**environment, "PYTHONSAFEPATH": "1"}
    if _ROOT not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        child["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, environment.get("PYTHONPATH"))))
    return child
