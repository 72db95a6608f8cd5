"""Servers of ours that stop and start one by one while a test looks on, on ports that stay."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.support.patience import LIMIT_MS, LIMIT_S
from tests.support.ports import free_ports

from rocketspark.broker.server import BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.client.connection import admin_api, client_api
from rocketspark.errors import RouteNotFound
from rocketspark.namesrv.server import NameServer
from rocketspark.protocol.json.bodies import TopicConfig
from rocketspark.store import backup
from rocketspark.transport.connections import dial

T = TypeVar("T")


class Stage:
    """A NameServer and brokers by name. What is called returns once the NameServer knows."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._brokers: dict[str, BrokerServer] = {}
        self._ports: dict[str, int] = {}
        self._namesrv: NameServer | None = None
        self.namesrv = ""
        self.start_namesrv()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LIMIT_S)

    def start_namesrv(self) -> None:
        """A NameServer that knows nothing yet."""
        self._run(self._start_namesrv())

    async def _start_namesrv(self) -> None:
        self._namesrv = NameServer("127.0.0.1", int(self.namesrv.rpartition(":")[2] or free_ports()))
        await self._namesrv.start()
        self.namesrv = self._namesrv.address

    def stop_namesrv(self) -> None:
        """No NameServer answers."""
        assert self._namesrv is not None
        self._run(self._namesrv.close())
        self._namesrv = None

    def start(self, name: str) -> None:
        """Start a broker, for the first time or again."""
        self._run(self._start(name))

    async def _start(self, name: str) -> None:
        settings = BrokerSettings(
            broker_name=name,
            store_root=str(self._folder / name),
            namesrv_addresses=self.namesrv,
            listen_host="127.0.0.1",
            listen_port=self._ports.setdefault(name, free_ports()),
        )
        broker = BrokerServer(settings)
        await broker.start()
        self._brokers[name] = broker
        await self._until(lambda names: name in names)

    def stop(self, name: str) -> None:
        """Stop a broker; its store stays."""
        self._run(self._stop(name))

    async def _stop(self, name: str) -> None:
        await self._brokers.pop(name).close()
        await self._until(lambda names: name not in names)

    def move(self, name: str) -> None:
        """Stop a broker, and start it at another address."""
        self.stop(name)
        del self._ports[name]
        self.start(name)

    def lose_store(self, name: str) -> None:
        """Stop a broker, and start it on an empty store."""
        self.stop(name)
        shutil.rmtree(self._folder / name)
        self.start(name)

    def back_up(self, name: str, to: Path) -> None:
        """Copy a broker's store, while it runs, as `rocketspark backup` does."""
        backup.backup(self._folder / name, to)

    def set_back(self, name: str, backed_up: Path) -> None:
        """Stop a broker, and start it on what `rocketspark restore` makes of a backup."""
        self.stop(name)
        shutil.rmtree(self._folder / name)
        backup.restore(backed_up, self._folder / name)
        self.start(name)

    async def _until(self, holds: Any) -> None:
        peer = await dial(self.namesrv)
        while not holds((await admin_api.cluster_info(peer)).broker_addr_table):
            await asyncio.sleep(0.005)
        peer.close()

    def create(self, topic: str, queues: int, *brokers: str) -> None:
        """Create a topic, or give it another number of queues."""
        self._run(self._create(topic, queues, brokers or tuple(self._brokers)))

    async def _create(self, topic: str, queues: int, brokers: tuple[str, ...]) -> None:
        for name in brokers:
            peer = await dial(self._brokers[name].address)
            await admin_api.create_topic(
                peer,
                TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues),
                timeout_ms=LIMIT_MS,
            )
            peer.close()
        await self._until_route(topic, lambda found: all(found.get(name) == queues for name in brokers))

    def permit(self, topic: str, broker: str, perm: int) -> None:
        """Give a topic another permission on one of its brokers: 2 to write only, 6 both."""
        self._run(self._permit(topic, broker, perm))

    async def _permit(self, topic: str, broker: str, perm: int) -> None:
        peer = await dial(self._brokers[broker].address)
        await admin_api.create_topic(
            peer, TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=perm), timeout_ms=LIMIT_MS
        )
        peer.close()
        peer = await dial(self.namesrv)
        while {q.broker_name: q.perm for q in (await client_api.fetch_route(peer, topic)).queues}[broker] != perm:
            await asyncio.sleep(0.005)
        peer.close()

    def delete(self, topic: str) -> None:
        """Delete a topic everywhere."""
        self._run(self._delete(topic))

    async def _delete(self, topic: str) -> None:
        for broker in self._brokers.values():
            peer = await dial(broker.address)
            await admin_api.delete_topic(peer, topic)
            peer.close()
        peer = await dial(self.namesrv)
        await admin_api.delete_topic_route(peer, topic)
        peer.close()
        await self._until_route(topic, lambda found: not found)

    async def _until_route(self, topic: str, holds: Any) -> None:
        peer = await dial(self.namesrv)
        while True:
            try:
                route = await client_api.fetch_route(peer, topic)
                found = {queues.broker_name: queues.read_queue_count for queues in route.queues}
            except RouteNotFound:
                found = {}
            if holds(found):
                break
            await asyncio.sleep(0.005)
        peer.close()

    def close(self) -> None:
        """Stop all."""
        for name in list(self._brokers):
            self._run(self._brokers.pop(name).close())
        if self._namesrv is not None:
            self.stop_namesrv()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextmanager
def staged(folder: Path, *brokers: str) -> Iterator[Stage]:
    """A stage with these brokers."""
    stage = Stage(folder)
    try:
        for name in brokers:
            stage.start(name)
        yield stage
    finally:
        stage.close()
