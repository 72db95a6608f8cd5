"""Topics as tables and files, without Spark: read_table, read_batches, `export`, `import`, `query`."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from rocketspark import Message, Producer, PullConsumer, ReceivedMessage, read_batches, read_table  # noqa: E402
from rocketspark.arrow.message_columns import COLUMNS  # noqa: E402
from rocketspark.arrow.row_by_row import VALUES  # noqa: E402
from rocketspark.cli import main  # noqa: E402
from rocketspark.client import validators  # noqa: E402
from rocketspark.errors import ConfigError, RocketSparkError, RouteNotFound, UsageError  # noqa: E402
from rocketspark.tables import export_topic as export_module  # noqa: E402
from rocketspark.tables import import_file  # noqa: E402
from rocketspark.tables.export_topic import export_topic  # noqa: E402
from rocketspark.tables.read import batch  # noqa: E402
from rocketspark.tables.read.data_loss import DataLost  # noqa: E402
from rocketspark.tables.scan import scan_rocketmq  # noqa: E402
from rocketspark.testing import Cluster, run_cluster  # noqa: E402
from rocketspark.transport.connections import in_one_form  # noqa: E402

COUNT = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2, log_file_bytes=1 << 20) as running:
        with Producer(running.namesrv) as producer:
            create(running, "orders-1")
            for i in range(COUNT):
                body = b"\xff%d" % i if i % 7 == 0 else b'{"id": %d}' % i
                tag, keys = "AB"[i % 2] if i % 5 else None, [f"k{i}", "x"] if i % 3 else []
                producer.send("orders-1", body, tag=tag, keys=keys, properties={"p": f'a "{i}",\n\u00e4'})
            producer.send("orders-1", b"z" * 9000, tag="A", properties={"p": "large"})
            producer.send_batch([Message(topic="orders-1", body=b"b%d" % i, properties={"p": "b"}) for i in range(9)])
        yield running


def create(cluster: Cluster, topic: str) -> None:
    assert main.run(["topic", "create", topic, "--queues", "2", "--namesrv", cluster.namesrv]) == 0


def received(cluster: Cluster, topic: str) -> list[ReceivedMessage]:
    """What a consumer gets of a topic, by queue and offset."""
    found: list[ReceivedMessage] = []
    with PullConsumer(cluster.namesrv, "looks", auto_commit=False) as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_beginning(queue)
        count = sum(consumer.end_offset(queue) for queue in queues)
        while len(found) < count:
            found += consumer.poll(200)
    return sorted(found, key=lambda m: (m.queue, m.queue_offset))


def values(name: str, message: ReceivedMessage) -> Any:
    found: Any = VALUES[name](message)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=found) if name.endswith("Time") else found


@pytest.mark.shows(
    "read_table and read_batches: rows equal what a consumer gets, field for field, from brokers and store "
    "directories, with the columns and options of the Spark source, without PySpark"
)
def test_a_table_holds_what_a_consumer_gets(cluster: Cluster) -> None:
    messages = received(cluster, "orders-1")
    assert len(messages) == COUNT + 10
    stores = [f"{cluster.store}/broker-a", f"{cluster.store}/broker-b"]
    for table in (read_table(cluster.namesrv, "orders-1"), read_table(topic="orders-1", store=stores)):
        assert table.schema.names == list(COLUMNS)
        rows = table.to_pylist()
        for name in COLUMNS:
            if name != "sysFlag":  # A message is what is inflated, its record says that it was compressed.
                assert [row[name] for row in rows] == [values(name, m) for m in messages], name
    tagged = read_table(cluster.namesrv, "orders-1", tags="A || C", columns=["queueOffset", "physicalOffset"])
    assert tagged.schema.names == ["queueOffset", "physicalOffset"]
    assert tagged.column("queueOffset").to_pylist() == [m.queue_offset for m in messages if m.tag == "A"]
    assert tagged.column("physicalOffset").to_pylist() == [m.physical_offset for m in messages if m.tag == "A"]


def test_where_a_read_begins_and_ends(cluster: Cluster) -> None:
    messages = received(cluster, "orders-1")

    def offsets(**how: Any) -> list[tuple[str, int, int]]:
        how = {"topic": "orders-1", "columns": ["broker", "queueId", "queueOffset"], **how}
        table = read_table(cluster.namesrv, **how)
        return [(row["broker"], row["queueId"], row["queueOffset"]) for row in table.to_pylist()]

    whole = [(m.broker_name, m.queue_id, m.queue_offset) for m in messages]
    queue = messages[0].queue
    assert offsets(start="earliest", end="latest") == whole
    assert offsets(start={queue: 5}) == [one for one in whole if one[:2] != whole[0][:2] or one[2] >= 5]
    table = {"orders-1": {queue.broker_name: {str(queue.queue_id): 3}}}
    assert offsets(end=table) == offsets(ending_offsets=json.dumps(table))
    assert offsets(topic=None, assign={"orders-1": {queue.broker_name: [queue.queue_id]}}) == [
        one for one in whole if one[:2] == whole[0][:2]
    ]
    at_ms = sorted(m.store_time_ms for m in messages)[COUNT // 2]
    late = [(m.broker_name, m.queue_id, m.queue_offset) for m in messages if m.store_time_ms >= at_ms]
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    for start in (at_ms, at, at.isoformat(timespec="milliseconds")):
        assert offsets(start=start) == late
        assert sorted(offsets(end=start) + late) == whole


def test_batches_come_as_they_are_asked_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    whole = batch.read
    monkeypatch.setattr(batch, "read", lambda *how: read.append(how) or whole(*how))
    reader = read_batches(cluster.namesrv, "orders-1", columns=["body"])
    assert read == []
    with Producer(cluster.namesrv) as producer:
        producer.send("orders-1x", b"later")  # Another topic: nothing of it comes.
    first = reader.read_next_batch()
    assert len(read) == 1
    assert first.num_rows + reader.read_all().num_rows == COUNT + 10
    assert len(read) == 4
    assert asyncio.run(in_a_loop(cluster)) == COUNT + 10
    polars = pytest.importorskip("polars")
    assert polars.from_arrow(read_batches(cluster.namesrv, "orders-1", columns=["tag"])).shape == (COUNT + 10, 1)


async def in_a_loop(cluster: Cluster) -> int:
    """As in a notebook, where a loop runs."""
    return read_table(cluster.namesrv, "orders-1", columns=["tag"], decode="json").num_rows


def test_bodies_as_columns(cluster: Cluster) -> None:
    how: dict[str, Any] = {"decode": "json", "columns": ["body", "value", "_decode_error"]}
    given = read_table(cluster.namesrv, "orders-1", decode_schema="id INT", **how)
    inferred = read_table(cluster.namesrv, "orders-1", **how)
    assert str(given.schema.field("value").type) == "struct<id: int32>"
    assert str(inferred.schema.field("value").type) == "struct<id: int64>"
    for table in (given, inferred):
        for row in table.to_pylist():
            good = row["body"].startswith(b"{")
            assert row["value"] == (json.loads(row["body"]) if good else None)
            assert (row["_decode_error"] is None) == good
    dropped = read_table(cluster.namesrv, "orders-1", decode_mode="dropmalformed", **how)
    assert dropped.num_rows == sum(row["body"].startswith(b"{") for row in given.to_pylist())
    with pytest.raises(ConfigError, match="a body may lack any field: leave NOT NULL out"):
        read_table(cluster.namesrv, "orders-1", decode="json", decode_schema="id INT NOT NULL")


PROGRAM = """
import sys
from rocketspark import read_table
assert read_table(sys.argv[1], "orders-1", decode="json").num_rows == int(sys.argv[2])
assert not [name for name in sys.modules if name.startswith(("pyspark", "rocketspark.spark"))]
"""


def test_no_spark_is_imported(cluster: Cluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.namesrv, str(COUNT + 10)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ({"start": True}, UsageError, "start is True: earliest"),
        ({"end": -5}, UsageError, "end is -5: earliest"),
        ({"start": datetime(2026, 1, 1)}, UsageError, "names no time zone"),
        ({"start": "yesterday"}, ConfigError, "ISO 8601 such as"),
        ({"start": "latest"}, ConfigError, "a batch would read nothing"),
        ({"columns": ["nope"]}, ConfigError, "there is no column 'nope'"),
        ({"columns": ["body", "body"]}, ConfigError, "a column stands there twice"),
        ({"chekCrc": True}, ConfigError, "did you mean 'checkCrc'"),
        ({"fail_on_data_loss": True, "failOnDataLoss": False}, ConfigError, "given twice"),
        ({"tags": ["A || B"]}, UsageError, "tags holds 'A [|][|] B': a tag without"),
        ({"tags": []}, UsageError, "tags is an empty list"),
        ({"columns": ["tag,body"]}, ConfigError, "a text without a comma"),
        ({"key": ["a", "b"]}, ConfigError, "option key is a list: a text or a number is needed"),
        ({"limit": 10}, ConfigError, "option 'limit' is unknown: docs/use/spark.md lists"),
        ({"sql": 3.5}, ConfigError, "option sql is a float"),
        ({"topic": "no-such"}, RouteNotFound, "no topic 'no-such'"),
        ({"topic": None}, ConfigError, "option topic is missing"),
        ({"namesrv": None}, UsageError, "namesrv is missing"),
        ({"store": "/nowhere"}, ConfigError, "options store and namesrv"),
    ],
)
def test_wrong_arguments(cluster: Cluster, how: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as told:
        read_table(**{"namesrv": cluster.namesrv, "topic": "orders-1", **how})
    assert "\n" not in str(told.value)


class Ended(Exception):
    """Raised in the midst of a test's export."""


