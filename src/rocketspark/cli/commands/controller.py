"""`controller`: a thin shell over the controller of one node. Rule: options win over controller.conf."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

import typer

from rocketspark.cli.serving.server_options import NO_TLS, Level, LogLevel, Secure, TlsOptions, warn
from rocketspark.errors import ConfigError


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
    store: Annotated[
        Path | None, typer.Option(help="Folder of its state [default: controllerStorePath, else ./controller].")
    ] = None,
    tls: TlsOptions = NO_TLS,
    secure: Secure = None,
    log_level: Level = LogLevel.info,
) -> None:
    """Run a controller: it elects the masters of brokers in controller mode.

    It is a single node, for one machine, tests and development: while it is down no master is elected, and its state
    has no copy. A replicated controller is Apache's.

    When ready it prints one line, `ready controller=HOST:PORT`. SIGTERM or Ctrl-C stops it cleanly.

    Example: `rocketspark controller --listen 127.0.0.1:9877 --store ./controller`

    Example: `rocketspark controller -c controller.conf`

    Example: `rocketspark controller --secure ./store/secure --store ./controller`
    """
    from rocketspark.cli.serving.serve import serve, start_in
    from rocketspark.controller.server import ControllerServer
    from rocketspark.controller.settings import ControllerSettings, read_controller_conf

    values = read_controller_conf(config) if config else {}
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
