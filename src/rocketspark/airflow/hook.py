"""The hook: clients made by an Airflow connection of type `rocketmq`."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseHook

from rocketspark.client import Producer, PullConsumer
from rocketspark.client.options import ClientOptions
from rocketspark.errors import ConfigError, RocketSparkError

PORT = 9876
DEFAULT = "rocketmq_default"


class RocketMQHook(BaseHook):
    """Makes clients by a connection: host and port are the NameServer's, login and password the access key and secret.

    Its extra, a JSON object, has `namesrv` ("a:9876;b:9876") for several NameServers, and any argument of every client,
    such as `use_tls`, `tls_ca` or `namespace`.
    """

    conn_name_attr = "rocketmq_conn_id"
    default_conn_name = DEFAULT
    conn_type = "rocketmq"
    hook_name = "RocketMQ"

    def __init__(self, rocketmq_conn_id: str = DEFAULT) -> None:
        super().__init__()
        self.rocketmq_conn_id = rocketmq_conn_id

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a client. Raises ConfigError for an extra that no client has."""
        return arguments_of(self.get_connection(self.rocketmq_conn_id))

    async def aarguments(self) -> dict[str, Any]:
        """Return the same in a trigger."""
        return arguments_of(await self.aget_connection(self.rocketmq_conn_id))

    def get_conn(self) -> Producer:
        """Return a producer, to be used in a with block."""
        return Producer(**self.arguments())

    def consumer(self, group: str, **options: Any) -> PullConsumer:
        """Return a pull consumer, to be used in a with block."""
        return PullConsumer(group=group, **(self.arguments() | options))

    def test_connection(self) -> tuple[bool, str]:
        """Tell whether a NameServer answers, for the button of the connection's form."""
        try:
            with self.consumer("airflow_test"):
                return True, "a NameServer answers"
        except RocketSparkError as e:
            return False, str(e)


def arguments_of(connection: Any) -> dict[str, Any]:
    """Return the arguments of a client for a connection. Raises ConfigError."""
    extra = dict(connection.extra_dejson or {})
    found = {"namesrv": extra.pop("namesrv", None) or f"{connection.host or '127.0.0.1'}:{connection.port or PORT}"}
    if connection.login:
        found |= {"access_key": connection.login, "secret_key": connection.password}
    if unknown := extra.keys() - (ClientOptions.__optional_keys__ | ClientOptions.__required_keys__):
        raise ConfigError(f"connection {connection.conn_id!r}: extra {min(unknown)!r} is no argument of a client")
    return found | extra
