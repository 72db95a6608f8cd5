"""The official servers in pairs: two brokers of one name and a NameServer, which may hold the controller; three modes.

Rule: each broker keeps its ports (port - 2, port, port + 1) and its store, so that it may be stopped or killed and
started again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from tests.java.apache import ApacheBroker, ApacheNamesrv, ask
from tests.support.patience import LIMIT_S, PATIENT
from tests.support.ports import free_ports

NAME = "broker-a"
CLUSTER = "DefaultCluster"
T = TypeVar("T")
Mode = Literal["classic", "acting", "controller"]

# Of every mode: short times, and slaves that may be read from.
COMMON: dict[str, Any] = {
    "slaveReadEnable": "true",
    "haSendHeartbeatInterval": 500,
    "haHousekeepingInterval": 20_000,
    "registerNameServerPeriod": 10_000,
} | PATIENT
ACTING: dict[str, Any] = {
    "enableSlaveActingMaster": "true",
    "enableRemoteEscape": "true",
    "totalReplicas": 2,
    "inSyncReplicas": 2,
    "minInSyncReplicas": 1,
    "enableAutoInSyncReplicas": "true",
    "brokerNotActiveTimeoutMillis": 3000,
}
CONTROLLED: dict[str, Any] = {
    "enableControllerMode": "true",
    "brokerId": -1,
    "brokerRole": "SLAVE",
    "allAckInSyncStateSet": "true",
    "syncBrokerMetadataPeriod": 1000,
    "checkSyncStateSetPeriod": 1000,
    "syncControllerMetadataPeriod": 1000,
    "controllerHeartBeatTimeoutMills": 3000,
    "haMaxTimeSlaveNotCatchup": 3000,
}


def until(found: Callable[[], T], limit_s: float = LIMIT_S, what: str = "it") -> T:
    """The first true answer. A server that does not answer yet has none."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            if answer := found():
                return answer
        except OSError:
            pass
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain for {what}"
        time.sleep(0.05)


def java_json(body: bytes) -> Any:
    """JSON whose keys may be bare numbers, as Java writes them."""
    return json.loads(re.sub(rb"([{,])(-?\d+):", rb'\1"\2":', body))


def members(namesrv: str, name: str = NAME, cluster: str = CLUSTER) -> dict[int, str]:
    """Address by broker id, as a NameServer knows them at this moment; no acting master here."""
    found = ask(namesrv, 901, ext_fields={"clusterName": cluster, "brokerName": name})
    if found.code != 0 or not found.body:
        return {}
    addresses = java_json(found.body)["brokerMemberGroup"]["brokerAddrs"]
    return {int(number): address for number, address in addresses.items()}


def routed(namesrv: str, topic: str, name: str = NAME) -> dict[int, str]:
    """Address by broker id in a topic's route, empty without one: an acting master stands as 0 here."""
    found = ask(namesrv, 105, ext_fields={"topic": topic})
    if found.code != 0:
        return {}
    for broker in java_json(found.body)["brokerDatas"]:
        if broker["brokerName"] == name:
            return {int(number): address for number, address in broker["brokerAddrs"].items()}
    return {}


class Replicas(NamedTuple):
    """What a controller knows of a name. `master`: its address, None without one; `in_sync`: controller ids."""

    master: str | None
    master_id: int | None
    epoch: int
    in_sync: set[int]


def replicas(controller: str, name: str = NAME) -> Replicas:
    found = ask(controller, 1004, ext_fields={"brokerName": name})
    if found.code != 0:
        return Replicas(None, None, 0, set())
    ext = found.ext_fields
    master_id = int(ext["masterBrokerId"]) if "masterBrokerId" in ext else None
    in_sync = set(java_json(found.body)["syncStateSet"]) if found.body else set()
    return Replicas(ext.get("masterAddress"), master_id, int(ext.get("masterEpoch", 0)), in_sync)


