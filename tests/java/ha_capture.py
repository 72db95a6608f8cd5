"""Makes the vectors in tests/vectors/ha anew: what official masters and slaves write to each other, in both protocols.

    python -m tests.java.ha_capture

Rule: the log is small (files of 8 KiB, frames of at most 2 KiB), so that frames end within records and the log is of
several files; what is sent is known, and the log's files are named by their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.java.apache_pair import (
    Mode,
    PairBroker,
    PairNamesrv,
    caught_up,
    elect,
    has_topic,
    log_end,
    members,
    replicas,
    until,
)
from tests.java.ha_relay import Relay, Relayed
from tests.support.ha_streams import VECTORS, body_of
from tests.support.ports import free_ports

from rocketspark.admin.operations import Admin
from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue

TOPIC = "captured"
FILE_BYTES = 8192
SETTINGS: dict[str, Any] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "haTransferBatchSize": 2048,
    "haSendHeartbeatInterval": 500,
}


class Capture:
    """The servers of one protocol's captures, and what has been kept so far.

    Slaves learn where the master's log is to be had from the NameServer alone (the official ones lose what
    haMasterAddress says), so a relay before it names other relays instead.
    """

    def __init__(self, folder: Path, mode: Mode, stack: ExitStack) -> None:
        self.folder = folder
        self.mode = mode
        self.stack = stack
        self.names = PairNamesrv(folder / "names", mode, {"enableElectUncleanMaster": "true"})
        stack.callback(self.names.kill)
        self.ports = [free_ports(-2, 0, 1) for _ in range(3)]
        self.relays = [Relay(f"127.0.0.1:{port + 1}") for port in self.ports]
        hidden = {f"127.0.0.1:{port + 1}": relay.address for port, relay in zip(self.ports, self.relays, strict=True)}
        self.hiding = Relay(self.names.namesrv, hidden)
        for made in (*self.relays, self.hiding):
            stack.callback(made.close)
        self.sent = 0
        self.links: list[dict[str, Any]] = []

    def broker(self, number: int) -> PairBroker:
        """Start broker 0, 1 or 2 of the name; its slaves are given the relay of that number."""
        made = PairBroker(
            self.folder / f"broker-{number}",
            self.hiding.address,
            self.folder / f"store-{number}",
            self.mode,
            number,
            controller=self.names.controller,
            config=SETTINGS,
            port=self.ports[number],
        )
        self.stack.callback(made.kill)
        return made

    def send(self, count: int) -> None:
        """Send the next messages, in one queue."""
        with Producer(self.names.namesrv, "pg", retries=20, send_timeout_ms=20_000) as producer:
            for number in range(self.sent, self.sent + count):
                message = Message(topic=TOPIC, body=body_of(number), keys=f"k{number}", tag="AB"[number % 2])
                producer.send(message, queue=MessageQueue(TOPIC, "broker-a", 0))
        self.sent += count

    def make_topic(self) -> None:
        with Admin(self.names.namesrv) as operations:
            operations.create_topic(TOPIC, queue_count=1)

    def settle(self, master: PairBroker, relay: Relay) -> Relayed:
        """The newest connection, once the slave has all and each side has sent heartbeats."""
        until(lambda: relay.connections and not relay.connections[-1].ended and caught_up(master.broker))
        link = relay.connections[-1]
        counts = {side: link.count(side) + 2 for side in ("master", "slave")}
        until(lambda: all(link.count(side) >= count for side, count in counts.items()))
        return link

    def keep(self, what: str, link: Relayed) -> None:
        """Write what came over the link so far."""
        name = f"{self.mode}-{len(self.links) + 1}"
        pieces = list(link.pieces)
        for side in ("master", "slave"):
            data = b"".join(piece.data for piece in pieces if piece.side == side)
            (VECTORS / f"{name}.{side}.bin").write_bytes(data)
        order = [[piece.side, len(piece.data), piece.ms] for piece in pieces]
        self.links.append({"name": name, "protocol": self.mode, "what": what, "order": order})

    def log_of(self, master: PairBroker) -> dict[str, Any]:
        """The master's log: its end, and each file up to there."""
        end = log_end(master.broker)
        files = []
        for path in sorted((master.store / "commitlog").iterdir()):
            begin = int(path.name)
            data = path.read_bytes()[: max(end - begin, 0)]
            if data:
                files.append({"offset": begin, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
        return {"end": end, "messages": self.sent, "files": files}


def classic(capture: Capture) -> dict[str, Any]:
    relay = capture.relays[0]
    master = capture.broker(0)
    slave = capture.broker(1)
    capture.make_topic()
    until(lambda: relay.connections and relay.connections[-1].count("slave"))
    capture.send(28)
    capture.keep("an empty slave of an empty master, from its first report on", capture.settle(master, relay))
    slave.kill()
    capture.send(4)
    slave.start()
    until(lambda: len(relay.connections) == 2)
    capture.keep("the slave was killed and comes again: it goes on from its end", capture.settle(master, relay))
    slave.kill()
    capture.broker(2)
    until(lambda: len(relay.connections) == 3)
    capture.keep("an empty slave that comes late: it gets the master's last file", capture.settle(master, relay))
    return capture.log_of(master)


def controller(capture: Capture) -> dict[str, Any]:
    """Here the controller's ids begin with 1: broker 0 is replica 1."""
    address = capture.names.controller

    def master_is(wanted: PairBroker) -> bool:
        named = members(capture.names.namesrv).get(0)
        return named == wanted.broker and replicas(address).master == wanted.broker

    def in_sync(*wanted: int) -> bool:
        return replicas(address).in_sync == set(wanted)

    first = capture.broker(0)
    until(lambda: master_is(first))
    capture.make_topic()
    second = capture.broker(1)
    until(lambda: in_sync(1, 2))
    capture.send(20)
    # A slave that became master before its first copy of the topics would lose them on all members.
    until(lambda: has_topic(second.broker, TOPIC))
    link = capture.settle(first, capture.relays[0])
    capture.keep("replica 2 of master 1, from its start on: epoch 1", link)

    assert elect(address, 2) == 0
    until(lambda: master_is(second) and in_sync(1, 2))
    capture.send(6)
    link = capture.settle(second, capture.relays[1])
    capture.keep("2 was elected: replica 1 of master 2, epoch 2", link)

    first.stop()
    until(lambda: in_sync(2))
    capture.send(3)
    second.kill()
    capture.sent -= 3
    first.start()
    until(lambda: elect(address, 1) in (0, 2011) and master_is(first))
    capture.send(2)
    second.start()
    until(lambda: in_sync(1, 2))
    link = capture.settle(first, capture.relays[0])
    capture.keep("1 was elected though 2 had three messages more: 2 cuts its log and goes on in epoch 3", link)

    second.kill()
    until(lambda: in_sync(1))
    capture.broker(2)
    until(lambda: in_sync(1, 3))
    link = capture.settle(first, capture.relays[0])
    capture.keep("replica 3, empty, of master 1: three epochs from the first file on", link)
    return capture.log_of(first)


MODES: tuple[tuple[Mode, Callable[[Capture], dict[str, Any]]], ...] = (("classic", classic), ("controller", controller))


def make_all() -> None:
    VECTORS.mkdir(parents=True, exist_ok=True)
    links: list[dict[str, Any]] = []
    logs: dict[str, Any] = {}
    for mode, make in MODES:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            capture = Capture(Path(folder), mode, stack)
            logs[mode] = make(capture)
            links += capture.links
    about = {"servers": "Apache RocketMQ 5.5.0", "topic": TOPIC, "settings": SETTINGS, "logs": logs}
    lines = ",\n    ".join(json.dumps(link) for link in links)
    text = json.dumps(about, indent=2).removesuffix("\n}") + f',\n  "links": [\n    {lines}\n  ]\n}}\n'
    (VECTORS / "manifest.json").write_text(text)


if __name__ == "__main__":
    make_all()
