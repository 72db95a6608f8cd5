"""The settings of a NameServer (namesrv.conf): those with an effect, those only kept and shown, and their changes."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from rocketspark.access import write_gate
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.conf_lines import REQUEST_LENGTH_MAX, setting_name
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store.files import config_files
from rocketspark.transport.request_signer import INNER_KEY, RequestSigner, inner_signer
from rocketspark.transport.tls.settings import TlsSettings, from_values, is_key

log = LimitedLog("rocketspark.namesrv")

# The keys that GET_NAMESRV_CONFIG shows, with 5.5.0's values but for addresses and paths. Most have no effect here:
# they are kept and shown.
DEFAULTS: dict[str, str] = dict(
    pair.split("=", 1)
    for pair in """
    bindAddress=127.0.0.1 clientRequestThreadPoolNums=8 clientRequestThreadPoolQueueCapacity=50000 clusterTest=false
    configBlackList=configBlackList;configStorePath;kvConfigPath configStorePath= defaultThreadPoolNums=16
    defaultThreadPoolQueueCapacity=10000 deleteTopicWithBrokerRegistration=false enableAllTopicList=true
    enableControllerInNamesrv=false enableShutdownGracefully=false enableTopicList=true kvConfigPath= listenPort=9876
    needWaitForService=false notifyMinBrokerIdChanged=false orderMessageEnable=false productEnvName=center
    returnOrderTopicConfigToBroker=true rocketmqHome= scanNotActiveBrokerInterval=5000 serverAsyncSemaphoreValue=64
    serverCallbackExecutorThreads=0 serverChannelMaxIdleTimeSeconds=120 serverNettyWorkerGroupEnable=true
    serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3
    serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8
    shutdownWaitTimeSeconds=30 supportActingMaster=false unRegisterBrokerQueueCapacity=3000
    useEpollNativeSelector=false waitSecondsForService=45 writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
    """.split()
)

# Of a controller in the NameServer's process (enableControllerInNamesrv); some of them are the NameServer's too.
CONTROLLER_KEYS = frozenset(
    """
    configBlackList configStorePath controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId
    controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums controllerType
    electMasterMaxRetryCount enableElectUncleanMaster isProcessReadEvent jRaftControllerRPCAddr jRaftElectionTimeoutMs
    jRaftGroupId jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId jRaftSnapshotIntervalSecs mappedFileSize
    metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
    metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
    metricsPromExporterHost metricsPromExporterPort notifyBrokerRoleChanged processReadEvent
    scanInactiveMasterInterval scanNotActiveBrokerInterval
    """.split()
)

# The keys that a namesrv.conf may have and that are never shown.
KNOWN_UNSET = CONTROLLER_KEYS | frozenset(
    """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
    clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientSocketRcvBufSize
    clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup
    enableReconnectForGoAway isScanAvailableNameSrv maxReconnectIntervalTimeSeconds scanAvailableNameSrv
    socksProxyConfig useTLS
    """.split()
)


DEFAULT_PORT = 9876
SCAN_S = 5.0
# Below, the scan itself would be the load; above, nobody would see a silent broker go.
SCAN_MS_MIN, SCAN_MS_MAX = 100, 86_400_000
VALUE_CHARACTERS_MAX = 4096

_SWITCHES = {
    "orderMessageEnable": "order_topics",
    "returnOrderTopicConfigToBroker": "return_order_topics",
    "supportActingMaster": "acting_master",
    "notifyMinBrokerIdChanged": "notify_min_id",
    "deleteTopicWithBrokerRegistration": "delete_topics",
    "enableAllTopicList": "all_topic_list",
    "enableTopicList": "topic_list",
    "needWaitForService": "wait_needed",
    "enableControllerInNamesrv": "with_controller",
}
# Key to field, lowest and highest value.
_NUMBERS = {
    "listenPort": ("port", 0, 65_535),
    "scanNotActiveBrokerInterval": ("scan_ms", SCAN_MS_MIN, SCAN_MS_MAX),
    "serverChannelMaxIdleTimeSeconds": ("idle_seconds", 0, INT_MAX),
    "waitSecondsForService": ("wait_seconds", 0, INT_MAX),
}
_TEXTS = {"bindAddress": "host", "kvConfigPath": "kv_path", "configBlackList": "fixed_keys"}
_FIELDS = _SWITCHES | {key: field for key, (field, _, _) in _NUMBERS.items()} | _TEXTS
# Known only when the NameServer starts.
_FIXED = frozenset({"bindAddress", "listenPort", "enableControllerInNamesrv"})
_ALWAYS_BARRED = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
# What RocketMQ would do with them, this NameServer does not.
_UNKEPT_PROMISES = ("clusterTest",)
_TRUTH = {"true": True, "false": False}


class Settings:
    """The settings of one NameServer, read anew at each request.

    `acting_master`, `notify_min_id`, `delete_topics`: the rules of the registry. `wait_needed`: no routes are given in
    the first `wait_seconds`. `controller`: keys and values for a controller inside the NameServer, as the file has
    them.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        order_topics: bool = False,
        scan_s: float = SCAN_S,
        kv_path: str = "",
    ) -> None:
        self._table = dict(DEFAULTS)
        self.conf_path = ""
        self.tls = TlsSettings()
        # Signs what brokers are told; not among the keys that are shown.
        self.signer: RequestSigner | None = None
        # Who may write; None: everybody, as in RocketMQ.
        self.gate: write_gate.WriteGate | None = None
        self.host = host
        self.port = port
        self.kv_path = kv_path
        self.fixed_keys = DEFAULTS["configBlackList"]
        self.order_topics = order_topics
        self.return_order_topics = True
        self.acting_master = False
        self.notify_min_id = False
        self.delete_topics = False
        self.all_topic_list = True
        self.topic_list = True
        self.wait_needed = False
        self.wait_seconds = 45
        self.with_controller = False
        self.scan_ms: float = scan_s * 1000
        self.idle_seconds = 120
        self.controller: dict[str, str] = {}
        # Called after each change.
        self.changed: Callable[[], None] = lambda: None

    @property
    def scan_s(self) -> float:
        """The time between two searches for silent brokers, in seconds."""
        return self.scan_ms / 1000

    @property
    def idle_s(self) -> float:
        """How long a connection may be silent, in seconds; infinite for 0, as in RocketMQ."""
        return self.idle_seconds or math.inf

    def listening(self, address: str) -> None:
        """Note the address on which the server listens."""
        self.host, _, port = address.rpartition(":")
        self.port = int(port)

    def properties(self) -> dict[str, str]:
        """Return every key with its value, sorted."""
        own = {key: _written(getattr(self, field)) for key, field in _FIELDS.items()}
        return dict(sorted((self._table | own | {"configStorePath": self.conf_path}).items()))

    def document(self) -> str:
        """Return all keys with their values as lines `key=value`."""
        return "".join(f"{key}={value}\n" for key, value in self.properties().items())

    def take(self, values: dict[str, str]) -> list[str]:
        """Take a file's values; return the keys that RocketMQ does not know. Raises ConfigError for a wrong value."""
        taken, known, unknown = _converted(values)
        for field, value in taken.items():
            setattr(self, field, value)
        self._table |= known
        self.tls = from_values({key: value for key, value in values.items() if is_key(key)})
        self.signer = inner_signer(values.get(INNER_KEY, ""))
        self.gate = write_gate.gate_of(values, self.signer.credentials if self.signer else None)
        self.controller = {
            key: value
            for key, value in values.items()
            # Its audit is in its own folder.
            if key in (*CONTROLLER_KEYS, INNER_KEY, *write_gate.KEYS) and key != write_gate.AUDIT
        }
        return unknown

    def update(self, text: str) -> None:
        """Change the settings by lines of key=value, and the file they came from.

        Raises ServerError 16 for a key that may not be touched, 29 for a wrong value or one that needs a restart, 1 if
        the file cannot be written.
        """
        if len(text) > REQUEST_LENGTH_MAX:
            raise ServerError(ResponseCode.INVALID_PARAMETER, f"settings of {len(text)} characters in one request")
        values = _pairs(text)
        if not values.keys().isdisjoint(_ALWAYS_BARRED | set(self.fixed_keys.split(";"))):
            raise ServerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        now = self.properties()
        changed = {key: value for key, value in values.items() if now.get(key) != value}
        try:
            taken, known, unknown = _converted(changed)
            if (fixed := next(filter(_is_fixed, changed), None)) is not None:
                raise ConfigError(f"{fixed} cannot change while the NameServer runs")
        except ConfigError as e:
            raise ServerError(ResponseCode.INVALID_PARAMETER, str(e)) from e
        if unknown:
            log.warning(
                "settings that RocketMQ does not know are passed over: %s",
                ", ".join(map(setting_name, sorted(unknown))),
            )
        for field, value in taken.items():
            setattr(self, field, value)
        self._table |= known
        self.changed()
        kept = {key: value for key, value in changed.items() if key not in unknown}
        if self.conf_path and kept:
            config_files.keep_settings(self.conf_path, kept, until="the NameServer stops")


