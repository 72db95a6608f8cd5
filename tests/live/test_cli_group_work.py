"""`group list|show|lag|members|reset|delete`, `client list|show`, `offsets export|import`: tables and JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.answers import check_answer
from tests.support.cli_calls import call
from tests.support.patience import LIMIT_S

from rocketspark import Message, Producer, PushConsumer
from rocketspark.admin import Admin
from rocketspark.model import MessageQueue
from rocketspark.testing.cluster import Cluster, run_cluster

pytestmark = pytest.mark.shows(
    "groups, clients and offsets for operators: operations, commands, as `mqadmin` shows them"
)


class Stage:
    """A cluster whose topic `orders` has 3 messages in queue 0 and 2 in queue 1: the group `billing`, which is
    connected, has consumed them; the group `late` has consumed the first of queue 0 alone.
    """

    def __init__(self, cluster: Cluster, consumer: PushConsumer) -> None:
        self.cluster = cluster
        self.consumer = consumer

    def run(self, *arguments: str, code: int = 0) -> str:
        done = call(*arguments, "--namesrv", self.cluster.namesrv)
        assert done.exit_code == code, done.told
        return f"{done.stdout}{done.stderr}" if done.exception is None else str(done.exception)

    def told(self, command: str, *arguments: str) -> Any:
        """A command's JSON, which is as docs/reference/cli.md says."""
        answer = json.loads(self.run(*command.split(), *arguments, "--json"))
        check_answer(command, answer)
        return answer

    def rows(self, *arguments: str) -> list[list[str]]:
        """The rows of the tables that a command prints, as words."""
        return [line.split() for line in self.run(*arguments).splitlines() if line.strip() and "──" not in line]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with run_cluster() as cluster, Producer(cluster.namesrv, "shop") as producer, Admin(cluster.namesrv) as admin:
        admin.create_topic("orders", queue_count=2)
        for queue_id, count in enumerate((3, 2)):
            for n in range(count):
                producer.send(Message("orders", b"%d" % n), queue=MessageQueue("orders", "broker-a", queue_id))
        admin.put_group("late")
        admin.reset_offsets("late", "orders", 1, queue_ids=[0])
        seen, done = [], threading.Event()

        def listen(message: Any) -> None:
            seen.append(message)
            if len(seen) == 5:
                done.set()

        consumer = PushConsumer(cluster.namesrv, "billing", consume_from="first")
        consumer.subscribe("orders", "*")
        consumer.listen(listen)
        with consumer:
            assert done.wait(LIMIT_S)
            # Its offsets, which it commits by and by.
            admin.reset_offsets("billing", "orders", "latest")
            yield Stage(cluster, consumer)


def test_groups_are_listed(stage: Stage) -> None:
    billing, late = stage.told("group list")
    assert late == {
        "group": "late",
        "members": 0,
        "version": "",
        "type": "",
        "model": "",
        "tps": 0.0,
        "lag": 4,
        "in_flight": 0,
    }
    assert (billing["group"], billing["members"], billing["version"]) == ("billing", 1, "V5_5_0")
    assert (billing["type"], billing["model"], billing["lag"]) == ("PUSH", "CLUSTERING", 0)
    assert [g["group"] for g in stage.told("group list", "--topic", "orders")] == ["billing", "late"]
    assert "TOOLS_CONSUMER" in [g["group"] for g in stage.told("group list", "--all")]
    head, one, two = stage.rows("group", "list")
    assert head == "group members version type model messages/s lag in flight".split()
    assert (one[:5], two) == (
        ["billing", "1", "V5_5_0", "PUSH", "CLUSTERING"],
        ["late", "0", "offline", "0.0", "4", "0"],
    )


def test_a_group_is_shown(stage: Stage) -> None:
    told = stage.told("group show", "late")
    (topic,) = told["topics"]
    assert topic.pop("delay_ms") > 0
    assert topic == {"topic": "orders", "mode": None, "queues": 2, "lag": 4, "in_flight": 0}
    assert told["brokers"]["broker-a"]["retryMaxTimes"] == 16
    lines = stage.run("group", "show", "billing").splitlines()
    assert lines[0] == "billing: PUSH CLUSTERING, 1 member of V5_5_0; 0 messages behind"
    assert lines[-1] == "  attributes = {}"
    assert "no broker knows group 'nobody'" in stage.run("group", "show", "nobody", code=1)


