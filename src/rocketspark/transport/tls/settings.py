"""TLS settings of servers by RocketMQ's names. Rule: a value that is not understood is named and refuses to start.

They stand in tls.properties, in broker.conf, namesrv.conf or controller.conf, in the environment and in options: each
wins over those before. Names of 5.5.0 (TlsSystemConfig); `tls.client.verify`, `tls.client.serverName` and
`proxyProtocolNetworks` are ours alone.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model.conf_lines import parse_properties
from rocketspark.model.text import shown
from rocketspark.transport.tls.client_tls import VERIFY, ClientTls

DEFAULT_FILE = "/etc/rocketmq/tls.properties"
FILE_KEY = "tls.config.file"
NETWORKS_KEY = "proxyProtocolNetworks"
# Before each name in the environment: tls.server.mode is ROCKETMQ_TLS_SERVER_MODE.
VARIABLE_START = "ROCKETMQ_"
# What each key may be: words, or a text.
_WORDS: dict[str, tuple[str, ...]] = {
    "tls.server.mode": ("disabled", "permissive", "enforcing"),
    "tls.server.need.client.auth": ("none", "optional", "require"),
    "tls.client.verify": VERIFY,
    "tls.enable": ("true", "false"),
    "useTLS": ("true", "false"),
    "tls.test.mode.enable": ("true", "false"),
    "tls.server.authClient": ("true", "false"),
    "tls.client.authServer": ("true", "false"),
}
_FIELDS = {
    "tls.server.mode": "mode",
    "tls.server.need.client.auth": "need_client_auth",
    "tls.enable": "enable",
    # Of namesrv.conf and controller.conf; a broker has it among its own settings.
    "useTLS": "enable",
    "tls.test.mode.enable": "test_mode",
    "tls.server.authClient": "auth_client",
    "tls.server.keyPath": "key_path",
    "tls.server.keyPassword": "key_password",
    "tls.server.certPath": "cert_path",
    "tls.server.trustCertPath": "trust_path",
    "tls.client.keyPath": "client_key_path",
    "tls.client.keyPassword": "client_key_password",
    "tls.client.certPath": "client_cert_path",
    "tls.client.trustCertPath": "client_trust_path",
    "tls.client.authServer": "auth_server",
    "tls.client.verify": "client_verify",
    "tls.client.serverName": "client_server_name",
    "tls.ciphers": "ciphers",
    "tls.protocols": "protocols",
    NETWORKS_KEY: "proxy_networks",
}
KEYS = frozenset((*_FIELDS, FILE_KEY))
_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one server. `client()`: how it connects to others."""

    mode: str = "permissive"
    need_client_auth: str = "none"
    enable: bool = False
    test_mode: bool = False
    auth_client: bool = False
    key_path: str = ""
    key_password: str = ""
    cert_path: str = ""
    trust_path: str = ""
    client_key_path: str = ""
    client_key_password: str = ""
    client_cert_path: str = ""
    client_trust_path: str = ""
    # Not set: yes. RocketMQ's default is no.
    auth_server: bool | None = None
    client_verify: str = ""
    client_server_name: str = ""
    ciphers: str = ""
    protocols: str = ""
    proxy_networks: str = ""
    # The values by their names, as they were given.
    given: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"TlsSettings(mode={self.mode!r}, cert_path={self.cert_path!r})"

    @property
    def concerns_first_bytes(self) -> bool:
        """True if a server must look at the first bytes of its connections."""
        return bool(self.mode == "enforcing" or self.takes_tls or self.proxy_networks)

    @property
    def takes_tls(self) -> bool:
        """True if there is, or should be, a certificate."""
        return self.mode != "disabled" and bool(self.cert_path or self.key_path or self.test_mode)

    def client(self, use_tls: bool = False) -> ClientTls | None:
        """Return how this server's own connections to others are made; None for connections without TLS.

        They use TLS with useTLS or tls.enable, and if this server itself takes nothing else (rule: BrokerStartup, 5.x).
        """
        if not (use_tls or self.enable or self.mode == "enforcing"):
            return None
        return ClientTls(
            ca=self.client_trust_path,
            cert=self.client_cert_path,
            key=self.client_key_path,
            key_password=self.client_key_password,
            verify=self._verify(),
            server_name=self.client_server_name,
        )

    def _verify(self) -> str:
        if self.client_verify:
            return self.client_verify
        # Nobody can check the certificates that the test mode makes.
        return "none" if self.auth_server is False or (self.test_mode and not self.client_trust_path) else "full"

    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Return the networks whose PROXY headers are believed. Raises ConfigError."""
        found = []
        for word in self.proxy_networks.replace(",", ";").split(";"):
            if word.strip():
                try:
                    found.append(ipaddress.ip_network(word.strip()))
                except ValueError as e:
                    raise ConfigError(
                        f"{NETWORKS_KEY}={shown(word.strip(), characters_max=60)!r}: networks are needed, as in"
                        f" 10.0.0.0/8;192.168.1.7/32 ({shown(str(e), characters_max=100)})"
                    ) from None
        return tuple(found)

    def limit(self, context: ssl.SSLContext) -> None:
        """Limit a TLS context to what tls.protocols and tls.ciphers name. Raises ConfigError."""
        names = [name.strip() for name in self.protocols.split(",") if name.strip()]
        if unknown := [name for name in names if name not in _PROTOCOLS]:
            raise ConfigError(
                f"tls.protocols={shown(unknown[0], characters_max=40)!r}: {', '.join(_PROTOCOLS)} are known"
            )
        if names:
            context.minimum_version = min(_PROTOCOLS[name] for name in names)
            context.maximum_version = max(_PROTOCOLS[name] for name in names)
        # Those of 1.3 are all good ones, and are not chosen by name.
        ciphers = [name.strip() for name in self.ciphers.replace(":", ",").split(",") if name.strip()]
        named = [name for name in ciphers if not name.startswith(("TLS_AES_", "TLS_CHACHA20_"))]
        if named:
            try:
                context.set_ciphers(":".join(named))
            except ssl.SSLError:
                raise ConfigError(
                    f"tls.ciphers={shown(self.ciphers, characters_max=200)!r}: none of them is known here; OpenSSL's"
                    " names are needed, as in ECDHE-RSA-AES128-GCM-SHA256"
                ) from None

    def check(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        self.networks()
        if bool(self.cert_path) != bool(self.key_path):
            given, missing = ("certPath", "keyPath") if self.cert_path else ("keyPath", "certPath")
            raise ConfigError(f"tls.server.{given} needs tls.server.{missing}: give both")
        if self.need_client_auth != "none" and self.takes_tls and not self.trust_path:
            raise ConfigError(
                f"tls.server.need.client.auth={self.need_client_auth} needs tls.server.trustCertPath: the certificates"
                " whose holders are let in"
            )
        if self.client() is not None or self.client_cert_path or self.client_key_path:
            self.client(True)

    def warnings(self) -> list[str]:
        """Return lines that tell the operator what is doubtful about these settings."""
        found = []
        if self.auth_client and self.need_client_auth == "none":
            found.append(
                "tls.server.authClient=true asks nobody for a certificate while tls.server.need.client.auth is none, as"
                " in RocketMQ: set it to require or optional"
            )
        own = self.client()
        if own is not None and own.verify == "none":
            found.append("the certificates of other servers are not checked (tls.client.authServer, tls.client.verify)")
        return found


def is_key(key: str) -> bool:
    """Tell whether a key of a .conf file is one of these settings."""
    return key in KEYS


def from_values(values: Mapping[str, str]) -> TlsSettings:
    """Return the settings for these keys and texts. Raises ConfigError naming a wrong one."""
    taken: dict[str, Any] = {}
    for key, value in values.items():
        field = _FIELDS.get(key)
        if field is None:
            continue
        words = _WORDS.get(key)
        if words is not None:
            value = value.lower()
            if value not in words:
                raise ConfigError(f"{key}={shown(value, characters_max=40)!r}: {', '.join(words)} are known")
        elif shown(value, characters_max=4096) != value:
            raise ConfigError(f"{key}: a text of at most 4096 characters is needed, none of them a control character")
        taken[field] = value == "true" if words == ("true", "false") else value
    settings = TlsSettings(**taken, given=dict(values))
    settings.check()
    return settings


def gathered(
    conf: Mapping[str, str], options: Mapping[str, str | None], environ: Mapping[str, str] | None = None
) -> tuple[TlsSettings, list[str]]:
    """Return (settings, warnings), from tls.properties, a .conf file, the environment and options; the later ones win.

    Raises ConfigError for a wrong value, and for a tls.config.file that was named and cannot be read.
    """
    environ = os.environ if environ is None else environ
    named = {key: environ[variable(key)] for key in sorted(KEYS) if key != "useTLS" and environ.get(variable(key))}
    given = {**conf, **named, **{key: value for key, value in options.items() if value is not None}}
    values, unknown = _file(given.get(FILE_KEY, ""))
    settings = from_values({**values, **given})
    own = (
        settings.client(True) if settings.client() or settings.client_trust_path or settings.client_cert_path else None
    )
    if own is not None:
        try:
            own.context()
        except ConfigError as e:
            raise ConfigError(f"tls.client: {e}") from None
    return settings, [*unknown, *settings.warnings()]


def variable(key: str) -> str:
    """Return the name of the environment variable for a setting."""
    name = "PROXY_PROTOCOL_NETWORKS" if key == NETWORKS_KEY else key.replace(".", "_").upper()
    return VARIABLE_START + name


def _file(path: str) -> tuple[dict[str, str], list[str]]:
    if not path and not os.path.exists(DEFAULT_FILE):
        return {}, []
    path = path or DEFAULT_FILE
    try:
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{FILE_KEY}={shown(path)} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    values = parse_properties(text, shown(path))
    unknown = [f"{shown(path)}: unknown key {shown(key)!r} is ignored" for key in values if key not in _FIELDS]
    return {key: value for key, value in values.items() if key in _FIELDS}, unknown
