"""A broker's settings, by RocketMQ's names in broker.conf. Rule: a promise we cannot keep refuses to start.

A key that RocketMQ does not know is a warning; one whose value is wrong is an error that names it. Those that have no
effect here are in ignored_settings.py. Defaults: 5.5.0's, but for names, addresses and folders.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec

from rocketspark.broker.ignored_settings import IGNORED, IGNORED_UNSET, UNKEPT_PROMISES
from rocketspark.errors import ConfigError
from rocketspark.model.text import INT_MAX, LONG_MAX, shown, whole_number
from rocketspark.store.settings import StoreSettings
from rocketspark.transport.connections import parse_addresses

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
# The limit of queues of a topic: a request that visits each queue would block the loop for long.
QUEUES_MAX = 65_536
DELAY_MS_MAX = 1 << 53
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_QUEUE_UNIT_BYTES = 20
_BATCH_QUEUE_UNIT_BYTES = 46

# The kinds of numbers, each with its bounds: those of Java's int, but where another one harms.
Whole = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
# With 0 or less a loop would never pause.
Interval = Annotated[int, msgspec.Meta(ge=1, le=INT_MAX)]
# A time that is only compared with, a long in Java: some set one that is never reached.
Time = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=LONG_MAX)]
# Any number: RocketMQ bounds these by itself, or gives 0 and less a meaning.
Whatever = Annotated[int, msgspec.Meta(ge=-INT_MAX - 1, le=INT_MAX)]
Idle = Annotated[int, msgspec.Meta(ge=-1000 * (INT_MAX + 1), le=1000 * INT_MAX)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Permission = Annotated[int, msgspec.Meta(ge=0, le=7)]
QueueCount = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)]
FileBytes = Annotated[int, msgspec.Meta(ge=4096, le=INT_MAX)]
QueueBytes = Annotated[int, msgspec.Meta(ge=_QUEUE_UNIT_BYTES, le=INT_MAX)]
BatchQueueBytes = Annotated[int, msgspec.Meta(ge=_BATCH_QUEUE_UNIT_BYTES, le=INT_MAX)]
TEXT_LENGTH_MAX = 4096
_CONTROL = re.compile("[\x00-\x1f\x7f]")


class BrokerSettings(msgspec.Struct, kw_only=True):
    """One broker. Times in ms, sizes in bytes; the comment gives broker.conf's key where it differs in kind."""

    broker_name: str = msgspec.field(name="brokerName", default="broker-a")
    cluster_name: str = msgspec.field(name="brokerClusterName", default="DefaultCluster")
    broker_id: Whole = msgspec.field(name="brokerId", default=0)
    broker_role: str = msgspec.field(name="brokerRole", default="ASYNC_MASTER")
    listen_port: Port = msgspec.field(name="listenPort", default=10911)
    # bindAddress: the interface; brokerIP1: the address that clients are told.
    listen_host: str = msgspec.field(name="bindAddress", default="127.0.0.1")
    advertised_host: str = msgspec.field(name="brokerIP1", default="")
    namesrv_addresses: str = msgspec.field(name="namesrvAddr", default="")
    register_interval_ms: Whatever = msgspec.field(name="registerNameServerPeriod", default=30_000)
    broker_permission: Permission = msgspec.field(name="brokerPermission", default=6)
    region: str = msgspec.field(name="regionId", default="DefaultRegion")
    trace_on: bool = msgspec.field(name="traceOn", default=True)

    store_root: str = msgspec.field(name="storePathRootDir", default="store")
    store_commit_log: str = msgspec.field(name="storePathCommitLog", default="")
    log_file_bytes: FileBytes = msgspec.field(name="mappedFileSizeCommitLog", default=1 << 30)
    queue_file_bytes: QueueBytes = msgspec.field(name="mappedFileSizeConsumeQueue", default=300_000 * _QUEUE_UNIT_BYTES)
    queue_ext: bool = msgspec.field(name="enableConsumeQueueExt", default=False)
    queue_ext_file_bytes: FileBytes = msgspec.field(name="mappedFileSizeConsumeQueueExt", default=48 << 20)
    batch_queue_file_bytes: BatchQueueBytes = msgspec.field(
        name="mapperFileSizeBatchConsumeQueue", default=300_000 * _BATCH_QUEUE_UNIT_BYTES
    )
    append_record_crc: bool = msgspec.field(name="enabledAppendPropCRC", default=False)
    verify_record_crc: bool = msgspec.field(name="forceVerifyPropCRC", default=False)
    index_enabled: bool = msgspec.field(name="messageIndexEnable", default=True)
    index_slots: Positive = msgspec.field(name="maxHashSlotNum", default=5_000_000)
    index_entries: Positive = msgspec.field(name="maxIndexNum", default=20_000_000)
    message_bytes_max: Positive = msgspec.field(name="maxMessageSize", default=4 << 20)
    delay_levels: str = msgspec.field(name="messageDelayLevel", default=DELAY_LEVELS)
    flush_disk_type: str = msgspec.field(name="flushDiskType", default="ASYNC_FLUSH")
    flush_interval_ms: Interval = msgspec.field(name="flushIntervalCommitLog", default=500)
    flush_queue_interval_ms: Interval = msgspec.field(name="flushIntervalConsumeQueue", default=1000)
    flush_timeout_ms: Interval = msgspec.field(name="syncFlushTimeout", default=5000)
    flush_offsets_interval_ms: Interval = msgspec.field(name="flushConsumerOffsetInterval", default=5000)
    flush_delay_offset_interval_ms: Interval = msgspec.field(name="flushDelayOffsetInterval", default=10_000)
    # In hours; hours of the day separated by semicolons; percent of the disk.
    reserved_hours: Whole = msgspec.field(name="fileReservedTime", default=72)
    delete_when: str = msgspec.field(name="deleteWhen", default="04")
    disk_clean_percent: Whatever = msgspec.field(name="diskMaxUsedSpaceRatio", default=75)
    disk_force_percent: Whatever = msgspec.field(name="diskSpaceCleanForciblyRatio", default=85)
    disk_refuse_percent: Whatever = msgspec.field(name="diskSpaceWarningLevelRatio", default=90)
    clean_by_force: bool = msgspec.field(name="cleanFileForciblyEnable", default=True)
    clean_interval_ms: Interval = msgspec.field(name="cleanResourceInterval", default=10_000)
    clean_pause_ms: Whole = msgspec.field(name="deleteCommitLogFilesInterval", default=100)
    clean_files_max: Positive = msgspec.field(name="deleteFileBatchMax", default=10)

    auto_create_topic: bool = msgspec.field(name="autoCreateTopicEnable", default=True)
    auto_create_group: bool = msgspec.field(name="autoCreateSubscriptionGroup", default=True)
    default_topic_queue_count: QueueCount = msgspec.field(name="defaultTopicQueueNums", default=8)
    cluster_topic_enabled: bool = msgspec.field(name="clusterTopicEnable", default=True)
    broker_topic_enabled: bool = msgspec.field(name="brokerTopicEnable", default=True)
    trace_topic_enabled: bool = msgspec.field(name="traceTopicEnable", default=False)
    trace_topic: str = msgspec.field(name="msgTraceTopicName", default="RMQ_SYS_TRACE_TOPIC")

    transaction_timeout_ms: Time = msgspec.field(name="transactionTimeOut", default=6000)
    transaction_check_interval_ms: Interval = msgspec.field(name="transactionCheckInterval", default=30_000)
    transaction_checks_max: Whole = msgspec.field(name="transactionCheckMax", default=15)
    store_replies: bool = msgspec.field(name="storeReplyMessageEnable", default=True)
    reject_transactions: bool = msgspec.field(name="rejectTransactionMessage", default=False)

    timers_enabled: bool = msgspec.field(name="timerWheelEnable", default=True)
    timer_precision_ms: Positive = msgspec.field(name="timerPrecisionMs", default=1000)
    timer_delay_max_s: Positive = msgspec.field(name="timerMaxDelaySec", default=259_200)
    timer_roll_slots: Whatever = msgspec.field(name="timerRollWindowSlot", default=172_800)
    timer_log_file_bytes: FileBytes = msgspec.field(name="mappedFileSizeTimerLog", default=100 << 20)
    recall_enabled: bool = msgspec.field(name="recallMessageEnable", default=False)
    recall_when_not_writable: bool = msgspec.field(name="allowRecallWhenBrokerNotWriteable", default=True)

    property_filter: bool = msgspec.field(name="enablePropertyFilter", default=False)
    long_polling: bool = msgspec.field(name="longPollingEnable", default=True)
    # The time that a pull is held where long polling is off.
    short_polling_ms: Interval = msgspec.field(name="shortPollingTimeMills", default=1000)
    pull_count_max: Positive = msgspec.field(name="maxTransferCountOnMessageInMemory", default=32)
    pull_bytes_max: Positive = msgspec.field(name="maxTransferBytesOnMessageInMemory", default=256 << 10)
    reset_offsets_here: bool = msgspec.field(name="useServerSideResetOffset", default=True)
    notify_group_changes: bool = msgspec.field(name="notifyConsumerIdsChangedEnable", default=True)
    # In seconds in broker.conf. 0 or less: however long it is silent, as Netty has it.
    client_idle_ms: Idle = msgspec.field(name="serverChannelMaxIdleTimeSeconds", default=120_000)
    client_expiry_ms: Limit = msgspec.field(name="channelExpiredTimeout", default=120_000)
    lock_expiry_ms: int = 60_000
    # Ours alone. 0: what the limit of open files leaves beside the store's.
    connections_max: Whole = msgspec.field(name="maxConnections", default=0)

    # Fast failure: its limits, and the time that a request may have waited, in ms.
    refuse_when_behind: bool = msgspec.field(name="brokerFastFailureEnable", default=True)
    send_wait_max_ms: Limit = msgspec.field(name="waitTimeMillsInSendQueue", default=200)
    pull_wait_max_ms: Limit = msgspec.field(name="waitTimeMillsInPullQueue", default=5000)
    lite_pull_wait_max_ms: Limit = msgspec.field(name="waitTimeMillsInLitePullQueue", default=5000)
    heartbeat_wait_max_ms: Limit = msgspec.field(name="waitTimeMillsInHeartbeatQueue", default=31_000)
    transaction_wait_max_ms: Limit = msgspec.field(name="waitTimeMillsInTransactionQueue", default=3000)
    slow_put_ms: Time = msgspec.field(name="osPageCacheBusyTimeOutMills", default=1000)
    waiting_sends_max: Positive = msgspec.field(name="sendThreadPoolQueueCapacity", default=10_000)

    # DISABLE or PROM; an empty host is loopback.
    metrics_exporter: str = msgspec.field(name="metricsExporterType", default="DISABLE")
    metrics_port: Port = msgspec.field(name="metricsPromExporterPort", default=5557)
    metrics_host: str = msgspec.field(name="metricsPromExporterHost", default="")
    # Keys that UPDATE_BROKER_CONFIG may not change, separated by semicolons.
    fixed_keys: str = msgspec.field(name="configBlackList", default="configBlackList;brokerConfigPath")

    # Promises that are not kept yet: any other value refuses to start.
    dledger: bool = msgspec.field(name="enableDLegerCommitLog", default=False)
    controller_mode: bool = msgspec.field(name="enableControllerMode", default=False)
    acl: bool = msgspec.field(name="aclEnable", default=False)
    authentication: bool = msgspec.field(name="authenticationEnabled", default=False)
    authorization: bool = msgspec.field(name="authorizationEnabled", default=False)
    transient_pool: bool = msgspec.field(name="transientStorePoolEnable", default=False)
    slave_acting_master: bool = msgspec.field(name="enableSlaveActingMaster", default=False)
    store_type: str = msgspec.field(name="storeType", default="default")

    # Values of keys that have no effect here, and the file that all came from.
    ignored: dict[str, str] = {}
    conf_path: str = ""

    @property
    def host(self) -> str:
        """The address clients are told, IPv6 without brackets."""
        host = self.advertised_host or ("" if self.listen_host == "0.0.0.0" else self.listen_host) or "127.0.0.1"
        return host.removeprefix("[").removesuffix("]")

    def address(self, port: int) -> str:
        """ "host:port" that clients are told; IPv6 in brackets, as RocketMQ registers one that it finds itself."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def registration_ms(self) -> int:
        """The time between registrations: 10 s for 0 or less, a minute at most, half of what a NameServer waits for.

        Rule: registerNameServerPeriod is kept between 10 s and a minute in 5.x; shorter times stay here, for tests.
        """
        return min(self.register_interval_ms, 60_000) if self.register_interval_ms > 0 else 10_000

    @property
    def sync_flush(self) -> bool:
        """True if a message must be on disk before its reply."""
        return self.flush_disk_type == "SYNC_FLUSH"

    def delays_ms(self) -> tuple[int, ...]:
        """Return the delay of each level, level 1 first. Raises ConfigError for an invalid text."""
        delays = []
        for word in self.delay_levels.split():
            number, unit_ms = whole_number(word[:-1]), _UNIT_MS.get(word[-1])
            if number is None or unit_ms is None or number * unit_ms > DELAY_MS_MAX:
                raise ConfigError(
                    f"messageDelayLevel {shown(self.delay_levels)!r}: numbers with s, m, h or d are needed,"
                    f" as in {DELAY_LEVELS!r}"
                )
            delays.append(number * unit_ms)
        return tuple(delays)

    def delete_hours(self) -> frozenset[int]:
        """Return the hours of the day at which old files go. Raises ConfigError for an invalid text."""
        words = [word.strip() for word in self.delete_when.split(";") if word.strip()]
        if any(whole_number(word, high=23) is None for word in words):
            raise ConfigError(f"deleteWhen {self.delete_when!r}: hours from 00 to 23 are needed, as in '04' or '04;16'")
        return frozenset(map(int, words))

    def namesrvs(self) -> list[str]:
        """Return the NameServer addresses; empty if none are set."""
        # One may be named twice, by broker.conf and by the command line.
        return list(dict.fromkeys(parse_addresses(self.namesrv_addresses))) if self.namesrv_addresses.strip() else []

    def store_settings(self) -> StoreSettings:
        """Return the settings of the store."""
        unit = _QUEUE_UNIT_BYTES
        return StoreSettings(
            root=self.store_root,
            commit_log=self.store_commit_log or None,
            log_file_bytes=self.log_file_bytes,
            # A size that is no multiple of the unit is rounded up (rule: MessageStoreConfig, 5.x).
            queue_file_units=-(-self.queue_file_bytes // unit),
            queue_ext=self.queue_ext,
            queue_ext_file_bytes=self.queue_ext_file_bytes,
            batch_queue_file_units=-(-self.batch_queue_file_bytes // _BATCH_QUEUE_UNIT_BYTES),
            append_record_crc=self.append_record_crc,
            verify_record_crc=self.verify_record_crc,
            index_slots=self.index_slots,
            index_entries=self.index_entries,
            index_enabled=self.index_enabled,
            message_bytes_max=self.message_bytes_max,
            delay_ms=self.delays_ms(),
        )

    def check(self) -> None:
        """Raise ConfigError for a value out of its bounds, and for a setting whose promise cannot be kept."""
        for name, info in FIELDS.items():
            given = getattr(self, info.name)
            _in_bounds(name, str(given // 1000 if name in SECONDS_KEYS else given), info.type)
        if self.broker_role != "ASYNC_MASTER":
            raise ConfigError(
                f"brokerRole {self.broker_role} needs replication, which is not supported yet; use ASYNC_MASTER"
            )
        if self.broker_id != 0:
            raise ConfigError(f"brokerId {self.broker_id} is a slave's, which is not supported yet; use 0")
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(f"flushDiskType {self.flush_disk_type!r}: ASYNC_FLUSH or SYNC_FLUSH is needed")
        if self.store_type != "default":
            raise ConfigError(f"storeType {self.store_type!r} is not supported; use default")
        for field in ("dledger", "controller_mode", "acl", "authentication", "authorization", "slave_acting_master"):
            if getattr(self, field):
                key = next(f.encode_name for f in msgspec.structs.fields(self) if f.name == field)
                raise ConfigError(f"{key}=true is not supported yet; remove it or set it to false")
        if self.timer_precision_ms not in (100, 200, 500, 1000):
            raise ConfigError(f"timerPrecisionMs {self.timer_precision_ms} is not supported; use 100, 200, 500 or 1000")
        if self.metrics_exporter not in ("DISABLE", "PROM"):
            raise ConfigError(f"metricsExporterType {self.metrics_exporter!r} is not supported; use DISABLE or PROM")
        for key, harmless in UNKEPT_PROMISES.items():
            value = self.ignored.get(key)
            if value is not None and value not in harmless:
                raise ConfigError(f"{key}={value} is not supported yet; remove it")
        self.delays_ms()
        self.delete_hours()
        self.namesrvs()

    def properties(self) -> dict[str, str]:
        """Return every key of 5.5.0 with its value as text, sorted; those without a value are left out."""
        table = IGNORED | self.ignored
        for field in FIELDS.values():
            value = getattr(self, field.name)
            if field.encode_name in SECONDS_KEYS:
                value //= 1000
            table[field.encode_name] = str(value).lower() if isinstance(value, bool) else str(value)
        table["brokerIP1"] = self.host
        table["brokerIP2"] = table["brokerIP2"] or self.host
        return {
            key: table[key] for key in sorted(table) if key not in _ELSEWHERE and (table[key] or key in _MAY_BE_EMPTY)
        }


# The fields that have a key, by it.
FIELDS = {f.encode_name: f for f in msgspec.structs.fields(BrokerSettings) if f.encode_name != f.name}
SECONDS_KEYS = frozenset({"serverChannelMaxIdleTimeSeconds"})
# Not among the broker's own settings in 5.5.0.
_ELSEWHERE = frozenset({"authenticationEnabled", "authorizationEnabled"})
_MAY_BE_EMPTY = frozenset(key for key, default in IGNORED.items() if not default) | {"metricsPromExporterHost"}


# Keys that name a place which is always below the store's folder (rule: StorePathConfigHelper, 5.5.0).
_FIXED_PLACES = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}


def read_broker_conf(path: str | os.PathLike[str]) -> tuple[BrokerSettings, list[str]]:
    """Return (settings, warnings) of a broker.conf. Raises ConfigError if it cannot be read or a value is wrong."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    values = parse_properties(text, str(path))
    try:
        settings, unknown = settings_from(values)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
    settings.conf_path = str(path)
    warnings = [f"{path}: unknown key {key!r} is ignored" for key in unknown]
    for key, name in _FIXED_PLACES.items():
        place = f"{settings.store_root}/{name}"
        if values.get(key) and os.path.abspath(values[key]) != os.path.abspath(place):
            warnings.append(f"{path}: {key} has no effect, as in RocketMQ: its place is {place} (storePathRootDir)")
    return settings, warnings


