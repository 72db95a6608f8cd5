"""How replication stands, for metrics: the role, each slave's distance, troubles. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rocketspark.broker.replication.role import Role


class SlaveFigures(NamedTuple):
    """One slave as its master sees it. `lag_s`: since it last held all there was, 0 while it does."""

    name: str
    lag_bytes: int
    lag_s: float
    in_sync: bool


class ReplicationFigures(NamedTuple):
    """One broker. `copying`: a slave whose link to its master is up; `troubles`: how often, by reason."""

    role: Role
    epoch: int
    slaves: list[SlaveFigures]
    copying: bool
    troubles: Mapping[str, int]
    timeouts: int
