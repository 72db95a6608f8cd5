"""`server`, `namesrv`, `broker` and `controller`: thin shells over the servers. Rule: options win over files."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketspark.cli.serving.broker_options import BrokerBeside, BrokerOptions, ConsoleBeside, Fleet, GrpcBeside, Port
from rocketspark.cli.serving.server_options import NO_TLS, Level, LogLevel, Secure, TlsOptions, warn
from rocketspark.errors import ConfigError

if TYPE_CHECKING:
    from rocketspark.broker.access.secure_folder import SecureFolder
    from rocketspark.broker.settings import BrokerSettings
    from rocketspark.controller.settings import ControllerSettings
    from rocketspark.namesrv.settings import Settings as NameServerSettings


_BESIDE, _FLEET, _BROKER, _CONSOLE, _GRPC = BrokerBeside(), Fleet(), BrokerOptions(), ConsoleBeside(), GrpcBeside()


def server(
    namesrv_port: Port = 9876,
    beside: BrokerBeside = _BESIDE,
    fleet: Fleet = _FLEET,
    grpc: GrpcBeside = _GRPC,
    console: ConsoleBeside = _CONSOLE,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="Take TLS and signed requests alone: makes a certificate and an administrator, and says how to enter.",
        ),
    ] = False,
    tls: TlsOptions = NO_TLS,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a NameServer and a broker in one process, or with --brokers N several broker processes of one cluster.

    With --replicas N a controller runs too, and each broker is N processes: a master and its slaves. A send is answered
    once all in sync have the message; when the master dies a slave goes on. With --controllers 3 the controller is
    three processes, of which one may die.

    When ready it prints one line, `ready namesrv=HOST:PORT broker=HOST:PORT`, with several brokers their addresses
    separated by commas; with replicas `controller=HOST:PORT` stands between (with several their addresses, separated by
    commas), and of each broker the master comes first;
    ` grpc=HOST:PORT` follows where gRPC is served, and ` console=HOST:PORT` with --console-port.
    SIGTERM or Ctrl-C stops it cleanly.

    Example: `rocketspark server --store ./store`

    Example: `rocketspark server --store ./store --console-port 8080`

    Example: `rocketspark server --store ./store --brokers 2`

    Example: `rocketspark server --store ./store --replicas 2`

    Example: `rocketspark server --store ./store --replicas 3 --controllers 3`

    Example: `rocketspark server --store ./store --secure`
    """
    from rocketspark.broker.inner_connections import signer_of, writers_beside
    from rocketspark.broker.server import BrokerServer
    from rocketspark.cli.serving.controller_processes import start_controllers
    from rocketspark.cli.serving.secure import how_to_enter
    from rocketspark.cli.serving.serve import serve, start_in
    from rocketspark.controller.settings import ControllerSettings
    from rocketspark.namesrv.server import SHARE_BESIDE_A_BROKER, NameServer

    if fleet.controllers > 1 and fleet.replicas <= 1:
        raise ConfigError("--controllers needs --replicas: without replicas nobody is elected")
    settings = beside.settings()
    settings.tls = tls.over(settings.tls)
    options = [*_options(beside.config, log_level), *tls.arguments()]
    grpc_port = grpc.port(settings, secure=secure)
    console.check()
    _tell_of_unserved(settings, fleet)
    door = _secured(settings, alone=fleet.replicas <= 1) if secure else None
    if door:
        options += ["--secure", str(door.folder), *(["--alone"] if fleet.replicas <= 1 else [])]

    async def start(servers: AsyncExitStack) -> str:
        kv_path = Path(settings.store_root) / "namesrv" / "kvConfig.json"
        signer = signer_of(settings)
        nameserver = NameServer(
            settings.listen_host,
            namesrv_port,
            kv_path=kv_path,
            share=SHARE_BESIDE_A_BROKER,
            tls=settings.tls,
            signer=signer,
        )
        writers = door.namesrv_writers() if door else writers_beside(settings)
        if writers:
            nameserver.let_write(writers)
        await start_in(servers, nameserver)
        settings.namesrv_addresses = ";".join(filter(None, [nameserver.address, settings.namesrv_addresses]))
        if fleet.controllers > 1:
            given = [*_options(None, log_level), *tls.arguments()]
            given += ["--secure", str(door.folder)] if door else []
            found = await start_controllers(
                servers, settings, fleet.controllers, fleet.controller_port, given, {} if door else writers
            )
            addresses = await _replicated(servers, settings, fleet, ";".join(found), options)
            between = f" controller={','.join(found)}"
        elif fleet.replicas > 1:
            inside = ControllerSettings(
                listen=f"{settings.listen_host or '127.0.0.1'}:{fleet.controller_port}",
                folder=Path(settings.store_root) / "controller",
            )
            inside.tls, inside.signer = settings.tls, signer
            if writers:
                inside.let_ask(writers)
            controller = await _controller(servers, inside, share=SHARE_BESIDE_A_BROKER)
            addresses = await _replicated(servers, settings, fleet, controller, options)
            between = f" controller={controller}"
        elif fleet.brokers > 1:
            addresses, between = await _fleet(servers, settings, fleet.brokers, options), ""
        else:
            broker = await start_in(servers, BrokerServer(settings))
            addresses, between = [broker.address], ""
        last = ""
        if grpc_port is not None:
            more = [*grpc.options(), "--log-level", log_level.value]
            last = f" grpc={await _proxy(servers, settings, grpc_port, more)}"
        if console.console_port is not None:
            from rocketspark.cli.serving.console_process import console_process

            process = console_process(
                settings, console.console_port, read_only=console.console_read_only, log_level=log_level.value
            )
            last += f" console={await process.start_in(servers)}"
        if door:
            ca = settings.tls.client_trust_path
            text = how_to_enter(door, nameserver.address, ca=ca, on_terminal=sys.stderr.isatty())
            print(text, file=sys.stderr, flush=True)
        return f"ready namesrv={nameserver.address}{between} broker={','.join(addresses)}{last}"

    serve(start, log_level=log_level.value)


