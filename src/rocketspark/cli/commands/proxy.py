"""`proxy`: RocketMQ 5's gRPC protocol before a cluster. Rule: options win over rmq-proxy.json."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.options import HERE, NAMESRV_DEFAULT, ClusterAccess, LeftOut, without_secrets
from rocketspark.cli.serving.child_processes import ChildProcess
from rocketspark.cli.serving.proxy_process import (
    AUDIT_FILE,
    DEFAULT_PORT,
    EXTRA,
    KEYS_ALONE,
    PORT_KEY_PASSWORD,
    is_installed,
)
from rocketspark.cli.serving.server_options import Level, LogLevel, Secure, TlsModes, warn
from rocketspark.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from rocketspark.proxy.settings import ProxySettings
    from rocketspark.transport.request_signer import RequestSigner
    from rocketspark.transport.tls.client_tls import ClientTls
    from rocketspark.transport.tls.settings import TlsSettings


class Listening(NamedTuple):
    """The options of `proxy` about its port; they win over an rmq-proxy.json, which is one of them."""

    grpc_port: Annotated[
        int | None,
        typer.Option(
            *("--grpc-port", "-p"),
            min=0,
            max=65535,
            help="Port to listen on; 0 takes a free one [default: grpcServerPort, else 8081].",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="A rmq-proxy.json of Apache's proxy; options win over it.")
    ] = None
    processes: Annotated[
        int,
        typer.Option(min=1, max=64, help="How many processes share the port: each serves the clients that come to it."),
    ] = 1
    share_port: Annotated[bool, typer.Option("--share-port", hidden=True)] = False
    keys_alone: Annotated[bool, typer.Option(KEYS_ALONE, hidden=True)] = False
    advertise: Annotated[
        str | None,
        typer.Option(help="The host that routes tell clients to come to [default: the one by which they asked]."),
    ] = None

    def settings(self, namesrv: str) -> ProxySettings:
        """Return the proxy's settings: those of the rmq-proxy.json, and these options over them. Raises ConfigError."""
        from rocketspark.proxy.settings import ProxySettings, read_file

        values, warnings = read_file(self.config) if self.config else ({}, [])
        warn(warnings)
        if namesrv != NAMESRV_DEFAULT or not values.get("namesrv"):
            values["namesrv"] = namesrv
        if self.grpc_port is not None:
            values["port"] = self.grpc_port
        settings = ProxySettings(
            **{"port": DEFAULT_PORT, **values}, host=self.host, advertised_host=self.advertise or ""
        )
        settings.share_port = self.share_port
        if self.keys_alone:
            settings.authorization = False
        return settings


class PortTls(NamedTuple):
    """The options of `proxy` about TLS on its own port."""

    port_tls_mode: Annotated[
        TlsModes | None,
        typer.Option(help="TLS on the proxy's port: beside plain, alone, or none [default: permissive]."),
    ] = None
    port_tls_cert: Annotated[
        Path | None,
        typer.Option(help="Its certificate and chain, PEM; new files are taken without a stop [default: made anew]."),
    ] = None
    port_tls_key: Annotated[Path | None, typer.Option(help="The key of that certificate, PEM.")] = None
    proxy_networks: Annotated[
        str, typer.Option(help="Addresses of load balancers whose PROXY headers are believed: 10.0.0.0/8,…")
    ] = ""

    def settings(self, defaults: Mapping[str, str]) -> TlsSettings | None:
        """Return the TLS settings of the port; None if no option is given, and no defaults are. Raises ConfigError."""
        from rocketspark.transport.tls.settings import NETWORKS_KEY, from_values

        mode, cert, key = self.port_tls_mode, self.port_tls_cert, self.port_tls_key
        given = {
            "tls.server.mode": mode.value if mode else "",
            "tls.server.certPath": str(cert or ""),
            "tls.server.keyPath": str(key or ""),
            NETWORKS_KEY: self.proxy_networks,
        }
        values = {**defaults, **{name: value for name, value in given.items() if value}}
        if not values:
            return None
        if not defaults and not cert and not key and mode is not TlsModes.disabled:
            values["tls.test.mode.enable"] = "true"
        if os.environ.get(PORT_KEY_PASSWORD):
            values["tls.server.keyPassword"] = os.environ[PORT_KEY_PASSWORD]
        return from_values(values)


_LISTENING, _PORT_TLS = Listening(), PortTls()


