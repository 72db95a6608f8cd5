"""What a collection of metrics gives: plain values, made in the loop. Rule: what becomes of them, a thread makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from rocketspark.model.histogram import Histogram
from rocketspark.model.text import shown

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

Row = tuple[dict[str, str], float]


class Family(NamedTuple):
    """A metric. `kind`: counter, gauge or histogram; `name`: Prometheus's, of a counter without `_total`; `rows`: its
    values by their labels, histograms of nobody else's.
    """

    kind: str
    name: str
    help: str
    rows: Sequence[tuple[dict[str, str], float | Histogram]]


class Collected(NamedTuple):
    """All metrics of a process at one moment. `labels`: those of every row."""

    labels: dict[str, str]
    families: list[Family]


def histograms(rows: Iterable[tuple[dict[str, str], Histogram]]) -> list[tuple[dict[str, str], Histogram]]:
    """Return the rows with copies of their histograms, which go on counting."""
    return [(labels, histogram.without()) for labels, histogram in rows]


def label_texts(texts: dict[str, str], labels: Sequence[str]) -> list[str]:
    """Return labels' values, escaped, as clients choose the names of topics and groups. `labels`: their order."""
    return [_shown(texts.get(label, "")) for label in labels]


# The same few come in every row.
_shown = lru_cache(maxsize=8192)(shown)
