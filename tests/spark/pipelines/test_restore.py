"""restore and replay: each row once, in its queue's order, with all it had; nothing twice after a stop."""

from __future__ import annotations

import asyncio
import io
import pickle
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import read_rows

from rocketspark import Message, Producer
from rocketspark.cli.main import run as cli
from rocketspark.errors import ConfigError, MessageIllegal, NoReply, RouteNotFound, ServerError
from rocketspark.model import MessageQueue
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.message import origins
from rocketspark.spark.pipelines import archive, restore
from rocketspark.spark.pipelines.connection import Connection, operations_of
from rocketspark.spark.pipelines.options import ArchiveOptions, RestoreOptions
from rocketspark.spark.pipelines.parts import archive_manifest, restore_tasks
from rocketspark.spark.pipelines.parts.progress import Progress
from rocketspark.spark.pipelines.parts.restore_plan import ArchivedSpan
from rocketspark.spark.schemas import READ_SCHEMA
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("`restore`, `replay`: order, keys, tags, properties, rate, dry run, nothing twice")

KEPT = "broker queueId queueOffset tag keys body flag".split()
BROKERS_OWN = {"UNIQ_KEY", "WAIT", "MSG_REGION", "TRACE_ON", "CLUSTER"}


def rows_of(spark: SparkSession, cluster: Cluster, topic: str, *, restored: bool = False) -> list[Any]:
    """Rows by place: what a restore keeps, properties too; restored: without the properties that tell of before."""
    rows = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic).load()
    left_out = BROKERS_OWN | (set(origins.NAMES) if restored else set())
    found = []
    for row in rows.select(*KEPT, "properties").collect():
        properties = {k: v for k, v in row["properties"].items() if k not in left_out}
        found.append((*row[:-1], sorted(properties.items())))
    return sorted(found, key=lambda row: row[:3])


def test_a_restored_topic_equals_the_old_one(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 300)
    archive.run(spark, cluster.namesrv, [topic], tmp_path, options=ArchiveOptions(batch_rows=120))
    copy = f"{topic}-copy"
    planned = restore.restore(spark, tmp_path, cluster.namesrv, to=copy, options=RestoreOptions(dry_run=True))
    assert (planned.rows, planned.dry_run, sum(q.rows for q in planned.queues)) == (300, True, 300)
    with pytest.raises(RouteNotFound):
        restore.restore(spark, tmp_path, cluster.namesrv, to=copy, options=RestoreOptions(create=False))
    done = restore.restore(spark, tmp_path, cluster.namesrv, to=copy, options=RestoreOptions(chunk_rows=100))
    assert (done.rows, done.already_there, done.stopped, done.chunks) == (300, 0, False, 3)
    assert rows_of(spark, cluster, copy, restored=True) == rows_of(spark, cluster, topic)
    again = restore.restore(spark, tmp_path, cluster.namesrv, to=copy)
    assert (again.rows, again.restore_id) == (0, done.restore_id)
    load(topic, 20, first=300)
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    assert restore.restore(spark, tmp_path, cluster.namesrv, to=copy).rows == 20
    assert rows_of(spark, cluster, copy, restored=True) == rows_of(spark, cluster, topic)


@pytest.mark.shows("mended: `restore` says that all is sent, though its target was deleted since")
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_target_that_was_deleted_since_is_told(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    load: Callable[..., Any],
    tmp_path: Path,
    is_made_anew: bool,
) -> None:
    load(topic, 20)
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    copy = f"{topic}-copy"
    assert restore.restore(spark, tmp_path, cluster.namesrv, to=copy).rows == 20
    with operations_of(Connection(cluster.namesrv)) as operations:
        operations.delete_topic(copy)
        if is_made_anew:
            operations.create_topic(copy, queue_count=2)
            # Others sent as many since.
            load(copy, 20)
    why = f"{copy} was made anew on broker broker-[ab], or" if is_made_anew else f"{copy} never held the 20 messages"
    with pytest.raises(ConfigError, match=f"topic {why}"):
        restore.restore(spark, tmp_path, cluster.namesrv, to=copy)
    assert restore.restore(spark, tmp_path, cluster.namesrv, to=copy, options=RestoreOptions(again=True)).rows == 20
    if not is_made_anew:
        assert rows_of(spark, cluster, copy, restored=True) == rows_of(spark, cluster, topic)