def proxy(
    listening: Listening = _LISTENING,
    at: Annotated[ClusterAccess, LeftOut("context")] = HERE,
    secure: Secure = None,
    own_tls: PortTls = _PORT_TLS,
    remoting_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="One more port for clients before RocketMQ 5.")
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port for Prometheus on 127.0.0.1; 0 takes a free one; further processes take the ones after it"
            " [default: of the file with metricsExporterType PROM, else none].",
        ),
    ] = None,
    audit_log: Annotated[
        str,
        typer.Option(
            help="File of refused calls where clients need keys, or off"
            " [default: proxy-audit.log in the folder of --secure, else none]."
        ),
    ] = "",
    log_level: Level = LogLevel.info,
) -> None:
    """Serve RocketMQ 5's gRPC protocol before any cluster, RocketMQ's own too.

    All official clients of RocketMQ 5 speak it. The proxy keeps nothing: what it knows of clients ends with it, and
    they tell it anew. Keys and TLS are those of its own requests to the cluster; with keys, each client must have keys
    of its own, and may do what the cluster's users and rules let him. Clients come plain or by TLS, on one port.

    When ready it prints one line, `ready proxy=HOST:PORT`, with `metrics=HOST:PORT` if they are served. SIGTERM or
    Ctrl-C stops it cleanly.

    Example: `rocketspark proxy -n 127.0.0.1:9876 --grpc-port 8081`

    Example: `rocketspark proxy -c rmq-proxy.json --processes 4`
    """
    if not is_installed():
        raise ConfigError(EXTRA)
    # What gRPC's own library would write of a port is told in our words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from rocketspark.cli.serving.serve import serve, start_in
    from rocketspark.client.connection.credentials import Signer
    from rocketspark.proxy.server import ProxyServer
    from rocketspark.transport.metrics.settings import DISABLE
    from rocketspark.transport.tls.client_tls import client_tls

    settings = listening.settings(at.namesrv)
    settings.remoting_port = remoting_port
    if metrics_port is not None:
        if settings.metrics_exporter != DISABLE:
            raise ConfigError(
                f"--metrics-port goes with metricsExporterType=PROM: the file has {settings.metrics_exporter}"
            )
        settings.metrics_port = metrics_port
    options = at.client_options()
    tls_options = {name: value for name, value in options.items() if name.startswith(("use_tls", "tls_"))}
    tls = client_tls(**{"use_tls": False, **tls_options})
    keys = {name: value for name, value in options.items() if name not in tls_options}
    signer: Any = Signer(**{"access_key": "", "secret_key": "", **keys}) if keys else None
    of_folder: dict[str, str] = {}
    if secure is not None:
        signer, tls, of_folder = _of_folder(secure)
        audit_log = audit_log or str(secure / AUDIT_FILE)
    port_tls = own_tls.settings(of_folder)
    settings.audit_path = "" if audit_log == "off" else audit_log

    async def start(servers: AsyncExitStack) -> str:
        if listening.processes > 1:
            return f"ready proxy={await _several(servers, settings, listening.processes)}"
        server = await start_in(servers, ProxyServer(settings, signer=signer, tls=tls, front_tls=port_tls))
        metrics = f" metrics={server.metrics.address}" if server.metrics is not None and server.metrics.port else ""
        return f"ready proxy={server.address}{metrics}"

    serve(start, log_level=log_level.value)


async def _several(servers: AsyncExitStack, settings: ProxySettings, count: int) -> str:
    """Start so many processes like this one on one port; returns the address. Raises ConfigError."""
    first = settings.metrics_port
    if first is not None and not 0 < first <= 65536 - count:
        raise ConfigError(f"--metrics-port {first}: {count} processes take as many ports from it on; choose another")
    words, environment = without_secrets(sys.argv[1:])
    given = [word for word in words if word != "--share-port"]
    port = settings.port
    address = ""
    for number in range(1, count + 1):
        # Each has figures and a file of its own.
        more = [] if first is None else ["--metrics-port", str(first + number - 1)]
        if settings.audit_path:
            more += ["--audit-log", f"{settings.audit_path}-{number}"]

        def arguments(taken: int, more: list[str] = more) -> list[str]:
            return [*given, "--processes", "1", "--share-port", "--grpc-port", str(taken), *more]

        process = ChildProcess(f"proxy {number}", "proxy", arguments, port, environment, beats=True)
        address = await process.start_in(servers)
        port = int(address.rpartition(":")[2])
    return address


def _of_folder(folder: Path) -> tuple[RequestSigner, ClientTls | None, dict[str, str]]:
    """Return keys and TLS of what `server --secure` keeps: of the proxy's own requests, and of its port."""
    from rocketspark.broker.access import secure_folder

    door = secure_folder.load(folder)
    return door.signer(), door.tls().client(), door.tls_values()
