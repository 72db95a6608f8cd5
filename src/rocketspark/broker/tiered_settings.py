"""The settings of the second tier, by RocketMQ's keys (MessageStoreConfig of its tieredstore, 5.5.0); two are ours.

Rule: a provider or a path that RocketSpark does not have refuses to start.
"""

from __future__ import annotations

import re

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model.conf_lines import typed_values
from rocketspark.model.text import LONG_MAX, shown
from rocketspark.store.tiered.segments import FolderSegments, SegmentStore
from rocketspark.store.tiered.tier import HOUR_MS, TierSettings

PLUG_IN = "org.apache.rocketmq.tieredstore.TieredMessageStore"
_PROVIDERS = "org.apache.rocketmq.tieredstore.provider."
FOLDER_PROVIDER = f"{_PROVIDERS}PosixFileSegment"
# What is read from the tier: nothing, what the store has not, what lies far back in the log too, all that the tier has.
LEVELS = (DISABLE, NOT_IN_DISK, NOT_IN_MEM, FORCE) = ("DISABLE", "NOT_IN_DISK", "NOT_IN_MEM", "FORCE")


class TieredSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The settings of the second tier but for `messageStorePlugIn`, which turns it on, in BrokerSettings.

    Sizes in bytes, times in ms or hours as the names say. Ours: `tiered_store_keep_until_uploaded` (a log file stays in
    the store until all its messages are in the tier) and `tiered_store_read_cache_size`.
    """

    tiered_backend_service_provider: str = FOLDER_PROVIDER
    tiered_store_file_path: str = ""
    tiered_storage_level: str = NOT_IN_DISK
    tiered_store_commit_log_max_size: int = 1 << 30
    tiered_store_consume_queue_max_size: int = 100 << 20
    tiered_store_index_file_max_hash_slot_num: int = 5_000_000
    tiered_store_index_file_max_index_num: int = 20_000_000
    tiered_store_delete_file_enable: bool = True
    tiered_store_file_reserved_time: int = 72
    tiered_store_delete_file_interval: int = HOUR_MS
    commit_log_rolling_interval: int = 24
    commit_log_rolling_minimum_size: int = 16 << 20
    tiered_store_group_commit_timeout: int = 30_000
    tiered_store_group_commit_count: int = 4096
    tiered_store_group_commit_size: int = 4 << 20
    tiered_store_keep_until_uploaded: bool = True
    tiered_store_read_cache_size: int = 64 << 20
    object_store_endpoint: str = ""
    object_store_access_key: str = ""
    object_store_secret_key: str = ""

    def __repr__(self) -> str:
        return "TieredSettings(…)"

    def check(self) -> None:
        """Raise ConfigError for what RocketSpark's tier cannot do."""
        provider, path, level = (
            self.tiered_backend_service_provider,
            self.tiered_store_file_path,
            self.tiered_storage_level,
        )
        if provider != FOLDER_PROVIDER:
            raise ConfigError(f"tieredBackendServiceProvider={shown(provider)!r}: {FOLDER_PROVIDER} is known")
        if "://" in path and not re.match("s3a?://[^/]", path):
            raise ConfigError(f"tieredStoreFilePath={shown(path)!r}: a folder or s3://BUCKET/FOLDER is needed")
        if bool(self.object_store_access_key) != bool(self.object_store_secret_key):
            raise ConfigError("objectStoreAccessKey and objectStoreSecretKey go together: set both, or none")
        if level not in LEVELS:
            raise ConfigError(f"tieredStorageLevel={shown(level)!r}: {', '.join(LEVELS[:-1])} or {FORCE} is needed")

    def segments(self) -> SegmentStore:
        """Open the place where the tier lies. Raises ConfigError."""
        path = self.tiered_store_file_path
        if "://" not in path:
            return FolderSegments(path)
        from rocketspark.store.tiered.object_segments import object_segments

        endpoint = self.object_store_endpoint
        return object_segments(path, endpoint, self.object_store_access_key, self.object_store_secret_key)

    def tier(self, root: str, cluster: str, broker: str, *, index_enabled: bool) -> TierSettings:
        """Return how the tier of a broker is laid out. `root`: its store's folder."""
        return TierSettings(
            root=root,
            cluster=cluster,
            broker=broker,
            log_bytes=self.tiered_store_commit_log_max_size,
            queue_bytes=self.tiered_store_consume_queue_max_size,
            roll_ms=self.commit_log_rolling_interval * HOUR_MS,
            roll_bytes=self.commit_log_rolling_minimum_size,
            index_slots=self.tiered_store_index_file_max_hash_slot_num,
            index_entries=self.tiered_store_index_file_max_index_num,
            index_enabled=index_enabled,
        )


KEYS = {field.encode_name: field for field in msgspec.structs.fields(TieredSettings)}
# What a lower number would harm.
_LOWEST = {
    "tieredStoreCommitLogMaxSize": 4096,
    "tieredStoreConsumeQueueMaxSize": 20,
    "tieredStoreIndexFileMaxHashSlotNum": 1,
    "tieredStoreIndexFileMaxIndexNum": 2,
    "tieredStoreDeleteFileInterval": 100,
    "tieredStoreGroupCommitCount": 1,
    "tieredStoreGroupCommitSize": 1,
}


def from_values(values: dict[str, str]) -> TieredSettings:
    """Return the settings in a broker.conf's keys, others left out. Raises ConfigError naming the key that is wrong."""
    settings = TieredSettings(**typed_values(KEYS, values, _LOWEST, LONG_MAX // HOUR_MS))
    settings.check()
    return settings
