"""A stream whose broker was set back to a backup: what both have goes on, what the backup lacks counts as lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from tests.spark.stage import Stage, staged
from tests.spark.test_comings_and_goings import Ended, Kept, Sender, Stream, archived, ended

from rocketspark.errors import ConfigError
from rocketspark.store.files import store_number
from rocketspark.store.files.system_calls import OsFiles
from rocketspark.tables.export_topic import export_topic
from rocketspark.tables.read import batch
from rocketspark.tables.read.data_loss import DataLost

pytestmark = pytest.mark.shows(
    "mended: a stream passes over the first messages of a broker that was restored from a backup, once there are more"
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path / "stores", "broker-a") as made:
        made.create("t", 1)
        yield made


@pytest.mark.parametrize("is_running", [True, False])
def test_a_backup_that_has_all_that_was_read(stage: Stage, tmp_path: Path, is_running: bool) -> None:
    stream, send = Stream(stage, "t"), Sender(stage)
    for _ in range(2):
        assert send("t", "broker-a", count=5) == stream.run()
        # Also into the folder that has the store before.
        stage.back_up("broker-a", tmp_path / "backup")
        send("t", "broker-a", count=2)
        stage.set_back("broker-a", tmp_path / "backup")
        if not is_running:
            stream.restart()
        assert send("t", "broker-a", count=9) == stream.run()
        assert stream.run() == []


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_backup_that_lacks_what_was_read(stage: Stage, tmp_path: Path, is_running: bool, fail: bool) -> None:
    stream, send = Stream(stage, "t", failOnDataLoss=str(fail)), Sender(stage)
    kept = send("t", "broker-a", count=5)
    stage.back_up("broker-a", tmp_path / "backup")
    send("t", "broker-a", count=2)
    assert len(stream.run()) == 7
    stage.set_back("broker-a", tmp_path / "backup")
    anew = send("t", "broker-a", count=9)
    if not is_running:
        stream.restart()
    if fail:
        with pytest.raises(DataLost, match=r"messages from 7 on .* are gone \(its broker has another store now"):
            stream.run()
        return
    assert stream.run() == sorted(kept + anew)
    assert stream.run() == []


@pytest.mark.parametrize("lacks", [True, False])
def test_an_archive_whose_other_topics_the_backup_has(stage: Stage, tmp_path: Path, lacks: bool) -> None:
    archive, send = partial(archived, stage, Kept()), Sender(stage)

    stage.create("u", 1)
    send("t", "broker-a", count=5), send("u", "broker-a", count=5)
    stage.back_up("broker-a", tmp_path / "backup")
    if lacks:
        send("u", "broker-a", count=1)
    assert (archive("t"), archive("u")) == (5, 5 + lacks)
    stage.set_back("broker-a", tmp_path / "backup")
    send("t", "broker-a", count=9)
    refused = pytest.raises(ConfigError, match="has another store now than when topic 'u' of this archive")
    with refused if lacks else nullcontext():
        assert archive("t") == 9


@pytest.mark.parametrize("lacks", [True, False])
def test_an_export_that_goes_on_beside_a_backup(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: bool
) -> None:
    given = {"namesrv": stage.namesrv, "topic": "t", "columns": "queueOffset,body"}
    to, whole, send = tmp_path / "f.jsonl", batch.read, Sender(stage)
    send("t", "broker-a", count=5)
    stage.back_up("broker-a", tmp_path / "backup")
    if lacks:
        send("t", "broker-a", count=1)
    with monkeypatch.context() as patched:
        patched.setattr(batch, "read", lambda *how: chain(whole(*how), ended()))
        with pytest.raises(Ended):
            export_topic(given | {"minPartitions": "5"}, to)
    stage.set_back("broker-a", tmp_path / "backup")
    send("t", "broker-a", count=9)
    with pytest.raises(DataLost, match="its broker has another store now") if lacks else nullcontext():
        assert export_topic(given | {"minPartitions": "5"}, to).rows == 5


def test_a_copy_of_a_copy_knows_both_stores_before(tmp_path: Path) -> None:
    root, files = str(tmp_path), OsFiles()
    (tmp_path / "config").mkdir()
    first = store_number.number_of(root, files, is_empty=True)
    store_number.renew(root, files, {"t": [0, 1], "%LMQ%x": [0]}, lambda topic, queue: (0, 10 + queue))
    second = store_number.number_of(root, files, is_empty=False)
    store_number.renew(root, files, {"t": [0, 1]}, lambda topic, queue: (0, 20 - 15 * queue))
    found = store_number.shared(root)
    assert found == [(first, {"t": {"0": 10, "1": 5}}), (second, {"t": {"0": 20, "1": 5}})]
    assert store_number.number_of(root, files, is_empty=False) not in (first, second)
    for _ in range(store_number.BEFORE_MAX + 1):
        store_number.renew(root, files, {"t": [0]}, lambda topic, queue: (0, 1))
    assert len(store_number.shared(root)) == store_number.BEFORE_MAX
