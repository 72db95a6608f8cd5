"""Decides on requests about the sets of replicas. Pure: no sockets, no files, no clock.

Rule: a decision changes nothing; its events do, once they are on disk. Rules: ReplicasInfoManager, 5.5.0."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from rocketspark.controller.elections import Lives, elected, heirs_of, in_place_of_master
from rocketspark.controller.replica_sets import (
    FIRST_ID,
    AddressChanged,
    Cleaned,
    Event,
    IdApplied,
    Looked,
    MasterElected,
    Replica,
    ReplicaSet,
    SetAltered,
    Sets,
)
from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.headers import Header
from rocketspark.protocol.headers.controller import (
    CONTROLLER_ASKS,
    AlterSyncStateSetHeader,
    AlterSyncStateSetReply,
    ApplyBrokerIdHeader,
    BrokerSetHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    ElectMasterReply,
    NextBrokerIdReply,
    RegisterToControllerHeader,
    RegisterToControllerReply,
    ReplicaInfoHeader,
    ReplicaInfoReply,
)
from rocketspark.protocol.json import bodies
from rocketspark.protocol.json.operator_bodies import (
    MEMBERS_MAX,
    ElectMasterBody,
    MemberGroup,
    ReplicaIdentity,
    ReplicasInfo,
    ReplicasOfSet,
    SyncStateSet,
)

NAME_CHARACTERS_MAX = 255
# Of all sets: the file of them is written at each event.
REPLICAS_MAX = 10_000


class Decision(NamedTuple):
    """The answer to a request, and the events that must be on disk before it is sent.

    `looked`: given if the request was the look of a set's master, which gives up its earlier requests by it.
    """

    code: int = 0
    header: Header | None = None
    body: bytes = b""
    remark: str | None = None
    events: tuple[Event, ...] = ()
    looked: Looked | None = None


def next_id(sets: Sets, h: BrokerSetHeader) -> Decision:
    """CONTROLLER_GET_NEXT_BROKER_ID: return an id that no broker of the set has or had.

    RocketMQ returns its counter also where a broker has taken that id by itself, after which no broker can join.
    """
    s = sets.get(h.broker_name)
    number = s.next_id if s else FIRST_ID
    while s and number in s.replicas:
        number += 1
    return Decision(
        header=NextBrokerIdReply(cluster_name=h.cluster_name, broker_name=h.broker_name, next_broker_id=number)
    )


def apply_id(sets: Sets, h: ApplyBrokerIdHeader) -> Decision:
    """CONTROLLER_APPLY_BROKER_ID: give a broker a free id, or by its code its own again. A new set has one free id."""
    answer = BrokerSetHeader(cluster_name=h.cluster_name, broker_name=h.broker_name)
    s = sets.get(h.broker_name)
    own = s.replicas.get(h.applied_broker_id) if s else None
    if own is not None and own.check_code == h.register_check_code:
        return Decision(header=answer)
    if s is None and h.applied_broker_id != FIRST_ID:
        why = f"broker set {h.broker_name} is not registered: its first id is {FIRST_ID}, not {h.applied_broker_id}"
    elif own is not None:
        why = f"id {h.applied_broker_id} of broker set {h.broker_name} belongs to {own.address}"
    elif h.applied_broker_id < FIRST_ID:
        why = f"id {h.applied_broker_id}: ids begin at {FIRST_ID}"
    else:
        replica = Replica(h.register_check_code.partition(";")[0], h.register_check_code)
        event = IdApplied(h.cluster_name, h.broker_name, h.applied_broker_id, replica)
        return _too_large(sets, h, s) or Decision(header=answer, events=(event,))
    return Decision(ResponseCode.CONTROLLER_BROKER_ID_INVALID, answer, remark=why)


def _too_large(sets: Sets, h: ApplyBrokerIdHeader, s: ReplicaSet | None) -> Decision | None:
    for what, text in (
        ("clusterName", h.cluster_name),
        ("brokerName", h.broker_name),
        ("registerCheckCode", h.register_check_code),
    ):
        if not text or shown(text, characters_max=NAME_CHARACTERS_MAX) != text:
            why = f"{what}: 1 to {NAME_CHARACTERS_MAX} characters are needed, all of them to be seen"
            return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=why)
    if (s is not None and len(s.replicas) >= MEMBERS_MAX) or sum(
        len(s.replicas) for s in sets.values()
    ) >= REPLICAS_MAX:
        why = f"{MEMBERS_MAX} replicas may be in a set, {REPLICAS_MAX} in all: clean those that are gone"
        return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=why)
    return None


def register(sets: Sets, h: RegisterToControllerHeader, live: Lives) -> Decision:
    """CONTROLLER_REGISTER_BROKER: note the broker's address; tell it the master if that lives."""
    answer = RegisterToControllerReply(cluster_name=h.cluster_name, broker_name=h.broker_name)
    s = sets.get(h.broker_name)
    replica = s.replicas.get(h.broker_id) if s else None
    if s is None or replica is None:
        what = f"broker set {h.broker_name}" if s is None else f"id {h.broker_id} of broker set {h.broker_name}"
        code = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        return Decision(code, answer, remark=f"{what} is not registered")
    if s.master is not None and live.may_live(s.cluster, s.broker_name, s.master):
        answer.master_broker_id, answer.master_address = s.master, s.address(s.master)
        answer.master_epoch, answer.sync_state_set_epoch = s.master_epoch, s.set_epoch
        answer.awaits_word = s.awaits_word or None
    body = _members(s)
    if replica.address == h.broker_address:
        return Decision(header=answer, body=body)
    if not h.broker_address or shown(h.broker_address, characters_max=NAME_CHARACTERS_MAX) != h.broker_address:
        why = f"brokerAddress: 1 to {NAME_CHARACTERS_MAX} characters are needed, all of them to be seen"
        return Decision(ResponseCode.CONTROLLER_INVALID_REQUEST, remark=why)
    event = AddressChanged(h.broker_name, h.broker_id, h.broker_address)
    return Decision(header=answer, body=body, events=(event,))


