"""TLS options of the commands that run servers. Rule: options win over the environment, that over .conf files."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

if TYPE_CHECKING:
    from rocketspark.transport.tls.settings import TlsSettings


class TlsModes(StrEnum):
    """Values of tls.server.mode."""

    disabled = "disabled"
    permissive = "permissive"
    enforcing = "enforcing"


Mode = Annotated[
    TlsModes | None,
    typer.Option(
        "--tls-mode", help="TLS on the same port: permissive takes it beside plain, enforcing alone [tls.server.mode]."
    ),
]
Cert = Annotated[
    Path | None, typer.Option("--tls-cert", help="Certificate and its chain, PEM; new files are taken without a stop.")
]
Key = Annotated[
    Path | None,
    typer.Option("--tls-key", help="Its key, PKCS#8 PEM; a password comes from ROCKETMQ_TLS_SERVER_KEYPASSWORD."),
]
Test = Annotated[
    bool, typer.Option("--tls-test", help="Make a certificate for this start alone, for tries [tls.test.mode.enable].")
]
Properties = Annotated[
    Path | None,
    typer.Option("--tls-config", help="A RocketMQ tls.properties [default: /etc/rocketmq/tls.properties, if there]."),
]


class TlsOptions(NamedTuple):
    """What was given of them."""

    mode: TlsModes | None
    cert: Path | None
    key: Path | None
    test: bool
    config: Path | None

    def over(self, conf: TlsSettings, warn: Callable[[list[str]], None]) -> TlsSettings:
        """Return a .conf file's settings with all others over them, as they win. Raises ConfigError."""
        from rocketspark.transport.tls.settings import FILE_KEY, gathered

        options = {
            "tls.server.mode": self.mode.value if self.mode else None,
            "tls.server.certPath": str(self.cert) if self.cert else None,
            "tls.server.keyPath": str(self.key) if self.key else None,
            "tls.test.mode.enable": "true" if self.test else None,
            FILE_KEY: str(self.config) if self.config else None,
        }
        settings, warnings = gathered(conf.given, options)
        warn(warnings)
        return settings

    def arguments(self) -> list[str]:
        """Return them as they stand on the command line of a broker's own process."""
        pairs = (
            ("--tls-mode", self.mode.value if self.mode else None),
            ("--tls-cert", self.cert),
            ("--tls-key", self.key),
            ("--tls-config", self.config),
        )
        found = [text for name, value in pairs if value is not None for text in (name, str(value))]
        return [*found, *(["--tls-test"] if self.test else [])]
