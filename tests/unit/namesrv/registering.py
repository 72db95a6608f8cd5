"""Registers brokers in a registry under test, from the values of a request."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from rocketspark.namesrv.registry import EXPIRY_MS, LiveBroker, Registry
from rocketspark.protocol.json.bodies import TopicConfigTable


def steps(
    registry: Registry,
    *,
    topics: TopicConfigTable,
    now_ms: int,
    expiry_ms: int | None = None,
    acting_master: bool | None = None,
    **who: Any,
) -> Generator[None, None, LiveBroker | None]:
    """Begin a registration, which goes on with each `next`."""
    live = LiveBroker(heard_ms=now_ms, expiry_ms=expiry_ms or EXPIRY_MS, version=topics.data_version, **who)
    return registry.register(live, topics, acting_master)


def register(registry: Registry, **values: Any) -> LiveBroker | None:
    """Register in one go; returns what the registration does."""
    left = steps(registry, **values)
    while True:
        try:
            next(left)
        except StopIteration as e:
            master: LiveBroker | None = e.value
            return master