def read_namesrv_conf(path: str | os.PathLike[str]) -> tuple[Settings, list[str]]:
    """Return (settings, warnings) of a namesrv.conf. Raises ConfigError if it cannot be read or a value is wrong."""
    values = config_files.read_settings(path)
    settings = Settings()
    try:
        unknown = settings.take(values)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
    settings.conf_path = str(path)
    return settings, [f"{path}: unknown key {shown(key)!r} is ignored" for key in unknown]


def _pairs(text: str) -> dict[str, str]:
    """Return the keys and values in lines of key=value, without comments."""
    lines = (line.strip() for line in text.splitlines())
    found = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {key.strip(): value.strip() for key, _, value in found}


def _is_fixed(key: str) -> bool:
    """Tell whether a key has its value for as long as the NameServer runs."""
    return key in _FIXED or key == INNER_KEY or key in write_gate.KEYS or is_key(key)


def _converted(values: dict[str, str]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return (fields and their values, keys without effect, unknown keys). Raises ConfigError naming a wrong value."""
    taken: dict[str, Any] = {}
    known: dict[str, str] = {}
    unknown = []
    for key, value in values.items():
        if key in _UNKEPT_PROMISES and value.lower() != "false":
            raise ConfigError(f"{key}={shown(value, characters_max=40)!r}: not available here, remove it")
        if key not in _FIELDS and key not in DEFAULTS:
            if key not in KNOWN_UNSET and key != INNER_KEY and key not in write_gate.KEYS and not is_key(key):
                unknown.append(key)
            continue
        if shown(value, characters_max=VALUE_CHARACTERS_MAX) != value:
            raise ConfigError(
                f"{key}={shown(value, characters_max=40)!r}: at most {VALUE_CHARACTERS_MAX} characters are taken,"
                " none of them a control character"
            )
        if key in _FIELDS:
            taken[_FIELDS[key]] = _value(key, value)
        else:
            known[key] = value
    return taken, known, unknown


def _value(key: str, value: str) -> bool | int | str:
    text = shown(value, characters_max=40)
    if key in _SWITCHES:
        if value.lower() not in _TRUTH:
            raise ConfigError(f"{key}={text!r}: true or false is needed")
        return _TRUTH[value.lower()]
    if key in _NUMBERS:
        _, low, high = _NUMBERS[key]
        number = whole_number(value, low=low, high=high)
        if number is None:
            raise ConfigError(f"{key}={text!r}: a number from {low} to {high} is needed")
        return number
    if key == "bindAddress" and not value:
        raise ConfigError("bindAddress is empty: an address to listen on is needed, such as 0.0.0.0")
    return value


def _written(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(int(value))
