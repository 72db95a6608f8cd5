"""What strangers, pages of others and senders of messages try with a console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.console.support import opened
from tests.console.test_foundation import log_in

from rocketspark.admin import Admin
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("the console: strangers, pages of others, sessions that ended, names without end")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running, Admin(running.namesrv) as admin:
        admin.create_topic("orders", queue_count=2)
        yield running


def test_made_up_keys_are_no_login_where_the_cluster_asks_for_none(cluster: Cluster) -> None:
    with opened(cluster.namesrv, login=True) as client:
        answer = log_in(client, "stranger", "anything")
        assert (answer.status_code, "a login proves nothing" in answer.text) == (401, True)
        assert client.get("/topics").status_code == 303
