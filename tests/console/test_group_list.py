"""The list of groups, asked without a browser."""

from __future__ import annotations

import re

import pytest
from tests.console.support import opened

from rocketspark.admin import Admin
from rocketspark.console.pages import groups
from rocketspark.model import MessageQueue
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("the console: groups are sorted by lag, over all pages of the list")


@pytest.mark.shows("the console: a look at twenty groups is one request to each broker, beside that for their names")
def test_a_page_of_groups_is_few_requests() -> None:
    with run_cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        for n in range(20):
            admin.put_group(f"group-{n:02}")
        with opened(cluster.namesrv, sample_interval_s=60) as client:
            client.get("/")
            console = client.app.state.console  # type: ignore[attr-defined]
            before = console.pace.sent
            page = client.get("/groups").text
            assert page.count('<th scope="row">') == 20
            # The plots' own first look may fall into the time: one request to each broker.
            assert 4 <= console.pace.sent - before <= 6


def test_groups_are_sorted_by_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "ROWS", 2)
    with run_cluster(brokers=2) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("orders", queue_count=1)
        for broker, count in (("broker-a", 3), ("broker-b", 2)):
            for _ in range(count):
                admin.send_message("orders", b"x", queue=MessageQueue("orders", broker, 0))
        for name, place in (("early", "earliest"), ("late", "latest"), ("middle", "earliest")):
            admin.put_group(name)
            admin.reset_offsets(name, "orders", place)
        admin.reset_offsets("middle", "orders", "latest", brokers=["broker-a"])
        # Once all is there: the lags that it shows may be 15 s old.
        with opened(cluster.namesrv) as client:
            found = {}
            for sort in ("", "lag"):
                pages = [client.get(f"/groups?sort={sort}&page={page}").text for page in (1, 2)]
                rows = [name for page in pages for name in re.findall(r'<th scope="row"><a [^>]*>([a-z]+)<', page)]
                found[sort] = [name for name in rows if name in ("early", "late", "middle")]
    assert found[""] == ["early", "late", "middle"]
    assert found["lag"] == ["early", "middle", "late"]
