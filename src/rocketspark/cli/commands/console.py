"""`console`: a cluster in the browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rocketspark.cli.options import HERE, ClusterAccess
from rocketspark.cli.serving.proxy_process import PORT_KEY_PASSWORD
from rocketspark.cli.serving.server_options import Level, LogLevel

if TYPE_CHECKING:
    from contextlib import AsyncExitStack


class Port(NamedTuple):
    """The options of the console's own port."""

    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8080
    host: Annotated[str, typer.Option(help="Address to listen on; a public one needs TLS and a login.")] = "127.0.0.1"
    port_tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate and chain of the console's port, PEM: it speaks HTTPS then.")
    ] = None
    port_tls_key: Annotated[Path | None, typer.Option(help="The key of that certificate, PEM.")] = None
    public_name: Annotated[
        list[str] | None,
        typer.Option(help="A name by which browsers ask for it, besides its address and localhost; may be repeated."),
    ] = None
    public_url: Annotated[
        str,
        typer.Option(help="The https:// address by which browsers reach it through a proxy that ends TLS."),
    ] = ""
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address of a proxy whose X-Forwarded-For says who asks; may be repeated."),
    ] = None


class Beside(NamedTuple):
    """The options of what is shown beside the cluster, and where its figures are kept."""

    samples: Annotated[
        str, typer.Option(help="File that keeps the figures of plots over restarts [default: none].")
    ] = ""
    spark_stream: Annotated[
        list[str] | None,
        typer.Option(help="Address of the metrics of a process with Spark streams, shown too; may be repeated."),
    ] = None
    outbox: Annotated[
        list[str] | None,
        typer.Option(
            help="Database with an outbox, shown too: sqlite:///file.db, postgresql://user@host/name, or @FILE with"
            " such a URL; #table behind it names another table; may be repeated."
        ),
    ] = None
    dedupe: Annotated[
        list[str] | None,
        typer.Option(help="Database with the ids of processed messages, named as those of --outbox; may be repeated."),
    ] = None


PORT, BESIDE = Port(), Beside()


def console(
    at: ClusterAccess = HERE,
    listen: Port = PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    login: Annotated[
        bool,
        typer.Option("--login", help="Nobody gets in without keys of a user of the cluster; keys given here mean it."),
    ] = False,
    audit_log: Annotated[
        str, typer.Option(help="File of changes and refused logins [default: none, changes are logged on stderr].")
    ] = "",
    requests: Annotated[
        int, typer.Option(min=1, max=10_000, help="How many requests a second a broker gets at most.")
    ] = 20,
    beside: Beside = BESIDE,
    log_level: Level = LogLevel.info,
) -> None:
    """Show a cluster in the browser, RocketMQ's own too: brokers, topics, messages, groups, and what they need.

    Where the cluster asks for keys, users log in with theirs, and its rules decide what they see and may change. Keys
    given here are the console's own, for the figures of its plots.

    When ready it prints one line, `ready console=HOST:PORT url=http://HOST:PORT/`. SIGTERM or Ctrl-C stops it.

    Example: `rocketspark console -n 127.0.0.1:9876 --port 8080`

    Example: `rocketspark console -n 127.0.0.1:9876 --read-only`

    Example: `rocketspark console -n 127.0.0.1:9876 --spark-stream http://127.0.0.1:9464`

    Example: `rocketspark console -n 127.0.0.1:9876 --outbox sqlite:///shop.db --dedupe sqlite:///shop.db`

    Example: `rocketspark console -n 127.0.0.1:9876 --public-url https://console.example --trusted-proxy 127.0.0.1`
    """
    from rocketspark.cli.serving.serve import serve, start_in
    from rocketspark.console.settings import ConsoleSettings

    settings = ConsoleSettings(
        namesrv=at.namesrv,
        options=at.client_options(),
        host=listen.host,
        port=listen.port,
        public_names=tuple(listen.public_name or ()),
        public_url=listen.public_url,
        trusted_proxies=tuple(listen.trusted_proxy or ()),
        tls_cert=str(listen.port_tls_cert or ""),
        tls_key=str(listen.port_tls_key or ""),
        tls_key_password=os.environ.get(PORT_KEY_PASSWORD, ""),
        login=login,
        read_only=read_only,
        requests_per_second=requests,
        samples_path=beside.samples,
        spark_streams=tuple(beside.spark_stream or ()),
        outbox=tuple(beside.outbox or ()),
        dedupe=tuple(beside.dedupe or ()),
        audit_path="" if audit_log == "off" else audit_log,
    )
    settings.check()
    from rocketspark.console.server import ConsoleServer

    async def start(servers: AsyncExitStack) -> str:
        server = await start_in(servers, ConsoleServer(settings))
        return f"ready console={server.address} url={server.url}"

    serve(start, log_level=log_level.value)
