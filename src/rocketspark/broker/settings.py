"""A broker's settings, by RocketMQ's names in broker.conf. Rule: a promise we cannot keep refuses to start.

Each is declared once, in `BrokerSettings`, by the kinds of declared_settings.py: key, default, bounds, unit, and who
hears of a change while the broker runs. `FIELDS` is the table of them. Those of the store are here too
(`store_settings` hands them down). Those that have no effect here are in ignored_settings.py; broker_conf.py reads a
file of them. Defaults: 5.5.0's, but for names, addresses and folders.
"""

from __future__ import annotations

import os

import msgspec

from rocketspark.broker.access.settings import AccessSettings
from rocketspark.broker.declared_settings import (
    AT_USE,
    BATCH_QUEUE_UNIT_BYTES,
    DECLARED,
    QUEUE_UNIT_BYTES,
    BatchQueueBytes,
    BrokerId,
    ExportInterval,
    FileBytes,
    FileCount,
    Hearer,
    Idle,
    Interval,
    Limit,
    Percent,
    Permission,
    Port,
    Positive,
    Priority,
    QueueBytes,
    QueueCount,
    ReviveQueues,
    Secret,
    Setting,
    Time,
    Whatever,
    Whole,
    setting,
)
from rocketspark.broker.ignored_settings import IGNORED, UNKEPT_PROMISES
from rocketspark.broker.tiered_settings import PLUG_IN, TieredSettings
from rocketspark.errors import ConfigError
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.store.settings import StoreSettings
from rocketspark.transport.connections import is_loopback, parse_addresses
from rocketspark.transport.metrics.settings import PROM, ExportSettings
from rocketspark.transport.tls.settings import TlsSettings

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_MS_MAX = 1 << 53
# What clients on this machine reach a server by that listens on all interfaces.
_LOOPBACK_OF = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}

_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
BROKER_ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")