def _tell_of_unserved(settings: BrokerSettings, fleet: Fleet) -> None:
    """Warn of stores that were made with other numbers of brokers or replicas: their messages are not served."""
    from rocketspark.cli.serving.child_processes import store_folders, unserved_stores

    root = Path(settings.store_root)
    served = store_folders(root, settings.broker_name, fleet.brokers, fleet.replicas)
    warn(
        [
            f"{path} holds messages that nobody serves now: it was made with other --brokers or --replicas"
            for path in unserved_stores(root, served)
        ]
    )


async def _proxy(servers: AsyncExitStack, settings: BrokerSettings, port: int, more: list[str]) -> str:
    """Start the proxy's process, with more options; returns its address."""
    from rocketspark.cli.serving.proxy_process import access_beside, proxy_process

    options, environment = access_beside(settings)
    options += more
    host = settings.listen_host or "127.0.0.1"
    process = proxy_process(settings.namesrv_addresses, host, port, options, environment)
    return await process.start_in(servers)


def _secured(settings: BrokerSettings, *, alone: bool) -> SecureFolder:
    """Have the broker take TLS and signed requests alone; returns where its secrets are."""
    from rocketspark.broker.access import secure_folder

    names = (settings.listen_host, settings.advertised_host)
    door = secure_folder.prepare(Path(settings.store_root) / "secure", filter(None, names))
    door.apply(settings, alone=alone)
    return door


def _options(config: Path | None, log_level: LogLevel) -> list[str]:
    return ["--log-level", log_level.value, *(["-c", str(config)] if config else [])]


async def _replicated(
    servers: AsyncExitStack,
    settings: BrokerSettings,
    fleet: Fleet,
    controller: str,
    options: list[str],
) -> list[str]:
    """Start the processes of each broker of the fleet and wait until all are in sync; returns their addresses."""
    from rocketspark.cli.serving.child_processes import (
        BrokerProcess,
        broker_names,
        broker_ports,
        store_folders,
        wait_in_sync,
    )

    options = [*options, "--controller", controller]
    free = iter(broker_ports(settings.listen_port, fleet.brokers * fleet.replicas))
    folders = iter(store_folders(Path(settings.store_root), settings.broker_name, fleet.brokers, fleet.replicas))
    addresses = []
    for name in broker_names(settings.broker_name, fleet.brokers):
        for number in range(1, fleet.replicas + 1):
            process = BrokerProcess(
                name, settings.namesrv_addresses, next(folders), settings.listen_host, next(free), options
            )
            addresses.append(await process.start_in(servers))
            # One after the other, so that the first is the master of a new store.
            if number == 1:
                await wait_in_sync(settings, controller, name, 1)
        master = await wait_in_sync(settings, controller, name, fleet.replicas)
        own = addresses[-fleet.replicas :]
        addresses[-fleet.replicas :] = sorted(own, key=lambda address: address != master)
    return addresses