def elect(controller: str, broker_id: int, name: str = NAME, cluster: str = CLUSTER) -> int:
    """Have the controller make this member the master; its response code."""
    ext = {"clusterName": cluster, "brokerName": name, "brokerId": str(broker_id), "designateElect": "true"}
    return ask(controller, 1002, ext_fields=ext | {"invokeTime": str(time.time_ns() // 1_000_000)}).code


def ha_status(broker: str) -> dict[str, Any]:
    """Body of GET_BROKER_HA_STATUS."""
    found = ask(broker, 907)
    return dict(java_json(found.body)) if found.code == 0 and found.body else {}


def log_end(broker: str) -> int:
    """Where a master's log ends."""
    return int(ha_status(broker)["masterCommitLogMaxOffset"])


def caught_up(master: str, count: int = 1) -> bool:
    """Whether so many slaves have acknowledged all of the master's log."""
    status = ha_status(master)
    end = status.get("masterCommitLogMaxOffset")
    slaves = status.get("haConnectionInfo") or []
    return len([slave for slave in slaves if slave["slaveAckOffset"] == end]) >= count


def has_topic(broker: str, topic: str) -> bool:
    """Whether the broker has settings of the topic: a slave gets them 10 s (classic: 60 s) after its start."""
    return ask(broker, 351, ext_fields={"topic": topic}).code == 0


class PairNamesrv(ApacheNamesrv):
    """A NameServer. `controller`: the address of the controller inside it, empty without one."""

    def __init__(self, folder: Path, mode: Mode = "classic", config: dict[str, Any] | None = None) -> None:
        self.controller = ""
        settings: dict[str, Any] = {"scanNotActiveBrokerInterval": 1000}
        if mode == "acting":
            settings |= {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
        if mode == "controller":
            port = free_ports()
            self.controller = f"127.0.0.1:{port}"
            settings |= {
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": "g",
                "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
                "controllerDLegerSelfId": "n0",
                "controllerStorePath": folder / "controller",
                "mappedFileSize": 10 * 1024 * 1024,
                "scanInactiveMasterInterval": 1000,
            }
        super().__init__(folder, settings | (config or {}))

    def _is_ready(self) -> bool:
        if not super()._is_ready():
            return False
        return not self.controller or ask(self.controller, 1005).ext_fields.get("isLeader") == "true"


class PairBroker(ApacheBroker):
    """A broker of a pair, ready once the NameServer (in controller mode: the controller too) knows it.

    Args:
        mode: what it is part of.
        broker_id: 0 for a master; of no use in controller mode.
        controller: "host:port" of the controller, several with ";" between.
        config: more keys of broker.conf.
    """

    def __init__(
        self,
        folder: Path,
        namesrv: str,
        store: Path,
        mode: Mode = "classic",
        broker_id: int = 0,
        *,
        name: str = NAME,
        controller: str = "",
        config: dict[str, Any] | None = None,
        port: int | None = None,
    ) -> None:
        self.mode = mode
        settings = dict(COMMON)
        if mode == "controller":
            settings |= CONTROLLED | {"controllerAddr": controller}
        else:
            role = "ASYNC_MASTER" if mode == "classic" else "SYNC_MASTER"
            settings |= {"brokerId": broker_id, "brokerRole": "SLAVE" if broker_id else role}
        if mode == "acting":
            settings |= ACTING
        super().__init__(folder, namesrv, store, name, settings | (config or {}), port)

    @property
    def ha(self) -> str:
        """Where it listens for slaves."""
        host, port = self.broker.rsplit(":", 1)
        return f"{host}:{int(port) + 1}"

    def _is_ready(self) -> bool:
        if self.mode == "classic":
            return super()._is_ready()
        # No forced registration: it would be one of a broker that has no id yet, or that must not be seen yet.
        return all(self.broker in members(names, self.name).values() for names in self.namesrv.split(";"))


class JavaPair:
    """A NameServer, with the controller if the mode needs one, and two brokers, the first of which begins as master.

    `config`: keys of both brokers; `first`, `second`: of one; `names`: of the NameServer.
    """

    def __init__(
        self,
        folder: Path,
        mode: Mode = "classic",
        *,
        config: dict[str, Any] | None = None,
        first: dict[str, Any] | None = None,
        second: dict[str, Any] | None = None,
        names: dict[str, Any] | None = None,
    ) -> None:
        self.mode = mode
        self._folder = folder
        self._servers: list[Any] = []
        try:
            self.names = PairNamesrv(folder / "namesrv", mode, names)
            self._servers.append(self.names)
            self.namesrv = self.names.namesrv
            self.controller = self.names.controller
            self.first = self.add(0, (config or {}) | (first or {}))
            self.second = self.add(1, (config or {}) | (second or {}))
        except BaseException:
            self.close()
            raise

    def add(self, broker_id: int, config: dict[str, Any] | None = None) -> PairBroker:
        """Start one more broker of the name."""
        number = len(self._servers)
        folder, store = self._folder / f"broker-{number}", self._folder / f"store-{number}"
        found = PairBroker(folder, self.namesrv, store, self.mode, broker_id, controller=self.controller, config=config)
        self._servers.append(found)
        return found

    def make_topic(self, topic: str, queues: int) -> None:
        """Make a topic on both brokers at once: by itself a slave learns of it 10 s, or 60 s, after its start."""
        until(lambda: self.master() is not None)
        wanted = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
        wanted |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
        for broker in (self.first, self.second):
            assert ask(broker.broker, 17, ext_fields=wanted).code == 0
        until(lambda: routed(self.namesrv, topic))

    def master(self) -> PairBroker | None:
        """The broker that is the master now, by its controller or else by its id."""
        address = replicas(self.controller).master if self.controller else members(self.namesrv).get(0)
        return next((b for b in (self.first, self.second) if b.broker == address), None)

    def wait_in_sync(self, count: int = 1) -> None:
        """Wait until so many slaves have all of the master's log, and in controller mode are in its set."""

        def done() -> bool:
            master = self.master()
            if master is None or not caught_up(master.broker, count):
                return False
            return not self.controller or len(replicas(self.controller).in_sync) > count

        until(done, what=f"{count} slaves in sync")

    def close(self) -> None:
        """Ends all; nothing is kept, so by force."""
        for server in reversed(self._servers):
            server.kill()