def replica_info(sets: Sets, h: ReplicaInfoHeader) -> Decision:
    """CONTROLLER_GET_REPLICA_INFO: return the master and the in-sync set; asked by that master it is a `Looked`."""
    s = sets.get(h.broker_name)
    if s is None:
        code = ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST
        return Decision(code, ReplicaInfoReply(), remark=f"broker set {h.broker_name} is not known")
    looked = None
    if s.master is not None and h.master_broker_id == s.master and h.asker is not None and h.asked is not None:
        looked = Looked(h.broker_name, s.master, h.asker, h.asked, s.master_epoch)
    answer = ReplicaInfoReply(
        master_broker_id=s.master,
        master_address=s.address(s.master),
        master_epoch=s.master_epoch,
        asked=looked.asked if looked else None,
        awaits_word=s.awaits_word or None,
    )
    return Decision(header=answer, body=_members(s), looked=looked)


def sync_state(sets: Sets, broker_names: Collection[str], live: Lives) -> Decision:
    """CONTROLLER_GET_SYNC_STATE_DATA: return the replicas of each of these sets that is known."""
    table = {}
    for s in (sets[name] for name in broker_names if name in sets):
        shown_as = {
            i: ReplicaIdentity(
                broker_name=s.broker_name,
                broker_id=i,
                broker_address=replica.address,
                alive=live.alive(s.cluster, s.broker_name, i),
            )
            for i, replica in sorted(s.replicas.items())
        }
        table[s.broker_name] = ReplicasOfSet(
            master_broker_id=s.master,
            master_address=s.address(s.master),
            master_epoch=s.master_epoch,
            sync_state_set_epoch=s.set_epoch,
            in_sync_replicas=[each for i, each in shown_as.items() if i in s.in_sync],
            not_in_sync_replicas=[each for i, each in shown_as.items() if i not in s.in_sync],
        )
    return Decision(body=bodies.encode(ReplicasInfo(replicas_info_table=table)))


