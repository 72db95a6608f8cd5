"""An embedded cluster for tests: NameServer and brokers in a thread of this process.

Rule: when the `with` block ends no thread, no socket and no temporary file is left.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from rocketspark.broker.server import BrokerServer
from rocketspark.broker.settings import BrokerSettings
from rocketspark.namesrv.server import SHARE_BESIDE_A_BROKER, NameServer

# A broker of a test holds little: small files keep it lean. A slow test machine is no load.
SMALL_FILES: dict[str, Any] = {
    "refuse_when_behind": False,
    "log_file_bytes": 16 << 20,
    "queue_file_bytes": 20 * 20_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}


class Cluster:
    """The running cluster of `run_cluster`.

    `namesrv`: "host:port" of the NameServer; `brokers`: "host:port" of each broker, in the order of their names
    broker-a, broker-b, …; `store`: the folder that holds one store folder for each broker.
    """

    def __init__(self, namesrv: str, brokers: tuple[str, ...], store: Path) -> None:
        self.namesrv = namesrv
        self.brokers = brokers
        self.store = store


@contextmanager
def run_cluster(brokers: int = 1, store: str | Path | None = None, **broker_settings: Any) -> Iterator[Cluster]:
    """Run a NameServer and `brokers` brokers on free ports of 127.0.0.1 while the `with` block lasts.

    Args:
        brokers: how many; they are named broker-a, broker-b, … and make one cluster.
        store: folder for the messages, kept afterwards; None: a temporary one, removed afterwards.
        broker_settings: fields of `rocketspark.broker.settings.BrokerSettings`, for each broker.

    Raises ConfigError for a setting that cannot be used, StoreError for a store that cannot be opened.
    """
    if not 1 <= brokers <= 26:
        raise ValueError(f"brokers={brokers}: 1 to 26 can be run")
    folder = Path(store) if store is not None else Path(tempfile.mkdtemp(prefix="rocketspark-"))
    try:
        thread = _ServerThread(folder, brokers, broker_settings)
        try:
            yield thread.start()
        finally:
            thread.close()
    finally:
        if store is None:
            shutil.rmtree(folder, ignore_errors=True)


class _ServerThread:
    """The event loop of the servers, in a thread of its own."""

    def __init__(self, folder: Path, broker_count: int, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._broker_count = broker_count
        self._settings = {**SMALL_FILES, **settings}
        self._started = threading.Event()
        self._stop: asyncio.Event | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: Cluster | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rocketspark-cluster", daemon=True)

    def start(self) -> Cluster:
        self._thread.start()
        self._started.wait()
        if self._cluster is None:
            self._thread.join()
            assert self._error is not None
            raise self._error
        return self._cluster

    def close(self) -> None:
        # The caller may have been interrupted while it waited for the start: the thread may have no loop yet.
        self._closed = True
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None and self._cluster is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as e:
            self._error = e
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        if self._closed:
            return
        async with AsyncExitStack() as servers:
            nameserver = NameServer(port=0, share=SHARE_BESIDE_A_BROKER)
            await nameserver.start()
            servers.push_async_callback(nameserver.close)
            addresses = []
            for number in range(self._broker_count):
                broker = BrokerServer(self._broker_settings(number, nameserver.address))
                await broker.start()
                servers.push_async_callback(broker.close)
                addresses.append(broker.address)
            self._cluster = Cluster(nameserver.address, tuple(addresses), self._folder)
            self._started.set()
            await self._stop.wait()

    def _broker_settings(self, number: int, namesrv: str) -> BrokerSettings:
        name = f"broker-{chr(ord('a') + number)}"
        own = {
            "broker_name": name,
            "store_root": str(self._folder / name),
            "namesrv_addresses": namesrv,
            "listen_host": "127.0.0.1",
            "listen_port": 0,
        }
        return BrokerSettings(**{**own, **self._settings})


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
