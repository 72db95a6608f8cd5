"""A controller's settings by RocketMQ's names in controller.conf. Rule: a setting that cannot be kept is an error.

Defaults: 5.5.0's, but for the addresses, the folder and the names of the node and its group. A change while the
controller runs is made as a whole or not at all, and written into the file that the settings came from."""

from __future__ import annotations

import os

from rocketspark.access import write_gate
from rocketspark.controller.group.members import Member, own_node, parse_members
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.conf_lines import parse_request, setting_name
from rocketspark.model.limited_log import LimitedLog
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store.files import config_files
from rocketspark.transport.connections import parse_address
from rocketspark.transport.request_signer import INNER_KEY, inner_signer
from rocketspark.transport.tls.settings import KEYS, from_values, is_key

log = LimitedLog("rocketspark.controller")

DEFAULT_ADDRESS = "127.0.0.1:9877"
DEFAULT_FOLDER = "controller"
# Kept and shown; the first line's keys mean something here.
_DEFAULTS: dict[str, str] = dict(
    pair.split("=", 1)
    for pair in """
    bindAddress= controllerDLegerGroup=DefaultControllerGroup controllerDLegerPeers= controllerDLegerSelfId=n0
    controllerStorePath= controllerType=DLedger electMasterMaxRetryCount=3 enableElectUncleanMaster=false
    notifyBrokerRoleChanged=true scanInactiveMasterInterval=5000 scanNotActiveBrokerInterval=5000
    electionZones= configBlackList=configBlackList;configStorePath configStorePath=
    controllerRequestThreadPoolQueueCapacity=50000
    controllerThreadPoolNums=16 enableShutdownGracefully=false isProcessReadEvent=false listenPort=9877
    mappedFileSize=1073741824 metricGrpcExporterIntervalInMills=60000 metricGrpcExporterTimeOutInMills=3000
    metricLoggingExporterIntervalInMills=10000 metricsExporterType=DISABLE metricsGrpcExporterHeader=
    metricsGrpcExporterTarget= metricsInDelta=false metricsLabel= metricsPromExporterHost= metricsPromExporterPort=5557
    rocketmqHome= serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0 serverChannelMaxIdleTimeSeconds=120
    serverNettyWorkerGroupEnable=true serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true
    serverSelectorThreads=3 serverSocketBacklog=1024 serverSocketRcvBufSize=0 serverSocketSndBufSize=0
    serverWorkerThreads=8 shutdownWaitTimeSeconds=30 useEpollNativeSelector=false writeBufferHighWaterMark=0
    writeBufferLowWaterMark=0
    """.split()
)
# What only a group of controllers has, or a part that is not here: any other value refuses to start.
_ONLY = {
    "controllerType": (
        "DLedger",
        "several controllers agree without jRaft here: name them in controllerDLegerPeers",
    ),
    "metricsExporterType": ("DISABLE", "a controller has no metrics of its own; use DISABLE"),
}
_FIXED = frozenset(
    """bindAddress controllerDLegerGroup controllerDLegerPeers controllerDLegerSelfId controllerStorePath controllerType
    listenPort metricsExporterType""".split()
)
_KNOWN_UNSET = frozenset(
    """jRaftControllerRPCAddr jRaftElectionTimeoutMs jRaftGroupId jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId
    jRaftSnapshotIntervalSecs processReadEvent jraftConfig useTLS""".split()
)
# In a file that a controller shares with brokers.
_SECRETS, _HIDDEN = frozenset({"metricsGrpcExporterHeader"}), "(hidden)"
_BARRED = frozenset({"configBlackList", "configStorePath", "rocketmqHome"})
_SWITCHES = {"true": True, "false": False}
# Below, the scan itself would be the load; above, nobody would see that a master is gone.
SCAN_MS_MIN, SCAN_MS_MAX = 100, 86_400_000
RETRIES_MAX = 100
VALUE_CHARACTERS_MAX = 4096