def end_after_a_partition(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], to: Path, **how: Any) -> None:
    """An export that is ended when it has read its first partition."""
    whole = batch.read

    def ends(*what: Any) -> Iterator[Any]:
        yield from whole(*what)
        raise Ended

    with monkeypatch.context() as patched:
        patched.setattr(batch, "read", ends)
        with pytest.raises(Ended):
            export_topic(given, to, **how)


@pytest.mark.shows("mended: an export that leaves bad bodies out fails where all bodies of a batch are bad")
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_an_export_leaves_bad_bodies_out(cluster: Cluster, kind: str, tmp_path: Path) -> None:
    how = {"decode": "json", "decodeSchema": "id INT", "decodeMode": "dropmalformed"}
    given = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "tag", "maxRecordsPerPartition": "1"}
    table = read_table(**given, **how)
    assert 0 < table.num_rows < COUNT
    assert export_topic(given | how, tmp_path / f"good.{kind}").rows == table.num_rows


@pytest.mark.shows(
    "rocketspark export: a file is whole or a .part; one that is ended after any batch goes on to the same file"
)
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_an_export_goes_on_where_it_ended(
    cluster: Cluster, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "tag,body,storeTime"}
    given["maxRecordsPerPartition"] = "20"
    export_topic(given, tmp_path / f"whole.{kind}")
    whole, broken = batch.read, 0

    def read(*how: Any) -> Iterator[Any]:
        for rows in whole(*how):
            yield rows.slice(0, 7)
            if ended:
                raise Ended
            yield rows.slice(7)

    monkeypatch.setattr(batch, "read", read)
    to = tmp_path / f"parts.{kind}"
    for ended in (*[True] * 3, False):
        if ended:
            with pytest.raises(Ended):
                export_topic(given, to)
            broken += 1
            assert not to.exists()
            # Of a kill: what was written behind the place that was noted.
            with Path(f"{to}.part").open("ab") as part:
                part.write(b"torn")
    assert export_topic(given, to).continued == 7 * broken
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"parts.{kind}", f"whole.{kind}"]
    if kind != "parquet":
        assert to.read_bytes() == (tmp_path / f"whole.{kind}").read_bytes()
        return
    from pyarrow import parquet

    assert parquet.read_table(to).equals(parquet.read_table(tmp_path / "whole.parquet"))
    assert parquet.read_table(to).num_rows == COUNT + 10


