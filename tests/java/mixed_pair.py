"""A master and its slave, one of them the official broker and the other ours, at a NameServer of ours.

Rule: the slave copies through a relay that can stand still; both keep ports and stores over restarts.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from tests.java.apache import ask, max_offset
from tests.java.apache_pair import CLUSTER, COMMON, NAME, PairBroker, caught_up, ha_status, log_end, members, until
from tests.java.ha_relay import Relay
from tests.java.our_controller import OurServer, our_namesrv
from tests.support.ports import free_ports

Kind = Literal["JP", "PJ"]
UNIT_BYTES = 20
LOG_FILE_BYTES = 1 << 20
CONFIG: dict[str, Any] = COMMON | {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": UNIT_BYTES * 10_000,
    "haHousekeepingInterval": 4000,
    "inSyncReplicas": 2,
    "slaveTimeout": 1000,
    "recallMessageEnable": "true",
    # What the official one tells of its timer messages is as old as its last flush.
    "timerFlushIntervalMs": 1000,
    "cleanFileForciblyEnable": "false",
}


class OurBroker(OurServer):
    """A broker of ours as a process, with the official one's surface. `broker`, `ha`: its addresses."""

    def __init__(
        self, folder: Path, namesrv: str, store: Path, config: dict[str, Any], port: int | None = None
    ) -> None:
        port = port or free_ports(-2, 0, 1)
        self.broker, self.ha, self.store = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}", store
        self._keys: dict[str, Any] = {
            "brokerClusterName": CLUSTER,
            "brokerName": NAME,
            "listenPort": port,
            "namesrvAddr": namesrv,
            "storePathRootDir": store,
            "diskMaxUsedSpaceRatio": 99,
        } | config
        super().__init__(folder, "broker", "")

    def start(self, config: dict[str, Any] | None = None) -> None:
        """Start it. `config`: keys that change."""
        self._keys |= config or {}
        self.config.write_text("".join(f"{key}={value}\n" for key, value in self._keys.items()), "utf-8")
        super().start()


class MixedPair:
    """`kind` names the master's and the slave's maker. `relay`: between the slave and the master's log."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self.kind = kind
        self._folder = folder
        self.names, self.namesrv = our_namesrv(folder / "names")
        self._servers: list[Any] = [self.names]
        self.relay: Relay | None = None
        try:
            self.master = self._make(kind[0], "m", {"brokerRole": "SYNC_MASTER", "brokerId": 0})
            self.relay = Relay(self.master.ha)
            self.slave = self._make(kind[1], "s", self.as_slave())
            self._tell_slave()
            until(lambda: members(self.namesrv) == {0: self.master.broker, 1: self.slave.broker})
            until(self.in_sync, what="the slave")
        except BaseException:
            self.close()
            raise

    def as_slave(self) -> dict[str, Any]:
        """Keys of a slave that copies through the relay."""
        assert self.relay is not None
        return {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": self.relay.address}

    def _make(self, maker: str, name: str, config: dict[str, Any]) -> Any:
        folder, store = self._folder / f"broker-{name}", self._folder / f"store-{name}"
        config = CONFIG | config
        if maker == "P":
            found: Any = OurBroker(folder, self.namesrv, store, config)
        else:
            found = PairBroker(folder, self.namesrv, store, config=config)
        self._servers.append(found)
        return found

    def start_slave(self) -> None:
        """Start it again."""
        self.slave.start()
        self._tell_slave()

    def _tell_slave(self) -> None:
        # The official slave does not take what haMasterAddress says, though it then looks nowhere else.
        if self.kind == "PJ" and self.relay is not None:
            fields = {"masterHaAddress": self.relay.address, "masterFlushOffset": "0"}
            told = ask(self.slave.broker, 906, ext_fields=fields | {"masterAddress": self.master.broker})
            assert told.code == 0

    def in_sync(self) -> bool:
        """Whether the slave holds all."""
        return caught_up(self.master.broker)

    def link_count(self) -> int:
        """How many slaves the master sees."""
        return len(ha_status(self.master.broker)["haConnectionInfo"])

    def remove_slave_store(self) -> None:
        """What a slave that was killed leaves."""
        shutil.rmtree(self.slave.store)

    def assert_equal(self, topic: str, queues: int, *, from_last_file: bool = False) -> None:
        """Wait for the slave, then compare logs and queues byte for byte."""
        until(self.in_sync, what="the slave")
        end = log_end(self.master.broker)
        theirs, ours = (log_of(broker.store, end) for broker in (self.master, self.slave))
        if from_last_file:
            # One of them began with a late file of the other's.
            assert max(theirs) == max(ours)
            theirs = {name: data for name, data in theirs.items() if name in ours}
        else:
            assert theirs.keys() == ours.keys()
            assert sum(map(len, theirs.values())) == end
        for name, data in theirs.items():
            assert data == ours[name], f"log file {name}"
        for queue_id in range(queues):
            count = max_offset(self.master.broker, topic, queue_id)
            until(lambda n=queue_id, c=count: max_offset(self.slave.broker, topic, n) == c)
            lows = [min_offset(broker.broker, topic, queue_id) for broker in (self.master, self.slave)]
            assert from_last_file or lows[0] == lows[1]
            low = max(lows)
            until(
                lambda n=queue_id, c=count, at=low: (
                    units(self.master.store, topic, n, at, c) == units(self.slave.store, topic, n, at, c)
                ),
                what="equal queues",
            )

    def close(self) -> None:
        """End all by force."""
        for server in reversed(self._servers):
            server.kill()
        if self.relay is not None:
            self.relay.close()


def log_of(store: Path, end: int) -> dict[str, bytes]:
    """The log's files up to its end, by name."""
    found = {}
    for path in sorted((store / "commitlog").iterdir()):
        if path.name.isdigit() and int(path.name) < end:
            found[path.name] = path.read_bytes()[: end - int(path.name)]
    return found


def units(store: Path, topic: str, queue_id: int, low: int, high: int) -> bytes:
    """The units of a queue from one offset to another. Raises FileNotFoundError while some are not there."""
    folder = store / "consumequeue" / topic / str(queue_id)
    data, first = b"", None
    for path in sorted(folder.iterdir()):
        first = int(path.name) if first is None else first
        data += path.read_bytes()
    begin = first or 0
    found = data[low * UNIT_BYTES - begin : high * UNIT_BYTES - begin]
    if len(found) < (high - low) * UNIT_BYTES:
        raise FileNotFoundError(f"{folder}: {len(found)} bytes of units {low} to {high}")
    return found


def min_offset(broker: str, topic: str, queue_id: int) -> int:
    """The first offset of a queue."""
    answer = ask(broker, 31, ext_fields={"topic": topic, "queueId": str(queue_id)})
    assert answer.code == 0
    return int(answer.ext_fields["offset"])
