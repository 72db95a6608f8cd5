"""An embedded cluster for tests: NameServer and brokers in a thread of this process.

Rule: when the `with` block ends no thread, no socket and no temporary file is left.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from rocketspark.broker.access import secure_folder
from rocketspark.broker.access.secure_folder import SecureFolder
from rocketspark.broker.inner_connections import signer_of, writers_beside
from rocketspark.broker.settings import BrokerSettings
from rocketspark.cli.serving.proxy_process import EXTRA, is_installed, proxy_process
from rocketspark.cli.serving.serve import loop_factory, start_in
from rocketspark.client.validators import unknown_argument
from rocketspark.errors import ConfigError, StateError
from rocketspark.namesrv.server import SHARE_BESIDE_A_BROKER, NameServer
from rocketspark.testing.controllers import Controllers
from rocketspark.testing.replicas import Replicas, Single

# A broker of a test holds little: small files keep it lean. A slow test machine is no load.
SMALL_FILES: dict[str, Any] = {
    "refuse_when_behind": False,
    "clean_by_force": False,
    "log_file_bytes": 16 << 20,
    "queue_file_bytes": 20 * 20_000,
    "index_slots": 5_000,
    "index_entries": 20_000,
}


class Cluster:
    """The running cluster of `run_cluster`.

    `namesrv`: "host:port" of the NameServer; `brokers`: "host:port" of each broker, in the order of their names
    broker-a, broker-b, …, all replicas of a name one after the other, the first master first; `store`: the folder that
    holds one store folder for each broker; `controller`: "host:port" of the controller, of several with ; between, ""
    without replicas;
    `client_options`: what clients need to come in, empty if everybody may, as in `Producer(cluster.namesrv,
    **cluster.client_options)`. With `secure=True` these are `access_key` and `secret_key` of a user who may do
    everything, `use_tls`, and `tls_ca`, the file of the certificate. `grpc_endpoint`: "host:port" for clients of
    RocketMQ 5, "" without `grpc=True`.
    """

    def __init__(
        self,
        namesrv: str,
        brokers: tuple[str, ...],
        store: Path,
        controller: str = "",
        client_options: dict[str, Any] | None = None,
    ) -> None:
        self.namesrv = namesrv
        self.brokers = brokers
        self.store = store
        self.controller = controller
        self.client_options = client_options or {}
        self.grpc_endpoint = ""
        self._ask: Callable[[Callable[[Replicas | Single], Awaitable[Any]], str], Any] | None = None
        self._ask_controllers: Callable[[Callable[[Controllers], Awaitable[Any]]], Any] | None = None

    def master(self, name: str = "broker-a") -> str:
        """Return the address of the master that a broker name has now. Raises StateError if there is none."""
        return str(self._of(name, lambda replicas: replicas.master()))

    def kill_master(self, name: str = "broker-a") -> str:
        """End the name's master as SIGKILL would, and return its address. The controller elects another; without
        replicas the name's queues are away. `start_again` starts the killed one.
        """
        return str(self._of(name, lambda replicas: replicas.kill_master()))

    def start_again(self, name: str = "broker-a") -> None:
        """Start the killed brokers of a broker name again, on their stores and ports."""
        self._of(name, lambda replicas: replicas.start_again())

    def elect(self, address: str, name: str = "broker-a") -> None:
        """Have the controller make the replica at an address the master; returns once it is. Raises ServerError if it
        refuses.
        """
        self._of(name, lambda replicas: replicas.elect(address))

    def wait_in_sync(self, count: int = 0, name: str = "broker-a") -> str:
        """Wait until so many replicas are in sync (0: all that run); returns the master's address.

        Raises StateError if that takes over a minute.
        """
        return str(self._of(name, lambda replicas: replicas.wait_in_sync(count)))

    def leading_controller(self) -> str:
        """Return the address of the controller that leads. Raises StateError if none does within a minute."""
        return str(self._of_controllers(lambda controllers: controllers.leader()))

    def kill_controller(self) -> str:
        """End the controller that leads, and return its address. With `controllers=3` the others elect a new one."""
        return str(self._of_controllers(lambda controllers: controllers.kill_leader()))

    def start_controllers_again(self) -> None:
        """Start the controllers that were ended, on their folders and ports."""
        self._of_controllers(lambda controllers: controllers.start())

    def _of_controllers(self, act: Callable[[Controllers], Awaitable[Any]]) -> Any:
        if self._ask_controllers is None:
            raise StateError("this cluster has no controller: run_cluster(replicas=2) makes one")
        return self._ask_controllers(act)

    def _of(self, name: str, act: Callable[[Replicas | Single], Awaitable[Any]]) -> Any:
        assert self._ask is not None
        return self._ask(act, name)


@contextmanager
def run_cluster(
    brokers: int = 1,
    store: str | Path | None = None,
    *,
    replicas: int = 1,
    controllers: int = 1,
    secure: bool = False,
    grpc: bool = False,
    **broker_settings: Any,
) -> Iterator[Cluster]:
    """Run a NameServer and `brokers` brokers on free ports of 127.0.0.1 while the `with` block lasts.

    Args:
        brokers: how many; they are named broker-a, broker-b, … and make one cluster.
        store: folder for the messages, kept afterwards; None: a temporary one, removed afterwards.
        replicas: how many of each name; with 2 and more a controller elects the masters, and a send is answered once
            all in sync have it. The block begins when they are.
        controllers: how many, with replicas; with 3 one of them may end. It takes the extra `controllers`.
        grpc: serve RocketMQ 5's gRPC protocol as well, by a process beside; it takes the extra `grpc`.
        secure: take TLS and signed requests alone, as `rocketspark server --secure`; the cluster's `client_options`
            are what a client needs. It takes the extra `tls`.
        broker_settings: fields of `rocketspark.broker.settings.BrokerSettings`, for each broker.

    Raises ConfigError for a setting that cannot be used, StoreError for a store that cannot be opened.
    """
    settings = BrokerSettings.__struct_fields__
    for name in broker_settings.keys() - settings:
        own = ("brokers", "store", "replicas", "controllers", "secure", "grpc")
        raise unknown_argument("run_cluster()", name, (*own, *settings))
    if not 1 <= brokers <= 26:
        raise ValueError(f"brokers={brokers}: 1 to 26 can be run")
    if grpc and not is_installed():
        raise ConfigError(EXTRA)
    if not 1 <= replicas <= 9:
        raise ValueError(f"replicas={replicas}: 1 to 9 can be run")
    if not 1 <= controllers <= 9:
        raise ValueError(f"controllers={controllers}: 1 to 9 can be run")
    if controllers > 1 and replicas == 1:
        raise ValueError("controllers elect among replicas: replicas=2 or more is needed")
    folder = Path(store) if store is not None else Path(tempfile.mkdtemp(prefix="rocketspark-"))
    try:
        thread = _ServerThread(
            folder, brokers, replicas, broker_settings, controllers=controllers, secure=secure, grpc=grpc
        )
        try:
            yield thread.start()
        finally:
            thread.close()
    finally:
        if store is None:
            shutil.rmtree(folder, ignore_errors=True)


class _ServerThread:
    """The event loop of the servers, in a thread of its own."""

    def __init__(
        self,
        folder: Path,
        broker_count: int,
        replica_count: int,
        settings: dict[str, Any],
        *,
        controllers: int = 1,
        secure: bool = False,
        grpc: bool = False,
    ) -> None:
        self._folder = folder
        self._broker_count = broker_count
        self._replica_count = replica_count
        self._replicas: dict[str, Replicas | Single] = {}
        self._controller_count = controllers
        self._controllers: Controllers | None = None
        self._settings = {**SMALL_FILES, **settings}
        self._secure, self._grpc = secure, grpc
        self._door: SecureFolder | None = None
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
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
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
        self._door = secure_folder.prepare(self._folder / "secure") if self._secure else None
        common = self._broker_settings(0, "")
        async with AsyncExitStack() as servers:
            nameserver = NameServer(port=0, share=SHARE_BESIDE_A_BROKER, tls=common.tls, signer=signer_of(common))
            writers = self._door.namesrv_writers() if self._door else writers_beside(common)
            if writers:
                nameserver.let_write(writers)
            await start_in(servers, nameserver)
            addresses = []
            controller = ""
            if self._replica_count > 1:
                count = self._controller_count
                folder = self._folder / ("controller" if count == 1 else "controllers")
                self._controllers = Controllers(folder, common, writers, count)
                servers.push_async_callback(self._controllers.close)
                await self._controllers.start()
                controller = ";".join(self._controllers.addresses)
            for number in range(self._broker_count):
                settings = self._broker_settings(number, nameserver.address)
                made = Replicas(settings, controller) if controller else Single(settings)
                self._replicas[settings.broker_name] = made
                servers.push_async_callback(made.close)
                if isinstance(made, Replicas):
                    addresses += await made.start(self._replica_count)
                else:
                    addresses.append(await made.start())
            options = self._door.client_options() if self._door else None
            self._cluster = Cluster(nameserver.address, tuple(addresses), self._folder, controller, options)
            if self._grpc:
                locked = ["--secure", str(self._door.folder)] if self._door else []
                proxy = proxy_process(nameserver.address, "127.0.0.1", 0, [*locked, "--log-level", "warning"])
                servers.push_async_callback(proxy.stop)
                await proxy.start()
                self._cluster.grpc_endpoint = proxy.address
            self._cluster._ask = self._ask
            if controller:
                self._cluster._ask_controllers = self._ask_controllers
            self._started.set()
            await self._stop.wait()

    def _ask(self, act: Callable[[Replicas | Single], Awaitable[Any]], name: str) -> Any:
        if name not in self._replicas:
            raise StateError(f"no broker is named {name}: {', '.join(self._replicas)} run here")
        assert self._loop is not None

        async def run() -> Any:
            return await act(self._replicas[name])

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _ask_controllers(self, act: Callable[[Controllers], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            assert self._controllers is not None
            return await act(self._controllers)

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _broker_settings(self, number: int, namesrv: str) -> BrokerSettings:
        name = f"broker-{chr(ord('a') + number)}"
        own = {
            "broker_name": name,
            "store_root": str(self._folder / name),
            "namesrv_addresses": namesrv,
            "listen_host": "127.0.0.1",
            "listen_port": 0,
        }
        settings = BrokerSettings(**{**own, **self._settings})
        if self._door is not None:
            self._door.apply(settings, alone=self._replica_count <= 1)
        return settings
