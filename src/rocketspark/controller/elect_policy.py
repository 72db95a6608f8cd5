"""Whom a set of replicas elects. Pure. Rules: DefaultElectPolicy, 5.5.0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from rocketspark.controller.replica_sets import ReplicaSet
from rocketspark.model.text import INT_MAX


class LogEnd(NamedTuple):
    """How far a broker's log goes. `priority`: of two that are as far the lower one is elected."""

    epoch: int = -1
    offset: int = -1
    priority: int = INT_MAX


class Lives(Protocol):
    """What is known of the brokers' lives, now."""

    def alive(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        """Tell whether the broker was heard in time."""

    def may_live(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        """Tell whether it was, or had no time yet to be heard since the controller started."""

    def log_end(self, cluster: str, broker_name: str, broker_id: int) -> LogEnd:
        """Return how far the broker's log goes."""


def elected(s: ReplicaSet, live: Lives, *, designated: int | None, unclean: bool) -> int | None:
    """Return the id of the master: the one that is, if it lives; the designated one; else whose log goes furthest.

    Among those in sync; `unclean`: if none of them fits, among all. None if nobody can be.
    """
    found = _best(s, s.in_sync, live, designated)
    return _best(s, s.replicas, live, designated) if found is None and unclean else found


def _best(s: ReplicaSet, among: Iterable[int], live: Lives, designated: int | None) -> int | None:
    where = s.cluster, s.broker_name
    living = sorted(i for i in among if (live.may_live if i == s.master else live.alive)(*where, i))
    if s.master in living and designated in (None, s.master):
        return s.master
    if designated is not None:
        return designated if designated in living else None

    def reach(broker_id: int) -> tuple[int, int, int]:
        end = live.log_end(*where, broker_id)
        return end.epoch, end.offset, -end.priority

    # RocketMQ compares by an int's difference, which is wrong for logs that are more than 2 GiB apart.
    return max(living, key=reach, default=None)