class ControllerSettings:
    """The settings of one controller. `values`: by RocketMQ's names. Raises ConfigError for a wrong one.

    `listen`: the address to listen on, whatever the settings say; brokers are told the one in controllerDLegerPeers.
    `folder`: the folder of the state, in place of controllerStorePath. `conf_path`: the file that the values came from.
    `unknown`: the keys of `values` that are not known.
    """

    def __init__(
        self,
        values: dict[str, str] | None = None,
        *,
        listen: str | None = None,
        folder: str | os.PathLike[str] = "",
        conf_path: str | os.PathLike[str] = "",
    ) -> None:
        values = dict(values or {})
        self._conf_path = os.fspath(conf_path)
        self.tls = from_values({key: value for key, value in values.items() if is_key(key)})
        # Signs what brokers are told; not among the keys that are shown.
        self.signer = inner_signer(values.get(INNER_KEY, ""))
        # Who may ask; None for everybody.
        self.gate = write_gate.gate_of(values, self.signer.credentials if self.signer else None, frozenset())
        known = _DEFAULTS.keys() | _KNOWN_UNSET | KEYS | {INNER_KEY} | write_gate.KEYS
        self.unknown = sorted(values.keys() - known)
        self._table = _DEFAULTS | {key: value for key, value in values.items() if key in _DEFAULTS}
        if folder:
            self._table["controllerStorePath"] = os.fspath(folder)
        self._table["controllerStorePath"] = self._table["controllerStorePath"] or DEFAULT_FOLDER
        for key, (needed, why) in _ONLY.items():
            if self._table[key] != needed:
                raise ConfigError(f"{key}={shown(self._table[key])!r} is not supported: {why}")
        # Of a group all; none of a single one without an address.
        self.members, own = _members(self._table["controllerDLegerPeers"], self._table["controllerDLegerSelfId"])
        self.own_member = own if len(self.members) > 1 else None
        self.peer = own.address if own else ""
        self.host, self.port = parse_address_of_listener(listen or self.peer or DEFAULT_ADDRESS)
        if listen is None and self._table["bindAddress"]:
            self.host = self._table["bindAddress"]
        self._take(self._table)

    def let_ask(self, secrets: dict[str, str]) -> None:
        """Serve only requests that are signed with one of these secrets, by access key."""
        self.gate = write_gate.WriteGate(secrets, reads=frozenset())

    def _take(self, values: dict[str, str]) -> None:
        """Read what is used at each event. Raises ConfigError, with nothing changed, for a wrong value."""
        read = (
            _switch(values, "enableElectUncleanMaster"),
            _switch(values, "notifyBrokerRoleChanged"),
            _number(values, "scanNotActiveBrokerInterval", SCAN_MS_MIN, SCAN_MS_MAX, "ms"),
            _number(values, "scanInactiveMasterInterval", SCAN_MS_MIN, SCAN_MS_MAX, "ms"),
            _number(values, "electMasterMaxRetryCount", 1, RETRIES_MAX, "tries"),
        )
        self.zones = tuple(filter(None, (zone.strip() for zone in values["electionZones"].split(";"))))
        self.unclean, self.notify, self.scan_brokers_ms, self.scan_masters_ms, self.tries = read

    @property
    def folder(self) -> str:
        """The folder of the state."""
        return self._table["controllerStorePath"]

    @property
    def group(self) -> str:
        """The name of the group of controllers."""
        return self._table["controllerDLegerGroup"]

    @property
    def node(self) -> str:
        """The name of this controller in its group."""
        return self._table["controllerDLegerSelfId"]

    def listening(self, port: int) -> str:
        """Note the port on which the controller listens; return the address that brokers are told."""
        told = self.peer
        if not told or told.endswith(":0"):
            host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
            told = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._table |= {"bindAddress": self.host, "listenPort": str(port)}
        if self.own_member is None:
            self._table["controllerDLegerPeers"] = f"{self.node}-{told}"
        return told

    def properties(self) -> dict[str, str]:
        """Return every key with its value, sorted; of a secret whether there is one."""
        return {key: _HIDDEN if value and key in _SECRETS else value for key, value in sorted(self._table.items())}

    def document(self) -> str:
        """Return all keys with their values as lines `key=value`."""
        return "".join(f"{key}={value}\n" for key, value in self.properties().items())

    def update(self, text: str) -> list[str]:
        """Change the settings by lines of key=value, and the file they came from; returns the keys that changed.

        Raises ServerError 16 for a key that may not be touched, 29 for a wrong value or one that needs a restart, 1 if
        the file cannot be written.
        """
        try:
            values = parse_request(text)
            if not values.keys().isdisjoint(_BARRED.union(self._table["configBlackList"].split(";"))):
                raise ServerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
            if unknown := values.keys() - self._table.keys():
                names = ", ".join(map(setting_name, sorted(unknown)))
                log.warning("settings that RocketMQ does not know are passed over: %s", names)
            # What was shown and is sent back changes nothing.
            now = self.properties()
            changed = {k: v for k, v in values.items() if k in now and v not in (now[k], self._table[k])}
            if fixed := (KEYS | {INNER_KEY} | write_gate.KEYS) & values.keys():
                raise ConfigError(f"{min(fixed)} cannot change while the controller runs")
            for key, value in changed.items():
                if key in _FIXED:
                    raise ConfigError(f"{key} cannot change while the controller runs")
                if shown(value, characters_max=VALUE_CHARACTERS_MAX) != value:
                    raise ConfigError(f"{key}={shown(value, characters_max=40)!r}: a text to be seen is needed")
            self._take(self._table | changed)
        except ConfigError as e:
            raise ServerError(ResponseCode.INVALID_PARAMETER, str(e)) from None
        self._table |= changed
        if self._conf_path and changed:
            config_files.keep_settings(self._conf_path, changed, until="the controller stops")
        return sorted(changed)


