"""A broker's folder of a second tier in an object store (moto's S3), read as a table without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from tests.spark.lakehouse.s3 import ACCESS_KEY, SECRET_KEY, Store, s3_store
from tests.support.golden_stores import unpack_all
from tests.unit.store.tiered.test_java_tier import VECTOR

from rocketspark import MessageQueue
from rocketspark.errors import ConfigError, StoreError
from rocketspark.store.readonly.file_places import ObjectStore
from rocketspark.tables.export_topic import export_topic
from rocketspark.tables.read import store_read
from rocketspark.tables.read.data_loss import DataLost
from rocketspark.tables.read_table import prepared, read_table

pytestmark = pytest.mark.shows(
    "second tier: the option store reads it in an object store, without a broker, as it reads a folder"
)

BROKER = "212d6b50_DefaultCluster/broker-a"
# Of an object: records and units stand in two of them.
PART_BYTES = 3000


def copy(folder: Path, place: ObjectStore, to: str) -> None:
    """Copy a tier's folder into an object store, as a broker does it, some bytes at a time."""
    segments = place.segments(to)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content, key = path.read_bytes(), str(path.relative_to(folder))
        for at in range(0, len(content), PART_BYTES):
            segments.append(key, at, content[at : at + PART_BYTES])


class Copied(NamedTuple):
    """A tier in a folder, the same in a bucket, and the options that lead to the one in the bucket."""

    folder: Path
    server: Store
    place: ObjectStore
    options: dict[str, Any]

    def read(self, **how: Any) -> pa.Table:
        """Read a table from the bucket."""
        return read_table(**{"topic": "base", **self.options, **how})


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copied]:
    top = tmp_path_factory.mktemp("tier")
    unpack_all(VECTOR, top)
    folder = top / "stopped/tier" / BROKER
    with s3_store("bucket") as server:
        endpoint = f"http://127.0.0.1:{server.port}"
        place = ObjectStore(endpoint, ACCESS_KEY, SECRET_KEY)
        copy(folder, place, f"s3://bucket/deep/tier/{BROKER}")
        options = {"store": f"s3a://bucket/deep/tier/{BROKER}/", "object_store_endpoint": endpoint}
        keys = {"object_store_access_key": ACCESS_KEY, "object_store_secret_key": SECRET_KEY}
        yield Copied(folder, server, place, options | keys)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])


def test_it_is_the_table_that_the_folder_is(copied: Copied, tmp_path: Path) -> None:
    expected = in_order(read_table(topic="base", store=copied.folder))
    assert expected.num_rows == 120
    assert in_order(copied.read()) == expected
    middle = datetime.fromtimestamp(expected["storeTime"][30].as_py().timestamp(), UTC)
    for how in (
        {"tags": "B"},
        {"start": middle, "columns": ["queueId", "queueOffset"]},
        {"start": {MessageQueue("base", "broker-a", 0): 59, MessageQueue("base", "broker-a", 1): 58}},
        {"topic": None, "topicPattern": "ba.*", "key": "none"},
    ):
        given = {"topic": "base", **how}
        assert in_order(copied.read(**given)) == in_order(read_table(store=copied.folder, **given))
    both = copied.read(store=[Path(copied.options["store"]), str(copied.folder)], brokerName="far,near")
    assert sorted(both["broker"].to_pylist()) == ["far"] * 120 + ["near"] * 120
    # An export notes what it is of, without the key.
    given = {"topic": "base", **copied.options}
    assert export_topic(given, tmp_path / "base.jsonl").rows == 120
    assert SECRET_KEY not in repr(prepared(given).options.store)


def test_what_is_wrong_is_told_in_one_line(copied: Copied) -> None:
    for how, error, text in (
        ({"topic": "other"}, ConfigError, "no topic 'other' in s3://bucket/deep/tier/.*; there are: base"),
        (
            {"store": "s3://bucket/deep/elsewhere"},
            ConfigError,
            "no topic 'base' in s3://bucket/deep/e.*: none .*HASH",
        ),
        ({"object_store_endpoint": "http://127.0.0.1:1"}, StoreError, "cannot list bucket/deep/tier/.*"),
        ({"store": "s3a://"}, ConfigError, "option store: s3a://: s3://BUCKET/FOLDER is needed"),
        ({"store": f"s3a://k:{SECRET_KEY[:5]}@bucket/x"}, ConfigError, "option store: bucket/x: s3://BUCKET/FOLDER"),
        ({"store_path_commit_log": "/x"}, ConfigError, "option storePathCommitLog is for a store's folder"),
        ({"object_store_secret_key": ""}, ConfigError, "objectStoreAccessKey and objectStoreSecretKey belong"),
        ({"store": str(copied.folder)}, ConfigError, "option objectStoreEndpoint goes with a store s3://"),
        ({"store": None, "namesrv": "127.0.0.1:1"}, ConfigError, "option objectStoreEndpoint goes with option store"),
    ):
        with pytest.raises(error, match=text) as told:
            copied.read(**how)
        assert SECRET_KEY not in str(told.value)
        assert "\n" not in str(told.value)


def test_what_goes_while_it_is_read_is_told(copied: Copied) -> None:
    """The broker's retention removes the oldest segment of a queue between the plan and the read."""
    made = prepared({"topic": "base", **copied.options})
    options = made.options
    assert options.store is not None
    stores = store_read.Stores(options.store, options)
    (queue,) = [q for q in stores.queues(["base"]) if q.queue_id == 1]
    bounds = stores.bounds([queue])
    (part,) = store_read.plan(stores, {queue: 0}, {queue: bounds[queue].next}, options)
    stores.close()
    folder = f"s3://bucket/deep/tier/{BROKER}/base/1/COMMIT_LOG"
    segments = copied.place.segments(folder)
    oldest = min(segments.sizes(""), key=lambda found: found[0][8:])[0]
    segments.remove(oldest)
    with pytest.raises(DataLost, match=r"messages 0 to \d+ of queue 1 .*deleted"):
        list(store_read.read_partition(part, made.columns, options))
    kept = list(store_read.read_partition(part, made.columns, options._replace(fail_on_data_loss=False)))
    offsets = [offset for batch in kept for offset in batch.column("queueOffset").to_pylist()]
    assert offsets
    assert offsets == list(range(offsets[0], 60))
    assert offsets[0] > 0