def test_lag_is_shown_by_queue(stage: Stage) -> None:
    told = stage.told("group lag", "billing", "--topic", "orders")
    assert (told["lag"], told["in_flight"], told["delay_ms"]) == (0, 0, 0)
    assert [q["queue_id"] for q in told["queues"]] == [0, 1]
    first = told["queues"][0]
    assert first["last_time_ms"] > 1_600_000_000_000
    assert first == {
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 0,
        "broker_offset": 3,
        "consumer_offset": 3,
        "lag": 0,
        "in_flight": 0,
        "last_time_ms": first["last_time_ms"],
        "delay_ms": 0,
        "client_id": stage.consumer.client_id,
    }
    title, head, row, _ = stage.rows("group", "lag", "late")
    assert title[:5] == ["late:", "4", "messages", "behind", "by"]
    assert head[:2] == ["topic", "broker"]
    assert row[:7] == ["orders", "broker-a", "0", "3", "1", "2", "0"]
    assert "no broker knows group 'nobody'" in stage.run("group", "lag", "nobody", code=1)


def test_members_are_shown(stage: Stage) -> None:
    told = stage.told("group members", "billing")
    assert (told["consume_type"], told["consume_from"]) == ("CONSUME_PASSIVELY", "CONSUME_FROM_FIRST_OFFSET")
    (member,) = told["members"]
    assert (member["client_id"], member["language"], member["agrees"]) == (stage.consumer.client_id, "PYTHON", True)
    orders = {"topic": "orders", "expression": "*", "expression_type": "TAG"}
    assert orders in told["subscriptions"]
    assert orders in member["subscriptions"]
    assert stage.rows("group", "members", "billing")[2][:4] == [
        *(stage.consumer.client_id, member["address"], "PYTHON", "V5_5_0")
    ]
    assert stage.run("group", "members", "late") == "late has no connected member\n"
    assert "no broker knows group 'nobody'" in stage.run("group", "members", "nobody", code=1)


def test_clients_are_listed_and_shown(stage: Stage) -> None:
    here = stage.consumer.client_id
    assert [(c["role"], c["group"]) for c in stage.told("client list") if c["client_id"] == here] == [
        ("consumer", "billing"),
        ("producer", "CLIENT_INNER_PRODUCER"),
    ]
    assert [c["client_id"] for c in stage.told("client list", "--role", "consumer", "--group", "billing")] == [here]
    assert "shop" in {c["group"] for c in stage.told("client list", "--role", "producer")}
    told = stage.told("client show", here, "--group", "billing")
    (consumer,) = told["consumers"]
    assert "stacks" not in consumer
    assert [(q["queue_id"], q["commit_offset"]) for q in consumer["queues"] if q["topic"] == "orders"] == [
        (0, 3),
        (1, 2),
    ]
    assert "MainThread" in stage.told("client show", here, "--stacks")["consumers"][0]["stacks"]
    text = stage.run("client", "show", here, "--stacks")
    assert "reads 3 queues" in text
    assert "MainThread" in text
    assert "no client 'nobody' is connected" in stage.run("client", "show", "nobody", code=1)


