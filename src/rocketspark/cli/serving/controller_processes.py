"""The controllers that `server` runs: one in its own process, or several, each a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.cli.serving.child_processes import ChildProcess
from rocketspark.store.files.system_calls import OsFiles, make_folder
from rocketspark.transport.dialing import free_ports

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings
    from rocketspark.transport.tls.settings import TlsSettings

CONF = "controller.conf"


def ports(host: str, first: int, count: int) -> list[int]:
    """Return a port for each of `count` controllers, ascending from the first; free ones if the first is 0."""
    return [first + i for i in range(count)] if first else free_ports(host, count)


async def start_controllers(
    servers: AsyncExitStack,
    settings: BrokerSettings,
    count: int,
    first_port: int,
    options: list[str],
    askers: dict[str, str],
) -> list[str]:
    """Start the processes of a group of `count` controllers; returns their addresses.

    `settings`: those of the brokers beside them, whose TLS and keys the controllers take; `options`: more of their
    command line; `askers`: the access keys that may ask them, with their secrets.
    """
    host = settings.listen_host or "127.0.0.1"
    told = f"[{host}]" if ":" in host else host
    addresses = [f"{told}:{port}" for port in ports(host, first_port, count)]
    members = ";".join(f"n{i}-{address}" for i, address in enumerate(addresses))
    processes = []
    for number, address in enumerate(addresses):
        folder = Path(settings.store_root) / "controllers" / f"n{number}"
        given = ["controller", "--peers", members, "--id", f"n{number}", "--store", str(folder), *options]
        if askers:
            given += ["-c", str(_conf(folder, settings, askers))]
        port = int(address.rpartition(":")[2])
        processes.append(ChildProcess(f"controller n{number}", "controller", lambda _, given=given: given, port))  # type: ignore[misc]
    await asyncio.gather(*(process.start_in(servers) for process in processes))
    return addresses


def _conf(folder: Path, settings: BrokerSettings, askers: dict[str, str]) -> Path:
    """Write the keys that a controller needs into a file that its owner alone may read."""
    from rocketspark.access import write_gate
    from rocketspark.transport.request_signer import INNER_KEY

    tls: TlsSettings = settings.tls
    credentials = [{"accessKey": name, "secretKey": secret} for name, secret in askers.items()]
    values = {
        **tls.given,
        INNER_KEY: settings.access.inner_client_authentication_credentials,
        write_gate.SWITCH: "true",
        write_gate.CREDENTIALS: json.dumps(credentials),
    }
    make_folder(OsFiles(), str(folder))
    path = folder / CONF
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{key}={value}\n" for key, value in values.items())
    return path
