"""The cluster of a pipeline and its credentials: options that every pipeline hands to format("rocketmq"). Rule: unset
ones are left to the source's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rocketspark.admin.operations import SyncOperations
from rocketspark.errors import ConfigError

OPERATION_MS = 10_000.0


class Connection(NamedTuple):
    """A cluster: NameServers "host:port;host:port", namespace and credentials if it wants any.

    `options`: further options of format("rocketmq"), as given.
    """

    namesrv: str
    namespace: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    options: Mapping[str, str] = {}

    def spark_options(self) -> dict[str, str]:
        """Return the options for `spark.read`, `readStream`, `write` or `writeStream`."""
        named = {
            "namesrv": self.namesrv,
            "namespace": self.namespace,
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "securityToken": self.security_token,
        }
        return {name: value for name, value in named.items() if value} | dict(self.options)


def connection(where: Connection | str) -> Connection:
    """Return the connection, or one to the NameServers that a text names."""
    return where if isinstance(where, Connection) else Connection(where)


def operations_of(where: Connection) -> SyncOperations:
    """Return the driver's operations on the cluster; a context manager. They take full names, with the namespace."""
    keys = {"access_key": where.access_key, "secret_key": where.secret_key, "security_token": where.security_token}
    return SyncOperations(where.namesrv, timeout_ms=OPERATION_MS, **{name: key or None for name, key in keys.items()})


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse name=value texts into a dict. Raises ConfigError naming the option that one stands in."""
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"{option} is {text!r}: name=value is needed")
        found[name.strip()] = value
    return found