def test_a_part_of_another_export_and_a_file_that_is_there(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "body"}
    to = tmp_path / "f.jsonl"
    to.write_text("mine")
    with pytest.raises(UsageError, match="is there already: give another name, or --overwrite"):
        export_topic(given, to)
    assert to.read_text() == "mine"

    end_after_a_partition(monkeypatch, given, to, overwrite=True)
    with pytest.raises(UsageError, match=r"f\.jsonl\.part is of another export"):
        export_topic(given | {"tags": "A"}, to, overwrite=True)
    assert to.read_text() == "mine"
    # The runs may differ in what they do about messages that are gone.
    assert export_topic(given | {"failOnDataLoss": "false"}, to, overwrite=True).rows == COUNT + 10
    assert len(to.read_text("utf-8").splitlines()) == COUNT + 10
    for name, first, other in (
        ("g.csv", {"decode": "json", "decodeSchema": "id INT", "columns": "value"}, {"decodeMode": "dropmalformed"}),
        ("h.csv", {"startingOffsets": "committed", "committedGroup": "g1"}, {"committedGroup": "g2"}),
    ):
        end_after_a_partition(monkeypatch, given | first, tmp_path / name)
        with pytest.raises(UsageError, match="is of another export"):
            export_topic(given | first | other, tmp_path / name)