def test_old_ids_and_times_are_told(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 30)
    read = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
    old = read.option("topic", topic).load().collect()
    # Twice: only where a message was last is told.
    restore.replay(spark, cluster.namesrv, topic, f"{topic}-1", options=RestoreOptions(state=tmp_path))
    done = restore.replay(
        spark, cluster.namesrv, topic, f"{topic}-2", options=RestoreOptions(tags="A || C", state=tmp_path)
    )
    restore.replay(spark, cluster.namesrv, f"{topic}-1", f"{topic}-3", options=RestoreOptions(state=tmp_path))
    ms = {r["messageId"]: [int(r[n].timestamp() * 1000) for n in ("bornTime", "storeTime")] for r in old}
    places = {r["messageId"]: "/".join(str(r[n]) for n in ("topic", "broker", "queueId", "queueOffset")) for r in old}
    found = read.option("topic", f"{topic}-2").load().collect()
    assert done.rows == len(found) == sum(r["tag"] in ("A", "C") for r in old) > 0
    for row in found:
        told = row["properties"]
        message_id = told[origins.ORIGIN_MESSAGE_ID]
        assert told[origins.RESTORE_ID] == done.restore_id
        assert told[origins.ORIGIN_PLACE] == places[message_id]
        assert [int(told[n]) for n in (origins.ORIGIN_BORN_TIME, origins.ORIGIN_STORE_TIME)] == ms[message_id]
        assert row["messageId"] != message_id
    thrice = read.option("topic", f"{topic}-3").load().collect()
    assert {r["properties"][origins.ORIGIN_PLACE].split("/")[0] for r in thrice} == {f"{topic}-1"}
    assert len(thrice) == 30


@pytest.mark.shows("`restore` and `replay` ask before they send into a topic that holds messages")
def test_a_target_that_holds_messages_is_asked_about(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 30)
    said, asked = io.StringIO(), []

    def run(sure: Any = None, **given: Any) -> restore.RestoreResult:
        options = RestoreOptions(state=tmp_path, **given)
        return restore.replay(
            spark, cluster.namesrv, topic, topic, options, progress=Progress("replay", said), sure=sure
        )

    def refuse(text: str) -> None:
        raise ConfigError(text)

    told = f"topic {topic} holds 30 messages, and up to 30 more are sent beside them"
    assert run(dry_run=True, sure=refuse).rows == 30
    assert f"replay: {told}\n" in said.getvalue()
    with pytest.raises(ConfigError, match=told):
        run(sure=refuse)
    assert len(rows_of(spark, cluster, topic)) == 30
    assert (run(sure=asked.append).rows, asked) == (30, [told])
    # What was begun goes on, and --again says it itself.
    assert (run(sure=refuse).rows, run(sure=refuse, again=True).rows) == (0, 60)
    command = ["pipeline", "replay", topic, "--to", topic, "--state", str(tmp_path / "other"), "-n", cluster.namesrv]
    assert cli(command) == 1
    assert len(rows_of(spark, cluster, topic)) == 120
    assert (cli([*command, "--yes"]), len(rows_of(spark, cluster, topic))) == (0, 240)


