"""Stores of which RocketMQ's broker kept a part in a RocksDB, or by DLedger: no broker starts on them without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketspark.broker.storage.foreign_stores import check_store
from rocketspark.errors import ConfigError

pytestmark = pytest.mark.shows("a Java store with a part in RocksDB is refused with one line")


def a_rocksdb(folder: Path, name: str = "000008.sst") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CURRENT").write_text("MANIFEST-000004\n")
    (folder / "000005.log").write_bytes(b"")
    (folder / name).write_bytes(b"x")


def a_json(store: Path, at: float) -> None:
    path = store / "config" / "topics.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    os.utime(path, (at, at))


def test_pops(tmp_path: Path) -> None:
    check_store(str(tmp_path))
    a_rocksdb(tmp_path / "kvStore")
    with pytest.raises(ConfigError, match="kvStore holds popped messages in a RocksDB"):
        check_store(str(tmp_path))
    (tmp_path / "kvStore" / "000008.sst").write_bytes(b"")
    check_store(str(tmp_path))


@pytest.mark.parametrize("name", ["topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb"])
def test_topics_groups_and_offsets(tmp_path: Path, name: str) -> None:
    a_rocksdb(tmp_path / "config" / name, "000029.log")
    with pytest.raises(ConfigError, match=f"config/{name} holds topics, groups or offsets in a RocksDB"):
        check_store(str(tmp_path))


def test_tables_of_which_json_is_newer_are_left_alone(tmp_path: Path) -> None:
    a_rocksdb(tmp_path / "config" / "topics")
    at = (tmp_path / "config" / "topics" / "000008.sst").stat().st_mtime
    a_json(tmp_path, at - 1)
    with pytest.raises(ConfigError, match="rocksDBConfigToJson"):
        check_store(str(tmp_path))
    a_json(tmp_path, at + 1)
    check_store(str(tmp_path))


def test_half_messages(tmp_path: Path) -> None:
    (tmp_path / "consumequeue" / "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC" / "0").mkdir(parents=True)
    with pytest.raises(ConfigError, match="transactions whose ends are in a RocksDB"):
        check_store(str(tmp_path))


@pytest.mark.parametrize("queues", ["files", "rocksdb"])
def test_timers(tmp_path: Path, queues: str) -> None:
    a_rocksdb(tmp_path / "rocksdbstore")  # Keys and transactions may be there, too.
    check_store(str(tmp_path))
    if queues == "files":
        (tmp_path / "consumequeue" / "rmq_sys_wheel_timer" / "0").mkdir(parents=True)
    else:
        a_rocksdb(tmp_path / "consumequeue")
    with pytest.raises(ConfigError, match="rocksdbstore may hold timer messages"):
        check_store(str(tmp_path))
    (tmp_path / "timerlog").mkdir()
    check_store(str(tmp_path))


def test_a_log_of_dledger(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    with pytest.raises(ConfigError, match="dledger-n0 holds the log in DLedger's form"):
        check_store(str(tmp_path))
