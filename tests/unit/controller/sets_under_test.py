"""Sets of replicas in memory, asked and changed as a controller would, with lives that a test sets."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from rocketspark.controller import replicas_info
from rocketspark.controller.elections import LogEnd
from rocketspark.controller.replica_sets import ReplicaSet, Sets, apply
from rocketspark.controller.replicas_info import Decision
from rocketspark.protocol.headers.controller import (
    AlterSyncStateSetHeader,
    ApplyBrokerIdHeader,
    BrokerSetHeader,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    NextBrokerIdReply,
    RegisterToControllerHeader,
)
from rocketspark.protocol.json.operator_bodies import SyncStateSet

CLUSTER, NAME = "cluster-a", "broker-set-a"


class SetLives:
    """Lives by id. `ends`: how far their logs go; `unheard`: those that may live."""

    def __init__(self, living: Iterable[int] = ()) -> None:
        self.living = set(living)
        self.unheard: set[int] = set()
        self.ends: dict[int, LogEnd] = {}

    def alive(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        return cluster == CLUSTER and broker_id in self.living

    def may_live(self, cluster: str, broker_name: str, broker_id: int) -> bool:
        return self.alive(cluster, broker_name, broker_id) or broker_id in self.unheard

    def log_end(self, cluster: str, broker_name: str, broker_id: int) -> LogEnd:
        return self.ends.get(broker_id, LogEnd())


class Controlled:
    """The sets of a controller; each call decides, applies the events, and returns the decision."""

    def __init__(self, living: Iterable[int] = (1, 2, 3)) -> None:
        self.sets: Sets = {}
        self.lives = SetLives(living)
        self.unclean = False
        self.zones: tuple[str, ...] = ()

    @property
    def set(self) -> ReplicaSet:
        return self.sets[NAME]

    def done(self, decision: Decision) -> Decision:
        self.sets = functools.reduce(apply, decision.events, self.sets)
        return decision

    def next_id(self) -> int:
        answer = replicas_info.next_id(self.sets, BrokerSetHeader(cluster_name=CLUSTER, broker_name=NAME)).header
        assert isinstance(answer, NextBrokerIdReply)
        return answer.next_broker_id

    def apply_id(self, broker_id: int, code: str = "") -> Decision:
        header = ApplyBrokerIdHeader(
            cluster_name=CLUSTER,
            broker_name=NAME,
            applied_broker_id=broker_id,
            register_check_code=code or f"{address(broker_id)};{broker_id}",
        )
        return self.done(replicas_info.apply_id(self.sets, header))

    def register(self, broker_id: int, where: str = "") -> Decision:
        header = RegisterToControllerHeader(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_id=broker_id,
            broker_address=where or address(broker_id),
        )
        return self.done(replicas_info.register(self.sets, header, self.lives))

    def elect(self, broker_id: int = -1, *, designate: bool = False, may_lack: bool = False) -> Decision:
        header = ElectMasterHeader(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_id=broker_id,
            designate_elect=designate,
            may_lack=may_lack or None,
        )
        return self.done(replicas_info.elect(self.sets, header, self.lives, unclean=self.unclean, zones=self.zones))

    def alter(self, master: int, epoch: int, members: Iterable[int], set_epoch: int) -> Decision:
        header = AlterSyncStateSetHeader(broker_name=NAME, master_broker_id=master, master_epoch=epoch)
        wanted = SyncStateSet(sync_state_set=list(members), sync_state_set_epoch=set_epoch)
        return self.done(replicas_info.alter(self.sets, header, wanted, self.lives))

    def clean(self, ids: str | None = None, *, living: bool = False) -> Decision:
        header = CleanBrokerDataHeader(
            cluster_name=CLUSTER,
            broker_name=NAME,
            broker_controller_ids_to_clean=ids,
            is_clean_living_broker=living,
        )
        return self.done(replicas_info.clean(self.sets, header, self.lives))


def address(broker_id: int) -> str:
    return f"127.0.0.1:{9000 + broker_id}"


def three_in_sync() -> Controlled:
    """Three brokers, 1 the master, all of them in sync and alive."""
    state = Controlled()
    for broker_id in (1, 2, 3):
        assert state.next_id() == broker_id
        assert state.apply_id(broker_id).code == 0
        assert state.register(broker_id).code == 0
    assert state.elect(1).code == 0
    assert [state.elect(2).code, state.elect(3).code] == [2011, 2011]
    assert state.alter(1, 1, [1, 2, 3], 1).code == 0
    return state
