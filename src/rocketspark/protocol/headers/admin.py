"""Ext fields of the requests about a broker itself: its settings, statistics and queues."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header, Long


class RuntimeInfoHeader(Header, kw_only=True, gc=False):
    """GET_BROKER_RUNTIME_INFO (28). `extensions`, our own, asks for values that only our brokers have."""

    extensions: bool | None = None


class ConfigReply(Header, kw_only=True, gc=False):
    """Reply to GET_BROKER_CONFIG (26). `version`: a DataVersion as JSON."""

    version: str


class StatsHeader(Header, kw_only=True, gc=False, rename={"name": "statsName", "key": "statsKey"}):
    """VIEW_BROKER_STATS_DATA (315)."""

    name: str
    key: str


class BrokerConsumeStatsHeader(Header, kw_only=True, gc=False, rename={"order": "isOrder"}):
    """GET_BROKER_CONSUME_STATS (317). `order`: topics whose messages keep an order only."""

    order: bool = False


class QueueUnitsHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={"queue_id": "queueId", "queue_offset": "index", "group": "consumerGroup"},
):
    """QUERY_CONSUME_QUEUE (321): `count` units from `queue_offset` on."""

    topic: str
    queue_id: Long
    queue_offset: Long
    count: Long
    group: str | None = None


class ResumeCheckHeader(Header, kw_only=True, gc=False, rename={"message_id": "msgId"}):
    """RESUME_CHECK_HALF_MESSAGE (323). `message_id`: an offset message id."""

    topic: str | None = None
    message_id: str


class ReadAheadHeader(Header, kw_only=True, gc=False, rename={"mode": "READ_AHEAD_MODE"}):
    """SET_COMMITLOG_READ_MODE (2004). `mode`: madvise's number, 0 for normal, 1 for random."""

    mode: Long


class TimerEngineHeader(Header, kw_only=True, gc=False, rename={"engine": "E_T"}):
    """SWITCH_TIMER_ENGINE (5001). `engine`: F for the wheel in files, R for RocksDB."""

    engine: str


class QuarantinedHeader(Header, kw_only=True, gc=False):
    """RETRY_QUARANTINED (7310002) and DROP_QUARANTINED (7310003). `name`: of one that is set aside."""

    name: str
