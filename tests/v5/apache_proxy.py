"""Apache's gRPC proxy 5.5.0 as a process: with a broker inside it (local mode), or before a cluster (cluster mode)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.java.apache import QUIET, ApacheNamesrv, _JavaServer, ask
from tests.java.driver import JARS
from tests.support.ports import free_ports

PROXY_JARS = JARS / "proxy-5.5.0"


def _answers(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 5):
        return True


class ApacheProxy(_JavaServer):
    """The official proxy before any cluster. `endpoints`: what gRPC clients are given; `remoting`: for 4.x clients.

    Args:
        folder: for its config and logs.
        namesrv: the NameServer of the cluster.
        config: more keys of rmq-proxy.json.
        broker: settings of a broker of its own, in the same process; None for cluster mode.
    """

    _main = "org.apache.rocketmq.proxy.ProxyStartup"
    # Clients of RocketMQ 5 come with TLS.
    _flags = ("-Xms256m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-Dtls.server.mode=permissive")
    _jars = PROXY_JARS

    def __init__(
        self, folder: Path, namesrv: str, config: dict[str, Any] | None = None, broker: dict[str, Any] | None = None
    ) -> None:
        self.namesrv = namesrv
        self._port, remoting = free_ports(), free_ports()
        self.endpoints = f"127.0.0.1:{self._port}"
        self.remoting = f"127.0.0.1:{remoting}"
        self._broker = broker
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER" if broker is None else "LOCAL",
            "namesrvAddr": namesrv,
            "grpcServerPort": self._port,
            "remotingListenPort": remoting,
            "localServeAddr": "127.0.0.1",
            "remotingAccessAddr": "127.0.0.1",
        }
        super().__init__(folder, settings | (config or {}))

    def _write_config(self) -> list[str]:
        path = self.folder / "rmq-proxy.json"
        path.write_text(json.dumps(self._config))
        options = ["-pm", self._config["proxyMode"].lower(), "-pc", str(path), "-n", self.namesrv]
        if self._broker is not None:
            broker_path = self.folder / "broker.conf"
            broker_path.write_text("".join(f"{key}={value}\n" for key, value in self._broker.items()))
            options += ["-bc", str(broker_path)]
        return options

    def _is_ready(self) -> bool:
        return _answers(self._port)


class ApacheLocalProxy:
    """A NameServer, and a proxy with a broker inside. `endpoints`, `namesrv`, `broker`: addresses."""

    def __init__(self, folder: Path, config: dict[str, Any] | None = None, proxy: dict[str, Any] | None = None) -> None:
        self._namesrv = ApacheNamesrv(folder / "namesrv")
        self.namesrv = self._namesrv.namesrv
        port = free_ports(-2, 0, 1)
        self.broker = f"127.0.0.1:{port}"
        broker: dict[str, Any] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": 0,
            "listenPort": port,
            "haListenPort": port + 1,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": self.namesrv,
            "storePathRootDir": folder / "store",
            "mappedFileSizeCommitLog": 16 * 1024 * 1024,
            "mappedFileSizeConsumeQueue": 20 * 10_000,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "diskMaxUsedSpaceRatio": 99,
            "cleanFileForciblyEnable": "false",
        }
        try:
            self._proxy = ApacheProxy(folder / "proxy", self.namesrv, proxy, broker | QUIET | (config or {}))
        except BaseException:
            self._namesrv.kill()
            raise
        self.endpoints = self._proxy.endpoints
        self.remoting = self._proxy.remoting
        assert ask(self.broker, 25, b"brokerPermission=6").code == 0

    def stop(self) -> None:
        """Ends both cleanly."""
        self._proxy.stop()
        self._namesrv.stop()

    def close(self) -> None:
        """Ends both; nothing is kept, so by force."""
        self._proxy.kill()
        self._namesrv.kill()
