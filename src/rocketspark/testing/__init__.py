"""Helpers for tests: an embedded cluster, and a server process that can be killed.

Start with cluster.
"""

from rocketspark.testing.cluster import Cluster, run_cluster
from rocketspark.testing.process import ServerProcess, run_server_process

__all__ = ["Cluster", "ServerProcess", "run_cluster", "run_server_process"]
