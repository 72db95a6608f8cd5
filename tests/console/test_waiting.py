"""The console's page of delayed messages and open transactions."""

from __future__ import annotations

import re
import threading

import pytest
from tests.console.support import done, opened, posted

from rocketspark import Message, Producer, ReceivedMessage, TransactionProducer, TransactionState
from rocketspark.admin import Admin
from rocketspark.testing import run_cluster

pytestmark = pytest.mark.shows("the console: delayed messages, and open transactions that are asked about again")


class Undecided:
    """Ends no transaction, and tells when it was asked about one."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def execute(self, message: Message, transaction: object) -> TransactionState:
        return TransactionState.UNKNOWN

    def check(self, message: ReceivedMessage) -> TransactionState:
        self.asked.set()
        return TransactionState.COMMIT


def test_what_waits_is_shown_and_asked_about_again() -> None:
    listener = Undecided()
    with run_cluster() as cluster, Admin(cluster.namesrv) as admin, opened(cluster.namesrv) as client:
        assert 'hx-get="/waiting/delayed"' in client.get("/waiting").text
        assert "Nothing waits for its time." in client.get("/waiting/delayed").text
        assert "None." in client.get("/waiting/transactions").text
        admin.create_topic("paid", queue_count=1)
        with Producer(cluster.namesrv, group="p") as producer:
            producer.send("paid", b"later", delay_level=18)
            producer.send("paid", b"timed", delay_ms=3_600_000)
        with TransactionProducer(cluster.namesrv, "payers", listener=listener) as payers:
            sent = payers.send_in_transaction("paid", b"<b>open", keys=["k"]).sent
            client.app.state.console.own.forget()  # type: ignore[attr-defined]
            page = client.get("/waiting/delayed").text
            assert re.findall(r'<span class="tag quiet">(\w+)</span></td><td class="n">(\d+)<', page) == [
                ("level", "1"),
                ("timer", "1"),
            ]
            page = client.get("/waiting/transactions").text
            assert sent.message_id in page
            assert "payers" in page
            fields = dict(re.findall(r'name="(id|topic|group)" value="([^"]*)"', page))
            assert "a producer of payers again" in posted(client, "/waiting/check", **fields).text
            assert not listener.asked.is_set()
            assert "are asked again" in done(client, "/waiting/check", **fields)
            assert listener.asked.wait(60)
