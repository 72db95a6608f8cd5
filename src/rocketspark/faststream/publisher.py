"""A publisher: what a handler returns, or `publisher.publish` gets, goes to its topic."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack, cast

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from rocketspark.client import SendResult
from rocketspark.faststream.config import PublisherConfig, PublisherSpecificationOptions, RocketBrokerConfig
from rocketspark.faststream.message import RocketMessage
from rocketspark.faststream.response import REQUEST_S, PublishOptions, RocketPublishCommand, command
from rocketspark.model import ReceivedMessage

if TYPE_CHECKING:
    from faststream._internal.types import PublisherMiddleware


class RocketPublisherSpecification(PublisherSpecification[RocketBrokerConfig, PublisherSpecificationOptions]):
    """What an AsyncAPI document says of a publisher."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """The title, or the topic."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel by its name."""
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher"))
        operation = Operation(message=message, bindings=None)
        description = self.config.description_
        return {self.name: PublisherSpec(description, operation=operation, bindings=None, address=self.topic)}


class RocketPublisher(PublisherUsecase):
    """Publishes to one topic; its tag, keys, sharding key and headers are those of what names none."""

    _outer_config: RocketBrokerConfig

    def __init__(self, config: PublisherConfig, specification: RocketPublisherSpecification) -> None:
        super().__init__(config, cast(Any, specification))
        self._topic = config.topic
        self.tag, self.keys, self.sharding_key = config.tag, config.keys, config.sharding_key
        self.headers = config.headers or {}
        self.reply_to = config.reply_to
        self.batch = config.batch

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(
        self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]
    ) -> SendResult | None:
        """Publish a message. Arguments, result and errors are those of `RocketBroker.publish`."""
        config = self._outer_config
        cmd = self._filled(
            command(PublishType.PUBLISH, config.id_generator, message, topic=topic or self.topic, options=options)
        )
        result: SendResult | None = await self._basic_publish(cmd, producer=config.producer, _extra_middlewares=())
        return result

    async def request(self, message: Any = None, topic: str = "", **options: Unpack[PublishOptions]) -> RocketMessage:
        """Publish a request and return its reply. Arguments and errors are those of `RocketBroker.request`."""
        config = self._outer_config
        options.setdefault("timeout", REQUEST_S)
        cmd = self._filled(
            command(PublishType.REQUEST, config.id_generator, message, topic=topic or self.topic, options=options)
        )
        cmd.reply_to = ""
        reply: RocketMessage = await self._basic_request(cmd, producer=config.producer)
        return reply

    def _filled(self, cmd: RocketPublishCommand) -> RocketPublishCommand:
        cmd.tag = cmd.tag or self.tag
        cmd.keys = cmd.keys or self.keys
        cmd.sharding_key = cmd.sharding_key or self.sharding_key
        cmd.reply_to = cmd.reply_to or self.reply_to
        cmd.add_headers(self.headers, override=False)
        return cmd

    async def _publish(
        self, cmd: PublishCommand | RocketPublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler returned."""
        cmd = self._filled(RocketPublishCommand.from_cmd(cmd, batch=self.batch))
        cmd.destination = self.topic
        publish = self._basic_publish_batch if self.batch else self._basic_publish
        await publish(cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returned to who asked: the sender of a request, or the topic of `reply_to`."""

    def __init__(self, producer: Any, topic: str, request: ReceivedMessage | None) -> None:
        super().__init__(producer=producer)
        self._topic, self._request = topic, request

    def patch_command(self, cmd: PublishCommand | RocketPublishCommand) -> RocketPublishCommand:
        """Return the command with its destination."""
        made = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        made.destination, made.request = self._topic, self._request
        return made
