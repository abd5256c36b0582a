"""`python -m tests.cluster.nodes`: a Ray cluster whose nodes are all on this machine, each with a device of
its own. Only this process of the tests imports Ray.

Prints the head's address and process ids; then for each line of stdin, a name, adds a node and prints its
raylet's process id. Ends all of them at the end of stdin.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ray.cluster_utils import Cluster

HEAD = "mac-1"


def _node(name: str) -> dict[str, Any]:
    return {
        "node_name": name,
        "num_cpus": 1,
        "resources": {"mlx": 1},
        # A joining node's name is the device's: what joins again finds its predecessor's engine there.
        "env_vars": {**os.environ, "PENSTOCK_DEVICE": name},
        "object_store_memory": 100 << 20,
    }


def _pid(node: Any, kind: str) -> int:
    return int(node.all_processes[kind][0].process.pid)


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=_node(HEAD) | {"include_dashboard": False})
    head = cluster.head_node
    _say(address=cluster.address, head=_pid(head, "gcs_server"), raylet=_pid(head, "raylet"))
    for line in sys.stdin:
        node = cluster.add_node(wait=False, **_node(line.strip()))
        _say(raylet=_pid(node, "raylet"))
    # Not by `cluster.shutdown`, which waits for processes that the tests have killed.
    for node in (*cluster.worker_nodes, cluster.head_node):
        node.kill_all_processes(check_alive=False, allow_graceful=False)


if __name__ == "__main__":
    main()
