"""The sets of replicas, and the events that change them. Pure.

Rule: every change of a set is an event, and an event can be written to a file. Rules of RocketMQ: BrokerReplicaInfo,
SyncStateInfo and ReplicasInfoManager, 5.5.0. Who is elected, and what heirs are: `elections`."""

from __future__ import annotations

import msgspec

FIRST_ID = 1


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """One broker of a set. `check_code`: the text by which the broker proves that the id is its own."""

    address: str
    check_code: str


class ReplicaSet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The brokers of one name. `in_sync`: ids of those that hold all that was acknowledged, in order.

    `next_id`: the next id to give out, so that none comes twice. The epochs only rise. `heirs`: see `elections`.
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