def alter(
    sets: Sets, h: AlterSyncStateSetHeader, wanted: SyncStateSet, live: Lives, looked: Looked | None = None
) -> Decision:
    """CONTROLLER_ALTER_SYNC_STATE_SET: take the in-sync set that the master wants, if it names the present epochs.

    `looked`: the last look of the set's master, by which earlier requests are refused.
    """
    if _is_late(h, looked):
        why = f"the in-sync set of {h.broker_name}: its master looked at it after it asked for another; it asks again"
        return Decision(ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, AlterSyncStateSetReply(), remark=why)
    members = tuple(sorted(set(wanted.sync_state_set)))
    s = sets.get(h.broker_name)
    if s is None:
        code = ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        return Decision(code, AlterSyncStateSetReply(), remark=f"broker set {h.broker_name} is not known")
    refusal = _refusal(s, h, wanted, members, live)
    if refusal is not None:
        return Decision(refusal[0], AlterSyncStateSetReply(), remark=refusal[1])
    epoch = s.set_epoch + 1
    body = bodies.encode(SyncStateSet(sync_state_set=list(members), sync_state_set_epoch=epoch))
    answer = AlterSyncStateSetReply(new_sync_state_set_epoch=epoch)
    return Decision(header=answer, body=body, events=(SetAltered(h.broker_name, members),))


def _is_late(h: AlterSyncStateSetHeader, looked: Looked | None) -> bool:
    """Tell whether a request came over a connection that its master has given up: it goes by what it was told since."""
    if looked is None or h.asker is None:
        return False
    if (looked.master_id, looked.epoch) != (h.master_broker_id, h.master_epoch):
        return False
    return h.asker != looked.asker or (h.asked or 0) < looked.asked


def _refusal(
    s: ReplicaSet, h: AlterSyncStateSetHeader, wanted: SyncStateSet, members: tuple[int, ...], live: Lives
) -> tuple[int, str] | None:
    """Return code and text of why an in-sync set is not taken; in RocketMQ's order, which its brokers act on."""
    refused = f"the in-sync set of {s.broker_name} stays {list(s.in_sync)}: "
    if members == s.in_sync and not s.awaits_word:
        return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, refused + "that is what it is"
    if s.master != h.master_broker_id:
        return ResponseCode.CONTROLLER_INVALID_MASTER, refused + f"its master is {s.master}, not {h.master_broker_id}"
    if s.master_epoch != h.master_epoch:
        why = refused + f"the master's epoch is {s.master_epoch}, not {h.master_epoch}"
        return ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH, why
    if s.set_epoch != wanted.sync_state_set_epoch:
        why = refused + f"the set's epoch is {s.set_epoch}, not {wanted.sync_state_set_epoch}"
        return ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, why
    for i in members:
        if i not in s.replicas:
            return ResponseCode.CONTROLLER_INVALID_REPLICAS, refused + f"{i} is not registered"
        if not live.alive(s.cluster, s.broker_name, i):
            return ResponseCode.CONTROLLER_BROKER_NOT_ALIVE, refused + f"{i} is not alive"
    if s.master not in members:
        return ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, refused + f"master {s.master} is always in sync"
    return None


def elect(sets: Sets, h: ElectMasterHeader, live: Lives, *, unclean: bool, zones: Sequence[str] = ()) -> Decision:
    """CONTROLLER_ELECT_MASTER: elect a master, at first the broker that asks, later the one that `elected` returns.

    `unclean`: also a broker that is not in sync; `zones`: whose brokers go first, in this order. A master of ours that
    has taken no messages yet, and may lack some of its log, asks by this request for another in its place, or for a new
    epoch: what it writes is not what others may hold there of the old one.
    """
    s = sets.get(h.broker_name)
    need = ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    if s is None:
        return Decision(need, ElectMasterReply(), remark=f"broker set {h.broker_name} is not registered")
    asking = h.broker_id if h.broker_id != CONTROLLER_ASKS else None
    if s.never_elected and asking is not None:
        # RocketMQ takes any number for the first master, registered or not.
        if asking not in s.replicas:
            why = f"id {asking} of broker set {h.broker_name} is not registered"
            return Decision(need, ElectMasterReply(), remark=why)
        found: int | None = asking
    elif h.may_lack and asking is not None and asking == s.master:
        found = asking if h.designate_elect else in_place_of_master(s, live, unclean=unclean)
        if found is None:
            return _nobody_in_place(s, asking)
    else:
        designated = asking if h.designate_elect and not h.may_lack else None
        found = elected(s, live, designated=designated, unclean=unclean, zones=zones)
    if found is None:
        return _nobody(s, asking)
    return _decided(s, h, live, found)


