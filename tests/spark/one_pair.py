"""A NameServer, a controller and two replicas of one broker, whose controller stops and starts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from tests.support.patience import LIMIT_S

from rocketspark.broker.settings import BrokerSettings
from rocketspark.controller.server import ControllerServer
from rocketspark.controller.settings import ControllerSettings
from rocketspark.namesrv.server import NameServer
from rocketspark.testing.cluster import SMALL_FILES
from rocketspark.testing.replicas import Replicas

T = TypeVar("T")


class OnePair:
    """In a `with` block. `unclean`: a replica that is not in sync may be elected."""

    def __init__(self, folder: Path, broker: str, *, unclean: bool = False) -> None:
        self._folder, self._broker, self._unclean = folder, broker, unclean
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._controller: ControllerServer | None = None
        self._address = "127.0.0.1:0"

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it where the servers run."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def __enter__(self) -> OnePair:
        self._thread.start()
        self.do(self._start())
        return self

    async def _start(self) -> None:
        self._names = NameServer(port=0)
        await self._names.start()
        self.namesrv = self._names.address
        await self._start_controller()
        settings = BrokerSettings(
            broker_name=self._broker,
            store_root=str(self._folder / "store"),
            namesrv_addresses=self.namesrv,
            listen_host="127.0.0.1",
            listen_port=0,
            **SMALL_FILES,
        )
        self.replicas = Replicas(settings, self._address)
        await self.replicas.start(2)

    def start_controller(self) -> None:
        """Start it again, on its state and port."""
        self.do(self._start_controller())

    async def _start_controller(self) -> None:
        given = {"scanInactiveMasterInterval": "500", "enableElectUncleanMaster": str(self._unclean).lower()}
        settings = ControllerSettings(given, listen=self._address, folder=self._folder / "controller")
        self._controller = ControllerServer(settings, share=0.25)
        await self._controller.start()
        self._address = self._controller.address

    def stop_controller(self) -> None:
        """Nobody elects any more."""
        assert self._controller is not None
        self.do(self._controller.close())
        self._controller = None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.do(self.replicas.close())
            if self._controller is not None:
                self.stop_controller()
            self.do(self._names.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
