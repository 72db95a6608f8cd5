"""Options of the commands `server` and `broker`, and the settings of the broker that they and broker.conf make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rocketspark.cli.serving.server_options import warn
from rocketspark.errors import ConfigError

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")]
Host = Annotated[
    str | None, typer.Option(help="Address to listen on [default: broker.conf's bindAddress, else 127.0.0.1].")
]
Config = Annotated[
    Path | None, typer.Option("-c", "--config", help="A RocketMQ broker.conf: listenPort, brokerName, namesrvAddr, …")
]
Store = Annotated[
    Path | None, typer.Option(help="Folder of the messages [default: broker.conf's storePathRootDir, else ./store].")
]


class BrokerBeside(NamedTuple):
    """The options of `server` about the broker that it runs."""

    broker_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The broker's port; 0 takes a free one [default: listenPort, else 10911]."),
    ] = None
    store: Store = None
    config: Config = None
    host: Host = None

    def settings(self) -> BrokerSettings:
        """Return the settings of the broker.conf, with these options over them. Raises ConfigError."""
        return _settings(self.config, store=self.store, host=self.host, port=self.broker_port)


class Fleet(NamedTuple):
    """The options of `server` about how many brokers it runs, and how many copies of each."""

    brokers: Annotated[
        int,
        typer.Option(
            min=1, max=26, help="How many brokers, each a process of its own with a folder of its own below the store."
        ),
    ] = 1
    replicas: Annotated[
        int,
        typer.Option(
            min=1,
            max=9,
            help="How many copies of each broker, each a process of its own; a controller elects the master.",
        ),
    ] = 1
    controllers: Annotated[
        int,
        typer.Option(
            min=1,
            max=9,
            help="How many controllers, with --replicas; 3 go on without one of them, each a process of its own.",
        ),
    ] = 1
    controller_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="The controller's port, with --replicas, and the next ones of further controllers; 0 takes free ones.",
        ),
    ] = 9877


class ConsoleBeside(NamedTuple):
    """The options of `server` about the console in the browser."""

    console_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port of a console in the browser, on 127.0.0.1, served by a process beside; 0 takes a free one"
            " [default: none].",
        ),
    ] = None
    console_read_only: Annotated[
        bool, typer.Option("--console-read-only", help="The console shows everything and changes nothing.")
    ] = False

    def check(self) -> None:
        """Raise ConfigError if a console is wanted and cannot run."""
        if self.console_port is not None:
            from rocketspark.console.settings import ConsoleSettings

            ConsoleSettings(port=self.console_port).check()


class GrpcBeside(NamedTuple):
    """The options of `server` about its proxy for RocketMQ 5's gRPC protocol."""

    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The port of RocketMQ 5's gRPC protocol, served by a process beside; 0 takes a free one"
            " [default: 8081 if it is free and the extra grpc is installed].",
        ),
    ] = None
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Do not serve gRPC.")] = False
    grpc_metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Port on 127.0.0.1 where that process serves its metrics to Prometheus."),
    ] = None

    def port(self, settings: BrokerSettings, *, secure: bool) -> int | None:
        """Return the port to serve gRPC on, None for none. `secure`: the broker gets keys of its own before it starts.
        Raises ConfigError.
        """
        from rocketspark.cli.serving.proxy_process import UNCHECKED, checks_clients, port_beside

        found = None if self.no_grpc else port_beside(settings.listen_host or "127.0.0.1", self.grpc_port)
        if found is not None and not secure and not checks_clients(settings):
            if self.grpc_port is not None:
                raise ConfigError(f"--grpc-port {self.grpc_port}: {UNCHECKED}")
            warn([f"gRPC is not served: {UNCHECKED}"])
            found = None
        if found is None and self.grpc_metrics_port is not None:
            raise ConfigError("--grpc-metrics-port: no gRPC is served, so there is no process with these metrics")
        return found

    def options(self) -> list[str]:
        """Return what the process gets of these options beside its port."""
        return [] if self.grpc_metrics_port is None else ["--metrics-port", str(self.grpc_metrics_port)]


class BrokerOptions(NamedTuple):
    """The options of `broker` that win over its broker.conf."""

    config: Config = None
    namesrv: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrv",
            envvar=["ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR"],
            help="NameServers, host:port;host:port [default: broker.conf's namesrvAddr, else 127.0.0.1:9876].",
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option(
            "-p", "--port", min=0, max=65535, help="Port; 0 takes a free one [default: listenPort, or 10911]."
        ),
    ] = None
    store: Store = None
    host: Host = None
    name: Annotated[str | None, typer.Option(help="brokerName [default: broker.conf's, else broker-a].")] = None
    controller: Annotated[
        str | None,
        typer.Option(
            help="Controllers, host:port;host:port: they say which broker is master, and a send is answered once"
            " all in sync have the message [default: broker.conf's controllerAddr, with enableControllerMode=true]."
        ),
    ] = None

    def settings(self) -> BrokerSettings:
        """Return the settings of the broker.conf, with these options over them. Raises ConfigError."""
        given = {"controllerAddr": self.controller} if self.controller else {}
        settings = _settings(self.config, store=self.store, host=self.host, port=self.port, given=given)
        settings.broker_name = self.name or settings.broker_name
        settings.namesrv_addresses = self.namesrv or settings.namesrv_addresses or "127.0.0.1:9876"
        if self.controller:
            settings.controller_mode, settings.controller_addresses = True, self.controller
            settings.broker_role, settings.broker_id = "SLAVE", -1
            settings.all_ack_in_sync_set = settings.slave_read = True
        return settings


def _settings(
    config: Path | None,
    *,
    store: Path | None,
    host: str | None,
    port: int | None,
    given: dict[str, str] | None = None,
) -> BrokerSettings:
    """Return the settings of a broker.conf, with the options' values over them; `given` counts as keys in the file."""
    from rocketspark.broker.broker_conf import read_broker_conf
    from rocketspark.broker.settings import BrokerSettings

    settings, warnings = read_broker_conf(config, given) if config else (BrokerSettings(), [])
    warn(warnings)
    options: dict[str, Any] = {"store_root": str(store) if store else None, "listen_host": host, "listen_port": port}
    for name, value in options.items():
        if value is not None:
            setattr(settings, name, value)
    return settings
