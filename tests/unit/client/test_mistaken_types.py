"""Arguments of types that clients cannot use are named where they are given, not where they act."""

from __future__ import annotations

from typing import Any

import pytest

from rocketspark import Producer, PullConsumer, PushConsumer, SimpleConsumer
from rocketspark.errors import ConfigError, FilterIllegal, UsageError

NAMESRV = "127.0.0.1:1"
CONSUMERS = (PushConsumer, PullConsumer, SimpleConsumer)


@pytest.mark.parametrize("kind", [Producer, *CONSUMERS])
def test_an_address_and_an_argument(kind: Any) -> None:
    for namesrv in (["127.0.0.1:9876"], 9876, b"127.0.0.1:9876"):
        with pytest.raises(ConfigError, match="is no address: a text host:port is needed"):
            kind(namesrv, "g")
    with pytest.raises(TypeError, match=f"{kind.__name__} has no argument 'tags'"):
        kind(NAMESRV, "g", tags="a")


@pytest.mark.parametrize("value", ["5", None, float("nan"), [5]], ids=repr)
def test_a_number_of_a_producer(value: Any) -> None:
    for name in ("retries", "send_timeout_ms", "compress_over_bytes", "batch_bytes"):
        with pytest.raises(ConfigError, match=f"{name} .*: a number is needed"):
            Producer(NAMESRV, "g", **{name: value})


def test_a_listener_that_was_called_already() -> None:
    consumer = PushConsumer(NAMESRV, "g")
    for listener in (None, True, "handle"):
        with pytest.raises(UsageError, match="a listener is a function, not"):
            consumer.listen(listener)  # type: ignore[type-var]


@pytest.mark.parametrize("kind", CONSUMERS)
def test_tags_as_a_list(kind: Any) -> None:
    with pytest.raises(FilterIllegal, match=r"a filter expression is a text .*, not list"):
        kind(NAMESRV, "g").subscribe("t", ["a", "b"])
    with pytest.raises(FilterIllegal, match="a filter expression is a text, not int"):
        kind(NAMESRV, "g").subscribe("t", sql=5)