def test_offsets_are_reset(stage: Stage) -> None:
    told = stage.told("group reset", "late", "orders", "--to", "latest", "--dry-run")
    assert (told["dry_run"], told["passed_over"], told["read_again"]) == (True, 4, 0)
    assert told["queues"][0] == {
        "broker_name": "broker-a",
        "queue_id": 0,
        "before": 1,
        "after": 3,
        "passed_over": 2,
        "read_again": 0,
    }
    text = stage.run("group", "reset", "late", "orders", "--to", "latest", "--dry-run")
    assert text.endswith("would be: 4 messages passed over, 0 read again\n")
    # Nobody was asked, so nothing is changed.
    refused = stage.run("group", "reset", "late", "orders", "--to", "latest", code=2)
    assert "4 messages passed over, 0 read again: confirm with --yes" in refused
    told = stage.told("group reset", "late", "orders", "--to", "2", "--queue", "0", "--yes")
    assert [(q["queue_id"], q["before"], q["after"]) for q in told["queues"]] == [(0, 1, 2)]
    text = stage.run("group", "reset", "late", "orders", "--to", "1", "--queue", "0", "--yes")
    assert text.endswith("reset late in orders: 0 messages passed over, 1 read again\n")
    ago = stage.told("group reset", "late", "orders", "--to", "15m", "--dry-run")
    assert [q["after"] for q in ago["queues"]] == [0] * len(ago["queues"])
    assert "'soon': earliest, latest, an offset, a time" in stage.run(
        "group", "reset", "late", "orders", "--to", "soon", code=2
    )
    beyond = stage.run("group", "reset", "late", "orders", "--to", "9", "--yes", code=1)
    assert "offset 9 is not in queue 0 of topic 'orders' on broker-a, which goes from 0 to 3; 1 more" in beyond


def test_offsets_are_exported_and_imported(stage: Stage, tmp_path: Path) -> None:
    saved = stage.run("offsets", "export", "late")
    assert json.loads(saved) == {
        "group": "late",
        "topic": "orders",
        "broker_name": "broker-a",
        "queue_id": 0,
        "offset": 1,
    }
    file = tmp_path / "offsets.jsonl"
    file.write_text(saved.replace('"offset":1', '"offset":3') + "\n")
    told = stage.told("offsets import", str(file), "--dry-run")
    assert (told["dry_run"], told["passed_over"]) == (True, 2)
    assert stage.run("offsets", "export", "late") == saved
    assert "1 offset will be set: confirm with --yes" in stage.run("offsets", "import", str(file), code=2)
    text = stage.run("offsets", "import", str(file), "--yes")
    assert text.endswith("set: 1 offset; 2 messages passed over, 0 read again\n")
    assert stage.told("offsets import", str(file), "--yes")["queues"][0]["before"] == 3
    file.write_text(saved)
    stage.run("offsets", "import", str(file), "--yes")
    assert stage.run("offsets", "export", "late") == saved
    file.write_text(saved + "{}\n")
    wrong = stage.run("offsets", "import", str(file), "--yes", code=1)
    assert f"line 2 of {file} is no offset as export writes it: Object missing required field `group`" in wrong
    file.write_text("x" * 10_000)
    assert "line 1 of" in stage.run("offsets", "import", str(file), "--yes", code=1)


def test_a_group_is_deleted(stage: Stage) -> None:
    stage.run("group", "create", "gone")
    assert "group gone will be gone: confirm with --yes" in stage.run("group", "delete", "gone", code=2)
    told = stage.told("group delete", "gone", "--yes")
    assert told == {"group": "gone", "offsets": False, "topics": False, "brokers": ["broker-a"]}
    stage.run("group", "create", "gone")
    text = stage.run("group", "delete", "gone", "--offsets", "--topics", "--yes")
    assert text == "deleted group gone with its offsets and retries and dead letters on broker-a\n"
    assert "has 1 connected member" in stage.run("group", "delete", "billing", "--yes", code=1)


def test_who_may_only_see_one_group_sees_it() -> None:
    with run_cluster(secure=True) as secure:
        super_user = secure.client_options
        with Admin(secure.namesrv, **super_user) as admin:
            admin.put_group("billing")
            admin.create_user("clerk", "a-secret-of-his")
            admin.create_acl("clerk", ["Group:billing"], ["Get"])
        keys = ("--access-key", "clerk", "--secret-key", "a-secret-of-his", "--tls-ca", super_user["tls_ca"])
        done = call("group", "show", "billing", "--namesrv", secure.namesrv, *keys)
        assert done.stdout.startswith("billing: offline; 0 messages behind\n"), done.told
