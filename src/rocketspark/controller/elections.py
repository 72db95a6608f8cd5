"""Which broker is elected master of a set of replicas, and who may be elected in its place. Pure.

Rules of RocketMQ: DefaultElectPolicy, 5.5.0.

The heirs are RocketSpark's own. An elected broker is alone in the in-sync set, as in RocketMQ, though it may be dead
already, or come back with less. So those that were in sync before are kept, as `heirs`, until the elected one gave its
word that it begins. As long as a set has heirs nobody was master since they were in sync: **each of them, unless it
says that it may lack some of its log, holds all that was acknowledged**, and may be elected in place of the elected
one. That is true because a set gets heirs only if its new master is a broker that takes no messages before its word was
accepted, and loses them with that word. The word is a request for an in-sync set, even for the same one. With
RocketMQ's brokers, which give none, a set has no heirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from rocketspark.controller.replica_sets import ReplicaSet
from rocketspark.model.text import INT_MAX


class LogEnd(NamedTuple):
    """Where a broker's log ends, as its heartbeats tell. `zone`: where the broker runs.

    `priority`: of two brokers whose logs end at the same place the one with the lower number is elected. Only brokers
    of ours tell the rest. `may_lack`: its machine stopped before all was flushed, and it has not copied the rest again,
    or its disk takes nothing now; `gives_word`: once elected, it takes no messages before the controller accepted its
    word.
    """

    epoch: int = -1
    offset: int = -1
    priority: int = INT_MAX
    zone: str = ""
    may_lack: bool = False
    gives_word: bool = False


class Lives(Protocol):
    """Tells which brokers are alive now."""

    def alive(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        """Tell whether a heartbeat of the broker came in time."""

    def may_live(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        """Tell whether the broker is alive, or has had no time yet to send a heartbeat since the controller started."""

    def log_end(self, cluster: str, broker_name: str, broker_id: int) -> LogEnd:
        """Return where the broker's log ends."""


def elected(
    s: ReplicaSet, live: Lives, *, designated: int | None, unclean: bool, zones: Sequence[str] = ()
) -> int | None:
    """Return the id of the master: the present one if it lives, else the designated one, else whose log goes furthest.

    It is elected among those in sync, or else the heirs, as each of them holds what was acknowledged; a broker in an
    earlier one of the `zones` goes first. `unclean`: if nobody of them can be, among all, by their logs alone. None if
    nobody can be.
    """
    found = _best(s, s.in_sync, live, designated, zones)
    if found is None:
        found = _best(s, s.heirs, live, designated, zones)
    return _best(s, s.replicas, live, designated, by_log=True) if found is None and unclean else found


def _best(
    s: ReplicaSet,
    among: Iterable[int],
    live: Lives,
    designated: int | None,
    zones: Sequence[str] = (),
    *,
    by_log: bool = False,
) -> int | None:
    where = s.cluster, s.broker_name
    living = sorted(i for i in among if (live.may_live if i == s.master else live.alive)(*where, i))
    if s.master in living and designated in (None, s.master):
        return s.master
    if designated is not None:
        return designated if designated in living else None

    def reach(broker_id: int) -> tuple[int, ...]:
        end = live.log_end(*where, broker_id)
        if by_log:
            # What only the longer log has would be cut off, whatever that one may lack.
            return end.epoch, end.offset, not end.may_lack, -end.priority
        behind = zones.index(end.zone) if end.zone in zones else len(zones)
        return not end.may_lack, -behind, end.epoch, end.offset, -end.priority

    # RocketMQ compares by an int's difference, which is wrong for logs that are more than 2 GiB apart.
    return max(living, key=reach, default=None)


def heirs_of(s: ReplicaSet, master: int, live: Lives) -> tuple[int, ...]:
    """Return the set's heirs until the new `master` gives its word; none if it is a broker that gives none."""
    gives_word = live.log_end(s.cluster, s.broker_name, master).gives_word
    return s.holders if gives_word and master in s.holders and len(s.holders) > 1 else ()


def in_place_of_master(s: ReplicaSet, live: Lives, *, unclean: bool) -> int | None:
    """Return which heir, or other member in sync, is to be elected for a master that may lack some of its log.

    The master itself is returned if nobody holds more; None if one that may hold more is away, and elections are not
    `unclean`.
    """
    where = s.cluster, s.broker_name
    others = [i for i in s.holders if i != s.master]
    living = [i for i in others if live.alive(*where, i)]

    def reach(broker_id: int) -> tuple[bool, int, int]:
        end = live.log_end(*where, broker_id)
        return not (end.may_lack or broker_id == s.master), end.epoch, end.offset

    best = max(living, key=reach, default=None)
    if best is not None and s.master is not None and reach(best) > reach(s.master):
        return best
    return s.master if unclean or living == others else None
