"""broker.conf: its keys and texts to a broker's settings. Rule: a wrong value is an error that names the key."""

from __future__ import annotations

import os
from typing import Any

from rocketspark.broker import tiered_settings
from rocketspark.broker.access import settings as access_settings
from rocketspark.broker.ignored_settings import IGNORED, IGNORED_UNSET, UNKEPT_PROMISES
from rocketspark.broker.settings import FIELDS, BrokerSettings
from rocketspark.errors import ConfigError
from rocketspark.store.files import config_files
from rocketspark.transport.tls.settings import from_values, is_key

# Keys that name a place which is always below the store's folder (rule: StorePathConfigHelper, 5.5.0).
_FIXED_PLACES = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}


def read_broker_conf(
    path: str | os.PathLike[str], given: dict[str, str] | None = None
) -> tuple[BrokerSettings, list[str]]:
    """Return (settings, warnings) of a broker.conf, keys in `given` over its own.

    Raises ConfigError if it cannot be read or a value is wrong.
    """
    values = config_files.read_settings(path) | (given or {})
    try:
        settings, unknown = settings_from(values)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from e
    settings.conf_path = str(path)
    warnings = [f"{path}: unknown key {key!r} is ignored" for key in unknown]
    for key, name in _FIXED_PLACES.items():
        place = f"{settings.store_root}/{name}"
        if values.get(key) and os.path.abspath(values[key]) != os.path.abspath(place):
            warnings.append(f"{path}: {key} has no effect, as in RocketMQ: its place is {place} (storePathRootDir)")
    return settings, warnings


def settings_from(values: dict[str, str]) -> tuple[BrokerSettings, list[str]]:
    """Return (settings, unknown keys) for keys and texts of a broker.conf. Raises ConfigError naming a wrong value."""
    taken, ignored, unknown = convert(values)
    tls = from_values({key: value for key, value in values.items() if is_key(key) and key not in FIELDS})
    access = access_settings.from_values({k: value for k, value in values.items() if access_settings.is_key(k)})
    settings = BrokerSettings(
        **taken, ignored=ignored, tls=tls, access=access, tier=tiered_settings.from_values(values)
    )
    settings.check()
    return settings, unknown


def convert(values: dict[str, str]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """Return (fields and their values, keys without effect, unknown keys). Raises ConfigError naming a wrong value."""
    taken: dict[str, Any] = {}
    ignored: dict[str, str] = {}
    unknown = []
    for key, value in values.items():
        # RocketMQ wrote both spellings over the years.
        name = key if key in FIELDS or key in IGNORED else key.replace("mapedFile", "mappedFile")
        declared = FIELDS.get(name)
        if declared is None:
            if is_key(key) or access_settings.is_key(key) or key in tiered_settings.KEYS:
                continue
            if name in IGNORED or name in UNKEPT_PROMISES:
                ignored[name] = value
            elif name not in IGNORED_UNSET:
                unknown.append(key)
            continue
        taken[declared.name] = declared.value_of(value, key)
    return taken, ignored, unknown