def test_a_chunk_that_was_cut_short_is_sent_once(
    spark: SparkSession,
    cluster: Cluster,
    topic: str,
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load(topic, 120)
    copy = f"{topic}-copy"
    monkeypatch.setattr(restore, "QUIET_S", 0.05)
    saves = 0
    replace_file = restore.replace_file

    def fail(*args: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 4:  # The second chunk is sent, and nobody noted it.
            raise KeyboardInterrupt
        replace_file(*args)

    with monkeypatch.context() as patch:
        patch.setattr(restore, "replace_file", fail)
        with pytest.raises(KeyboardInterrupt):
            restore.replay(spark, cluster.namesrv, topic, copy, options=RestoreOptions(chunk_rows=40, state=tmp_path))
    assert len(rows_of(spark, cluster, copy)) == 80
    # Smaller chunks than before: what is in doubt lies in several.
    done = restore.replay(spark, cluster.namesrv, topic, copy, options=RestoreOptions(chunk_rows=15, state=tmp_path))
    assert (done.rows, done.already_there) == (40, 40)
    assert rows_of(spark, cluster, copy, restored=True) == rows_of(spark, cluster, topic)


def test_fewer_queues_take_turns_and_each_order_is_kept(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    topic, narrow = make_topic(queues=3, brokers=1), make_topic(queues=2, brokers=1)
    for queue in range(3):
        load(topic, 20, first=100 * queue, queue=MessageQueue(topic, "broker-a", queue))
    done = restore.replay(spark, cluster.namesrv, topic, narrow, options=RestoreOptions(chunk_rows=7, state=tmp_path))
    assert {(q.source, q.target) for q in done.queues} == {
        *{("broker-a/0", "broker-a/0"), ("broker-a/1", "broker-a/1"), ("broker-a/2", "broker-a/0")}
    }
    found = rows_of(spark, cluster, narrow)
    numbers = {queue: [int(r[5].split(b":")[0]) for r in found if r[1] == queue] for queue in (0, 1)}
    assert numbers[1] == list(range(100, 120))
    assert [n for n in numbers[0] if n < 100] == list(range(20))
    assert [n for n in numbers[0] if n >= 200] == list(range(200, 220))


def test_a_time_range_and_a_rate(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 40)
    archive.run(spark, cluster.namesrv, [topic], tmp_path)
    times = sorted(
        int(r["storeTime"].timestamp() * 1000) for r in archive.read(spark, tmp_path).select("storeTime").collect()
    )
    middle = times[20]
    wanted = sum(t < middle for t in times)
    where = Connection(cluster.namesrv)
    before = restore.restore(
        spark, tmp_path, where, to=f"{topic}-b", options=RestoreOptions(until_ms=middle, dry_run=True)
    )
    after = restore.restore(
        spark, tmp_path, where, to=f"{topic}-b", options=RestoreOptions(since_ms=middle, dry_run=True)
    )
    assert (before.rows, after.rows) == (wanted, 40 - wanted)
    live = restore.replay(
        spark, where, topic, f"{topic}-b", options=RestoreOptions(since_ms=middle, state=tmp_path / "s", dry_run=True)
    )
    assert live.rows == 40 - wanted
    # Eight rows make a chunk; five chunks follow each other over 40 / 4 of the rate's seconds at least.
    done = restore.restore(spark, tmp_path, where, to=f"{topic}-c", options=RestoreOptions(rate=20))
    assert done.rows == 40
    assert done.seconds >= 40 / 20 - 0.1
    progress = Progress("restore")
    progress.stop.ask()
    stopped = restore.restore(spark, tmp_path, where, to=f"{topic}-d", progress=progress)
    assert (stopped.rows, stopped.stopped) == (0, True)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"since_ms": 2, "until_ms": 1}, "the time range is empty: it begins at 2 ms and ends at 1 ms"),
    ({"since_ms": 1, "until_ms": 1}, "the time range is empty"),
    ({"rate": 0}, "rate is 0: rows per second"),
    ({"rate": float("nan")}, "rate is nan"),
    ({"chunk_rows": 0}, "chunk_rows is 0"),
]


def test_mistakes_are_told(
    spark: SparkSession, cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="is no archive"):
        restore.restore(spark, tmp_path, cluster.namesrv)
    topics = sorted([make_topic(), make_topic()])
    for topic in topics:
        load(topic, 1)
    archive.run(spark, cluster.namesrv, topics, tmp_path)
    with pytest.raises(ConfigError, match=f"several topics: name one; there are: {', '.join(topics)}"):
        restore.restore(spark, tmp_path, cluster.namesrv)
    with pytest.raises(ConfigError, match="no topic 'absent'"):
        restore.restore(spark, tmp_path, cluster.namesrv, "absent")
    assert restore.topics_of(tmp_path) == topics
    with pytest.raises(ConfigError, match="is a group's own"):
        restore.restore(spark, tmp_path, cluster.namesrv, topics[0], "%RETRY%group")
    with pytest.raises(MessageIllegal, match="topic"):
        restore.replay(spark, cluster.namesrv, topics[0], "no such name", options=RestoreOptions(state=tmp_path))
    for wrong, says in WRONG:
        with pytest.raises(ConfigError, match=says):
            restore.restore(spark, tmp_path, cluster.namesrv, topics[0], "never-made", options=RestoreOptions(**wrong))
        with pytest.raises(ConfigError, match=says):
            restore.replay(spark, cluster.namesrv, topics[0], "never-made", RestoreOptions(state=tmp_path, **wrong))


