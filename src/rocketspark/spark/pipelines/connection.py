"""The cluster of a pipeline and its credentials: options that every pipeline hands to format("rocketmq"). Rule: unset
ones are left to the source's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rocketspark.admin.operations import Admin
from rocketspark.errors import ConfigError
from rocketspark.tables.client_access import Access
from rocketspark.tables.decode.options import NAMES as DECODE_NAMES
from rocketspark.tables.options import ACCESS_NAMES, over, parse_access, parse_read
from rocketspark.tables.read import partition_planning
from rocketspark.transport.tls.client_tls import ClientTls

OPERATION_MS = 10_000.0
# Further options that choose which messages are read, and what the names of others begin with that do.
_CHOOSING = ("topic", "topicpattern", "assign", "tags", "sql", "key", "columns", "pushdownpredicate")
_CHOOSING_BEGINS = ("starting", "ending", "committed")


class Connection(NamedTuple):
    """A cluster that a pipeline connects to: NameServers "host:port;host:port", namespace and credentials, if the
    cluster asks for any.

    `options`: further options of format("rocketmq"), as given; `tls`: the TLS of connections to servers.
    """

    namesrv: str
    namespace: str = ""
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    options: Mapping[str, str] = {}
    tls: ClientTls | None = None

    def __repr__(self) -> str:
        return f"Connection({self.namesrv!r}, {self.access!r}, options={sorted(self.options)!r})"

    @property
    def access(self) -> Access:
        """What every connection needs: the namespace, the keys and the TLS."""
        return Access(self.namespace, self.access_key, self.secret_key, self.security_token, self.tls)

    def without_options(self) -> Connection:
        """Return the same cluster without the further options."""
        return self._replace(options={})

    @property
    def choosing(self) -> dict[str, str]:
        """The further options that choose which messages are read, by their names in lower case."""
        named = {name.lower(): value for name, value in self.options.items()}
        return {n: value for n, value in named.items() if n in _CHOOSING or n.startswith(_CHOOSING_BEGINS)}

    def without_choice(self) -> Connection:
        """Return the same cluster without the options that choose messages, for topics that must be read whole, such as
        those of traces.
        """
        left_out = self.choosing
        kept = {name: value for name, value in self.options.items() if name.lower() not in left_out}
        return self._replace(options=kept)

    def spark_options(self) -> dict[str, str]:
        """Return the options for `spark.read`, `readStream`, `write` or `writeStream`."""
        named = {
            "namesrv": self.namesrv,
            "namespace": self.namespace,
            "accessKey": self.access_key,
            "secretKey": self.secret_key,
            "securityToken": self.security_token,
        } | _tls_options(self.tls)
        return {name: value for name, value in named.items() if value} | dict(self.options)

    def read_options(self) -> dict[str, str]:
        """Return the options of a read that leaves no message out: a body that does not inflate stays as stored."""
        return over({"badBodies": "stored"}, self.spark_options())


def closed_topics(where: Connection, topics: Sequence[str]) -> dict[str, str]:
    """Return what to say of topics that may not be read on some of their brokers, which hold messages of them. Raises
    RouteNotFound, ConfigError, NotSent.
    """
    options = where.without_choice().spark_options() | {"topic": ",".join(topics)}
    return partition_planning.closed_topics(parse_read(options, streaming=False)) if topics else {}


def connection(where: Connection | str, *, decodes: bool = False) -> Connection:
    """Return a Connection; a text is taken as the addresses of NameServers. Options that name the cluster or its keys
    become fields of the connection.

    Raises ConfigError for an option of decoding unless the pipeline `decodes`: others would hand it on to a read whose
    decoded columns nobody sees, and decodeMode could leave rows out.
    """
    made = where if isinstance(where, Connection) else Connection(where)
    of_decode = {name.lower() for name in DECODE_NAMES}
    if not decodes and (name := next((name for name in made.options if name.lower() in of_decode), None)):
        raise ConfigError(
            f"option {name}: this pipeline keeps bodies as they are; `pipeline sql` decodes, `archive` does with"
            " --format delta or iceberg, or decode(df, …) with what this one wrote"
        )
    own = {name.lower() for name in ("namesrv", *ACCESS_NAMES)}
    named = {name: value for name, value in made.options.items() if name.lower() in own}
    if not named:
        return made
    # What topics are made and asked with is what they are read with.
    given = {name.lower(): value for name, value in over(made.without_options().spark_options(), named).items()}
    access = parse_access(given)
    rest = {name: value for name, value in made.options.items() if name not in named}
    return Connection(given["namesrv"], *access[:4], options=rest, tls=access.tls)


def _tls_options(tls: ClientTls | None) -> dict[str, str]:
    if tls is None:
        return {}
    return {
        "useTls": "true",
        "tlsCa": tls.ca,
        "tlsCert": tls.cert,
        "tlsKey": tls.key,
        "tlsKeyPassword": tls.key_password,
        "tlsVerify": tls.verify,
        "tlsServerName": tls.server_name,
    }


def operations_of(where: Connection) -> Admin:
    """Return operations on a cluster, for the driver; a context manager. They take full names, with the namespace."""
    return Admin(where.namesrv, timeout_ms=OPERATION_MS, **where.access.credentials())


def pairs(texts: Iterable[str] | None, option: str) -> dict[str, str]:
    """Parse texts name=value into a dict. `option`: the option that they were given by, which the ConfigError for a
    wrong text names.
    """
    found = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise ConfigError(f"{option} is {text!r}: name=value is needed")
        found[name.strip()] = value
    return found