@pytest.mark.shows(
    "mended: an export in Parquet that was killed as it ended gave that file again at its next run",
    "mended: an export in Parquet that was killed just before its file got its name began anew, without the messages "
    "that were removed meanwhile",
)
@pytest.mark.parametrize(("kind", "renamed"), [("parquet", False), ("parquet", True), ("csv", True)])
def test_an_export_that_is_killed_at_its_end(
    cluster: Cluster, kind: str, renamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, to = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "queueOffset"}, tmp_path / f"f.{kind}"
    rename = os.replace

    def end(source: Path, target: Path) -> None:
        if target != to or renamed:
            rename(source, target)
        if target == to:
            raise Ended

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", end)
        with pytest.raises(Ended):
            export_topic(given, to)
    assert to.exists() == renamed
    # What is exported now is one queue's alone, as it would be if the others' messages were removed meanwhile.
    whole = batch.plan
    monkeypatch.setattr(batch, "plan", lambda *how: whole(*how)[:1])
    if not renamed:
        with pytest.raises(UsageError, match=r"f\.parquet\.part is of another export"):
            export_topic(given | {"tags": "A"}, to)
        assert export_topic(given, to) == (COUNT + 10, COUNT + 10)
        assert [path.name for path in tmp_path.iterdir()] == [f"f.{kind}"]
    assert 0 < export_topic(given, to, overwrite=True).rows < COUNT + 10
    assert [path.name for path in tmp_path.iterdir()] == [f"f.{kind}"]


