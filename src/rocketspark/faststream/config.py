"""What brokers, subscribers and publishers are made with; the look of their log lines; security."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.middlewares import AckPolicy
from faststream.security import BaseSecurity, SASLPlaintext

from rocketspark.client.options import AccessOptions, ClientOptions
from rocketspark.errors import ConfigError
from rocketspark.faststream.producer import RocketProducer
from rocketspark.protocol.message.message_ids import ID_CHARACTERS, ID_WITH_IPV6_CHARACTERS

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo


class RocketSecurity(BaseSecurity):
    """Signed requests and TLS: `RocketSecurity(access_key="me", secret_key="…", use_tls=True, tls_ca="ca.pem")`.

    The arguments are those of `rocketspark.client.options.AccessOptions`.
    """

    def __init__(self, **options: Any) -> None:
        if unknown := options.keys() - AccessOptions.__optional_keys__:
            names = ", ".join(sorted(AccessOptions.__optional_keys__))
            raise ConfigError(f"RocketSecurity has no argument {min(unknown)!r}: there are {names}")
        super().__init__(use_ssl=bool(options.get("use_tls")))
        self.options = cast(AccessOptions, options)

    def get_requirement(self) -> list[dict[str, Any]]:
        """Return what AsyncAPI says that clients need."""
        return [{"access-key": []}] if self.options.get("access_key") else []

    def get_schema(self) -> dict[str, dict[str, str]]:
        """Return how AsyncAPI describes it: keys go as name and secret."""
        return {"access-key": {"type": "userPassword"}} if self.options.get("access_key") else {}


def access_of(security: BaseSecurity | None) -> AccessOptions:
    """Return the options of a client. Raises ConfigError for a kind of security that RocketMQ has not."""
    if security is None:
        return {}
    if isinstance(security, RocketSecurity):
        return security.options
    if security.ssl_context is not None:
        raise ConfigError("an ssl_context cannot be used: give RocketSecurity(use_tls=True, tls_ca=…) instead")
    access: AccessOptions = {"use_tls": security.use_ssl}
    if isinstance(security, SASLPlaintext):
        return access | {"access_key": security.username, "secret_key": security.password}
    if type(security) is BaseSecurity:
        return access
    raise ConfigError(f"RocketMQ has no {type(security).__name__}: give RocketSecurity or SASLPlaintext")


@dataclass(kw_only=True)
class RocketBrokerConfig(BrokerConfig):
    """A broker's settings, and those that a router adds."""

    namesrv: str | None = None
    client_options: ClientOptions = field(default_factory=lambda: ClientOptions())
    group_prefix: str = "faststream"
    create_topics: bool = True
    producer: RocketProducer = field(default_factory=lambda: RocketProducer())


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """A subscriber's settings. `options`: further arguments of its AsyncPushConsumer."""

    _outer_config: Any
    topics: Sequence[str]
    group: str | None
    tags: str
    sql: str | None
    batch: bool
    options: dict[str, Any]

    @property
    def ack_policy(self) -> AckPolicy:
        """What is told when a handler has ended: if it raised, by default, that the message is to come again."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer: AckPolicy = self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR if outer is EMPTY else outer


@dataclass(kw_only=True)
class SubscriberSpecificationOptions(SubscriberSpecificationConfig):
    """What a document says of a subscriber."""

    topics: Sequence[str]


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """A publisher's settings."""

    _outer_config: Any
    topic: str
    tag: str | None
    keys: str | Sequence[str]
    sharding_key: str | None
    headers: dict[str, str] | None
    reply_to: str
    batch: bool


@dataclass(kw_only=True)
class PublisherSpecificationOptions(PublisherSpecificationConfig):
    """What a document says of a publisher."""

    topic: str


class _LogFields(DefaultLoggerStorage):
    """Makes the logger whose lines name topic, group and message in columns."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 0}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns for a subscriber's names."""
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger, made at the first call."""
        logger = self._get_logger_ref()
        if logger is None:
            columns = [f"%({name})-{width}s" for name, width in self._widths.items() if width]
            line = " | ".join([*columns, f"%(message_id)-{ID_CHARACTERS}s"])
            logger = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=ID_WITH_IPV6_CHARACTERS,  # Whole: all ids of a process begin alike.
                fmt=f"%(asctime)s %(levelname)-8s - {line} - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_rocket_logger_state = partial(make_logger_state, default_storage_cls=_LogFields)
