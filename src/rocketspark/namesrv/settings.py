"""A NameServer's settings by RocketMQ's names, shown and changed while it runs. Rule: a change is whole or not at all.

Rules of 5.5.0 (DefaultRequestProcessor): keys of configBlackList are refused, unknown ones passed over. A change lasts
until the NameServer stops.
"""

from __future__ import annotations

from rocketspark.errors import ServerError
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import shown, whole_number
from rocketspark.protocol.codes import ResponseCode

log = LimitedLog("rocketspark.namesrv")

# 5.5.0's defaults. Only those in `Settings.LIVE` and the addresses mean something here; the rest is kept and shown.
_DEFAULTS: dict[str, str] = dict(
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
_FIXED = frozenset({"bindAddress", "listenPort"})
_SWITCHES = {"true": True, "false": False}
# Below, the scan itself would be the load; above, nobody would see a silent broker go.
SCAN_MS_MIN, SCAN_MS_MAX = 100, 86_400_000
VALUE_CHARACTERS_MAX = 4096


class Settings:
    """The settings of one NameServer. Fields are read at each request."""

    LIVE = frozenset({"orderMessageEnable", "returnOrderTopicConfigToBroker", "scanNotActiveBrokerInterval"})

    def __init__(self, *, order_topics: bool = False, scan_s: float = 5.0, kv_path: str = "") -> None:
        self._table = _DEFAULTS | {"kvConfigPath": kv_path}
        self.order_topics = order_topics
        self.return_order_topics = True
        self.scan_s = scan_s

    def listening(self, address: str) -> None:
        """Note where the server listens."""
        host, _, port = address.rpartition(":")
        self._table |= {"bindAddress": host, "listenPort": port}

    def properties(self) -> dict[str, str]:
        """Return every key with its value, sorted."""
        own = {
            "orderMessageEnable": str(self.order_topics).lower(),
            "returnOrderTopicConfigToBroker": str(self.return_order_topics).lower(),
            "scanNotActiveBrokerInterval": str(int(self.scan_s * 1000)),
        }
        return dict(sorted((self._table | own).items()))

    def document(self) -> str:
        """Return all keys with their values as lines `key=value`."""
        return "".join(f"{key}={value}\n" for key, value in self.properties().items())

    def update(self, text: str) -> None:
        """Change the settings by lines of key=value.

        Raises ServerError 16 for a key that may not be touched, 29 for a wrong value or an address.
        """
        values: dict[str, str] = {}
        for line in text.splitlines():
            if line.strip() and line.strip()[0] not in "#!":
                key, _, value = line.partition("=")
                values[key.strip()] = value.strip()
        now = self.properties()
        if not values.keys().isdisjoint(now["configBlackList"].split(";")):
            raise ServerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        if unknown := values.keys() - now.keys():
            log.warning("settings that RocketMQ does not know are passed over: %s", shown(", ".join(sorted(unknown))))
        for key, value in values.items():
            if key in now and shown(value, characters_max=VALUE_CHARACTERS_MAX) != value:
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"{key}={shown(value, characters_max=40)!r}: at most {VALUE_CHARACTERS_MAX} characters are taken,"
                    " none of them a control character",
                )
        for key in _FIXED & values.keys():
            if values[key] != now[key]:
                raise ServerError(ResponseCode.INVALID_PARAMETER, f"{key} cannot change while the NameServer runs")
        order = _switch(values, "orderMessageEnable", self.order_topics)
        returned = _switch(values, "returnOrderTopicConfigToBroker", self.return_order_topics)
        text = values.get("scanNotActiveBrokerInterval", now["scanNotActiveBrokerInterval"])
        scan_s = self.scan_s
        if text != now["scanNotActiveBrokerInterval"]:
            scan_ms = whole_number(text, low=SCAN_MS_MIN, high=SCAN_MS_MAX)
            if scan_ms is None:
                raise ServerError(
                    ResponseCode.INVALID_PARAMETER,
                    f"scanNotActiveBrokerInterval={shown(text, characters_max=40)!r}: ms from {SCAN_MS_MIN} to"
                    f" {SCAN_MS_MAX} are needed",
                )
            scan_s = scan_ms / 1000
        self.order_topics, self.return_order_topics, self.scan_s = order, returned, scan_s
        self._table |= {k: v for k, v in values.items() if k in now and k not in self.LIVE}


def _switch(values: dict[str, str], key: str, now: bool) -> bool:
    if key not in values:
        return now
    if values[key].lower() not in _SWITCHES:
        text = shown(values[key], characters_max=40)
        raise ServerError(ResponseCode.INVALID_PARAMETER, f"{key}={text!r}: true or false is needed")
    return _SWITCHES[values[key].lower()]
