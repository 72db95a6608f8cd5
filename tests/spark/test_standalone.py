"""A standalone cluster of Spark whose executors have nothing but what is shipped to them, and Spark Connect."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.spark.decode.framed_bodies import join
from tests.spark.decode.orders import ORDERS, V1, avro
from tests.spark.decode.registry_server import registry_server
from tests.spark.pipelines.scene import bury, commit, stored
from tests.spark.standalone import (
    LOOPBACK,
    Standalone,
    connect_server,
    environment,
    not_activated,
    spark_cluster,
)
from tests.spark.topics import bodies_of

from rocketspark.client import Producer
from rocketspark.model import Message, MessageQueue
from rocketspark.protocol.trace import Consumed, encode
from rocketspark.spark.environment import pack, settings
from rocketspark.spark.pipelines.archive import hours
from rocketspark.testing import Cluster

pytestmark = [
    pytest.mark.every_spark,
    pytest.mark.shows(
        "standalone cluster with the package shipped; Spark Connect",
        "Spark Connect and a standalone cluster on each; the table of versions; `make test-versions`; 4.0 in "
        "`make test-official`",
        "the trap: a job in an environment that is not activated, another `python3` first on the path",
    ),
]

ROOT = Path(__file__).parents[2]
# Three rows need no 200 tasks a shuffle.
FEW_PARTITIONS = {"spark.sql.shuffle.partitions": "2"}


def run_job(
    program: str, spec: dict[str, Any], variables: dict[str, str] | None = None, limit_s: float = 800
) -> subprocess.CompletedProcess[str]:
    """A driver's whole run."""
    return subprocess.run(
        [sys.executable, "-m", program, json.dumps(spec)],
        cwd=ROOT,
        env=variables or environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A master and a worker."""
    with spark_cluster(tmp_path_factory.mktemp("standalone"), workers=1) as running:
        yield running


class AvroOrders(NamedTuple):
    """A topic of orders in Avro and a truncated one; the options that decode them."""

    topic: str
    options: dict[str, str]


@pytest.fixture
def avro_orders(producer: Producer, make_topic: Callable[..., str]) -> Iterator[AvroOrders]:
    topic = make_topic()
    with registry_server() as registry:
        number = registry.add(f"{topic}-value", V1)
        bodies = [join(number, avro(order)) for order in ORDERS]
        producer.send_batch([Message(topic=topic, body=body) for body in [*bodies, bodies[0][:-1]]])
        yield AvroOrders(topic, {"topic": topic, "decode": "avro", "schemaRegistry": registry.url})


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What executors need, packed."""
    path = tmp_path_factory.mktemp("archive") / "env.tar.gz"
    noted: list[str] = []
    count = pack(path, ("spark", "pipelines", "schemas"), noted.append)
    assert count == len(noted) + 1
    return path


@pytest.mark.shows(
    "Spark Connect, by option and by function; a standalone cluster whose executors have what `spark-env "
    "--extra schemas` packs"
)
def test_the_package_is_shipped_to_executors(
    tmp_path: Path,
    standalone: Standalone,
    archive: Path,
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    avro_orders: AvroOrders,
) -> None:
    source, target, decoded = make_topic(), make_topic(), make_topic()
    sent = load(source, 600)
    stream = {
        "read": {"namesrv": cluster.namesrv, "topic": source, "startingOffsets": "earliest"},
        "select": ["body", "tag"],
        "format": "rocketmq",
        "write": {"namesrv": cluster.namesrv, "topic": target},
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    orders = {
        "read": {"namesrv": cluster.namesrv, "startingOffsets": "earliest", **avro_orders.options},
        "select": ["coalesce(to_json(value), _decode_error) AS body"],
        "format": "rocketmq",
        "write": {"namesrv": cluster.namesrv, "topic": decoded},
        "checkpoint": str(tmp_path / "orders"),
    }
    shipped = LOOPBACK | settings(archive)
    done = run_job(
        "tests.spark.job",
        {"master": standalone.master, "settings": shipped, "streams": [stream, orders], "once": True},
        not_activated(standalone.bare),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("done\n")
    assert bodies_of(cluster.namesrv, target) == sorted(message.body for message in sent.values())
    *good, bad = sorted(bodies_of(cluster.namesrv, decoded), key=lambda body: (body[:1] != b"{", body))
    assert sorted((json.loads(body) for body in good), key=lambda order: order["id"]) == ORDERS
    assert bad == b"the body is truncated: it ends within a value of the schema"


@pytest.mark.official
def test_a_pipeline_on_a_cluster(
    tmp_path: Path,
    standalone: Standalone,
    archive: Path,
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
) -> None:
    topic = make_topic()
    load(topic, 300)
    shipped = LOOPBACK | settings(archive) | {"spark.executor.memory": "512m"}
    conf = (part for name, value in shipped.items() for part in ("--conf", f"{name}={value}"))
    where = ("--to", str(tmp_path), "--master", standalone.master)
    variables = not_activated(standalone.bare)
    run_pipeline("archive", topic, *where, *conf, namesrv=cluster.namesrv, variables=variables)
    assert sum(hour.rows for hour in hours(tmp_path)) == 300


def run_pipeline(name: str, *arguments: str, namesrv: str, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """A pipeline's command; what it tells."""
    once = ["--once"] if name == "archive" else []
    command = [sys.executable, "-m", "rocketspark.cli.main", "pipeline", name, *arguments, *once]
    command += ["--namesrv", namesrv, "--json"]
    env = variables or environment()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.shows(
    "metrics of streaming queries through Spark Connect",
    "Spark Connect, by option and by function; a standalone cluster whose executors have what `spark-env "
    "--extra schemas` packs",
)
@pytest.mark.official
def test_spark_connect(
    tmp_path: Path,
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    avro_orders: AvroOrders,
) -> None:
    source, target, again = make_topic(), make_topic(), make_topic()
    sent = load(source, 300)
    spec = {
        "namesrv": cluster.namesrv,
        "source": source,
        "target": target,
        "again": again,
        "decode": avro_orders.options,
        "checkpoint": str(tmp_path / "checkpoint"),
    }
    with connect_server(tmp_path) as remote:
        done = run_job("tests.spark.connect_job", {**spec, "remote": remote})
        copy = ("--to", f"{source}-2", "--state", str(tmp_path), "--remote", remote)
        replayed = run_pipeline("replay", source, *copy, namesrv=cluster.namesrv)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = sorted(message.body for message in sent.values())
    told = json.loads(done.stdout)
    assert told["bodies"] == [body.decode() for body in expected]
    wanted = [ORDERS, ["the body is truncated: it ends within a value of the schema"]]
    assert told["decoded"] == {"option": wanted, "function": wanted, "json": ORDERS, "inferred": ORDERS}
    assert told["metrics"] == [300, 300, 1, 0, 0]
    assert f"no topic 'none-such' at {cluster.namesrv}" in told["error"]
    assert bodies_of(cluster.namesrv, target) == expected
    assert bodies_of(cluster.namesrv, again) == expected
    assert replayed["rows"] == 300
    assert bodies_of(cluster.namesrv, f"{source}-2") == expected


# Some twenty Spark jobs: half a minute, several on a machine with much else to do.
@pytest.mark.official
@pytest.mark.soak
def test_pipelines_for_operators_run_there(
    standalone: Standalone, archive: Path, cluster: Cluster, producer: Producer, make_topic: Callable[..., str]
) -> None:
    topic, traces, group = make_topic(), make_topic(queues=1, brokers=1), "operators-standalone"
    for number in range(3):
        producer.send(topic, b"%d" % number)
    messages = stored(cluster, topic, 3)
    bury(cluster, group, messages)
    commit(cluster, group, {MessageQueue(topic, m.broker_name, m.queue_id): m.queue_offset + 1 for m in messages})
    for m in messages:
        request = {"request_id": m.message_id, "message_id": m.message_id, "group": group, "keys": ""}
        producer.send(traces, encode(Consumed(**request, cost_ms=1, success=False, context=2, time_ms=5)).encode())
    spec = {"namesrv": cluster.namesrv, "topic": topic, "traces": traces, "group": group}
    where = {"master": standalone.master, "settings": FEW_PARTITIONS | LOOPBACK | settings(archive)}
    done = run_job("tests.spark.pipelines.operators_job", spec | where, not_activated(standalone.bare), limit_s=800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "trace": [["", group, 3]],
        "audit": [["dead", 3]],
        "resend": 3,
    }


def test_an_archive_holds_what_is_needed(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        names = packed.getnames()
        owners = {(member.uid, member.uname, member.mtime) for member in packed.getmembers()}
    needed = {f"{name}/__init__.py" for name in ("rocketspark", "pyspark_rocketmq", "msgspec", "pyarrow", "yaml")}
    assert needed <= set(names)
    assert not [name for name in names if name.startswith(("pyspark/", "py4j/", "/", "..")) or "__pycache__" in name]
    assert owners == {(0, "", 315_532_800)}
