"""The process of a proxy that runs beside a broker: whether it can, on which port, with which keys and TLS."""

from __future__ import annotations

import errno
import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from rocketspark.cli.options import PASSWORD_VARIABLE, access_variables
from rocketspark.cli.serving.child_processes import ChildProcess
from rocketspark.cli.serving.server_options import warn
from rocketspark.errors import ConfigError

if TYPE_CHECKING:
    from rocketspark.broker.settings import BrokerSettings

DEFAULT_PORT = 8081
AUDIT_FILE = "proxy-audit.log"
# Its niceness above the broker's: where both want a core, clients of the broker wait less for theirs, and the proxy
# still has a quarter of it.
BEHIND = 5
# As of every server's key.
PORT_KEY_PASSWORD = "ROCKETMQ_TLS_SERVER_KEYPASSWORD"
EXTRA = "gRPC takes the extra grpc: pip install 'rocketspark[grpc]'"
# Of a proxy beside a broker that asks for keys, and lets whoever has one do everything.
KEYS_ALONE = "--keys-alone"
UNCHECKED = (
    "the broker has access control and no innerClientAuthenticationCredentials, without which a proxy asks nobody for"
    " keys, and its address may be one that the broker lets in; set them, or say --no-grpc"
)


def is_installed() -> bool:
    """Tell whether the extra `grpc` is installed, which a proxy needs."""
    return all(importlib.util.find_spec(name) is not None for name in ("grpc", "google.protobuf"))


def checks_clients(settings: BrokerSettings) -> bool:
    """Tell whether a proxy beside a broker with these settings asks its clients for keys if the broker does.

    One without keys of its own does not, and what it passes on comes from its own address: white lists, and rules for
    some addresses, would let everybody in who reaches the proxy.
    """
    is_open = not (settings.acl or settings.authentication or settings.authorization)
    return is_open or settings.access.inner_credentials() is not None


def port_beside(host: str, asked: int | None) -> int | None:
    """Return the port for a proxy beside a broker; None for no proxy. `asked`: the port that the user named; without
    one, the default port if it is free and the extra `grpc` is installed.

    Raises ConfigError if a port was named that cannot be served.
    """
    if not is_installed():
        if asked is not None:
            raise ConfigError(EXTRA)
        return None
    port = DEFAULT_PORT if asked is None else asked
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as e:
            if e.errno != errno.EADDRINUSE and asked is None:
                # The broker, which takes the same address, says what is wrong with it.
                return None
            why = "is in use" if e.errno == errno.EADDRINUSE else f"cannot be had ({e.strerror})"
            if asked is not None:
                text = "stop the other program, or choose another (--grpc-port 0 takes a free one)"
                raise ConfigError(f"port {port} on {host} {why}: {text}") from None
            warn([f"gRPC is not served: port {port} {why}; --grpc-port 0 takes a free one, --no-grpc asks for none"])
            return None
    return port


def proxy_process(
    namesrv: str, host: str, port: int, options: list[str], environment: dict[str, str] | None = None
) -> ChildProcess:
    """Return the process of a proxy, not started yet. `port`: 0 takes a free one; `options`: more of its command line;
    `environment`: variables with its keys and TLS, in place of those that whoever started this process has of his own.
    """
    environment = dict.fromkeys(access_variables(), "") | (environment or {})
    given = ["proxy", "-n", namesrv, "--host", host, *options]
    return ChildProcess(
        "the proxy", "proxy", lambda taken: [*given, "--grpc-port", str(taken)], port, environment, BEHIND, beats=True
    )


def access_beside(settings: BrokerSettings) -> tuple[list[str], dict[str, str]]:
    """Return the command-line options and the environment of a proxy beside a broker with these settings: it connects
    with the broker's keys and TLS, takes TLS as the broker does, and writes its audit beside the broker's.
    """
    tls, options, environment = settings.tls, list[str](), dict[str, str]()
    own = settings.access.inner_credentials()
    if own is not None:
        environment |= {"ROCKETMQ_ACCESS_KEY": own[0], "ROCKETMQ_SECRET_KEY": own[1]}
        environment |= {"ROCKETMQ_SECURITY_TOKEN": own[2]} if own[2] else {}
        if settings.audit_path != "off":
            folder = Path(settings.audit_path).parent if settings.audit_path else Path(settings.store_root)
            options += ["--audit-log", str(folder / AUDIT_FILE)]
        if settings.authentication and not settings.authorization and not settings.acl:
            options.append(KEYS_ALONE)
    client = tls.client(settings.use_tls)
    if client is not None:
        environment |= {"ROCKETMQ_TLS": "true", "ROCKETMQ_TLS_CA": client.ca, "ROCKETMQ_TLS_VERIFY": client.verify}
        environment |= {"ROCKETMQ_TLS_CERT": client.cert, "ROCKETMQ_TLS_KEY": client.key}
        environment |= {"ROCKETMQ_TLS_SERVER_NAME": client.server_name, PASSWORD_VARIABLE: client.key_password}
    if tls.cert_path:
        options += ["--port-tls-cert", tls.cert_path, "--port-tls-key", tls.key_path]
        environment[PORT_KEY_PASSWORD] = tls.key_password
    if tls.mode != "permissive":
        options += ["--port-tls-mode", tls.mode]
    if tls.proxy_networks:
        options += ["--proxy-networks", tls.proxy_networks]
    return options, environment
