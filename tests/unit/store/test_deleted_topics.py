"""A deleted topic stays deleted, and one made again keeps what was sent to it, whenever the process is killed."""

from __future__ import annotations

import errno
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.conftest import NOW_MS, FailingFiles, expire, small_settings

from rocketspark.protocol.message import record
from rocketspark.store import Store
from rocketspark.store.settings import ManualClock

pytestmark = pytest.mark.shows(
    "checksums: checkpoint (both CRCs behind RocketMQ's six numbers), storeFiles.json, deletedTopics.json; "
    "epoch files have RocketMQ's own; JSON tables are replaced whole by a rename after a sync"
)


def bodies(store: Store, topic: str, queue_id: int) -> list[bytes]:
    read = store.read(topic, queue_id, store.queue_range(topic, queue_id)[0], 1000, 1 << 20)
    return [bytes(found.body) for piece in read.records for found in record.decode_all(piece)]


def killed(store: Store, to: Path) -> Path:
    """The directory as a killed process leaves it: what was written to maps is in the files."""
    shutil.copytree(store.settings.root, to)
    return to


def flush(store: Store) -> None:
    store.flush_log(), store.flush_queues(), store.flush_indexes(), store.write_checkpoint()


@pytest.mark.parametrize("new", [0, 1, 2])
@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("keys", [None, "k"])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("lost", ["nothing", "queues"])
def test_a_kill_after_a_deletion(
    new: int, others: int, keys: str | None, flushed: bool, lost: str, make_store: Any, send: Any, tmp_path: Path
) -> None:
    store = make_store()
    for i in range(7):
        send(store, "keep", 0, b"%d" % i, keys=keys)
        send(store, "t", 1, b"old%d" % i, keys=keys)
    if flushed:
        flush(store)
    store.delete_topic("t")
    assert [send(store, "t", 1, b"new%d" % i, keys=keys)[1] for i in range(new)] == list(range(new))
    for i in range(others):
        send(store, "keep", 0, b"more%d" % i, keys=keys)
    root = killed(store, tmp_path / "killed")
    if lost == "queues":
        shutil.rmtree(root / "consumequeue")
    for _ in range(2):
        again = make_store(root)
        assert bodies(again, "t", 1) == [b"new%d" % i for i in range(new)]
        assert len(bodies(again, "keep", 0)) == 7 + others
        assert set(again.queues()) == ({"keep", "t"} if new else {"keep"})
        again.close()