def test_a_send_without_a_reply_is_looked_for_before_it_is_repeated(
    cluster: Cluster, topic: str, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the sends get no reply; of those, half were carried out."""
    monkeypatch.setattr(restore_tasks, "DOUBT_S", 0.0)
    monkeypatch.setattr(restore_tasks, "BATCH_BYTES", 700)
    queue = ("broker-a", 0)
    load(topic, 40, queue=MessageQueue(topic, *queue))
    where = Connection(cluster.namesrv)
    rows = list(restore_tasks.TopicSource(where, topic, {}).read(ArchivedSpan(queue, 0, 40, 40)))

    async def send() -> None:
        sender = restore_tasks.QueueSender(where, topic, ("broker-b", 1), 0, "restore-1")
        await sender.start()
        send_packed, calls = sender._producer.send_packed, 0

        async def unreliable(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 4 == 1:
                raise NoReply("lost")
            result = await send_packed(*args)
            if calls % 4 == 3:
                raise NoReply("late")
            return result

        monkeypatch.setattr(sender._producer, "send_packed", unreliable)
        for batch in rows:
            await sender.send(restore_tasks.with_origin(batch, topic, "restore-1"))
        assert (sender.sent, sender.skipped) == (40, 0)
        assert calls > 8
        await sender.close()
        # Another sender of the same restore finds all of it.
        again = restore_tasks.QueueSender(where, topic, ("broker-b", 1), 0, "restore-1")
        await again.start()
        for batch in rows:
            await again.send(restore_tasks.with_origin(batch, topic, "restore-1"))
        assert (again.sent, again.skipped) == (0, 40)
        await again.close()

    asyncio.run(send())
    reader = restore_tasks.topic_reader(where, topic, READ_SCHEMA)
    try:
        found = [
            b.column("body").to_pylist() for b in restore_tasks.read_offsets(reader, topic, ("broker-b", 1), 0, 40, {})
        ]
        assert restore_tasks.queue_offsets(topic, reader.end_now())["broker-b", 1] == 40
    finally:
        reader.stop()
    assert [body for bodies in found for body in bodies] == [b for r in rows for b in r.column("body").to_pylist()]


def here(spark: Any, task: Any, *, type_: Any) -> list[Any]:
    """`run_tasks` without Spark."""
    task = pickle.loads(pickle.dumps(task))
    return [told for number in range(task.count) for told in task(number)]


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., restore.RestoreResult]:
    """replay(where, topic, to, progress=None, **options): without Spark, with its progress in the test's folder."""
    monkeypatch.setattr(restore, "run_tasks", here)

    def run(
        where: Connection | str, topic: str, to: str, progress: Progress | None = None, **options: Any
    ) -> restore.RestoreResult:
        given = RestoreOptions(state=tmp_path, **options)
        return restore.replay(None, where, topic, to, options=given, progress=progress)  # type: ignore[arg-type]

    return run


@pytest.mark.shows(
    "mended: restore and replay with `--namespace` make the topic without it (and without keys)",
    "mended: restore makes its topic without credentials and namespace; refcount of buffers assumes CPython < "
    "3.14 (link.py)",
)
def test_a_topic_of_a_namespace_is_made_in_it(cluster: Cluster, replay: Callable[..., restore.RestoreResult]) -> None:
    name = f"o{uuid.uuid4().hex[:8]}"
    where = Connection(cluster.namesrv, f"space{name}")
    with operations_of(where) as operations:
        operations.create_topic(f"space{name}%{name}", queue_count=1)
    with Producer(cluster.namesrv, "P", namespace=where.namespace) as producer:
        for i in range(3):
            producer.send(Message(topic=name, body=b"%d" % i))
    done = replay(where, name, f"{name}-copy")
    assert (done.rows, done.refused) == (3, 0)
    with operations_of(where) as operations:
        assert {t for t in operations.list_topics() if name in t} == {f"space{name}%{name}", f"space{name}%{name}-copy"}


@pytest.mark.shows(
    "mended: tracebacks (YAML 2026-02-30, 0b_, deep nesting, deep JSON, 5,000 digits; 120-character names; "
    "NaN in JSON; exit code)"
)
def test_a_progress_file_of_long_names_can_be_written(cluster: Cluster, tmp_path: Path) -> None:
    long = "t" * 127
    job = restore._Job(
        None,
        Connection(cluster.namesrv),
        (long, long),
        RestoreOptions(),
        tmp_path,
        Progress("replay"),  # type: ignore[arg-type]
    )
    with job:
        job._save()
    assert sorted(made.suffix for made in tmp_path.iterdir()) == [".json", ".lock"]
    assert all(len(made.name) < 200 for made in tmp_path.iterdir())


@pytest.mark.shows("mended: a `replay` with other filters of `-o` than before sends nothing and says that it is done")
def test_other_options_that_choose_are_another_replay(
    cluster: Cluster,
    make_topic: Callable[..., str],
    producer: Producer,
    replay: Callable[..., restore.RestoreResult],
) -> None:
    topic, copy = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    for n in range(6):
        producer.send(Message(topic=topic, body=b"%d" % n, properties={"n": str(n)}))

    def sent(**options: str) -> int:
        return replay(Connection(cluster.namesrv, options=options), topic, copy).rows

    assert [sent(sql="n < 2"), sent(sql="n >= 2"), sent(SQL="n < 2"), sent(pollTimeoutMs="20000")] == [2, 4, 0, 6]


@pytest.mark.shows("mended: two runs of one `replay` that begin at once break on each other's progress file")
def test_two_runs_at_once_are_refused(
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    replay: Callable[..., restore.RestoreResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, copy = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    load(topic, 5)
    errors = []

    def meanwhile(*given: Any, **named: Any) -> Any:
        with pytest.raises(ConfigError, match="another process does this, with the progress file") as raised:
            replay(cluster.namesrv, topic, copy)
        errors.append(raised)
        return here(*given, **named)

    monkeypatch.setattr(restore, "run_tasks", meanwhile)
    assert (replay(cluster.namesrv, topic, copy).rows, len(errors)) == (5, 1)
    monkeypatch.setattr(restore, "run_tasks", here)
    assert replay(cluster.namesrv, topic, copy).rows == 0


@pytest.mark.shows("mended: `restore --state` of one archive takes the progress of another one, and passes rows over")
def test_each_archive_has_its_own_progress(
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    replay: Callable[..., restore.RestoreResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a topic that was made anew, say, there are two."""
    topic, copy = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    monkeypatch.setattr(archive, "run_tasks", here)
    state = RestoreOptions(state=tmp_path / "state")

    def restored(name: str) -> int:
        return restore.restore(None, tmp_path / name, cluster.namesrv, topic, copy, state).rows  # type: ignore[arg-type]

    for name, rows in (("one", 3), ("other", 5)):
        load(topic, rows)
        options = ArchiveOptions(compact=False)
        archive.run(None, cluster.namesrv, [topic], tmp_path / name, options)  # type: ignore[arg-type]
    assert [restored(name) for name in ("one", "other", "one", "other")] == [3, 8, 0, 0]
    # A replay of the topic is no restore of it.
    assert restore.replay(None, cluster.namesrv, topic, copy, state).rows == 8  # type: ignore[arg-type]


@pytest.mark.shows("mended: a `restore --state` that an earlier version began sends all again, or passes rows over")
def test_progress_that_does_not_tell_of_which_archive_it_is(
    cluster: Cluster, make_topic: Callable[..., str], load: Callable[..., Any], tmp_path: Path, monkeypatch: Any
) -> None:
    topic, copy = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    monkeypatch.setattr(archive, "run_tasks", here)
    monkeypatch.setattr(restore, "run_tasks", here)
    load(topic, 5)
    archive.run(None, cluster.namesrv, [topic], tmp_path / "one", ArchiveOptions(compact=False))  # type: ignore[arg-type]
    state = RestoreOptions(state=tmp_path / "state")

    def restored(name: str = "one", options: RestoreOptions = state) -> int:
        return restore.restore(None, tmp_path / name, cluster.namesrv, topic, copy, options).rows  # type: ignore[arg-type]

    assert restored(options=RestoreOptions()) == 5
    # As in the archive, so files were named in the folder.
    (file,) = (tmp_path / "one").rglob("restores/*.json")
    (tmp_path / "state").mkdir()
    before = file.rename(tmp_path / "state" / file.name)
    for act in (restored, lambda: restore.replay(None, cluster.namesrv, topic, copy, state)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"{before} is of a restore by an earlier version") as refused:
            act()
        if act is restored:
            name = str(refused.value).partition("rename it to ")[2].split()[0]
    before.rename(before.with_name(name))
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert [restored(), restored("one/../one"), restored("link")] == [0, 0, 0]
    assert restore.replay(None, cluster.namesrv, topic, copy, state).rows == 5  # type: ignore[arg-type]
    assert restored() == 0


@pytest.mark.shows("mended: `restore` and `replay` send all again if NameServers are listed in another order")
def test_servers_in_another_order_are_the_same_replay(
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    replay: Callable[..., restore.RestoreResult],
    tmp_path: Path,
) -> None:
    topic, copy, third = (make_topic(queues=1, brokers=1) for _ in range(3))
    load(topic, 5)
    one = cluster.namesrv
    other = one.replace("127.0.0.1", "localhost")

    def elsewhere(source: str) -> int:
        state = RestoreOptions(state=tmp_path)
        return restore.replay(None, source, topic, third, state, target=one).rows  # type: ignore[arg-type]

    assert replay(f"{one};{other}", topic, copy).rows == 5
    for listed in (f"{other};{one}", f"{one}, {other}", f"http://{other};{one};{one}"):
        assert replay(listed, topic, copy).rows == 0
    # The source's servers name the replay where the target is another cluster.
    named = {restore._source_place(Connection(at), Connection("c:1")) for at in ("a:1;b:2", "b:2,a:1")}
    assert len(named) == 1
    assert restore._source_place(Connection("a:1;b:2"), Connection("b:2;a:1")) == ""
    # A file that an earlier version named by the servers as they were listed goes on.
    assert replay(f"{one};{other}", topic, third).rows == 5
    with pytest.MonkeyPatch.context() as earlier:
        earlier.setattr(restore, "in_one_form", str)
        assert replay(f"{other};{one}", topic, third).rows == 5
        assert elsewhere(f"{other};{one}") == 5
    assert replay(f"{other};{one}", topic, third).rows == 0
    assert elsewhere(f"{other};{one}") == 0


def killed_before_its_note(monkeypatch: pytest.MonkeyPatch, run: Callable[[], object]) -> None:
    """Run a replay that is killed when all is sent, and nobody has noted it."""
    monkeypatch.setattr(restore, "QUIET_S", 0.05)
    replace_file, saves = restore.replace_file, 0

    def fail(*given: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == 2:
            raise KeyboardInterrupt
        replace_file(*given)

    with monkeypatch.context() as patch:
        patch.setattr(restore, "replace_file", fail)
        with pytest.raises(KeyboardInterrupt):
            run()


@pytest.mark.shows("mended: a `replay` that goes on reads its target in another group than that of `-o consumerGroup`")
def test_what_is_in_doubt_is_read_in_the_group_that_is_given(
    replay: Callable[..., restore.RestoreResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers make no groups by themselves."""
    with run_cluster(auto_create_group=False) as cluster, Producer(cluster.namesrv) as producer:
        with operations_of(Connection(cluster.namesrv)) as operations:
            operations.put_group("reader")
            for topic in ("source", "target"):
                operations.create_topic(topic)
        for n in range(5):
            producer.send("source", b"%d" % n)
        where = Connection(cluster.namesrv, options={"consumerGroup": "reader"})
        killed_before_its_note(monkeypatch, lambda: replay(where, "source", "target"))
        done = replay(where, "source", "target")
        assert (done.rows, done.already_there) == (0, 5)


@pytest.mark.shows("mended: `replay` of a topic ever made anew fails, or sends nothing; to such a one it sends twice")
def test_topics_that_were_made_anew_are_replayed_once(
    replay: Callable[..., restore.RestoreResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        run_cluster() as cluster,
        Producer(cluster.namesrv) as producer,
        operations_of(Connection(cluster.namesrv)) as operations,
    ):

        def make_anew(topic: str) -> None:
            operations.create_topic(topic, queue_count=1)
            producer.send(topic, b"old")
            operations.delete_topic(topic)
            operations.create_topic(topic, queue_count=1)
            for n in range(5):
                producer.send(topic, b"%d" % n)

        for topic in ("source", "target"):
            make_anew(topic)
        killed_before_its_note(monkeypatch, lambda: replay(cluster.namesrv, "source", "target"))
        done = replay(cluster.namesrv, "source", "target")
        assert (done.rows, done.already_there) == (0, 5)
        stop = Progress("replay")
        monkeypatch.setattr(stop, "hear", lambda report: stop.stop.ask())
        assert replay(cluster.namesrv, "source", "other", progress=stop, chunk_rows=2).rows == 1
        make_anew("source")
        with pytest.raises(DataLost, match=r"messages 1 to \d .* it was made anew"):
            replay(cluster.namesrv, "source", "other")


def test_a_target_that_lost_queues_is_told_in_one_line(
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    replay: Callable[..., restore.RestoreResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, copy = make_topic(queues=2, brokers=1), make_topic(queues=2, brokers=1)
    for queue in range(2):
        load(topic, 4, first=10 * queue, queue=MessageQueue(topic, "broker-a", queue))
    stop = Progress("replay")
    monkeypatch.setattr(stop, "hear", lambda report: stop.stop.ask())
    replay(cluster.namesrv, topic, copy, progress=stop, chunk_rows=4)
    with operations_of(Connection(cluster.namesrv)) as operations:
        operations.delete_topic(copy)
        operations.create_topic(copy, queue_count=1, brokers=["broker-a"])
    with pytest.raises(ConfigError, match=f"topic {copy} has no queue broker-a/1 any more.*--again"):
        replay(cluster.namesrv, topic, copy)
    assert replay(cluster.namesrv, topic, copy, again=True).rows == 8


@pytest.mark.shows("a dry run of restore and replay by queue, with filters")
def test_a_dry_run_counts_what_filters_left_queue_by_queue(
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    replay: Callable[..., restore.RestoreResult],
) -> None:
    topic = make_topic()
    load(topic, 40)
    there = Counter(
        (f"{r['broker']}/{r['queueId']}", r["tag"]) for r in read_rows(namesrv=cluster.namesrv, topic=topic)
    )
    for tag in ("A", "nothing has it"):
        found = replay(cluster.namesrv, topic, f"{topic}-b", tags=tag, dry_run=True)
        assert {moved.source: moved.rows for moved in found.queues} == {
            place: there[place, tag] for place in {place for place, _ in there}
        }
        assert found.rows == sum(count for (_, one), count in there.items() if one == tag)


@pytest.mark.shows("mended: restore and dedupe stop for good at a message they may not write")
def test_what_may_not_be_written_is_set_aside(
    cluster: Cluster, topic: str, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = ("broker-a", 0)
    load(topic, 40, queue=MessageQueue(topic, *queue))
    where = Connection(cluster.namesrv)
    [batch] = restore_tasks.TopicSource(where, topic, {}).read(ArchivedSpan(queue, 0, 40, 40))
    rows = batch.to_pylist()
    rows[5]["body"] = b""
    rows[9]["properties"] = [("name", "a\x01b")]
    rows[11]["messageId"] = "odd\x01id"
    rows[30]["body"] = b"the broker refuses this"
    batch = pa.RecordBatch.from_pylist(rows, batch.schema)

    async def send() -> restore_tasks.QueueSender:
        sender = restore_tasks.QueueSender(where, topic, ("broker-b", 1), 0, "restore-1")
        await sender.start()
        send_packed = sender._producer.send_packed

        async def strict(out: Any, *args: Any) -> Any:
            if b"the broker refuses this" in out.body:
                raise ServerError(ResponseCode.MESSAGE_ILLEGAL, "not this one")
            return await send_packed(out, *args)

        monkeypatch.setattr(sender._producer, "send_packed", strict)
        await sender.send(restore_tasks.with_origin(batch, topic, "restore-1"))
        await sender.close()
        return sender

    sender = asyncio.run(send())
    assert (sender.sent, sender.refused) == (37, 3)
    assert [place.rsplit("/", 1)[1] for place, _ in sender.reasons] == ["5", "9", "30"]
    assert sender.reasons[2][1] == "not this one"
    reader = restore_tasks.topic_reader(where, topic, READ_SCHEMA)
    try:
        [found] = restore_tasks.read_offsets(reader, topic, ("broker-b", 1), 0, 37, {})
    finally:
        reader.stop()
    assert found.column("body").to_pylist() == [r["body"] for i, r in enumerate(rows) if i not in (5, 9, 30)]
    assert dict(found.column("properties")[9].as_py())[origins.ORIGIN_MESSAGE_ID] == "odd?id"


@pytest.mark.shows("mended: restore and replay with `spark.speculation` on a cluster send rows twice")
@pytest.mark.parametrize(("master", "is_refused"), [("spark://host:7077", True), ("local[2]", False)])
def test_speculation_is_refused_on_a_cluster(
    cluster: Cluster,
    make_topic: Callable[..., str],
    load: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(restore, "run_tasks", here)
    topic, copy = make_topic(queues=1, brokers=1), make_topic(queues=1, brokers=1)
    load(topic, 3)
    conf = {"spark.speculation": "true", "spark.master": master}
    spark: Any = SimpleNamespace(conf=conf)
    with pytest.raises(ConfigError, match=r"session with spark\.speculation=false") if is_refused else nullcontext():
        restore.replay(spark, cluster.namesrv, topic, copy, options=RestoreOptions(state=tmp_path))
    assert len(read_rows("body", namesrv=cluster.namesrv, topic=copy)) == (0 if is_refused else 3)


@pytest.mark.shows("mended: a restore resumed after the target's old messages expired")
def test_a_target_whose_old_messages_are_gone_is_no_obstacle(cluster: Cluster, make_topic: Callable[..., str]) -> None:
    topic = make_topic()

    async def start() -> None:
        # What was in doubt lay before and after all that the queue holds now.
        sender = restore_tasks.QueueSender(Connection(cluster.namesrv), topic, ("broker-a", 0), 50, "restore-1")
        await sender.start()
        await sender.close()

    asyncio.run(start())


@pytest.mark.shows(
    "mended: `restore` from an archive that was removed and begun anew in its place went on by the progress of the one "
    "before"
)
def test_an_archive_in_the_place_of_another_is_told(
    spark: SparkSession, cluster: Cluster, topic: str, load: Callable[..., Any], tmp_path: Path
) -> None:
    load(topic, 30)
    place, options = tmp_path / "archive", RestoreOptions(state=tmp_path / "state")
    archive.run(spark, cluster.namesrv, [topic], place)
    copy = f"{topic}-copy"
    assert restore.restore(spark, place, cluster.namesrv, to=copy, options=options).rows == 30
    shutil.rmtree(place)
    with operations_of(Connection(cluster.namesrv)) as operations:
        operations.delete_topic(topic)
        operations.create_topic(topic, queue_count=2)
    load(topic, 30)
    archive.run(spark, cluster.namesrv, [topic], place)
    with pytest.raises(ConfigError, match="is another archive than the one from which 30 messages were sent"):
        restore.restore(spark, place, cluster.namesrv, to=copy, options=options)
    again = options._replace(again=True)
    assert restore.restore(spark, place, cluster.namesrv, to=copy, options=again).rows == 30
    # An earlier version noted no id: what it began goes on, and is told from others from there on.
    (path,) = (tmp_path / "state").glob("*.json")
    noted = msgspec.json.decode(path.read_bytes())
    assert noted.pop("archive") == archive_manifest.read_manifest(place).id != ""
    path.write_bytes(msgspec.json.encode(noted))
    assert restore.restore(spark, place, cluster.namesrv, to=copy, options=options).rows == 0
    load(topic, 5, first=30)
    archive.run(spark, cluster.namesrv, [topic], place)
    assert restore.restore(spark, place, cluster.namesrv, to=copy, options=options).rows == 5
    assert msgspec.json.decode(path.read_bytes())["archive"] == archive_manifest.read_manifest(place).id
