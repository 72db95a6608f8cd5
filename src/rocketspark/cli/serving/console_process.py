"""The process of a console that runs beside a broker: a browser's pages cost the broker's loop nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.cli.options import access_variables
from rocketspark.cli.serving.child_processes import ChildProcess
from rocketspark.cli.serving.proxy_process import BEHIND, access_beside

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings

AUDIT_FILE = "console-audit.log"


def console_process(settings: BrokerSettings, port: int, *, read_only: bool, log_level: str) -> ChildProcess:
    """Return the process of a console beside a broker with these settings, not started yet: it is reached from this
    machine alone, connects with the broker's keys and TLS for its plots, and writes its audit beside the broker's.

    `port`: 0 takes a free one.
    """
    _, environment = access_beside(settings)
    given = ["console", "-n", settings.namesrv_addresses, "--log-level", log_level]
    if read_only:
        given.append("--read-only")
    if settings.audit_path != "off":
        folder = Path(settings.audit_path).parent if settings.audit_path else Path(settings.store_root)
        given += ["--audit-log", str(folder / AUDIT_FILE)]
    environment = dict.fromkeys(access_variables(), "") | environment
    return ChildProcess(
        "the console", "console", lambda taken: [*given, "--port", str(taken)], port, environment, BEHIND
    )