def parse_properties(text: str, where: str) -> dict[str, str]:
    """Return keys and values of lines `key=value`. Raises ConfigError naming `where` and the malformed line."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ConfigError(f"{where} line {number}: {line!r} is no key=value")
        values[key.strip()] = value.strip()
    return values


def settings_from(values: dict[str, str]) -> tuple[BrokerSettings, list[str]]:
    """(settings, unknown keys) from broker.conf's keys and text values. Raises ConfigError naming a wrong value."""
    taken, ignored, unknown = convert(values)
    settings = BrokerSettings(**taken, ignored=ignored)
    settings.check()
    return settings, unknown


def convert(values: dict[str, str]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return (fields and their values, keys without effect, unknown keys). Raises ConfigError naming a wrong value."""
    taken: dict[str, Any] = {}
    ignored: dict[str, str] = {}
    unknown = []
    for key, value in values.items():
        # RocketMQ wrote both spellings over the years.
        name = key if key in FIELDS or key in IGNORED else key.replace("mapedFile", "mappedFile")
        field = FIELDS.get(name)
        if field is None:
            if name in IGNORED or name in UNKEPT_PROMISES:
                ignored[name] = value
            elif name not in IGNORED_UNSET:
                unknown.append(key)
            continue
        taken[field.name] = _in_bounds(key, value, field.type)
        if name in SECONDS_KEYS:
            taken[field.name] *= 1000
    return taken, ignored, unknown


def _in_bounds(key: str, text: str, kind: Any) -> Any:
    """Return the value of a setting's text, by its kind. Raises ConfigError naming the key and the valid values."""
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise ConfigError(f"{key}={shown(text)!r}: true or false is needed")
    if kind is str:
        if len(text) > TEXT_LENGTH_MAX or _CONTROL.search(text):
            raise ConfigError(
                f"{key}={shown(text)!r}: a text of at most {TEXT_LENGTH_MAX} characters is needed, none of them a"
                " control character"
            )
        return text
    _, meta = get_args(kind)
    unit = 1000 if key in SECONDS_KEYS else 1
    low, high = -(-meta.ge // unit), meta.le // unit
    number = whole_number(text, low=low, high=high)
    if number is None:
        raise ConfigError(f"{key}={shown(text)!r}: a whole number is needed, from {low} to {high}")
    return number