def test_a_kill_within_a_deletion(make_store: Any, send: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noted and its files are still there: the next start removes them."""
    store = make_store()
    for i in range(120):
        send(store, "t", i % 2, b"%d" % i)
        send(store, "keep", 0, b"%d" % i)
    monkeypatch.setattr(store.consume_queues, "delete_topics", lambda topics: None)
    store.delete_topic("t")
    root = killed(store, tmp_path / "killed")
    shutil.rmtree(root / "consumequeue" / "t" / "0")
    again = make_store(root)
    assert set(again.queues()) == {"keep"}
    assert not (root / "consumequeue" / "t").exists()
    assert send(again, "t", 1, b"new")[1] == 0


@pytest.mark.parametrize("others", [0, 3])
def test_an_old_queue_file_comes_back_after_the_topic_was_made_anew(
    others: int, make_store: Any, send: Any, tmp_path: Path
) -> None:
    """A disk gives the file as it was before the deletion: what came since is read from the log again."""
    store = make_store()
    for i in range(3):
        send(store, "t", 1, b"old%d" % i)
    flush(store)
    old = killed(store, tmp_path / "old") / "consumequeue" / "t"
    store.delete_topic("t")
    for i in range(2):
        send(store, "t", 1, b"new%d" % i)
    for i in range(others):
        send(store, "keep", 0, b"%d" % i)
    root = Path(store.settings.root)
    store.close()
    shutil.copytree(old, root / "consumequeue" / "t", dirs_exist_ok=True)
    again = make_store(root)
    assert bodies(again, "t", 1) == [b"new0", b"new1"]
    assert len(bodies(again, "keep", 0)) == others


class Dying(FailingFiles):
    """A process that is killed after so many changes of names."""

    left = 1 << 30

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def replace(self, source: str, target: str) -> None:
        if "/removed/" in target:
            self._step()
        super().replace(source, target)

    def remove_tree(self, path: str) -> None:
        self._step()
        super().remove_tree(path)


EXT = {"queue_ext": True, "queue_ext_file_bytes": 4096}


@pytest.mark.parametrize("steps", range(10))
@pytest.mark.parametrize("new", [0, 1])
def test_a_kill_between_any_steps_of_a_deletion(
    steps: int, new: int, make_store: Any, send: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders are moved, then what lies in them is removed: the next start goes on where this one ended."""
    files = Dying()
    store = Store(small_settings(tmp_path / "d", **EXT), clock=ManualClock(NOW_MS), files=files)
    store.open()
    for i in range(120):
        send(store, "t", i % 3, b"%d" % i, tag="a")
        send(store, "keep", 0, b"%d" % i, tag="a")
    flush(store)
    files.left = steps
    try:
        store.delete_topic("t")
        for i in range(new):
            send(store, "t", 1, b"new%d" % i)
        flush(store)
        store.remove_deleted()
        assert files.left >= 0
    except KeyboardInterrupt:
        new = new if steps >= 2 else 0
    root = killed(store, tmp_path / "killed")
    store.abandon()
    for _ in range(2):
        again = make_store(root, **EXT)
        assert set(again.queues()) == ({"keep", "t"} if new else {"keep"})
        assert bodies(again, "t", 1) == [b"new%d" % i for i in range(new)]
        assert len(bodies(again, "keep", 0)) == 120
        flush(again)
        again.remove_deleted()
        assert list((root / "removed").iterdir()) == []
        assert [(root / d / "t").exists() for d in ("consumequeue", "consumequeue_ext")] == [bool(new)] * 2
        again.close()


@pytest.mark.shows("a topic's deletion moves its folders; its files are removed in a thread, some between two flushes")
def test_a_deletion_moves_folders_and_removes_no_file(make_store: Any, send: Any) -> None:
    files = Dying()
    store = make_store(files=files)
    for i in range(40):
        send(store, "t", i, b"x")
    flush(store)
    root = Path(store.settings.root)
    # One name is changed, and nothing removed.
    files.left = 1
    store.delete_topic("t")
    assert files.left == 0
    assert len(list((root / "removed" / "0").iterdir())) == 40
    # Its successor is not mixed up with it, whoever else goes.
    files.left = 1 << 30
    assert send(store, "t", 3, b"new")[1] == 0
    flush(store)
    store.delete_topic("t")
    assert send(store, "t", 3, b"newer")[1] == 0
    store.consume_queues.remove_deleted(15)
    # Of 41 queues and of both deletions a folder each; a disk lists them in any order.
    assert sum(path.is_dir() for path in (root / "removed").rglob("*")) == 43 - 15
    store.close()
    assert list((root / "removed").iterdir()) == []
    assert bodies(make_store(), "t", 3) == [b"newer"]


@pytest.mark.parametrize("call", ["replace", "make_directory"])
def test_folders_that_cannot_be_moved_are_removed(
    call: str, make_store: Any, send: Any, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, and where a link leads to another disk."""
    store = make_store()
    send(store, "t", 0, b"x")
    flush(store)

    works = getattr(files, call)

    def fails(*paths: str) -> None:
        if "removed" in paths[-1]:
            raise OSError(errno.ENOSPC, "No space left on device", paths[0])
        works(*paths)

    with monkeypatch.context() as full:
        full.setattr(files, call, fails)
        store.delete_topic("t")
    root = Path(store.settings.root)
    assert not (root / "consumequeue" / "t").exists()
    assert send(store, "t", 0, b"new")[1] == 0


def test_queues_are_made_while_a_thread_notes_which_there_are(make_store: Any, send: Any) -> None:
    store = make_store()
    queues = store.consume_queues

    class Ids(set[int]):
        def __iter__(self) -> Any:
            for number in list(super().__iter__()):
                send(store, f"made-{len(queues.queues())}", 0, b"x")
                yield number

    send(store, "t", 0, b"x")
    send(store, "t", 1, b"x")
    queues._known["t"] = Ids({0, 1})
    flush(store)
    assert len(queues.queues()) > 2


def test_what_is_noted_goes_with_the_log(make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    send(store, "a", 0, b"x")
    store.delete_topic("a")
    for _ in range(20):
        send(store, "keep", 0, bytes(1000))
    noted = Path(store.settings.root) / "config" / "deletedTopics.json"
    table = '"version":1,"topics":{"a":93}}'
    assert noted.read_text() == f'{{"crc":{zlib.crc32(b"{" + table.encode())},{table}'
    store.flush_log()
    assert expire(store, 1 << 60) == 1
    send(store, "b", 0, b"x")
    store.delete_topic("b")
    assert json.loads(noted.read_text())["topics"] == {"b": store.written_position}


@pytest.mark.shows(
    "mended: a log that was cut after a topic's deletion: messages sent to the topic then were in no queue "
    "after the next start"
)
def test_a_log_that_was_cut_after_a_deletion_keeps_what_it_gets_then(make_store: Any, send: Any) -> None:
    store = make_store()
    send(store, "keep", 0, b"x")
    end = store.written_position
    for _ in range(9):
        send(store, "t", 0, bytes(100))
    store.delete_topic("t")
    store.close()
    root = Path(store.settings.root)
    with open(root / "commitlog" / ("0" * 20), "r+b") as file:
        file.truncate(end)
    again = make_store()
    for n in range(3):
        assert send(again, "t", 0, b"new%d" % n)[1] == n
    again.close()
    for lost in ("nothing", "consumequeue"):
        shutil.rmtree(root / lost, ignore_errors=True)
        again = make_store()
        assert bodies(again, "t", 0) == [b"new0", b"new1", b"new2"]
        again.close()


@pytest.mark.parametrize("text", ['{"t": 1000000}', "no json", "[1]", '{"t": "x"}', ""])
def test_notes_of_another_log_count_for_nothing(text: str, make_store: Any, send: Any, tmp_path: Path) -> None:
    store = make_store()
    send(store, "t", 0, b"x")
    root = killed(store, tmp_path / "killed")
    (root / "config" / "deletedTopics.json").write_text(text)
    shutil.rmtree(root / "consumequeue")
    again = make_store(root)
    assert bodies(again, "t", 0) == [b"x"]
    # Nor when the log has grown over the place.
    for _ in range(70):
        send(again, "keep", 0, bytes(15_000))
    again.close()
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    assert bodies(make_store(root), "t", 0) == [b"x"]


@pytest.mark.shows(
    "a kill right after a deletion makes no queue anew: what is noted of the topic before counts no more"
)
@pytest.mark.parametrize("old", [20, 250])
@pytest.mark.parametrize("new", [0, 3, 250])
def test_a_kill_right_after_a_deletion_loses_no_queue(
    old: int, new: int, make_store: Any, send: Any, tmp_path: Path
) -> None:
    store = make_store()
    for i in range(old):
        send(store, "t", 0, b"old%d" % i)
    send(store, "keep", 0, b"x")
    store.close()
    store = make_store()
    noted = json.loads((Path(store.settings.root) / "config/storeFiles.json").read_text())
    assert noted["ends"]["t"]["0"][1] == old
    store.delete_topic("t")
    for i in range(new):
        send(store, "t", 0, b"new%d" % i)
    root = killed(store, tmp_path / "killed")
    assert json.loads((root / "config/storeFiles.json").read_text()) == noted
    again = make_store(root)
    assert not again.recovered.remade
    assert again.queue_range("t", 0) == (0, new)
    assert bodies(again, "t", 0) == [b"new%d" % i for i in range(new)]


@pytest.mark.shows("a topic that a Java broker deleted, or made anew, on a store of ours stays so")
@pytest.mark.parametrize("old", [20, 250])
def test_a_topic_that_another_broker_deleted_does_not_come_back(old: int, make_store: Any, send: Any) -> None:
    """As RocketMQ leaves it: its queues and its settings are gone, and nothing says so."""
    store = make_store()
    for i in range(old):
        send(store, "t", 0, b"%d" % i)
        send(store, "keep", 0, b"%d" % i)
    store.close()
    root = Path(store.settings.root)
    shutil.rmtree(root / "consumequeue" / "t")
    for lost in ("t", ""):
        shutil.rmtree(root / "consumequeue" / lost, ignore_errors=True)
        again = Store(store.settings, clock=store._clock)
        again.simple_topics = {"keep"}
        again.open()
        assert set(again.queues()) == {"keep"}
        assert len(bodies(again, "keep", 0)) == old
        assert again.recovered.remade == (not lost)
        again.close()


def test_queues_that_are_lost_are_no_deletion(make_store: Any, send: Any) -> None:
    """The topic has its settings still, or nothing is known of settings; all queues are gone; a topic of the system."""
    store = make_store()
    for topic in ("t", "keep", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        send(store, topic, 0, b"x")
    store.close()
    queues = Path(store.settings.root) / "consumequeue"
    for told, lost in (({"keep", "t"}, "t"), (set[str](), "t"), ({"keep"}, ""), ({"keep", "t"}, "SCHEDULE_TOPIC_XXXX")):
        shutil.rmtree(queues / lost)
        again = Store(store.settings, clock=store._clock)
        again.simple_topics = told
        again.open()
        assert again.recovered.remade
        for topic in ("t", "keep", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
            assert bodies(again, topic, 0) == [b"x"]
        again.close()


@pytest.mark.parametrize("old", [20, 250])
def test_a_topic_that_another_broker_made_anew_begins_there(old: int, make_store: Any, send: Any) -> None:
    store = make_store()
    for i in range(old):
        send(store, "t", 0, b"old%d" % i)
    store.close()
    config = Path(store.settings.root) / "config"
    noted = (config / "storeFiles.json").read_bytes()
    store = make_store()
    store.delete_topic("t")
    for i in range(3):
        send(store, "t", 0, b"new%d" % i)
    store.close()
    (config / "storeFiles.json").write_bytes(noted)
    for path in config.glob("deletedTopics.json*"):
        path.unlink()
    again = make_store()
    assert again.queue_range("t", 0) == (0, 3)
    assert send(again, "t", 0, b"new3")[1] == 3
    assert bodies(again, "t", 0) == [b"new%d" % i for i in range(4)]
