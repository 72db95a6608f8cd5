"""Subscribers and publishers, as a broker and its routers register them; routers and routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import ArgsContainer, BrokerRouter, SubscriberRoute
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy

from rocketspark.client.consumer.consumer_options import PushConsumerOptions
from rocketspark.client.consumer.offsets import ConsumeFrom
from rocketspark.client.validators import check_counts
from rocketspark.faststream.config import (
    PublisherConfig,
    PublisherSpecificationOptions,
    RocketBrokerConfig,
    SubscriberConfig,
    SubscriberSpecificationOptions,
)
from rocketspark.faststream.publisher import RocketPublisher, RocketPublisherSpecification
from rocketspark.faststream.subscriber import BATCH_MAX, RocketSubscriber, RocketSubscriberSpecification

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class RocketRegistrator(Registrator[Any, RocketBrokerConfig]):
    """What a broker and a router have in common."""

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        ordered: bool = False,
        broadcast: bool = False,
        pop: bool = False,
        batch: bool = False,
        max_records: int = BATCH_MAX,
        max_workers: int = 1,
        consume_from: ConsumeFrom = "last",
        options: PushConsumerOptions | None = None,
        persistent: bool = True,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketSubscriber:
        """Subscribe a handler to topics: `@broker.subscriber("orders", group="billing")`.

        Args:
            topics: one or more; a router's prefix goes before each.
            group: the consumer group; None: one named `faststream-` and the first topic. All members of a group have to
                subscribe to the same topics with the same filter.
            tags: "TagA || TagB", or all.
            sql: or an SQL92 filter over properties, where the broker allows it.
            ordered: each queue's messages one at a time, in order; a message that fails holds its queue up.
            broadcast: every member gets every message; what fails does not come again.
            pop: brokers assign the queues (RocketMQ 5). Where the group is in mode pop they give messages out one by
                one, to be acknowledged one by one; otherwise they are pulled.
            batch: the handler gets lists of up to `max_records` messages of one queue, done together.
            max_workers: how many handlers may run at once, of an ordered subscriber for different queues.
            consume_from: where a group that never read a queue begins: "last", "first", or ms since 1970.
            options: further arguments of AsyncPushConsumer, such as max_reconsume_times.
            persistent: the broker keeps the subscriber, even if nobody else does.
            ack_policy: what is told when a handler has ended. By default NACK_ON_ERROR: a message whose handler raises
                comes again later, in the end it is a dead letter of the group.
            no_reply: send no reply to requests.
            dependencies, parser, decoder, codec: as FastStream's other brokers have them.
            title, description, include_in_schema: of the AsyncAPI document.

        Raises SetupError for what does not go together, ConfigError for a number that cannot be.
        """
        if not topics:
            raise SetupError('a subscriber needs a topic: subscriber("orders", group="billing")')
        if ordered and (broadcast or pop):
            raise SetupError("an ordered subscriber takes neither broadcast nor pop")
        check_counts(max_workers=max_workers, max_records=max_records)
        config: Any = self.config
        own: PushConsumerOptions = {
            "ordered": ordered,
            "broadcast": broadcast,
            "pop": pop,
            "threads": max_workers,
            "batch_max": max_records if batch else 1,
            "consume_from": consume_from,
        }
        calls = CallsCollection[Any]()
        specification = RocketSubscriberSpecification(
            config,
            SubscriberSpecificationOptions(
                topics=topics, title_=title, description_=description, include_in_schema=include_in_schema
            ),
            calls,
        )
        subscriber = RocketSubscriber(
            SubscriberConfig(
                _outer_config=config,
                _ack_policy=ack_policy,
                no_reply=no_reply,
                topics=topics,
                group=group,
                tags=tags,
                sql=sql,
                batch=batch,
                options=dict(own | (options or {})),
            ),
            specification,
            calls,
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            dependencies_=dependencies,
            codec_=codec,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] = (),
        sharding_key: str | None = None,
        headers: dict[str, str] | None = None,
        reply_to: str = "",
        batch: bool = False,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> RocketPublisher:
        """Publish what a handler returns: `@broker.publisher("bills", tag="new")`; or use its `publish` yourself.

        Args:
            topic: a router's prefix goes before it.
            tag, keys, sharding_key, headers, reply_to: of each message that names none itself.
            batch: a list that a handler returns is several messages.
            persistent: the broker keeps the publisher, even if nobody else does.
            title, description, schema, include_in_schema: of the AsyncAPI document.
        """
        config: Any = self.config
        specification = RocketPublisherSpecification(
            config,
            PublisherSpecificationOptions(
                topic=topic,
                title_=title,
                description_=description,
                schema_=schema,
                include_in_schema=include_in_schema,
            ),
        )
        publisher = RocketPublisher(
            PublisherConfig(
                _outer_config=config,
                topic=topic,
                tag=tag,
                keys=keys,
                sharding_key=sharding_key,
                headers=headers,
                reply_to=reply_to,
                batch=batch,
            ),
            specification,
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(self, router: Any, **options: Any) -> None:
        """Include a router of RocketMQ's. Raises SetupError for another broker's."""
        if not isinstance(router, RocketRegistrator):
            raise SetupError(f"{type(router).__name__} is no router of RocketMQ: include a RocketRouter")
        super().include_router(router, **options)


class RocketRoutePublisher(ArgsContainer):
    """The arguments of a publisher, for a RocketRoute."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(topic, **options)


class RocketRoute(SubscriberRoute):
    """A handler with the arguments of its subscriber, for `RocketRouter(handlers=[…])`."""

    def __init__(
        self,
        call: Callable[..., Any] | Callable[..., Awaitable[Any]],
        *topics: str,
        publishers: Iterable[RocketRoutePublisher] = (),
        **options: Any,
    ) -> None:
        super().__init__(call, *topics, publishers=publishers, **options)


class RocketRouter(RocketRegistrator, BrokerRouter[Any, RocketBrokerConfig]):
    """Subscribers and publishers that a broker includes, with a prefix of their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[RocketRoute] = (),
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketBrokerConfig(
                broker_middlewares=middlewares,
                broker_dependencies=dependencies,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                include_in_schema=include_in_schema,
                ack_policy=ack_policy,
                prefix=prefix,
            ),
            routers=routers,
        )