def _decided(s: ReplicaSet, h: ElectMasterHeader, live: Lives, found: int) -> Decision:
    """Return the decision that `found` is master: an event, unless it is already and does not begin a new epoch."""
    members = ElectMasterBody(sync_state_set=[found])
    answer = ElectMasterReply(
        master_broker_id=found,
        master_address=s.address(found),
        master_epoch=s.master_epoch + 1,
        sync_state_set_epoch=s.set_epoch + 1,
    )
    begins_anew = found == h.broker_id and h.may_lack and h.designate_elect
    if found == s.master and not begins_anew:
        answer.master_epoch, answer.sync_state_set_epoch = s.master_epoch, s.set_epoch
        answer.awaits_word = s.awaits_word or None
        members.sync_state_set = list(s.in_sync)
        why = f"master {found} of {s.broker_name} is alive"
        return Decision(ResponseCode.CONTROLLER_MASTER_STILL_EXIST, answer, bodies.encode(members), why)
    members.broker_member_group = MemberGroup(
        cluster=s.cluster,
        broker_name=s.broker_name,
        broker_addrs={str(i): replica.address for i, replica in s.replicas.items()},
    )
    heirs = heirs_of(s, found, live) if found != s.master else ()
    answer.awaits_word = bool(heirs) or None
    return Decision(header=answer, body=bodies.encode(members), events=(MasterElected(s.broker_name, found, heirs),))


def _nobody_in_place(s: ReplicaSet, asking: int) -> Decision:
    why = (
        f"{asking} of {s.broker_name} may lack what was acknowledged, and not all of {list(s.holders)}, which held it,"
        " are alive: start them; clean the metadata of those that are lost for ever, or enable"
        " enableElectUncleanMaster, to go on without"
    )
    return Decision(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ElectMasterReply(), remark=why)


def _nobody(s: ReplicaSet, asking: int | None) -> Decision:
    why = f"no replica of {s.broker_name} can be master: of those in sync ({list(s.in_sync)}) none is alive and fits"
    if asking is not None:
        return Decision(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, ElectMasterReply(), remark=why)
    # From now on no set of the master that is gone is taken: its epoch is over.
    events = (MasterElected(s.broker_name, None),) if s.master is not None else ()
    return Decision(ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE, ElectMasterReply(), remark=why, events=events)


def clean(sets: Sets, h: CleanBrokerDataHeader, live: Lives) -> Decision:
    """CLEAN_BROKER_DATA: forget a set, or those of its replicas that the request names.

    If the request allows it to forget live replicas, RocketMQ forgets the whole set even if it names some only.
    """
    s = sets.get(h.broker_name)
    ids: tuple[int, ...] | None = None
    why = "" if s is not None else f"broker set {h.broker_name} is not known"
    if h.broker_controller_ids_to_clean and h.broker_controller_ids_to_clean.strip():
        words = [word.strip() for word in h.broker_controller_ids_to_clean.split(";")]
        numbers = [number for word in words if (number := whole_number(word)) is not None]
        ids = tuple(numbers)
        if len(numbers) < len(words):
            text = shown(h.broker_controller_ids_to_clean, characters_max=60)
            why = f"brokerControllerIdsToClean {text!r}: numbers separated by semicolons are needed, as in 1;2"
    if s is not None and not why and not h.is_clean_living_broker:
        if ids is None and s.master is not None:
            why = f"{s.broker_name} has master {s.master}: nothing is cleaned"
        living = [i for i in ids or () if live.alive(s.cluster, s.broker_name, i)]
        if living:
            why = f"{living} of {s.broker_name} are alive: nothing is cleaned"
    if why:
        return Decision(ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA, remark=why)
    return Decision(events=(Cleaned(h.broker_name, ids),))


def without_master(sets: Sets, live: Lives) -> list[str]:
    """Return the names of the sets whose master is dead while another replica lives."""
    return [
        name
        for name, s in sets.items()
        if s.master is not None
        and any(live.alive(s.cluster, name, i) for i in s.replicas if i != s.master)
        and not live.may_live(s.cluster, name, s.master)
    ]


def _members(s: ReplicaSet) -> bytes:
    return bodies.encode(SyncStateSet(sync_state_set=list(s.in_sync), sync_state_set_epoch=s.set_epoch))
