"""What operations tell of brokers, their settings and counters, of replicas, and of the traffic of topics and groups.

Rule: values without I/O; rates are messages a second, times ms since 1970, positions bytes of the commit log.
"""

from __future__ import annotations

import re

import msgspec

from rocketspark.admin.cluster_client import BrokerState
from rocketspark.client.connection.broker_api import Counter, HaStatus
from rocketspark.model import MessageQueue
from rocketspark.model.text import whole_number


class BrokerFigures(BrokerState, frozen=True):
    """The state of a broker that runs. `error`: why nothing else is known of it, "" for a broker that answered.

    Attributes:
        version: RocketMQ's, as V5_5_0.
        active: whether it takes part; None if it does not tell.
        in_tps, out_tps: messages stored and given out a second, in the last 10 s.
        in_today, in_yesterday, out_today, out_yesterday: messages of a day, by the broker's clock.
        started_ms, oldest_ms: when it started, and when its oldest message was stored; -1: there is none.
        disk_used, queue_disk_used: shares in use, 0 to 1, of the disks that the log and the queues are on.
        log_start, log_end: the positions between which the log is kept.
        table: all that it told, by RocketMQ's names.
    """

    error: str = ""
    version: str = ""
    active: bool | None = None
    in_tps: float = 0.0
    out_tps: float = 0.0
    in_today: int = 0
    in_yesterday: int = 0
    out_today: int = 0
    out_yesterday: int = 0
    started_ms: int = 0
    oldest_ms: int = -1
    disk_used: float = 0.0
    queue_disk_used: float = 0.0
    log_start: int = 0
    log_end: int = 0
    table: dict[str, str] = {}

    @property
    def role(self) -> str:
        """Return "master" or "slave"."""
        return "master" if self.broker_id == 0 else "slave"


def broker_figures(of: BrokerState, table: dict[str, str]) -> BrokerFigures:
    """Return the state of a broker from the table that it sent; what is missing there, or is no number, is 0."""

    def number(name: str, low: int = 0) -> int:
        return whole_number(table.get(name), low=low) or 0

    def day(what: str, unit: str) -> int:
        return max(0, number(f"msg{what}TotalToday{unit}") - number(f"msg{what}TotalTodayMorning"))

    def yesterday(what: str) -> int:
        return max(0, number(f"msg{what}TotalTodayMorning") - number(f"msg{what}TotalYesterdayMorning"))

    active = table.get("brokerActive")
    return BrokerFigures(
        of.cluster,
        of.broker_name,
        of.broker_id,
        of.address,
        version=table.get("brokerVersionDesc", ""),
        active=None if active is None else active == "true",
        in_tps=_rate(table.get("putTps")),
        # Before 4.0 under another name.
        out_tps=_rate(table.get("getTransferredTps", table.get("getTransferedTps"))),
        in_today=day("Put", "Now"),
        in_yesterday=yesterday("Put"),
        out_today=day("Get", "Now"),
        out_yesterday=yesterday("Get"),
        started_ms=number("bootTimestamp"),
        oldest_ms=whole_number(table.get("earliestMessageTimeStamp"), low=-1) or -1,
        disk_used=_share(table.get("commitLogDiskRatio")),
        queue_disk_used=_share(table.get("consumeQueueDiskRatio")),
        log_start=number("commitLogMinOffset", -1),
        log_end=number("commitLogMaxOffset", -1),
        table=table,
    )


_DECIMAL = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,30})?(?:[eE]-?[0-9]{1,2})?")


def _rate(text: str | None) -> float:
    """Return the first of the rates in a text, that of the last 10 s."""
    return _share((text or "").split(" ")[0])


def _share(text: str | None) -> float:
    return float(text) if text and _DECIMAL.fullmatch(text) else 0.0


class SettingState(msgspec.Struct, frozen=True, order=True):
    """A setting of a broker, by RocketMQ's name.

    `default`: 5.5.0's, None for a key that 5.5.0 does not have. `live`: whether it may change while a broker of ours
    runs, None where a change has no effect on it.
    """

    key: str
    value: str
    default: str | None
    live: bool | None

    @property
    def differs(self) -> bool:
        """Tell whether the value is another one than RocketMQ's default."""
        return self.value != (self.default or "")