@pytest.mark.shows("mended: an export that an earlier version began, with several NameServers, is refused")
def test_a_part_that_an_earlier_version_began(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It noted the servers as they were listed."""
    listed = f"{cluster.namesrv.replace('127.0.0.1', 'localhost')};{cluster.namesrv}"
    given = {"namesrv": listed, "topic": "orders-1", "columns": "body"}
    end_after_a_partition(monkeypatch, given, tmp_path / "f.csv")
    beside = tmp_path / "f.csv.part.json"
    noted = beside.read_text("utf-8")
    assert in_one_form(listed) in noted
    beside.write_text(noted.replace(in_one_form(listed), listed), "utf-8")
    assert export_topic(given, tmp_path / "f.csv").continued > 0


def test_an_export_takes_nothing_of_a_topic_that_was_made_anew(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "anew-1", "columns": "body"}
    to = tmp_path / "f.csv"

    def make(body: bytes, count: int) -> None:
        create(cluster, "anew-1")
        with Producer(cluster.namesrv) as producer:
            for queue in producer.queues("anew-1"):
                producer.send_batch([Message(topic="anew-1", body=body)] * count, queue=queue)

    make(b"old", 3)
    end_after_a_partition(monkeypatch, given, to)
    assert main.run(["topic", "delete", "anew-1", "--yes", "--namesrv", cluster.namesrv]) == 0
    make(b"new", 5)
    with pytest.raises(DataLost, match="anew-1"):
        export_topic(given, to)
    assert export_topic(given | {"failOnDataLoss": "false"}, to).rows == 3
    assert "new" not in to.read_text()


def test_what_stands_in_the_way_of_an_export_stays(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "body"}
    mine, to = tmp_path / "mine.txt", tmp_path / "f.csv"
    part = tmp_path / "f.csv.part"
    mine.write_text("mine")
    for place, said in (
        (lambda: part.write_text("mine"), "is no part of an export"),
        (lambda: part.symlink_to(mine), "is no plain file"),
        (lambda: os.mkfifo(part), "is no plain file"),
        (lambda: to.mkdir(), "is a folder"),
    ):
        place()
        with pytest.raises(UsageError, match=said):
            export_topic(given, to, overwrite=True)
        assert mine.read_text() == "mine"
        if to.is_dir():
            to.rmdir()
        else:
            assert part.is_fifo() or part.read_text() == "mine"
            part.unlink()
        assert list(tmp_path.iterdir()) == [mine]

    # Another run ends between the look at the file and the part's lock, then between the part's opening and its lock.
    whole, flock = export_module.prepared, export_module.fcntl.flock
    with monkeypatch.context() as patched:
        patched.setattr(export_module, "prepared", lambda given: to.write_text("mine") and whole(given))
        with pytest.raises(UsageError, match="is there already"):
            export_topic(given, to)
    assert to.read_text() == "mine"

    def ends(file: Any, how: int) -> None:
        flock(file, how)
        part.write_text("whole")
        part.replace(to)

    monkeypatch.setattr(export_module.fcntl, "flock", ends)
    with pytest.raises(UsageError, match="another run's, which has just ended"):
        export_topic(given, to, overwrite=True)
    assert to.read_text() == "whole"


@pytest.mark.parametrize("name", ["f.csv.part", "f.csv.part.json.tmp", "f.parquet.part.parquet"])
def test_a_full_disk_is_told_with_the_file_that_it_could_not_hold(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "body"}
    to = tmp_path / name.partition(".part")[0]
    sync = os.fsync

    def full(file: Any) -> None:
        if os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}") == str(tmp_path / name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / name}'"):
            export_topic(given, to)
    assert not to.exists()
    assert export_topic(given, to).rows == COUNT + 10
    assert list(tmp_path.iterdir()) == [to]


def test_times_that_count_back_from_now_are_those_of_the_first_run(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"namesrv": cluster.namesrv, "topic": "orders-1", "columns": "queueOffset", "startingTimestamp": "01"}
    to = tmp_path / "f.csv"
    end_after_a_partition(monkeypatch, given, to, times="24h")
    later = given | {"startingTimestamp": "04000000000000"}
    with pytest.raises(UsageError, match="is of another export"):
        export_topic(later, to)
    assert export_topic(later, to, times="24h").rows == COUNT + 10
    with pytest.raises(RouteNotFound):
        export_topic(given | {"topic": "no-such"}, tmp_path / "g.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["f.csv"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main.run(list(arguments)) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def own(cluster: Cluster, topic: str) -> list[Any]:
    """What a topic's messages hold of their senders, in no order."""
    columns = ["body", "tag", "keys", "properties"]
    rows = read_table(cluster.namesrv, topic, columns=columns).to_pylist()
    return sorted((r["body"], r["tag"] or "", r["keys"], dict(r["properties"])["p"]) for r in rows)


@pytest.mark.shows("rocketspark import: bodies, tags, keys and properties of an exported file come as they were")
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_what_is_exported_is_imported(
    cluster: Cluster, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at, file = ("--namesrv", cluster.namesrv), str(tmp_path / f"f.{kind}")
    done = json.loads(run(capsys, "export", "orders-1", "--to", file, "--json", *at))
    assert (done["rows"], done["continued"]) == (COUNT + 10, 0)
    create(cluster, f"copy-{kind}")
    assert f"sent {COUNT + 10} messages of" in run(capsys, "import", file, "--topic", f"copy-{kind}", *at)
    assert own(cluster, f"copy-{kind}") == own(cluster, "orders-1")
    assert [path.name for path in tmp_path.iterdir()] == [f"f.{kind}"]


def test_an_import_goes_on_where_it_ended(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at, file = ("--namesrv", cluster.namesrv), tmp_path / "f.jsonl"
    file.write_text("".join(f'{{"body":"{i}","properties":{{"p":"x"}}}}\n' for i in range(100)))
    create(cluster, "taken")
    sent = import_file.Import.sent

    def ends(self: import_file.Import, count: int) -> None:
        sent(self, count)
        if self.rows >= 60:
            raise UsageError("ended")

    with monkeypatch.context() as patched:
        patched.setattr(import_file.Import, "sent", ends)
        assert "ended" in run(capsys, "import", str(file), "--topic", "taken", "--rate", "20", *at, code=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.jsonl", "f.jsonl.taken.sent"]
    done = json.loads(run(capsys, "import", str(file), "--topic", "taken", "--json", *at))
    assert (done["sent"], done["continued"]) == (40, 60)
    assert [row[0] for row in own(cluster, "taken")] == sorted(b"%d" % i for i in range(100))
    assert [path.name for path in tmp_path.iterdir()] == ["f.jsonl"]


@pytest.mark.shows("mended: an import that goes on passes over the rows that a topic lost when it was made anew")
def test_an_import_into_a_topic_that_was_made_anew(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text("".join(f'{{"body": "{n}"}}\n' for n in range(6)))
    create(cluster, "again")
    sent = import_file.Import.sent

    def ends(self: import_file.Import, count: int) -> None:
        sent(self, count)
        raise UsageError("ended")

    with monkeypatch.context() as patched:
        patched.setattr(import_file.Import, "sent", ends)
        run(capsys, "import", str(file), "--topic", "again", "--rate", "2", "--namesrv", cluster.namesrv, code=1)
    assert main.run(["topic", "delete", "again", "--yes", "--namesrv", cluster.namesrv]) == 0
    create(cluster, "again")
    said = run(capsys, "import", str(file), "--topic", "again", "--namesrv", cluster.namesrv, code=1)
    assert "topic again was made anew on broker broker-a, or the broker's store was, since 2 rows of " in said
    run(capsys, "import", str(file), "--topic", "again", "--namesrv", cluster.namesrv, "--anew")
    assert sorted(m.body for m in received(cluster, "again")) == [b"%d" % n for n in range(6)]


def test_an_import_of_a_file_that_changed(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at, file = ("--namesrv", cluster.namesrv), tmp_path / "f.jsonl"
    file.write_text('{"body":"1"}\n')
    with import_file.Import(file, "orders-1", cluster.namesrv, same_queues=False, anew=False):
        # Twice at once each row would be sent twice.
        said = run(capsys, "import", str(file), "--topic", "orders-1", *at, code=1)
        assert "f.jsonl.orders-1.sent.lock is in use by another run" in said
    # The same servers in another order are no other cluster.
    listed = (cluster.namesrv, cluster.namesrv.replace("127.0.0.1", "localhost"))
    for order in ("; ".join(listed), ",".join(listed[::-1])):
        with import_file.Import(file, "orders-2", order, same_queues=False, anew=False) as same:
            assert same.continued == 0
    file.write_text('{"body":"1"}\n{"body":"2"}\n')
    said = run(capsys, "import", str(file), "--topic", "orders-1", *at, code=1)
    assert "f.jsonl.orders-1.sent is of another file or cluster: --anew sends all of this one" in said
    create(cluster, "anew")
    assert "is of another" not in run(capsys, "import", str(file), "--topic", "anew", *at)


def test_messages_that_are_gone(cluster: Cluster) -> None:
    first = {"orders-1": {"broker-a": {"0": 999}}}
    with pytest.raises(DataLost, match="made anew, or the offsets asked for are wrong"):
        read_table(cluster.namesrv, "orders-1", start=first, end={"orders-1": {"broker-a": {"0": 1000}}})
    assert read_table(cluster.namesrv, "orders-1", start=first, end=first, fail_on_data_loss=False).num_rows > 0


def loses(*how: Any) -> Iterator[Any]:
    """As batch.read, of a topic that is being removed."""
    raise RocketSparkError("these are gone")
    yield


@pytest.mark.shows("rocketspark query: SQL over topics by DuckDB, which reads only the columns that it needs")
def test_a_query(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    at = ("--namesrv", cluster.namesrv)
    create(cluster, "none")
    capsys.readouterr()
    decoded: list[list[str]] = []
    whole = batch.read
    monkeypatch.setattr(batch, "read", lambda *how: decoded.append(how[1].decoded) or whole(*how))

    def ask(sql: str, *more: str) -> list[Any]:
        decoded.clear()
        return [json.loads(line) for line in run(capsys, "query", sql, "--json", *at, *more).splitlines()]

    messages = received(cluster, "orders-1")
    a = sum(m.tag == "A" for m in messages)
    assert ask("SELECT count(*) AS n FROM \"orders-1\" WHERE tag = 'A'") == [{"n": a}]
    assert all(set(columns) <= {"topic", "tag"} for columns in decoded)
    assert ask('SELECT sum("queueOffset") AS s FROM "orders-1"', "--tags", "A") == [
        {"s": sum(m.queue_offset for m in messages if m.tag == "A")}
    ]
    same = 'SELECT count(*) AS n FROM "orders-1" x JOIN "orders-1" y USING (broker, queueId, queueOffset)'
    assert ask(same) == [{"n": len(messages)}]
    assert len(ask('FROM "orders-1"')) == len(messages)
    left_out = f'{same} WHERE NOT EXISTS (SELECT 1 FROM "none" WHERE false)'
    again = 'SELECT r.i + 1 FROM r JOIN "orders-1" o ON o."queueOffset" = r.i WHERE r.i < 3'
    assert ask(left_out) == [{"n": len(messages)}]
    assert ask(f"WITH RECURSIVE r(i) AS (SELECT 0::BIGINT UNION {again}) SELECT max(i) AS m FROM r") == [{"m": 3}]
    (pivoted,) = ask('PIVOT (SELECT topic, tag FROM "orders-1") ON tag USING count(*)')
    assert (pivoted["topic"], pivoted["A"]) == ("orders-1", a)
    assert len(ask('PIVOT "orders-1" ON tag USING count(*)')) == len(messages)
    odd = "SELECT 1 AS x, 2 AS x, [3] AS body, map([[4]], [5]) AS m, timestamp_ns '2026-01-01 00:00:00' AS t"
    assert ask(odd) == [{"x": 1, "x_1": 2, "body": [3], "m": [[[4], 5]], "t": "2026-01-01T00:00:00.000000000"}]
    assert ask("SELECT 1 AS x, 2 AS x, 3 AS x_1") == [{"x": 1, "x_1_1": 2, "x_1": 3}]
    stores = ("--store", f"{cluster.store}/broker-a", "--store", f"{cluster.store}/broker-b")
    assert ask('SELECT max(value.id) AS m FROM "orders-1"', *stores, "-o", "decode=json") == [{"m": 118}]
    decoded.clear()
    described = {row["column_name"]: row["column_type"] for row in ask('DESCRIBE "orders-1"')}
    assert (len(described), described["body"], decoded) == (18, "BLOB", [])
    table = run(capsys, "query", 'SELECT tag, count(*) AS n FROM "orders-1" GROUP BY tag ORDER BY n DESC', *at)
    assert table.split()[:2] == ["tag", "n"]
    with monkeypatch.context() as patched:
        patched.setattr(batch, "read", loses)
        for sql in (
            'SELECT count(*) FROM "orders-1"',
            'FROM "orders-1"',
            f"COPY (FROM \"orders-1\") TO '{tmp_path}/f.csv'",
        ):
            assert run(capsys, "query", sql, *at, code=1) == "error: these are gone\n"
    for sql, said in (
        ("SELEC 1", "Parser Error"),
        ('SELECT nope FROM "orders-1"', 'column "nope" not found'),
        ("SELECT 1; SELECT 2", "one statement is needed"),
        ('EXPLAIN FROM "orders-1"', "EXPLAIN is not taken"),
        ('SELECT * FROM "orders-1", "Orders-1"', "which are one table in SQL"),
        ("SELECT * FROM nope", "no topic 'nope'"),
    ):
        assert said in run(capsys, "query", sql, *at, code=1)


@pytest.mark.shows("option compacted: from brokers and stores, with filters of Polars, and in exports that go on")
def test_the_last_value_of_each_key(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = "latest"
    create(cluster, topic)
    # Clients send no empty bodies, but brokers store them.
    monkeypatch.setattr(validators, "check_body", lambda *args: None)
    model: dict[str, bytes] = {}
    with Producer(cluster.namesrv) as producer:
        queue = producer.queues(topic)[0]
        for i in range(90):
            key, body = f"k{i * 7 % 13}", b"" if i % 11 == 3 else b'{"n": %d}' % i
            model[key] = body
            producer.send(topic, body, keys=[key], tag="AB"[i % 2], queue=queue)
        producer.send(topic, b"no key", queue=queue)
    wanted = {key: body for key, body in model.items() if body}
    assert 0 < len(wanted) < len(model)
    ends = {topic: {queue.broker_name: {str(queue.queue_id): 91}}}
    stores = [f"{cluster.store}/broker-a", f"{cluster.store}/broker-b"]
    for how in ({"namesrv": cluster.namesrv}, {"store": stores}, {"namesrv": cluster.namesrv, "end": ends}):
        rows = read_table(topic=topic, compacted=True, **how).to_pylist()
        assert {row["keys"][0]: row["body"] for row in rows} == wanted
        assert [row["queueOffset"] for row in rows] == sorted(row["queueOffset"] for row in rows)
    # Of messages without a body none is decoded.
    decoded = {"decode": "json", "decode_schema": "n INT", "decode_mode": "failfast", "columns": ["value"]}
    found = read_table(cluster.namesrv, topic, compacted=True, **decoded)
    assert sorted(row["value"]["n"] for row in found.to_pylist()) == sorted(json.loads(b)["n"] for b in wanted.values())
    # A filter of the query is no filter of the read: an older value does not come back.
    pl = pytest.importorskip("polars")
    scanned = scan_rocketmq(cluster.namesrv, topic, compacted=True).filter(pl.col("tag") == "A").collect()
    table = read_table(cluster.namesrv, topic, compacted=True, columns=["tag", "body"]).to_pylist()
    assert sorted(scanned["body"].to_list()) == sorted(row["body"] for row in table if row["tag"] == "A")
    given = {"namesrv": cluster.namesrv, "topic": topic, "compacted": "true", "columns": "keys,body"}
    end_after_a_partition(monkeypatch, given, tmp_path / "latest.jsonl")
    with pytest.raises(UsageError, match="another export"):
        export_topic({**given, "compacted": "false"}, tmp_path / "latest.jsonl")
    assert export_topic(given, tmp_path / "latest.jsonl").rows == len(wanted)
