"""Each class, argument, method, setting and option that docs/start/java.md and kafka.md name on our side exists.

Their commands are looked at by tests/unit/cli/test_documented_commands.py.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import rocketspark
from rocketspark import admin
from rocketspark.broker.settings import FIELDS
from rocketspark.client.consumer.consumer_options import PullConsumerOptions, PushConsumerOptions
from rocketspark.client.options import ProducerOptions
from rocketspark.tables import options

pytestmark = pytest.mark.shows("what the pages for users of Java and Kafka name is there")

DOCS = Path(__file__).resolve().parents[2] / "docs" / "start"
PLACES = [rocketspark, admin]
KINDS = {name: of for place in PLACES for name in place.__all__ if inspect.isclass(of := getattr(place, name))}
ARGUMENTS = {name for of in (ProducerOptions, PullConsumerOptions, PushConsumerOptions) for name in of.__annotations__}
VALUES = {"host:port;host:port", '"first"', '"last"'}


def is_there(name: str) -> bool:
    """Tell whether a class, method, argument, call with arguments, setting or option of the source is there."""
    if call := re.fullmatch(r"(\w+(?:\.\w+)*)\((.*)\)", name):
        given = re.findall(r"(\w+)=", call[2])
        kind, _, method = call[1].rpartition(".")
        of = inspect.signature(getattr(KINDS[kind], method)).parameters if kind in KINDS else {}
        return (is_there(call[1]) or call[1] == "poll") and all(
            word in ARGUMENTS or word in of or word in inspect.signature(KINDS["PullConsumer"].poll).parameters
            for word in given
        )
    if "." in name:
        kind, _, member = name.removeprefix("rocketspark.admin.").rpartition(".")
        return member in KINDS if not kind else hasattr(KINDS.get(kind), member)
    methods = any(hasattr(KINDS[kind], name) for kind in ("Producer", "PullConsumer", "ReceivedMessage"))
    return name in KINDS or name in ARGUMENTS or name in FIELDS or name in options._READ_NAMES or methods


def ours(page: str, heading: str) -> list[str]:
    """The names in our columns of a section's table."""
    text = (DOCS / page).read_text("utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    rows = [line.strip("|").split(" | ")[1:] for line in section.splitlines() if line.startswith("| ")][1:]
    return [name for row in rows for cell in row for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(
    ("page", "heading", "count_min"),
    [
        ("java.md", "Names of classes", 14),
        ("java.md", "What differs", 2),
        ("kafka.md", "Producers", 10),
        ("kafka.md", "Consumers", 14),
        ("kafka.md", "Spark", 3),
    ],
)
def test_every_name_of_ours_is_there(page: str, heading: str, count_min: int) -> None:
    names = [n for n in ours(page, heading) if not n.startswith(("rocketspark ", "await ", "concurrent."))]
    names = [n.replace("message.message_id", "ReceivedMessage.message_id").replace("(…)", "") for n in names]
    assert len(names) >= count_min
    assert [name for name in names if name not in VALUES and not is_there(name)] == []


def test_options_that_are_the_same_as_kafka_s_are_there() -> None:
    text = (DOCS / "kafka.md").read_text("utf-8").partition("## Spark")[2]
    same = [
        name
        for row in re.findall(r"^\| (.*) \| the same \|$", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    assert len(same) == 6
    assert [name for name in same if name not in options._READ_NAMES] == []