def setting_states(values: dict[str, str]) -> list[SettingState]:
    """Return a broker's settings, by key, with what is known of each."""
    # All commands would wait for the broker's modules.
    from rocketspark.broker.ignored_settings import IGNORED
    from rocketspark.broker.settings import FIELDS, BrokerSettings

    plain = BrokerSettings()
    found = []
    for key, value in values.items():
        field = FIELDS.get(key)
        default = IGNORED.get(key) if field is None else field.text_of(plain)
        found.append(SettingState(key, value, default, None if field is None else field.live is not None))
    return sorted(found)


def known_settings() -> set[str]:
    """Return the names of all settings of a broker of RocketMQ 5.5.0, and of ours."""
    from rocketspark.broker.ignored_settings import IGNORED
    from rocketspark.broker.settings import FIELDS

    return set(FIELDS) | set(IGNORED)


class SlaveState(msgspec.Struct, frozen=True):
    """A slave, as its master sees it. `address`: where its connection comes from; `behind`: bytes of the log that it
    lacks.
    """

    address: str
    position: int
    behind: int
    in_sync: bool
    bytes_per_s: int


class ReplicationState(msgspec.Struct, frozen=True):
    """How replication stands on one broker: a master's slaves, or a slave's link to its master.

    `log_end`: where its log ends, `in_sync_slaves`: how many slaves are in sync, as a master counts them;
    `master_address`: the replication address that a slave copies from, `connected`: whether it does now.
    """

    broker_name: str
    address: str
    is_master: bool
    log_end: int
    in_sync_slaves: int = 0
    slaves: tuple[SlaveState, ...] = ()
    master_address: str = ""
    connected: bool = False


def replication_state(of: BrokerState, told: HaStatus) -> ReplicationState:
    """Return how replication stands on a broker, by the broker's own report."""
    if told.master or told.ha_client_runtime_info is None:
        slaves = tuple(
            SlaveState(link.addr, link.slave_ack_offset, link.diff, link.in_sync, link.transferred_byte_in_second)
            for link in told.ha_connection_info
        )
        end = told.master_commit_log_max_offset
        return ReplicationState(of.broker_name, of.address, True, end, told.in_sync_slave_nums, slaves)
    link = told.ha_client_runtime_info
    return ReplicationState(
        *(of.broker_name, of.address, False, link.max_offset),
        master_address=link.master_addr or "",
        connected=link.activated,
    )


class Replica(msgspec.Struct, frozen=True, order=True):
    """One replica of a broker name under a controller. `replica_id`: the controller's number for it."""

    replica_id: int
    address: str
    alive: bool
    in_sync: bool


class ReplicaSet(msgspec.Struct, frozen=True):
    """The replicas of one broker name, as the controller knows them; `in_sync_epoch` is the number of the in-sync set.

    `master_address` is "" while there is no master.
    """

    broker_name: str
    controller: str
    master_address: str
    master_epoch: int
    in_sync_epoch: int
    replicas: tuple[Replica, ...]


class QueueStats(msgspec.Struct, frozen=True):
    """A queue's offsets; `last_update_ms`: when its last message was stored, 0 without one."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


class TopicStats(msgspec.Struct, frozen=True):
    """A topic's queues on all masters, and the messages sent to it a second in the last minute."""

    topic: str
    queues: tuple[QueueStats, ...]
    in_tps: float


class TopicTraffic(msgspec.Struct, frozen=True, order=True):
    """A topic, on all masters: its settings, messages in a second in the last minute, and in the last day, and the
    groups that read it. Nothing is counted of a topic whose rates were not asked for.
    """

    topic: str
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    perm: int
    message_type: str
    in_tps: float = 0.0
    in_day: int = 0
    groups: tuple[str, ...] = ()


class GroupTraffic(msgspec.Struct, frozen=True, order=True):
    """A group in one topic, on all masters: messages it has yet to consume, messages given out and not yet consumed,
    and messages out a second in the last minute.
    """

    group: str
    topic: str
    lag: int
    in_flight: int
    out_tps: float


def day_sum(counter: Counter) -> int:
    """Return what a counter counted in the last day, or in as much of it as the broker has run (rule: statsAll)."""
    return counter.stats_day.sum or counter.stats_hour.sum or counter.stats_minute.sum
