"""A router for FastAPI: `app.include_router(RocketRouter("127.0.0.1:9876"))`; the broker lives as long as the app."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi.datastructures import Default
from faststream._internal.fastapi.context import Context, ContextRepo, Logger
from faststream._internal.fastapi.router import StreamRouter

from rocketspark.faststream.broker import RocketBroker as _Broker
from rocketspark.faststream.message import RocketMessage as _Message
from rocketspark.faststream.publisher import RocketPublisher

if TYPE_CHECKING:
    from faststream._internal.context import ContextRepo as _ContextRepo

    from fastapi import params

RocketMessage = Annotated[_Message, Context("message")]
RocketBroker = Annotated[_Broker, Context("broker")]

# FastAPI takes the handler's own annotation then.
_NO_MODEL = Default(None)

__all__ = ["Context", "ContextRepo", "Logger", "RocketBroker", "RocketMessage", "RocketRouter"]


class RocketRouter(StreamRouter[Any]):
    """An APIRouter whose handlers may also subscribe to topics, with FastAPI's dependencies.

    Args:
        namesrv: as RocketBroker's.
        context: the repository of what `Context` finds.
        options: the other arguments of RocketBroker, and those of an APIRouter; `schema_url` is where the AsyncAPI
            document lies, /asyncapi by default.
    """

    broker_class = _Broker
    broker: _Broker

    def __init__(self, namesrv: str | None = None, *, context: _ContextRepo | None = None, **options: Any) -> None:
        super().__init__(namesrv, context=context, **options)

    def subscriber(  # type: ignore[override]
        self,
        *topics: str,
        dependencies: Iterable[params.Depends] = (),
        response_model: Any = _NO_MODEL,
        response_model_include: Any = None,
        response_model_exclude: Any = None,
        response_model_by_alias: bool = True,
        response_model_exclude_unset: bool = False,
        response_model_exclude_defaults: bool = False,
        response_model_exclude_none: bool = False,
        **options: Any,
    ) -> Any:
        """Subscribe a handler to topics. `options`: those of `RocketBroker.subscriber`; the others are FastAPI's."""
        return super().subscriber(
            *topics,
            dependencies=dependencies,
            response_model=response_model,
            response_model_include=response_model_include,
            response_model_exclude=response_model_exclude,
            response_model_by_alias=response_model_by_alias,
            response_model_exclude_unset=response_model_exclude_unset,
            response_model_exclude_defaults=response_model_exclude_defaults,
            response_model_exclude_none=response_model_exclude_none,
            **options,
        )

    def publisher(self, topic: str, **options: Any) -> RocketPublisher:  # type: ignore[override]
        """Publish what a handler returns. `options`: those of `RocketBroker.publisher`."""
        return self.broker.publisher(topic, **options)
