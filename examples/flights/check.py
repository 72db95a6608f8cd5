"""Compares what came out of the system with what pandas computes from the source data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pandas as pd

from examples.flights.replay import Replayed
from examples.flights.source import COLUMNS
from examples.flights.summaries import LATE_MINUTES, Summary

BY_DAY = ["carrier", "origin", "month", "day"]
BY_MONTH = ["carrier", "month"]
FIGURES = ["flights", "departed", "delay_minutes", "late"]


class Check(NamedTuple):
    """One figure: as it should be, and as found."""

    what: str
    expected: object
    found: object

    @property
    def passed(self) -> bool:
        return self.expected == self.found


def delays(flights: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The delay figures per group, as the Spark job computes them."""
    late = (flights["dep_delay"] > LATE_MINUTES).fillna(False)
    return (
        flights.assign(late=late)
        .groupby(by)
        .agg(
            flights=("row", "size"),
            departed=("dep_delay", "count"),
            delay_minutes=("dep_delay", "sum"),
            late=("late", "sum"),
        )
        .reset_index()
    )


def checksum(rows: pd.DataFrame) -> str:
    """A number that changes with any value of any row, but not with the order of the rows."""
    plain = pd.DataFrame(
        {
            name: rows[name].astype("float64") if pd.api.types.is_numeric_dtype(rows[name]) else rows[name].fillna("")
            for name in sorted(rows.columns)
        }
    )
    return f"{int(pd.util.hash_pandas_object(plain, index=False).sum()):016x}"


def planes_out_of_order(read: pd.DataFrame) -> int:
    """How many planes have flights in more than one queue, or not in the order of their departures."""
    planes = read.dropna(subset="tailnum").sort_values(["tailnum", "queueOffset"]).groupby("tailnum")
    queues = planes["broker"].nunique().ne(1) | planes["queueId"].nunique().ne(1)
    return int((queues | ~planes["row"].is_monotonic_increasing).sum())


def check(
    source: pd.DataFrame,
    replayed: Replayed,
    flights_path: str,
    delays_path: str,
    published: int,
    consumed: Sequence[Summary],
) -> list[Check]:
    """Every figure of the run beside what it should be."""
    read = pd.read_parquet(flights_path).astype({"month": "int64"})
    by_day = pd.read_parquet(delays_path).groupby(BY_DAY, as_index=False)[FIGURES].sum()
    by_month = pd.DataFrame([msgspec.structs.asdict(s) for s in consumed], columns=[*BY_MONTH, *FIGURES])
    expected_days, expected_months = delays(source, BY_DAY), delays(source, BY_MONTH)
    per_month, expected_per_month = read["month"].value_counts(), source["month"].value_counts()
    return [
        Check("flights acknowledged", len(source), replayed.message_count),
        Check("flights in Parquet", len(source), len(read)),
        *(
            Check(f"flights of month {m}", int(expected_per_month.get(m, 0)), int(per_month.get(m, 0)))
            for m in range(1, 13)
        ),
        Check("flights that departed", int(source["dep_delay"].count()), int(read["dep_delay"].count())),
        Check("checksum of all flights", checksum(source), checksum(read[COLUMNS])),
        Check("planes out of order", 0, planes_out_of_order(read)),
        Check("delays: carrier, origin, day", len(expected_days), len(by_day)),
        Check("checksum of these delays", checksum(expected_days), checksum(by_day)),
        Check("summaries published", len(expected_months), published),
        Check("summaries consumed", len(expected_months), len(by_month)),
        Check("checksum of the summaries", checksum(expected_months), checksum(by_month)),
    ]
