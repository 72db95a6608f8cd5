"""The sets of replicas, the events that change them, and which broker is elected master of a set. Pure.

Rule: every change of a set is an event, and an event can be written to a file. Rules of RocketMQ: BrokerReplicaInfo,
SyncStateInfo, ReplicasInfoManager and DefaultElectPolicy, 5.5.0.

The heirs are RocketSpark's own. An elected broker is alone in the in-sync set, as in RocketMQ, though it may be dead
already, or come back with less. So those that were in sync before are kept, as `heirs`, until the elected one gave its
word that it begins. As long as a set has heirs nobody was master since they were in sync: **each of them, unless it
says that it may lack some of its log, holds all that was acknowledged**, and may be elected in place of the elected
one. That is true because a set gets heirs only if its new master is a broker that takes no messages before its word was
accepted, and loses them with that word. The word is a request for an in-sync set, even for the same one. With
RocketMQ's brokers, which give none, a set has no heirs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from rocketspark.model.text import INT_MAX

FIRST_ID = 1


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """One broker of a set. `check_code`: the text by which the broker proves that the id is its own."""

    address: str
    check_code: str


class ReplicaSet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The brokers of one name. `in_sync`: ids of those that hold all that was acknowledged, in order.

    `next_id`: the next id to give out, so that none comes twice. The epochs only rise. `heirs`: see the module's text.
    """

    cluster: str
    broker_name: str
    next_id: int = FIRST_ID
    replicas: dict[int, Replica] = {}
    master: int | None = None
    master_epoch: int = 0
    in_sync: tuple[int, ...] = ()
    set_epoch: int = 0
    heirs: tuple[int, ...] = ()

    def address(self, broker_id: int | None) -> str | None:
        """Return the address of the replica with an id; None for None."""
        replica = self.replicas.get(broker_id) if broker_id is not None else None
        return replica.address if replica else None

    @property
    def never_elected(self) -> bool:
        """True until the first master was elected; an election without a result does not count."""
        return self.set_epoch == 0

    @property
    def awaits_word(self) -> bool:
        """True until the elected master gave its word that it begins."""
        return bool(self.heirs)

    @property
    def holders(self) -> tuple[int, ...]:
        """The ids of those that hold all that was acknowledged, in order: the in-sync set, and the heirs."""
        return tuple(sorted({*self.in_sync, *self.heirs}))


Sets = dict[str, ReplicaSet]


class IdApplied(msgspec.Struct, frozen=True, tag=True):
    """A broker was given an id."""

    cluster: str
    broker_name: str
    broker_id: int
    replica: Replica


class AddressChanged(msgspec.Struct, frozen=True, tag=True):
    """A broker has another address."""

    broker_name: str
    broker_id: int
    address: str


class MasterElected(msgspec.Struct, frozen=True, tag=True):
    """A broker was elected master, and is alone in sync; id None: the set has no master.

    `heirs`: those that were in sync before, until the master gives its word.
    """

    broker_name: str
    broker_id: int | None
    heirs: tuple[int, ...] = ()


class SetAltered(msgspec.Struct, frozen=True, tag=True):
    """The in-sync set was changed at its master's request, by which the master also gave its word."""

    broker_name: str
    members: tuple[int, ...]


class Cleaned(msgspec.Struct, frozen=True, tag=True):
    """Replicas were removed from a set; ids None: the whole set was removed."""

    broker_name: str
    ids: tuple[int, ...] | None


Event = IdApplied | AddressChanged | MasterElected | SetAltered | Cleaned


class Looked(msgspec.Struct, frozen=True):
    """A set's master asked for the set as the controller has it, in its process `asker`, as request number `asked`.

    The master has given up the connection of its earlier requests, so they are refused if they still arrive. `epoch`:
    the master's; it says nothing about a later one, in which the same broker may be master as another process.
    """

    broker_name: str
    master_id: int
    asker: int
    asked: int
    epoch: int = 0


def apply(sets: Sets, event: Event) -> Sets:
    """Return the sets after an event; the sets that were given are not changed."""
    name = event.broker_name
    if isinstance(event, IdApplied):
        s = sets.get(name) or ReplicaSet(cluster=event.cluster, broker_name=name)
        replicas = s.replicas | {event.broker_id: event.replica}
        return sets | {name: msgspec.structs.replace(s, replicas=replicas, next_id=s.next_id + 1)}
    if isinstance(event, Cleaned):
        return _cleaned(sets, event)
    s = sets[name]
    if isinstance(event, AddressChanged):
        moved = msgspec.structs.replace(s.replicas[event.broker_id], address=event.address)
        return sets | {name: msgspec.structs.replace(s, replicas=s.replicas | {event.broker_id: moved})}
    if isinstance(event, SetAltered):
        altered = msgspec.structs.replace(s, in_sync=event.members, set_epoch=s.set_epoch + 1, heirs=())
        return sets | {name: altered}
    after = msgspec.structs.replace(s, master=event.broker_id, master_epoch=s.master_epoch + 1)
    if event.broker_id is not None:
        alone = (event.broker_id,)
        after = msgspec.structs.replace(after, in_sync=alone, set_epoch=s.set_epoch + 1, heirs=event.heirs)
    return sets | {name: after}


def _cleaned(sets: Sets, event: Cleaned) -> Sets:
    s = sets[event.broker_name]
    left = {i: replica for i, replica in s.replicas.items() if event.ids is not None and i not in event.ids}
    if not left:
        return {name: each for name, each in sets.items() if name != event.broker_name}
    in_sync, heirs = (tuple(i for i in ids if i in left) for ids in (s.in_sync, s.heirs))
    after = msgspec.structs.replace(s, replicas=left, in_sync=in_sync, heirs=heirs)
    if s.master is not None and s.master not in left:
        # Who takes this id later may have nothing: it must not be master by its number.
        after = msgspec.structs.replace(after, master=None, master_epoch=s.master_epoch + 1)
    return sets | {event.broker_name: after}


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
