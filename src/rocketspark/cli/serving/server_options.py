"""Options that the commands which run servers share, TLS among them, and how these commands warn of what stands in a
server's file.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rocketspark.model.text import shown

if TYPE_CHECKING:
    from rocketspark.transport.tls.settings import TlsSettings


class LogLevel(StrEnum):
    """The level of the log on stderr."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


Secure = Annotated[
    Path | None,
    typer.Option(help="Take TLS and signed requests alone, with what `server --secure` keeps in its folder secure."),
]
Level = Annotated[LogLevel, typer.Option(help="How much to log on stderr.")]


def warn(warnings: list[str]) -> None:
    """Print warnings on stderr."""
    for warning in warnings:
        print(f"warning: {shown(warning, characters_max=1000)}", file=sys.stderr)


class TlsModes(StrEnum):
    """The values of tls.server.mode: which connections a server takes, plain ones or TLS."""

    disabled = "disabled"
    permissive = "permissive"
    enforcing = "enforcing"


class TlsOptions(NamedTuple):
    """The TLS options of a command that runs a server; they win over the environment, and that over .conf files."""

    tls_mode: Annotated[
        TlsModes | None,
        typer.Option(
            "--tls-mode",
            help="TLS on the same port: permissive takes it beside plain, enforcing alone [tls.server.mode].",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option("--tls-cert", help="Certificate and its chain, PEM; new files are taken without a stop."),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option("--tls-key", help="Its key, PKCS#8 PEM; a password comes from ROCKETMQ_TLS_SERVER_KEYPASSWORD."),
    ] = None
    tls_test: Annotated[
        bool,
        typer.Option("--tls-test", help="Make a certificate for this start alone, for tries [tls.test.mode.enable]."),
    ] = False
    tls_config: Annotated[
        Path | None,
        typer.Option(
            "--tls-config", help="A RocketMQ tls.properties [default: /etc/rocketmq/tls.properties, if there]."
        ),
    ] = None

    def over(self, conf: TlsSettings) -> TlsSettings:
        """Return a server's TLS settings: the option if it is given, else the environment's, else the .conf file's
        `conf`.

        Raises ConfigError; warns on stderr.
        """
        from rocketspark.transport.tls.settings import FILE_KEY, gathered

        options = {
            "tls.server.mode": self.tls_mode.value if self.tls_mode else None,
            "tls.server.certPath": str(self.tls_cert) if self.tls_cert else None,
            "tls.server.keyPath": str(self.tls_key) if self.tls_key else None,
            "tls.test.mode.enable": "true" if self.tls_test else None,
            FILE_KEY: str(self.tls_config) if self.tls_config else None,
        }
        settings, warnings = gathered(conf.given, options)
        warn(warnings)
        return settings

    def arguments(self) -> list[str]:
        """Return these options as command-line arguments, for a broker that runs as a process of its own."""
        pairs = (
            ("--tls-mode", self.tls_mode.value if self.tls_mode else None),
            ("--tls-cert", self.tls_cert),
            ("--tls-key", self.tls_key),
            ("--tls-config", self.tls_config),
        )
        found = [text for name, value in pairs if value is not None for text in (name, str(value))]
        return [*found, *(["--tls-test"] if self.tls_test else [])]


# The default of a command's argument `tls`.
NO_TLS = TlsOptions()
