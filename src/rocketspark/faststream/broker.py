"""A FastStream broker on RocketMQ. Rule: one producer for all that is published, one consumer for each subscriber."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response import PublishType
from faststream.specification.schema import BrokerSpec

from rocketspark.client import AsyncProducer, SendResult
from rocketspark.client.options import ClientOptions, ProducerOptions
from rocketspark.errors import NotSent, RocketSparkError
from rocketspark.faststream.config import RocketBrokerConfig, access_of, make_rocket_logger_state
from rocketspark.faststream.message import RocketMessage
from rocketspark.faststream.producer import RocketProducer
from rocketspark.faststream.registrator import RocketRegistrator
from rocketspark.faststream.response import REQUEST_S, PublishOptions, command
from rocketspark.faststream.subscriber import RocketSubscriber, stopping_task

if TYPE_CHECKING:
    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.security import BaseSecurity
    from faststream.specification.schema import Tag, TagDict


class RocketBroker(RocketRegistrator, BrokerUsecase[Any, AsyncProducer, RocketBrokerConfig]):
    """A FastStream broker on RocketMQ: `RocketBroker("127.0.0.1:9876")`.

    Args:
        namesrv: "host:port;host:port"; None takes ROCKETMQ_NAMESRV_ADDR or NAMESRV_ADDR from the environment.
        producer: arguments of the AsyncProducer that publishes, such as send_timeout_ms or linger_ms.
        producer_group: its group.
        group_prefix: what the group of a subscriber without `group` begins with.
        create_topics: a subscriber's topic that does not exist is made when it starts.
        graceful_timeout: how many seconds handlers that run get to end when the broker stops.
        ack_policy: of all subscribers that have none of their own.
        security: RocketSecurity, or FastStream's SASLPlaintext with the access key as user name.
        specification_url, protocol, protocol_version, description, tags: of the AsyncAPI document.
        decoder, codec, parser, dependencies, middlewares, routers, id_generator, logger, log_level, apply_types,
            provider, serializer, context: as FastStream's other brokers have them.
        options: of all clients, see ClientOptions: namespace, access_key, use_tls and others.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        producer: ProducerOptions | None = None,
        producer_group: str = "faststream_producer",
        group_prefix: str = "faststream",
        create_topics: bool = True,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: IdGenerator = gen_cor_id,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        parser: CustomCallable | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        security: BaseSecurity | None = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        provider: Provider | None = None,
        serializer: SerializerProto | None = EMPTY,
        context: ContextRepo | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        client_options: Any = dict(options) | dict(access_of(security))
        # How many calls of `stop` are under way.
        self._stops = 0
        # Refuses what it does not know; it begins nothing.
        self._producer_arguments: Any = (producer_group, dict(producer or {}))
        if isinstance(specification_url, str):
            specification_url = [specification_url]
        elif specification_url is None:
            addresses = namesrv or os.environ.get("ROCKETMQ_NAMESRV_ADDR") or os.environ.get("NAMESRV_ADDR")
            listed = (addresses or "127.0.0.1:9876").replace(",", ";").split(";")
            specification_url = [address.strip() for address in listed if address.strip()]
        secure = bool(client_options.get("use_tls"))
        super().__init__(
            routers=routers,
            config=RocketBrokerConfig(
                namesrv=namesrv,
                client_options=client_options,
                group_prefix=group_prefix,
                create_topics=create_topics,
                producer=RocketProducer(parser, decoder),
                broker_decoder=decoder,
                broker_codec=codec,
                broker_parser=parser,
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                logger=make_rocket_logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                url=list(specification_url),
                protocol=protocol or ("rocketmq-secure" if secure else "rocketmq"),
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    # -- life ----------------------------------------------------------------------------------------------------

    async def _connect(self) -> AsyncProducer:
        config: Any = self.config
        group, options = self._producer_arguments
        client = AsyncProducer(config.namesrv, group, **(config.client_options | options))
        await client.start()
        config.producer.connect(client, config.fd_config._serializer, config.broker_codec)
        return client

    async def start(self) -> None:
        """Connect, and start all subscribers. Raises SetupError if two of them contradict each other, NotSent if no
        NameServer answers.
        """
        self.check_groups()
        await self.connect()
        await super().start()

    def check_groups(self) -> None:
        """Raise SetupError if subscribers are members of one group but not alike: brokers have one subscription of a
        group.
        """
        seen: dict[str, RocketSubscriber] = {}
        for subscriber in self.subscribers:
            assert isinstance(subscriber, RocketSubscriber)
            first = seen.setdefault(subscriber.group, subscriber)
            if first is subscriber:
                continue
            name = f"group {subscriber.group!r}"
            if not subscriber.has_own_group:
                raise SetupError(f"two subscribers are in {name}, where each gets a part: name a group= of each")
            if _subscription(first) != _subscription(subscriber):
                raise SetupError(
                    f"subscribers in {name} have different topics or filters, which RocketMQ does not allow: name a"
                    " group= of each, or give one subscriber all topics"
                )

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop all subscribers, at once, and then the producer. A handler that calls it is not waited for; one that
        calls it while another's call stops the broker is, so its own returns at once.
        """
        task = asyncio.current_task()
        if self._stops and any(isinstance(s, RocketSubscriber) and s.is_called_by(task) for s in self.subscribers):
            return
        token = stopping_task.set(task)
        self._stops += 1
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            self._stops -= 1
            stopping_task.reset(token)
            await self.config.broker_config.producer.disconnect()
            self._connection = None

    async def ping(self, timeout: float | None) -> bool:
        """Tell whether a NameServer answers within `timeout` seconds; None: 3."""
        if self._connection is None:
            return False
        try:
            async with asyncio.timeout(timeout or 3):
                while True:
                    try:
                        await self._connection._instance.check_namesrv()
                        return True
                    except NotSent:
                        await asyncio.sleep(0.1)
        except (TimeoutError, RocketSparkError):
            return False

    # -- publishing ----------------------------------------------------------------------------------------------

    async def publish(self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]) -> SendResult:
        """Publish a message, and return where it is stored.

        Args:
            message: bytes, a text, or what the serializer makes a JSON of (Pydantic's and msgspec's models too).
            topic: the whole name.
            options: see PublishOptions.

        Raises MessageIllegal, SendFailed and the others of `AsyncProducer.send`.
        """
        cmd = command(PublishType.PUBLISH, self.config.id_generator, message, topic=topic, options=options)
        result: SendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str, **options: Unpack[PublishOptions]
    ) -> list[SendResult]:
        """Publish several messages of one topic, as many in one request as fit; return the result of each request.

        A message may be a RocketResponse with fields of its own. Requests are not undone if a later one fails.
        """
        if not messages:
            return []
        cmd = command(PublishType.PUBLISH, self.config.id_generator, *messages, topic=topic, options=options)
        results: list[SendResult] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return results

    async def request(  # type: ignore[override]
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> RocketMessage:
        """Publish a request, and return the reply: what the handler of a subscriber returns.

        Raises TimeoutError if no reply comes in `timeout` seconds (3), else as `publish`.
        """
        options.setdefault("timeout", REQUEST_S)
        cmd = command(PublishType.REQUEST, self.config.id_generator, message, topic=topic, options=options)
        reply: RocketMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply


def _subscription(subscriber: RocketSubscriber) -> tuple[Any, ...]:
    return set(subscriber.topics), subscriber.tags, subscriber.sql, subscriber.broadcast