async def _fleet(servers: AsyncExitStack, settings: BrokerSettings, count: int, options: list[str]) -> list[str]:
    """Start `count` broker processes; returns their addresses."""
    from rocketspark.cli.serving.child_processes import BrokerProcess, broker_names, broker_ports, store_folders

    names, ports = broker_names(settings.broker_name, count), broker_ports(settings.listen_port, count)
    folders = store_folders(Path(settings.store_root), settings.broker_name, count, 1)
    addresses = []
    for name, folder, port in zip(names, folders, ports, strict=True):
        process = BrokerProcess(name, settings.namesrv_addresses, folder, settings.listen_host, port, options)
        addresses.append(await process.start_in(servers))
    return addresses


def namesrv(
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", help="A RocketMQ namesrv.conf: listenPort, supportActingMaster, …"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("-p", "--port", min=0, max=65535, help="Port; 0 takes a free one [default: listenPort, or 9876]."),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [default: namesrv.conf's bindAddress, else 127.0.0.1].")
    ] = None,
    kv_config: Annotated[
        Path | None,
        typer.Option(help="File of the key-value tables [default: kvConfigPath, else kept in memory only]."),
    ] = None,
    tls: TlsOptions = NO_TLS,
    secure: Secure = None,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a NameServer.

    When ready it prints one line, `ready namesrv=HOST:PORT`; with enableControllerInNamesrv=true in its file a
    controller of one node runs inside it, and the line ends in ` controller=HOST:PORT`.

    Example: `rocketspark namesrv -p 9876`

    Example: `rocketspark namesrv -c namesrv.conf`

    Example: `rocketspark namesrv --secure ./store/secure`
    """
    from rocketspark.cli.serving.serve import serve, start_in
    from rocketspark.namesrv.server import NameServer

    settings = _namesrv_settings(config, host=host, port=port, kv_config=kv_config)
    settings.tls = tls.over(settings.tls)
    inside = _controller_inside(settings) if settings.with_controller else None
    writers: dict[str, str] = {}
    if secure is not None:
        from rocketspark.broker.access import secure_folder

        door = secure_folder.load(secure)
        settings.tls, settings.signer = door.tls_over(settings.tls), door.signer()
        writers = door.namesrv_writers()
        if inside is not None:
            inside.tls, inside.signer = settings.tls, settings.signer
            inside.let_ask(writers)

    async def start(servers: AsyncExitStack) -> str:
        nameserver = NameServer(settings=settings)
        if writers:
            nameserver.let_write(writers, "" if settings.kv_path else f"{secure}/namesrv-audit.log")
        await start_in(servers, nameserver)
        ready = f"ready namesrv={nameserver.address}"
        return f"{ready} controller={await _controller(servers, inside, share=0.25)}" if inside else ready

    serve(start, log_level=log_level.value)


def broker(
    options: BrokerOptions = _BROKER,
    tls: TlsOptions = NO_TLS,
    secure: Secure = None,
    alone: Annotated[bool, typer.Option("--alone", hidden=True, help="With --secure: listen for no replicas.")] = False,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a broker.

    When ready it prints one line, `ready broker=HOST:PORT`.

    Example: `rocketspark broker -c broker.conf -n 127.0.0.1:9876`

    Example: `rocketspark broker --store ./replica-2 -p 10921 -n 127.0.0.1:9876 --controller 127.0.0.1:9877`
    """
    from rocketspark.broker.server import BrokerServer
    from rocketspark.cli.serving.serve import serve, start_in

    settings = options.settings()
    settings.tls = tls.over(settings.tls)
    if secure:
        from rocketspark.broker.access import secure_folder

        secure_folder.load(secure).apply(settings, alone=alone)

    async def start(servers: AsyncExitStack) -> str:
        server = await start_in(servers, BrokerServer(settings))
        return f"ready broker={server.address}"

    serve(start, log_level=log_level.value)


