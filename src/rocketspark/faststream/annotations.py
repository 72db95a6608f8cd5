"""Types of handlers' arguments that FastStream fills in: `async def handle(body: Order, message: RocketMessage)`."""

from __future__ import annotations

from typing import Annotated

from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from faststream import Context
from rocketspark.client import AsyncProducer
from rocketspark.faststream.broker import RocketBroker as _Broker
from rocketspark.faststream.message import RocketMessage as _Message

RocketMessage = Annotated[_Message, Context("message")]
RocketBroker = Annotated[_Broker, Context("broker")]
# The client that publishes, for what FastStream has no words for: transactions aside, all that RocketMQ can send.
Producer = Annotated[AsyncProducer, Context("broker._connection")]

__all__ = ["ContextRepo", "Logger", "NoCast", "Producer", "RocketBroker", "RocketMessage"]