def parse_address_of_listener(address: str) -> tuple[str, int]:
    """Return (host, port) of "host:port", where port 0 takes a free one. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if colon and port == "0":
        return parse_address(f"{host}:1")[0], 0
    return parse_address(address)


def _members(peers: str, node: str) -> tuple[list[Member], Member | None]:
    """Return the controllers in controllerDLegerPeers, and which of them this one is. Raises ConfigError."""
    words = [peer.strip() for peer in peers.split(";") if peer.strip()]
    if len(words) == 1:
        # Alone it may listen on a free port.
        name, dash, address = words[0].partition("-")
        if not dash or not name:
            raise ConfigError(
                f"controllerDLegerPeers={shown(peers)!r}: id-host:port is needed, as in n0-127.0.0.1:9877"
            )
        parse_address_of_listener(address)
        found = [Member(name, address)]
    else:
        found = parse_members(peers)
    own = next((each for each in found if each.node == node), None)
    if found and own is None:
        raise ConfigError(f"controllerDLegerSelfId={shown(node)!r} is not in controllerDLegerPeers={shown(peers)!r}")
    return found, own


def named(peers: str, node: str | None) -> dict[str, str]:
    """Return the settings for the controller `node` of a group, from the command line's --peers and --id.

    Raises ConfigError.
    """
    members = parse_members(peers)
    if len(members) < 2:
        raise ConfigError("--peers names all controllers of a group, two at least: --listen is for one alone")
    if node is None:
        raise ConfigError(f"--peers needs --id: which of {', '.join(each.node for each in members)} is this one?")
    return {
        "controllerDLegerPeers": ";".join(each.name for each in members),
        "controllerDLegerSelfId": own_node(members, node),
    }


def _switch(values: dict[str, str], key: str) -> bool:
    if values[key].lower() not in _SWITCHES:
        raise ConfigError(f"{key}={shown(values[key], characters_max=40)!r}: true or false is needed")
    return _SWITCHES[values[key].lower()]


def _number(values: dict[str, str], key: str, low: int, high: int, unit: str) -> int:
    assert high <= INT_MAX
    found = whole_number(values[key], low=low, high=high)
    if found is None:
        text = shown(values[key], characters_max=40)
        raise ConfigError(f"{key}={text!r}: {unit} from {low} to {high} are needed")
    return found


def read_controller_conf(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the keys and values of a controller.conf. Raises ConfigError if it cannot be read."""
    return config_files.read_settings(path)