class BrokerSettings(msgspec.Struct, kw_only=True):
    """The settings of one broker; the type of each field says within which bounds its value must be."""

    broker_name: str = setting("brokerName", "broker-a")
    cluster_name: str = setting("brokerClusterName", "DefaultCluster")
    # 0 the master, others slaves; -1 where a controller gives it.
    broker_id: BrokerId = setting("brokerId", 0)
    broker_role: str = setting("brokerRole", "ASYNC_MASTER")
    listen_port: Port = setting("listenPort", 10911)
    # bindAddress: the interface; brokerIP1: the address that clients are told.
    listen_host: str = setting("bindAddress", "127.0.0.1")
    advertised_host: str = setting("brokerIP1", "")
    namesrv_addresses: str = setting("namesrvAddr", "")
    register_interval_ms: Whatever = setting("registerNameServerPeriod", 30_000, unit="ms")
    split_registration: bool = setting("enableSplitRegistration", False, live=AT_USE)
    split_registration_topics: Positive = setting("splitRegistrationSize", 800, live=AT_USE)
    broker_permission: Permission = setting("brokerPermission", 6, live=(Hearer.MESSAGES, Hearer.TOPICS))
    region: str = setting("regionId", "DefaultRegion", live=(Hearer.MESSAGES, Hearer.REPLIES))
    trace_on: bool = setting("traceOn", True, live=(Hearer.MESSAGES, Hearer.REPLIES))

    store_root: str = setting("storePathRootDir", "store")
    store_commit_log: str = setting("storePathCommitLog", "")
    log_file_bytes: FileBytes = setting("mappedFileSizeCommitLog", 1 << 30, unit="bytes")
    queue_file_bytes: QueueBytes = setting("mappedFileSizeConsumeQueue", 300_000 * QUEUE_UNIT_BYTES, unit="bytes")
    queue_ext: bool = setting("enableConsumeQueueExt", False)
    queue_ext_file_bytes: FileBytes = setting("mappedFileSizeConsumeQueueExt", 48 << 20, unit="bytes")
    batch_queue_file_bytes: BatchQueueBytes = setting(
        "mapperFileSizeBatchConsumeQueue", 300_000 * BATCH_QUEUE_UNIT_BYTES, unit="bytes"
    )
    # Both together give light queues (see `light_queues`).
    lmq: bool = setting("enableLmq", False)
    multi_dispatch: bool = setting("enableMultiDispatch", False)
    lmq_stats: bool = setting("enableLmqStats", False)
    light_queues_max: Positive = setting("maxLmqConsumeQueueNum", 20_000)
    compaction: bool = setting("enableCompaction", True)
    compaction_interval_ms: Interval = setting("compactionScheduleInternal", 900_000, unit="ms", live=AT_USE)
    compaction_log_bytes: FileBytes = setting("compactionMappedFileSize", 100 << 20, unit="bytes")
    compaction_units_bytes: FileBytes = setting("compactionCqMappedFileSize", 10 << 20, unit="bytes")
    compaction_keys_bytes: Positive = setting("maxOffsetMapSize", 100 << 20, unit="bytes")
    append_record_crc: bool = setting("enabledAppendPropCRC", False)
    verify_record_crc: bool = setting("forceVerifyPropCRC", False)
    index_enabled: bool = setting("messageIndexEnable", True)
    index_slots: Positive = setting("maxHashSlotNum", 5_000_000)
    index_entries: Positive = setting("maxIndexNum", 20_000_000)
    message_bytes_max: Positive = setting("maxMessageSize", 4 << 20, unit="bytes", live=(Hearer.MESSAGES,))
    delay_levels: str = setting("messageDelayLevel", DELAY_LEVELS)
    flush_disk_type: str = setting("flushDiskType", "ASYNC_FLUSH")
    flush_interval_ms: Interval = setting("flushIntervalCommitLog", 500, unit="ms", live=(Hearer.FLUSH,))
    flush_queue_interval_ms: Interval = setting("flushIntervalConsumeQueue", 1000, unit="ms", live=(Hearer.FLUSH,))
    flush_timeout_ms: Interval = setting("syncFlushTimeout", 5000, unit="ms", live=(Hearer.FLUSH,))
    flush_offsets_interval_ms: Interval = setting("flushConsumerOffsetInterval", 5000, unit="ms", live=AT_USE)
    # Commits, and deliveries of delay levels, after which the version of their table rises.
    offset_version_step: Positive = setting("consumerOffsetUpdateVersionStep", 500, live=AT_USE)
    delay_version_step: Positive = setting("delayOffsetUpdateVersionStep", 200, live=AT_USE)
    # Topics or groups of one reply to a slave.
    split_metadata: bool = setting("enableSplitMetadata", True, live=AT_USE)
    split_metadata_rows: Positive = setting("splitMetadataSize", 2000, live=AT_USE)
    flush_delay_offset_interval_ms: Interval = setting("flushDelayOffsetInterval", 10_000, unit="ms", live=AT_USE)
    # deleteWhen: hours of the day, separated by semicolons.
    reserved_hours: Whole = setting("fileReservedTime", 72, unit="hours", live=(Hearer.TRANSACTIONS,))
    delete_when: str = setting("deleteWhen", "04", live=AT_USE)
    disk_clean_percent: Whatever = setting("diskMaxUsedSpaceRatio", 75, unit="percent", live=AT_USE)
    disk_force_percent: Whatever = setting("diskSpaceCleanForciblyRatio", 85, unit="percent", live=AT_USE)
    disk_refuse_percent: Whatever = setting("diskSpaceWarningLevelRatio", 90, unit="percent", live=AT_USE)
    clean_by_force: bool = setting("cleanFileForciblyEnable", True, live=AT_USE)
    clean_interval_ms: Interval = setting("cleanResourceInterval", 10_000, unit="ms", live=AT_USE)
    clean_pause_ms: Whole = setting("deleteCommitLogFilesInterval", 100, unit="ms", live=AT_USE)
    clean_files_max: Positive = setting("deleteFileBatchMax", 10, live=AT_USE)

    auto_create_topic: bool = setting("autoCreateTopicEnable", True, live=(Hearer.TOPICS,))
    auto_create_group: bool = setting("autoCreateSubscriptionGroup", True, live=AT_USE)
    # Ours alone: what clients may make by asking, of all and by one address.
    auto_topics_max: Whole = setting("maxAutoCreateTopics", 50_000, live=AT_USE)
    auto_groups_max: Whole = setting("maxAutoCreateGroups", 50_000, live=AT_USE)
    auto_creations_per_minute: Whole = setting("maxAutoCreatePerMinute", 5000, live=AT_USE)
    offset_rows_max: Whole = setting("maxConsumerOffsets", 500_000, live=AT_USE)
    default_topic_queue_count: QueueCount = setting("defaultTopicQueueNums", 8)
    cluster_topic_enabled: bool = setting("clusterTopicEnable", True)
    broker_topic_enabled: bool = setting("brokerTopicEnable", True)
    trace_topic_enabled: bool = setting("traceTopicEnable", False)
    trace_topic: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")

    transaction_timeout_ms: Time = setting("transactionTimeOut", 6000, unit="ms", live=(Hearer.TRANSACTIONS,))
    transaction_check_interval_ms: Interval = setting(
        "transactionCheckInterval", 30_000, unit="ms", live=(Hearer.TRANSACTIONS,)
    )
    transaction_checks_max: Whole = setting("transactionCheckMax", 15, live=(Hearer.TRANSACTIONS,))
    open_halves_max: Whole = setting("maxOpenHalfMessages", 1_000_000, live=(Hearer.TRANSACTIONS,))
    store_replies: bool = setting("storeReplyMessageEnable", True, live=AT_USE)
    reject_transactions: bool = setting("rejectTransactionMessage", False, live=(Hearer.MESSAGES,))

    timers_enabled: bool = setting("timerWheelEnable", True)
    timer_precision_ms: Positive = setting("timerPrecisionMs", 1000, unit="ms")
    timer_delay_max_s: Positive = setting("timerMaxDelaySec", 259_200, unit="s")
    timer_roll_slots: Whatever = setting("timerRollWindowSlot", 172_800)
    timer_log_file_bytes: FileBytes = setting("mappedFileSizeTimerLog", 100 << 20, unit="bytes")
    recall_enabled: bool = setting("recallMessageEnable", False, live=(Hearer.REPLICATION,))
    recall_when_not_writable: bool = setting("allowRecallWhenBrokerNotWriteable", True, live=AT_USE)

    revive_queue_count: ReviveQueues = setting("reviveQueueNum", 8)
    revive_interval_ms: Interval = setting("reviveInterval", 1000, unit="ms", live=AT_USE)
    # Retry topics of pops named with a "+"; those before are read too.
    retry_topics_v2: bool = setting("enableRetryTopicV2", False, live=AT_USE)
    retry_topics_v1_read: bool = setting("retrieveMessageFromPopRetryTopicV1", True, live=AT_USE)
    pop_retry_percent: Percent = setting("popFromRetryProbability", 20, live=AT_USE)
    # The same of topics whose messages have priorities; and whether a higher number is more urgent.
    pop_retry_percent_by_priority: Percent = setting("popFromRetryProbabilityForPriority", 0, live=AT_USE)
    highest_priority_first: bool = setting("priorityOrderAsc", True, live=AT_USE)
    re_puts_end: bool = setting("skipWhenCKRePutReachMaxTimes", False, live=AT_USE)
    pop_init_by_memory: bool = setting("initPopOffsetByCheckMsgInMem", True, live=AT_USE)
    pop_actual_retry_topic: bool = setting("popResponseReturnActualRetryTopic", False, live=AT_USE)
    pop_waiting_of_queue_max: Whole = setting("popPollingSize", 1024, live=AT_USE)
    pop_waiting_max: Whole = setting("maxPopPollingSize", 100_000, live=AT_USE)
    pop_in_flight_limited: bool = setting("enablePopMessageThreshold", False, live=AT_USE)
    pop_in_flight_max: Time = setting("popInflightMessageThreshold", 10_000, live=AT_USE)
    wake_after_order_block: bool = setting("enableNotifyAfterPopOrderLockRelease", True, live=AT_USE)
    # Subscriptions to lite topics, events of a client that wait, and the times of both.
    lite_subscriptions_max: Limit = setting("maxLiteSubscriptionCount", 100_000, live=AT_USE)
    lite_subscription_check_ms: Interval = setting("liteSubscriptionCheckInterval", 120_000, unit="ms", live=AT_USE)
    lite_subscription_timeout_ms: Time = setting("liteSubscriptionCheckTimeoutMills", 180_000, unit="ms", live=AT_USE)
    lite_events_enabled: bool = setting("enableLiteEventMode", True, live=AT_USE)
    client_events_max: Positive = setting("maxClientEventCount", 100, live=AT_USE)
    lite_event_check_ms: Interval = setting("liteEventCheckInterval", 10_000, unit="ms", live=AT_USE)
    lite_full_dispatch_ms: Whole = setting("liteEventFullDispatchDelayTime", 10_000, unit="ms", live=AT_USE)
    lite_full_dispatch_wildcard_ms: Whole = setting(
        "liteEventFullDispatchDelayTimeForWildcardGroup", 10_000, unit="ms", live=AT_USE
    )
    # When lite topics expire: no sooner than after the least time, also after a start.
    lite_expiration_check_ms: Interval = setting("liteTtlCheckInterval", 120_000, unit="ms", live=AT_USE)
    lite_expiration_ms_min: Time = setting("minLiteTTl", 900_000, unit="ms", live=AT_USE)
    lite_lag_times: bool = setting("liteLagLatencyCollectEnable", False, live=AT_USE)
    lite_lag_times_max: Whole = setting("liteLagLatencyTopK", 50, live=AT_USE)
    lite_pop_log: bool = setting("enableLitePopLog", False, live=AT_USE)
    lite_lag_metrics: bool = setting("liteLagCountMetricsEnable", False, live=AT_USE)
    lite_lag_time_metrics: bool = setting("liteLagLatencyMetricsEnable", False, live=AT_USE)
    filter_notifications: bool = setting("useMessageFilterForNotification", True, live=AT_USE)
    notification_filter_max: Whole = setting("maxMessageFilterNumForNotification", 64, live=AT_USE)

    property_filter: bool = setting("enablePropertyFilter", False, live=AT_USE)
    long_polling: bool = setting("longPollingEnable", True, live=AT_USE)
    # The time that a pull is held where long polling is off.
    short_polling_ms: Interval = setting("shortPollingTimeMills", 1000, unit="ms", live=AT_USE)
    pull_count_max: Positive = setting("maxTransferCountOnMessageInMemory", 32, live=AT_USE)
    pull_bytes_max: Positive = setting("maxTransferBytesOnMessageInMemory", 256 << 10, unit="bytes", live=AT_USE)
    reset_offsets_here: bool = setting("useServerSideResetOffset", True, live=(Hearer.REPLICATION,))
    # How groups are given messages that SET_MESSAGE_REQUEST_MODE was not called for: PULL or POP.
    default_request_mode: str = setting("defaultMessageRequestMode", "PULL", live=AT_USE)
    default_pop_share_queue_num: Whatever = setting("defaultPopShareQueueNum", -1, live=AT_USE)
    server_load_balancer: bool = setting("serverLoadBalancerEnable", True, live=AT_USE)
    route_interval_ms: Interval = setting("loadBalancePollNameServerInterval", 30_000, unit="ms", live=AT_USE)
    notify_group_changes: bool = setting("notifyConsumerIdsChangedEnable", True, live=AT_USE)
    # 0 or less: however long it is silent, as Netty has it.
    client_idle_ms: Idle = setting("serverChannelMaxIdleTimeSeconds", 120_000, unit="s")
    client_expiry_ms: Limit = setting("channelExpiredTimeout", 120_000, unit="ms")
    lock_expiry_ms: int = 60_000
    # Ours alone. 0: what the limit of open files leaves beside the store's.
    connections_max: Whole = setting("maxConnections", 0, live=(Hearer.FAST_FAILURE,))
    # What connections may hold, each and together; 0 connections of an address: three quarters of all.
    connections_per_address_max: Whole = setting("connectionsPerAddressMax", 0, live=(Hearer.FAST_FAILURE,))
    unfinished_frame_ms: Interval = setting("unfinishedFrameTimeout", 60_000, unit="ms", live=(Hearer.FAST_FAILURE,))
    unfinished_bytes_max: Limit = setting(
        "unfinishedFrameBytesMax", 256 << 20, unit="bytes", live=(Hearer.FAST_FAILURE,)
    )
    held_pulls_max: Positive = setting("heldPullsMax", 200_000, live=(Hearer.FAST_FAILURE,))
    held_pulls_of_connection_max: Positive = setting("heldPullsPerConnectionMax", 10_000, live=(Hearer.FAST_FAILURE,))
    unread_bytes_max: Limit = setting("unreadReplyBytesMax", 512 << 20, unit="bytes", live=(Hearer.FAST_FAILURE,))

    # Fast failure: its limits, and the time that a request may have waited.
    refuse_when_behind: bool = setting("brokerFastFailureEnable", True, live=(Hearer.FAST_FAILURE,))
    send_wait_max_ms: Limit = setting("waitTimeMillsInSendQueue", 200, unit="ms", live=(Hearer.FAST_FAILURE,))
    pull_wait_max_ms: Limit = setting("waitTimeMillsInPullQueue", 5000, unit="ms", live=(Hearer.FAST_FAILURE,))
    lite_pull_wait_max_ms: Limit = setting("waitTimeMillsInLitePullQueue", 5000, unit="ms", live=(Hearer.FAST_FAILURE,))
    heartbeat_wait_max_ms: Limit = setting(
        "waitTimeMillsInHeartbeatQueue", 31_000, unit="ms", live=(Hearer.FAST_FAILURE,)
    )
    transaction_wait_max_ms: Limit = setting(
        "waitTimeMillsInTransactionQueue", 3000, unit="ms", live=(Hearer.FAST_FAILURE,)
    )
    slow_put_ms: Time = setting("osPageCacheBusyTimeOutMills", 1000, unit="ms", live=(Hearer.FAST_FAILURE,))
    waiting_sends_max: Positive = setting("sendThreadPoolQueueCapacity", 10_000, live=(Hearer.FAST_FAILURE,))

    # DISABLE, PROM, OTLP_GRPC or LOG; an empty host is loopback.
    metrics_exporter: str = setting("metricsExporterType", "DISABLE")
    metrics_port: Port = setting("metricsPromExporterPort", 5557)
    metrics_host: str = setting("metricsPromExporterHost", "")
    metrics_target: str = setting("metricsGrpcExporterTarget", "")
    metrics_header: Secret = setting("metricsGrpcExporterHeader", Secret())
    metrics_timeout_ms: Interval = setting("metricGrpcExporterTimeOutInMills", 3000, unit="ms")
    metrics_interval_ms: ExportInterval = setting("metricGrpcExporterIntervalInMills", 60_000, unit="ms")
    metrics_log_interval_ms: ExportInterval = setting("metricLoggingExporterIntervalInMills", 10_000, unit="ms")
    metrics_points_max: Positive = setting("metricsExportBatchMaxDataPoints", 1000)
    metrics_delta: bool = setting("metricsInDelta", False)
    metrics_label: str = setting("metricsLabel", "")
    # Keys that UPDATE_BROKER_CONFIG may not change, separated by semicolons.
    fixed_keys: str = setting("configBlackList", "configBlackList;brokerConfigPath")

    # Promises that are not kept yet: any other value refuses to start.
    dledger: bool = setting("enableDLegerCommitLog", False)
    ha_listen_port: Port = setting("haListenPort", 0)
    # The interface of replication; empty: that of bindAddress (RocketMQ takes all of them).
    ha_listen_host: str = setting("haBindAddress", "")
    ha_master_address: str = setting("haMasterAddress", "")
    # Ours alone. Without it no slave can copy; RocketMQ's brokers know no greeting, so their hosts are believed.
    ha_listen: bool = setting("haListenEnable", True)
    ha_trusted: str = setting("haTrustedAddresses", "")
    ha_heartbeat_interval_ms: Interval = setting("haSendHeartbeatInterval", 5000, unit="ms", live=AT_USE)
    ha_housekeeping_interval_ms: Interval = setting("haHousekeepingInterval", 20_000, unit="ms", live=AT_USE)
    ha_batch_bytes: Positive = setting("haTransferBatchSize", 32 << 10, unit="bytes", live=AT_USE)
    ha_flow_control: bool = setting("haFlowControlEnable", False, live=AT_USE)
    ha_bytes_per_second_max: Limit = setting("maxHaTransferByteInSecond", 100 << 20, unit="bytes", live=AT_USE)
    in_sync_gap_bytes: Limit = setting("haMaxGapNotInSync", 256 << 20, unit="bytes", live=AT_USE)
    in_sync_replicas: Whole = setting("inSyncReplicas", 1, live=(Hearer.REPLICATION,))
    in_sync_replicas_min: Whole = setting("minInSyncReplicas", 1, live=(Hearer.REPLICATION,))
    auto_in_sync_replicas: bool = setting("enableAutoInSyncReplicas", False, live=(Hearer.REPLICATION,))
    all_ack_in_sync_set: bool = setting("allAckInSyncStateSet", False, live=(Hearer.REPLICATION,))
    replicas_total: Whole = setting("totalReplicas", 1)
    slave_timeout_ms: Interval = setting("slaveTimeout", 3000, unit="ms", live=AT_USE)
    sync_from_last_file: bool = setting("syncFromLastFile", False)
    async_learner: bool = setting("asyncLearner", False)
    slave_not_caught_up_ms: Time = setting("haMaxTimeSlaveNotCatchup", 15_000, unit="ms", live=AT_USE)
    sync_set_check_interval_ms: Interval = setting("checkSyncStateSetPeriod", 5000, unit="ms", live=AT_USE)
    # The address of replication that other brokers are told; empty: that of requests.
    ha_advertised_host: str = setting("brokerIP2", "")
    offset_check_in_slave: bool = setting("offsetCheckInSlave", False, live=AT_USE)
    slave_read: bool = setting("slaveReadEnable", False, live=(Hearer.REPLICATION,))
    # What is within so many percent of the machine's memory from the log's end counts as in memory.
    memory_percent: Whole = setting("accessMessageInMemoryMaxRatio", 40, unit="percent", live=AT_USE)
    disk_pull_bytes_max: Positive = setting("maxTransferBytesOnMessageInDisk", 64 << 10, unit="bytes", live=AT_USE)
    disk_pull_count_max: Positive = setting("maxTransferCountOnMessageInDisk", 8, live=AT_USE)
    # What lies farther from the log's end is read cold. The flow control of cold reads counts bytes in 5 s.
    hot_memory_percent: Whole = setting("accessMessageInMemoryHotRatio", 26, unit="percent", live=AT_USE)
    cold_flow_control: bool = setting("coldDataFlowControlEnable", False, live=AT_USE)
    group_cold_bytes_max: Limit = setting("cgColdReadThreshold", 3 << 20, unit="bytes", live=AT_USE)
    cold_bytes_max: Limit = setting("globalColdReadThreshold", 100 << 20, unit="bytes", live=AT_USE)
    cold_limits_adapt: bool = setting("coldCtrStrategyEnable", False, live=AT_USE)
    cold_limits_pid: bool = setting("usePIDColdCtrStrategy", True, live=AT_USE)

    slave_acting_master: bool = setting("enableSlaveActingMaster", False)
    remote_escape: bool = setting("enableRemoteEscape", False, live=AT_USE)
    heartbeat_interval_ms: Interval = setting("brokerHeartbeatInterval", 1000, unit="ms", live=AT_USE)
    not_active_timeout_ms: Limit = setting("brokerNotActiveTimeoutMillis", 10_000, unit="ms")
    heartbeat_timeout_ms: Interval = setting("sendHeartbeatTimeoutMillis", 1000, unit="ms", live=AT_USE)
    member_group_interval_ms: Interval = setting("syncBrokerMemberGroupPeriod", 1000, unit="ms", live=AT_USE)
    old_nameservers: bool = setting("compatibleWithOldNameSrv", True, live=AT_USE)
    skip_pre_online: bool = setting("skipPreOnline", False)
    strict_locks: bool = setting("lockInStrictMode", False, live=AT_USE)
    take_master_flush_offset: bool = setting("syncMasterFlushOffsetWhenStartup", False)

    controller_mode: bool = setting("enableControllerMode", False)
    controller_addresses: str = setting("controllerAddr", "")
    metadata_interval_ms: Interval = setting("syncBrokerMetadataPeriod", 5000, unit="ms", live=AT_USE)
    controller_interval_ms: Interval = setting("syncControllerMetadataPeriod", 10_000, unit="ms", live=AT_USE)
    controller_timeout_ms: Limit = setting("controllerHeartBeatTimeoutMills", 10_000, unit="ms", live=AT_USE)
    election_priority: Priority = setting("brokerElectionPriority", INT_MAX)
    # A property of the JVM in RocketMQ.
    zone: str = setting("rocketmq.zone", "")
    epoch_file: str = setting("storePathEpochFile", "")
    identity_file: str = setting("storePathBrokerIdentity", "")

    acl: bool = setting("aclEnable", False)
    # The folder of conf/ for access control 1.0, and the file below it; properties of the JVM in RocketMQ.
    acl_home: str = setting("rocketmqHome", "")
    acl_file: str = setting("rocketmq.acl.plain.file", "conf/plain_acl.yml")
    authentication: bool = setting("authenticationEnabled", False)
    authorization: bool = setting("authorizationEnabled", False)
    access: AccessSettings = AccessSettings()
    # The audit, ours alone. Empty: audit.log in the store's folder where there is access control; off: none.
    audit_path: str = setting("auditLogPath", "")
    audit_file_bytes: FileBytes = setting("auditLogFileSize", 16 << 20, unit="bytes")
    audit_file_count: FileCount = setting("auditLogFileCount", 10)
    transient_pool: bool = setting("transientStorePoolEnable", False)
    store_type: str = setting("storeType", "default")
    # The class of the second tier turns it on.
    store_plug_in: str = setting("messageStorePlugIn", "")
    tier: TieredSettings = TieredSettings()

    # The broker's own connections: TLS or not. What its ports take: the keys of tls.properties.
    use_tls: bool = setting("useTLS", False)
    tls: TlsSettings = TlsSettings()

    # Values of keys that have no effect here, and the file that all came from.
    ignored: dict[str, str] = {}
    conf_path: str = ""

    @property
    def host(self) -> str:
        """The address clients are told, IPv6 without brackets."""
        host = self.advertised_host or _LOOPBACK_OF.get(self.listen_host, self.listen_host)
        return host.removeprefix("[").removesuffix("]")

    @property
    def tells_loopback_alone(self) -> bool:
        """True if it listens for other machines, while clients are told an address that only this one reaches."""
        listening = self.listen_host.removeprefix("[").removesuffix("]")
        return is_loopback(self.host) and not is_loopback(listening)

    def address(self, port: int) -> str:
        """ "host:port" that clients are told; IPv6 in brackets, as RocketMQ registers one that it finds itself."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def registration_ms(self) -> int:
        """The time between registrations: registerNameServerPeriod, but 10 s for 0 or less, and a minute at most.

        Rule: 5.x keeps it between 10 s and a minute; shorter times stay here, for tests.
        """
        return min(self.register_interval_ms, 60_000) if self.register_interval_ms > 0 else 10_000

    def acl_home_folder(self) -> str:
        """Return the folder whose conf/ has the rules of access control 1.0. Raises ConfigError if none is known."""
        home = self.acl_home or os.environ.get("ROCKETMQ_HOME", "")
        if not home:
            raise ConfigError(
                "aclEnable and migrateAuthFromV1Enabled need rocketmqHome (or ROCKETMQ_HOME): the folder of"
                f" {self.acl_file} and conf/acl"
            )
        return home

    @property
    def zone_name(self) -> str | None:
        """The zone that NameServers and controllers are told, by the setting or the environment; None for none."""
        return self.zone or os.environ.get("ROCKETMQ_ZONE") or None

    @property
    def sync_flush(self) -> bool:
        """True if a message must be on disk before its reply."""
        return self.flush_disk_type == "SYNC_FLUSH"

    def page_rows(self) -> int | None:
        """Return how many topics or groups a reply may hold at most; None if all come in one reply."""
        return self.split_metadata_rows if self.split_metadata else None

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
        """Return the hours of the day at which old files are deleted. Raises ConfigError for an invalid text."""
        words = [word.strip() for word in self.delete_when.split(";") if word.strip()]
        if any(whole_number(word, high=23) is None for word in words):
            raise ConfigError(f"deleteWhen {self.delete_when!r}: hours from 00 to 23 are needed, as in '04' or '04;16'")
        return frozenset(map(int, words))

    def namesrvs(self) -> list[str]:
        """Return the NameServer addresses; empty if none are set."""
        # One may be named twice, by broker.conf and by the command line.
        return list(dict.fromkeys(parse_addresses(self.namesrv_addresses))) if self.namesrv_addresses.strip() else []

    @property
    def tiered(self) -> bool:
        """Whether messages are copied to a second tier."""
        return self.store_plug_in == PLUG_IN

    @property
    def light_queues(self) -> bool:
        """Whether messages go into the light queues that they name (rule: with one of both keys none does, 5.5.0)."""
        return self.lmq and self.multi_dispatch

    def store_settings(self) -> StoreSettings:
        """Return the settings of the store."""
        unit = QUEUE_UNIT_BYTES
        return StoreSettings(
            root=self.store_root,
            commit_log=self.store_commit_log or None,
            is_copied=self.broker_role == "SLAVE" and not self.controller_mode,
            log_file_bytes=self.log_file_bytes,
            # A size that is no multiple of the unit is rounded up (rule: MessageStoreConfig, 5.x).
            queue_file_units=-(-self.queue_file_bytes // unit),
            queue_ext=self.queue_ext,
            queue_ext_file_bytes=self.queue_ext_file_bytes,
            batch_queue_file_units=-(-self.batch_queue_file_bytes // BATCH_QUEUE_UNIT_BYTES),
            light_queues=self.light_queues,
            compaction_log_bytes=self.compaction_log_bytes,
            compaction_units_bytes=self.compaction_units_bytes,
            compaction_keys_bytes=self.compaction_keys_bytes,
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
        for declared in FIELDS.values():
            declared.value_of(declared.text_of(self))
        self._check_role()
        self._check_ports()
        self.access.check()
        if self.acl:
            self.acl_home_folder()
        if self.flush_disk_type not in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            raise ConfigError(f"flushDiskType {self.flush_disk_type!r}: ASYNC_FLUSH or SYNC_FLUSH is needed")
        if self.default_request_mode not in ("PULL", "POP"):
            raise ConfigError(f"defaultMessageRequestMode {shown(self.default_request_mode)!r}: PULL or POP is needed")
        if self.store_type != "default":
            raise ConfigError(f"storeType {self.store_type!r} is not supported; use default")
        if self.store_plug_in not in ("", PLUG_IN):
            raise ConfigError(f"messageStorePlugIn={shown(self.store_plug_in)!r}: {PLUG_IN} is known, or nothing")
        self.tier.check()
        if self.tiered and not self.tier.tiered_store_file_path:
            raise ConfigError(f"messageStorePlugIn={PLUG_IN} needs tieredStoreFilePath, the tier's folder")
        for field in ("dledger",):
            if getattr(self, field):
                key = next(declared.key for declared in FIELDS.values() if declared.name == field)
                raise ConfigError(f"{key}=true is not supported yet; remove it or set it to false")
        if self.timer_precision_ms not in (100, 200, 500, 1000):
            raise ConfigError(f"timerPrecisionMs {self.timer_precision_ms} is not supported; use 100, 200, 500 or 1000")
        ExportSettings.of(self).check()
        for key, harmless in UNKEPT_PROMISES.items():
            value = self.ignored.get(key)
            if value is not None and value not in harmless:
                raise ConfigError(f"{key}={value} is not supported yet; remove it")
        self.delays_ms()
        self.delete_hours()
        self.namesrvs()

    def _check_ports(self) -> None:
        """Raise ConfigError for two ports of one number."""
        taken = {}
        if self.listen_port:
            taken = {self.listen_port: "listenPort", self.listen_port - 2: "listenPort - 2 (vipChannelEnabled)"}
        wanted = [("haListenPort", self.ha_listen_port)]
        if self.metrics_exporter == PROM:
            wanted.append(("metricsPromExporterPort", self.metrics_port))
        for key, port in wanted:
            if port and port in taken:
                raise ConfigError(f"{key}={port} is {taken[port]} too: give each a port of its own")
            taken[port] = key

    def _check_role(self) -> None:
        """Raise ConfigError for a role, an id and modes that do not go together."""
        role = self.broker_role
        if role not in BROKER_ROLES:
            raise ConfigError(f"brokerRole {shown(role)!r}: {', '.join(BROKER_ROLES)} are known")
        if self.controller_mode:
            if self.slave_acting_master:
                raise ConfigError(
                    "enableControllerMode and enableSlaveActingMaster exclude each other: set one of them"
                )
            if not self.controller_addresses.strip():
                raise ConfigError("enableControllerMode=true needs controllerAddr=HOST:PORT")
            parse_addresses(self.controller_addresses)
            return
        if role == "SLAVE" and self.broker_id <= 0:
            raise ConfigError(
                f"brokerRole SLAVE needs a brokerId above 0, not {self.broker_id}: ids 1, 2, ... are slaves'"
            )
        if role != "SLAVE" and self.broker_id != 0:
            raise ConfigError(f"brokerId {self.broker_id} is a slave's: set brokerRole=SLAVE, or brokerId=0")

    def properties(self) -> dict[str, str]:
        """Return every key of 5.5.0 with its value as text, sorted; those without a value are left out."""
        table = IGNORED | self.ignored
        table |= {key: declared.shown_of(self) for key, declared in FIELDS.items()}
        table["brokerIP1"] = self.host
        table["brokerIP2"] = self.ha_advertised_host or self.host
        return {
            key: table[key] for key in sorted(table) if key not in _ELSEWHERE and (table[key] or key in _MAY_BE_EMPTY)
        }


# The table of all settings, by key.
FIELDS = {
    f.encode_name: Setting(f.encode_name, f.name, f.type, f.default, *DECLARED[f.encode_name])
    for f in msgspec.structs.fields(BrokerSettings)
    if f.encode_name in DECLARED
}
# Not among the broker's own settings in 5.5.0.
_ELSEWHERE = frozenset({"authenticationEnabled", "authorizationEnabled"})
_MAY_BE_EMPTY = frozenset(key for key, default in IGNORED.items() if not default) | {
    "metricsPromExporterHost",
    "metricsGrpcExporterTarget",
    "metricsGrpcExporterHeader",
    "metricsLabel",
    "controllerAddr",
    "rocketmqHome",
    "messageStorePlugIn",
}