def _namesrv_settings(
    config: Path | None, *, host: str | None, port: int | None, kv_config: Path | None
) -> NameServerSettings:
    """Return the settings of a namesrv.conf, with the options' values over them."""
    from rocketspark.namesrv.settings import Settings, read_namesrv_conf

    settings, warnings = read_namesrv_conf(config) if config else (Settings(), [])
    warn(warnings)
    settings.host = host or settings.host
    settings.port = settings.port if port is None else port
    settings.kv_path = str(kv_config) if kv_config else settings.kv_path
    return settings


def _controller_inside(settings: NameServerSettings) -> ControllerSettings:
    """Return the settings of the controller inside a NameServer, which stand in the same file."""
    from rocketspark.controller.settings import ControllerSettings

    try:
        inside = ControllerSettings(settings.controller, conf_path=settings.conf_path)
        inside.tls = settings.tls
        return inside
    except ConfigError as e:
        raise ConfigError(f"{settings.conf_path}: {e}") from None


async def _controller(servers: AsyncExitStack, settings: ControllerSettings, *, share: float) -> str:
    """Start a controller in this process; returns its address."""
    from rocketspark.cli.serving.serve import start_in
    from rocketspark.controller.server import ControllerServer

    return (await start_in(servers, ControllerServer(settings, share=share))).address


def controller(
    config: Annotated[
        Path | None,
        typer.Option(
            "-c", "--config", help="A RocketMQ controller.conf: controllerDLegerPeers, controllerStorePath, …"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT to listen on; port 0 takes a free one"
            " [default: the address in controllerDLegerPeers, else 127.0.0.1:9877]."
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            help="All controllers of a group, this one among them, HOST:PORT,HOST:PORT,HOST:PORT, which are n0, n1, n2;"
            " or n0-HOST:PORT;n1-HOST:PORT;… [default: controllerDLegerPeers]."
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option("--id", help="Which of them this one is, as in n1 or 1 [default: controllerDLegerSelfId]."),
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder of its state [default: controllerStorePath, else ./controller].")
    ] = None,
    tls: TlsOptions = NO_TLS,
    secure: Secure = None,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a controller: it elects the masters of brokers in controller mode.

    Alone it is for one machine, tests and development: while it is down no master is elected, and its state has no
    copy. Of three, named by --peers, one leads, and two go on without the third. At their first start all are needed.

    When ready it prints one line, `ready controller=HOST:PORT`. SIGTERM or Ctrl-C stops it cleanly.

    Example: `rocketspark controller --listen 127.0.0.1:9877 --store ./controller`

    Example: `rocketspark controller --peers a:9877,b:9877,c:9877 --id n0 --store ./controller`

    Example: `rocketspark controller -c controller.conf`

    Example: `rocketspark controller --secure ./store/secure --store ./controller`
    """
    from rocketspark.cli.serving.serve import serve, start_in
    from rocketspark.controller.server import ControllerServer
    from rocketspark.controller.settings import ControllerSettings, named, read_controller_conf

    values = read_controller_conf(config) if config else {}
    if peers is not None:
        values |= named(peers, node)
    elif node is not None:
        raise ConfigError("--id needs --peers: the controllers of the group, this one among them")
    try:
        settings = ControllerSettings(values, listen=listen, folder=store or "", conf_path=config or "")
    except ConfigError as e:
        raise ConfigError(f"{config}: {e}" if config else str(e)) from None
    settings.tls = tls.over(settings.tls)
    if secure is not None:
        from rocketspark.broker.access import secure_folder

        door = secure_folder.load(secure)
        settings.tls, settings.signer = door.tls_over(settings.tls), door.signer()
        settings.let_ask(door.namesrv_writers())
    warn([f"{config}: unknown key {key!r} is ignored" for key in settings.unknown])

    async def start(servers: AsyncExitStack) -> str:
        server = await start_in(servers, ControllerServer(settings))
        return f"ready controller={server.address}"

    serve(start, log_level=log_level.value)
