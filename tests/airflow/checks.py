"""The Airflow provider in a DAG that Airflow runs, on a server of ours. By `make test-airflow`, in an environment of
its own; `make test` collects no file of this name.
"""

from __future__ import annotations

import asyncio
import json
import os
import pkgutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from rocketspark import Producer
from rocketspark.errors import ConfigError, UsageError
from rocketspark.testing import run_cluster
from rocketspark.testing.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server, an Airflow with a database of its own, and a connection between them."""
    home = tmp_path_factory.mktemp("airflow")
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    }
    (home / "dags").mkdir()
    with run_cluster() as cluster:
        host, port = cluster.namesrv.split(":")
        connection = {"conn_type": "rocketmq", "host": host, "port": int(port), "extra": {"timeout_ms": 5000}}
        os.environ["AIRFLOW_CONN_ROCKETMQ_DEFAULT"] = json.dumps(connection)
        airflow("db", "migrate")
        yield cluster


DAG = """
import json
from airflow.sdk import DAG, task
from rocketspark.airflow.operators import RocketMQConsumeOperator, RocketMQProduceOperator, RocketMQWaitOperator

with DAG("orders", schedule=None):
    messages = ['{"count": 1}', b'{"count": 50}', {"body": '{"count": 2}', "tag": "paid", "keys": ["k"]}]
    produce = RocketMQProduceOperator(task_id="produce", topic="orders", tag="new", messages=messages)
    consume = RocketMQConsumeOperator(
        task_id="consume", topic="orders", group="billing", tags="new", idle_s=1,
        function=lambda found: [json.loads(message.body)["count"] for message in found],
    )
    wait = RocketMQWaitOperator(
        task_id="wait", topic="orders", group="waiting", consume_from="first", function="tests.airflow.checks:is_large"
    )

    @task
    def note(*found):
        with open("FOUND", "w") as file:
            json.dump(found, file)

    produce >> consume >> wait
    note(produce.output, consume.output, wait.output)
"""


def is_large(message: Any) -> bool:
    """Whether an order is the one that is waited for."""
    return bool(json.loads(message.body)["count"] > 10)


def airflow(*arguments: str) -> str:
    """The output of a command of Airflow's, which has to succeed."""
    command = [str(Path(sys.executable).with_name("airflow")), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_dag_produces_consumes_and_waits(cluster: Cluster, tmp_path: Path) -> None:
    with Producer(cluster.namesrv) as producer:
        producer.create_topic("orders")
    file = Path(os.environ["AIRFLOW_HOME"]) / "dags" / "orders.py"
    file.write_text(DAG.replace("FOUND", str(tmp_path / "found.json")), "utf-8")
    airflow("dags", "reserialize")
    airflow("dags", "test", "orders")
    produced, consumed, waited = json.loads((tmp_path / "found.json").read_text("utf-8"))
    assert len(produced) == 3
    assert sorted(count for batch in consumed for count in batch) == [1, 50]
    assert json.loads(waited["body"]) == {"count": 50}
    assert (waited["topic"], waited["tag"], waited["keys"]) == ("orders", "new", [])
    assert waited["message_id"] in produced


def test_what_fails_is_consumed_by_the_next_try(cluster: Cluster) -> None:
    from rocketspark.airflow.operators import RocketMQConsumeOperator, RocketMQProduceOperator

    RocketMQProduceOperator(task_id="produce", topic="jobs", messages=lambda: ["a", "b", "c"]).execute({})
    seen: list[bytes] = []

    def work(messages: list[Any]) -> None:
        seen.extend(message.body for message in messages)
        if len(seen) == 2:
            raise ValueError("busy")

    consume = RocketMQConsumeOperator(task_id="c", topic="jobs", group="g", function=work, batch_max=1, idle_s=1)
    with pytest.raises(ValueError, match="busy"):
        consume.execute({})
    consume.execute({})
    assert len(seen) == 4
    assert seen.count(seen[1]) == 2
    assert set(seen) == {b"a", b"b", b"c"}


def test_an_async_function_is_run_and_a_generator_refused(cluster: Cluster) -> None:
    from rocketspark.airflow.operators import RocketMQConsumeOperator, RocketMQProduceOperator

    RocketMQProduceOperator(task_id="produce", topic="late-jobs", messages=lambda: ["a"]).execute({})
    options: dict[str, Any] = {"topic": "late-jobs", "group": "late", "idle_s": 1}

    def generator(messages: list[Any]) -> Any:
        yield messages

    async def work(messages: list[Any]) -> list[str]:
        return [message.body.decode() for message in messages]

    with pytest.raises(UsageError, match="holds a `yield`"):
        RocketMQConsumeOperator(task_id="g", function=generator, **options).execute({})
    assert RocketMQConsumeOperator(task_id="c", function=work, **options).execute({}) == [["a"]]
    assert RocketMQConsumeOperator(task_id="c", function=work, **options).execute({}) == []


async def is_second(message: Any) -> bool:
    """The same, asynchronous."""
    return bool(message.body == b"second")


def test_a_wait_misses_nothing_that_comes_before_a_triggerer_reads(cluster: Cluster) -> None:
    from airflow.sdk.exceptions import TaskDeferred

    from rocketspark.airflow.operators import RocketMQProduceOperator, RocketMQWaitOperator

    with Producer(cluster.namesrv) as producer:
        producer.send("bills", b"before", tag="x")
        time.sleep(0.01)
        wait = RocketMQWaitOperator(task_id="w", topic="bills", group="late", function="tests.airflow.checks:is_second")
        with pytest.raises(TaskDeferred) as deferred:
            wait.execute({})
        for body in (b"first", b"second"):
            producer.send("bills", body)
    path, arguments = deferred.value.trigger.serialize()

    async def fired() -> Any:
        return await anext(aiter(pkgutil.resolve_name(path)(**arguments).run()))

    assert asyncio.run(asyncio.wait_for(fired(), 60)).payload["body"] == "second"
    with pytest.raises(UsageError, match="messages is 'two': a list is needed"):
        RocketMQProduceOperator(task_id="p", topic="bills", messages="two").execute({})


def test_the_hook_says_whether_a_server_answers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from rocketspark.airflow.hook import RocketMQHook

    assert RocketMQHook().test_connection() == (True, "a NameServer answers")
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", '{"conn_type": "rocketmq", "host": "127.0.0.1", "port": 1}')
    answers, text = RocketMQHook("away").test_connection()
    assert not answers
    assert "check the address" in text
    monkeypatch.setenv("AIRFLOW_CONN_ODD", '{"conn_type": "rocketmq", "extra": {"tls": true}}')
    with pytest.raises(ConfigError, match="connection 'odd': extra 'tls' is no argument of a client"):
        RocketMQHook("odd").arguments()


def test_airflow_finds_the_provider(cluster: Cluster) -> None:
    found = [
        one.load()() for one in entry_points(group="apache_airflow_provider") if one.value.startswith("rocketspark")
    ]
    assert [one["package-name"] for one in found] == ["rocketspark"]
    listed = {one["connection_type"]: one for one in json.loads(airflow("providers", "hooks", "--output", "json"))}
    assert listed["rocketmq"]["class"] == "rocketspark.airflow.hook.RocketMQHook"
