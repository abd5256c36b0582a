"""The process of the agent that speaks with Ray.

A file of its own because `agent.py` runs in that process, and must not be imported here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from scheduler.link.side_process import SideProcess


class AgentProcess(SideProcess):
    """`python -m scheduler.cluster.agent` on one end of a socket pair."""

    def __init__(self, environment: Mapping[str, str], ray_address: str) -> None:
        # Ray reports nothing to its makers, and on a Mac joins a cluster at all.
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        # Its own log lines are for debugging; the last one may say why the agent ended.
        super().__init__(
            "agent",
            "scheduler.cluster.agent",
            ("--ray", ray_address),
            {**quiet, **environment},
            logging.DEBUG,
        )
