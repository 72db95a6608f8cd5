"""The cluster of a pipeline and its credentials: options that every pipeline hands to format("rocketmq"). Rule: unset
ones are left to the source's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rocketspark.admin.operations import SyncOperations
from rocketspark.errors import ConfigError
from rocketspark.spark.client_access import Access

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

    @property
    def access(self) -> Access:
        """Return the namespace and the keys."""
        return Access(self.namespace, self.access_key, self.secret_key, self.security_token)

    def without_options(self) -> Connection:
        """Return the same cluster without the further options."""
        return self._replace(options={})

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
    keys = where.access.client_options()
    return SyncOperations(
        where.namesrv,
        timeout_ms=OPERATION_MS,
        access_key=keys["access_key"],
        secret_key=keys["secret_key"],
        security_token=keys["security_token"],
    )


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse name=value texts into a dict. Raises ConfigError naming the option that one stands in."""
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"{option} is {text!r}: name=value is needed")
        found[name.strip()] = value
    return found
