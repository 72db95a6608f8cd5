"""What an endpoint of metrics tells, as Prometheus reads it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable

from prometheus_client.parser import text_string_to_metric_families
from tests.support.patience import LIMIT_S

Sample = tuple[str, frozenset[tuple[str, str]]]


class Scrape(dict[Sample, float]):
    """Values by name and labels."""

    def value(self, name: str, **labels: str) -> float | None:
        """The one value of a name whose labels are these; None if there is none."""
        return self.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of each sample of a name."""
        return [dict(labels) for found, labels in self if found == name]


def scrape(url: str) -> Scrape:
    """Ask once."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    return Scrape(
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    )


def scrape_until(url: str, true: Callable[[Scrape], object]) -> Scrape:
    """Ask until it is so."""
    end = time.monotonic() + LIMIT_S
    while not true(found := scrape(url)):
        assert time.monotonic() < end, "\n".join(f"{name} {dict(labels)} {v}" for (name, labels), v in found.items())
        time.sleep(0.1)
    return found
