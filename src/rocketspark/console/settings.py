"""What a console is told: the cluster, its address, what it may do, whom it lets in."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rocketspark.console import assets
from rocketspark.errors import ConfigError
from rocketspark.model.stream_progress import PATH
from rocketspark.model.text import shown
from rocketspark.transport.connections import is_loopback

EXTRA = "the console takes the extra console: pip install 'rocketspark[console]'"
REQUESTS_PER_SECOND = 20
_NEEDED = ("starlette", "uvicorn", "jinja2")


class ConsoleSettings(msgspec.Struct, kw_only=True):
    """The settings of a console.

    `namesrv`: "host:port;host:port" of the NameServers; `options`: keys and TLS of the console's own requests, as
    clients take them. With keys everybody has to log in, also with `login`; without, a user has to once the cluster
    refuses what is not signed.
    `host`, `port`: where it listens; 0 takes a free port. `public_names`: names besides IP addresses, "localhost" and
    `host` by which browsers may ask for it. `tls_cert`, `tls_key`, `tls_key_password`: PEM files, and the key's
    password; with them it speaks HTTPS alone.
    `public_url`: "https://name[:port]" by which browsers reach it through a proxy that ends TLS. `trusted_proxies`: the
    addresses of proxies whose X-Forwarded-For says who asks; nobody else's counts.
    `read_only`: nothing can be changed. `requests_per_second`: how many requests a broker gets at most.
    `sample_interval_s`, `samples_max`: how often the figures of plots are taken, and how many are kept.
    `samples_path`: an SQLite file in which they outlive the console, for a day at most; "": none.
    `spark_streams`: "http://host:port" of processes that publish the progress of their Spark streams.
    `outbox`, `dedupe`: databases with tables of an outbox, and of ids of processed messages: "sqlite:///file.db" or
    "postgresql://user@host/name", "#table" behind it for a table of another name, or "@file" with that in it.
    `audit_path`: a file that gets one line of JSON for each change and each refused login; "": none.
    """

    namesrv: str = "127.0.0.1:9876"
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8080
    public_names: tuple[str, ...] = ()
    public_url: str = ""
    trusted_proxies: tuple[str, ...] = ()
    tls_cert: str = ""
    tls_key: str = ""
    tls_key_password: str = ""
    login: bool = False
    read_only: bool = False
    requests_per_second: int = REQUESTS_PER_SECOND
    sample_interval_s: float = 5.0
    samples_max: int = 720
    samples_path: str = ""
    spark_streams: tuple[str, ...] = ()
    outbox: tuple[str, ...] = ()
    dedupe: tuple[str, ...] = ()
    audit_path: str = ""

    @property
    def needs_login(self) -> bool:
        """Tell whether nobody gets in without keys of his own."""
        return self.login or bool(self.options.get("access_key"))

    @property
    def is_https(self) -> bool:
        """Tell whether browsers reach it by HTTPS, its own or a proxy's."""
        return bool(self.tls_cert) or self.public_url.startswith("https:")

    @property
    def names(self) -> list[str]:
        """Return the names besides IP addresses and "localhost" by which browsers may ask for it."""
        own = [] if self.host in ("0.0.0.0", "::") else [self.host]
        return [*self.public_names, *own, *filter(None, [urlsplit(self.public_url).hostname])]

    @property
    def tls_options(self) -> dict[str, Any]:
        """Return the options of TLS towards the cluster, which hold for every user."""
        return {name: value for name, value in self.options.items() if name.startswith(("use_tls", "tls_"))}

    def check(self) -> None:
        """Raise ConfigError for what no console can run with."""
        if any(importlib.util.find_spec(name) is None for name in _NEEDED):
            raise ConfigError(EXTRA)
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("the console's certificate and its key are given together")
        if self.requests_per_second < 1:
            raise ConfigError("a console needs at least one request a second to a broker")
        self._check_proxy()
        if self.samples_path and not os.access(folder := Path(self.samples_path).absolute().parent, os.W_OK):
            raise ConfigError(f"samples {shown(self.samples_path)}: no file can be made in {shown(str(folder))}")
        for address in self.spark_streams:
            stream_address(address)
        if not is_loopback(self.host) and not (self.tls_cert and self.needs_login):
            raise ConfigError(
                f"a console on {self.host} can be reached from outside: that needs TLS (--port-tls-cert and"
                " --port-tls-key) and a login (--login, or an access key); or listen on 127.0.0.1"
            )
        if not assets.are_there():
            raise ConfigError(assets.HOW)

    def _check_proxy(self) -> None:
        try:
            parts = urlsplit(self.public_url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if self.public_url and not (is_address and self.public_url.rstrip("/") == f"{parts.scheme}://{parts.netloc}"):
            raise ConfigError(
                f"public URL {shown(self.public_url)!r}: scheme and host are needed, such as https://console.example;"
                " the console has to be at the root of its host"
            )
        for address in self.trusted_proxies:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise ConfigError(f"trusted proxy {shown(address)!r}: an IP address is needed") from None


def stream_address(address: str) -> tuple[str, str, int]:
    """Return "host:port", host and port of what names a process: "host:port", "http://host:port" or the address of its
    metrics. Raises ConfigError.
    """
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme != "http" or not host or not port or parts.path not in ("", "/", "/metrics", PATH):
        raise ConfigError(
            f"Spark stream {shown(address)!r}: the address of its metrics is needed, such as http://127.0.0.1:9464"
        )
    return parts.netloc.rpartition("@")[2], host, port
