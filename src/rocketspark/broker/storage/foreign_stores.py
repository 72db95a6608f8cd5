"""What of a store a RocketMQ broker kept in a form that nothing here reads, RocksDB or DLedger: no start on it.

Facts: 5.5.0's folders with storeType=defaultRocksDB, useSingleRocksDBForAllConfigs, configManagerVersion=v2,
timerRocksDBEnable, transRocksDBEnable with transWriteOriginTransHalfEnable=false, popConsumerKVServiceEnable, and
enableDLegerCommitLog. Queues that are not in files are made again from the log.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rocketspark.broker import topic_names
from rocketspark.errors import ConfigError

# Topics, groups and offsets have a folder each, or one together; rdb is that of version 2.
_TABLES = ("topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb")
_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"


def check_store(root: str) -> None:
    """Raise ConfigError, with what to do, if this store has something in a RocksDB that would be missing here."""
    store = Path(root)
    pops, queues, engine = store / "kvStore", store / "consumequeue", store / "rocksdbstore"
    if _written_at(pops):
        raise ConfigError(
            f"{pops} holds popped messages in a RocksDB, which is not supported: run the Java broker on the store once"
            " with popConsumerKVServiceInit=true and popConsumerKVServiceEnable=false until they are in its log, then"
            " remove the folder"
        )
    _check_tables(store / "config")
    for folder in store.glob("dledger-*"):
        raise ConfigError(
            f"{folder} holds the log in DLedger's form, which is not supported: write its topics into files with"
            " `rocketspark export` while the Java brokers run, and send them to a new store with `rocketspark import`"
        )
    if (queues / _HALF_TOPIC).exists():
        raise ConfigError(
            f"{queues / _HALF_TOPIC} has transactions whose ends are in a RocksDB, which is not supported: run the Java"
            " broker on the store until all have ended, then remove the folder"
        )
    timers = (queues / topic_names.TIMER_TOPIC).exists() or _written_at(queues)
    if timers and not (store / "timerlog").exists() and _written_at(engine):
        raise ConfigError(
            f"{engine} may hold timer messages in a RocksDB (timerRocksDBEnable), which is not supported: remove the"
            " folder to start all the same. None is lost then, but those that were delivered come once more"
        )


def _check_tables(folder: Path) -> None:
    """Raise ConfigError if a RocksDB has newer topics, groups or offsets than the JSON files."""
    with contextlib.suppress(OSError):
        json_at = (folder / "topics.json").stat().st_mtime
        if all(_written_at(folder / name) <= json_at for name in _TABLES):
            return
    for name in _TABLES:
        if _written_at(folder / name):
            raise ConfigError(
                f"{folder / name} holds topics, groups or offsets in a RocksDB, which is not supported: have the"
                " running Java broker write JSON by `mqadmin rocksDBConfigToJson -n NAMESRV -c CLUSTER`, stop it, and"
                f" remove {', '.join(_TABLES[:-1])} from {folder}; or, as with configManagerVersion=v2 it writes none,"
                " let a slave of RocketSpark copy the broker"
            )


def _written_at(folder: Path) -> float:
    """Return when the newest file with data of a RocksDB was written, 0 if the folder has none."""
    with contextlib.suppress(OSError):
        files = [entry.stat() for entry in os.scandir(folder) if entry.name.endswith((".sst", ".log"))]
        return max((each.st_mtime for each in files if each.st_size), default=0)
    return 0
