"""Brokers without sockets: what they answer and what they store can be compared byte by byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.live.support import settings as broker_settings
from tests.support.stand_ins import like

from rocketspark import machine
from rocketspark.broker import server
from rocketspark.broker.handlers import send_message as send_handler
from rocketspark.broker.messages import put_message, send_rules
from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.broker.messages.send_rules import MessageSettings, SendRules
from rocketspark.broker.messages.transactions import op_messages
from rocketspark.broker.server import BrokerServer
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.protocol import frames
from rocketspark.protocol.json.bodies import QuarantineTable
from rocketspark.protocol.message import record
from rocketspark.store import Store
from rocketspark.transport.peer import Peer

NOW = int(time.time())
HOST = bytes.fromhex("7f00000100002a9f")


def quarantine_in(root: Path) -> Quarantine:
    """What is set aside by the broker of a store."""
    return Quarantine(JsonFile(root / "config" / "quarantine.json", QuarantineTable))


def rules_in(store: Store, *, body_bytes_max: int = 1 << 20, marks: dict[str, str]) -> SendRules:
    """What a broker without topics takes."""
    topics: Any = SimpleNamespace(table={}, elected_at=0)
    return SendRules(store, topics, MessageSettings(body_bytes_max, marks))


def records_in(store: Store, topic: str = "T", queue_id: int = 0) -> list[record.Record]:
    """All messages of a queue, in order."""
    found: list[record.Record] = []
    low, high = store.queue_range(topic, queue_id)
    while low < high:
        read = store.read(topic, queue_id, low, 32, 1 << 20)
        found += [r for chunk in read.records for r in record.decode_all(chunk)]
        low = read.next_offset
    return found


class Wire(asyncio.Transport):
    """Takes what a peer writes."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        super().__init__()
        self.host = host
        self.written = b""
        self.writes = 0
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.host, 40_000) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += data
        self.writes += 1

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def replies(self) -> dict[int, bytes]:
        return {frames.decode(whole).opaque: whole for whole in split(self.written)}


def split(stream: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(stream):
        end = at + 4 + int.from_bytes(stream[at : at + 4], "big")
        yield stream[at:end]
        at = end


class Broker:
    """A broker with a store of its own, and connections to it that are no sockets."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.root = root
        self.server = BrokerServer(broker_settings(root, **changes))

    async def start(self) -> Broker:
        await self.server.start()
        return self

    def connect(self, host: str = "127.0.0.1") -> tuple[Peer, Wire]:
        peer, wire = Peer(self.server._server._routes, language="JAVA"), Wire(host)
        peer.connection_made(wire)
        return peer, wire

    def files(self) -> dict[str, bytes]:
        """What the store holds, settled."""
        store = self.server.store
        # New queues are in memory until a flush, which a thread does on a busy machine before this.
        store.flush_queues()
        store.flush_indexes()
        found = {}
        for folder in ("commitlog", "consumequeue", "index"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.is_file():
                    name = "index" if folder == "index" else str(path.relative_to(self.root))
                    found[name] = path.read_bytes().rstrip(b"\0")
        return found


def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers stamp the same store time and address, so that their files can be compared."""
    monkeypatch.setattr(put_message, "machine", like(machine, time=lambda: NOW))
    monkeypatch.setattr(op_messages, "now_ms", lambda: int(NOW * 1000))
    monkeypatch.setattr(server, "pack_host", lambda host, port: HOST)
    for module in (send_rules, send_handler):
        monkeypatch.setattr(module, "any_queue", lambda count: 0)
