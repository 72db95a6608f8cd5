"""Helpers for tests: an embedded cluster, a server process that can be killed, and pytest's fixtures.

Start with cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocketspark.lazy import attributes

if TYPE_CHECKING:
    from rocketspark.testing.cluster import Cluster, run_cluster
    from rocketspark.testing.process import ServerProcess, run_server_process
    from rocketspark.testing.tested_cluster import TestedCluster

# Pytest imports its plugin at each start, whether its fixtures are used or not.
_HOME = {
    "Cluster": "cluster",
    "run_cluster": "cluster",
    "ServerProcess": "process",
    "run_server_process": "process",
    "TestedCluster": "tested_cluster",
}

__all__ = ["Cluster", "ServerProcess", "TestedCluster", "run_cluster", "run_server_process"]

__getattr__ = attributes(__name__, _HOME)
