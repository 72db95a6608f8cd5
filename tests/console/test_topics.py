"""The console's list of topics."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from tests.console.support import opened

from rocketspark.admin import Admin
from rocketspark.console.pages.topics import ROWS, kind_of
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("the console: topics searched, sorted, shown in parts")
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with run_cluster() as cluster, Admin(cluster.namesrv) as admin:
        for number in range(ROWS + 10):
            admin.create_topic(f"orders-{number:03}", queue_count=1 + number % 3)
        admin.create_topic("payments", queue_count=8, message_type="FIFO", perm=4)
        with opened(cluster.namesrv) as found:
            yield found


def names(page: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/topic\?name=[^"]*">([^<]*)</a>', page)


def test_the_list_comes_in_parts(client: TestClient) -> None:
    first, second = client.get("/topics").text, client.get("/topics?page=2").text
    assert names(first) == [f"orders-{number:03}" for number in range(ROWS)]
    assert names(second) == [f"orders-{number:03}" for number in range(ROWS, ROWS + 10)] + ["payments"]
    assert f"{ROWS + 11} topics" in first
    assert names(client.get("/topics?page=99").text) == names(second)


def test_a_search_answers_htmx_with_the_part_alone(client: TestClient) -> None:
    part = client.get("/topics?q=PAY", headers=HTMX).text
    assert names(part) == ["payments"]
    assert "<html" not in part
    assert "FIFO" in part
    assert "read only" in part
    nothing = client.get("/topics", params={"q": "<script>alert(1)</script>"}).text
    assert "No topic whose name has this in it." in nothing
    assert "<script>alert" not in nothing


def test_it_is_sorted_by_queues(client: TestClient) -> None:
    found = names(client.get("/topics?sort=queues").text)
    assert found[:3] == ["payments", "orders-002", "orders-005"]


def test_system_topics_stand_apart(client: TestClient) -> None:
    system = names(client.get("/topics?kind=system").text)
    assert {"broker-a", "DefaultCluster", "TBW102", "SCHEDULE_TOPIC_XXXX"} <= set(system)


@pytest.mark.parametrize(
    ("topic", "kind"),
    [("%RETRY%g", "retry"), ("%DLQ%g", "dead"), ("b", "system"), ("RMQ_SYS_TRACE_TOPIC", "system"), ("orders", "user")],
)
def test_kinds(topic: str, kind: str) -> None:
    assert kind_of(topic, {"b"}) == kind
