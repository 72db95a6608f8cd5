"""Settings changed while the broker runs. Rule: all of a change takes effect, or nothing of it does.

Rules of 5.5.0 (AdminBrokerProcessor, Configuration): keys of configBlackList are refused, keys that no RocketMQ knows
are passed over. Unlike there a wrong value is refused, and so is a key that would only take effect after a restart.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rocketspark.broker import tiered_settings
from rocketspark.broker.access import settings as access_settings
from rocketspark.broker.broker_conf import convert
from rocketspark.broker.declared_settings import Hearer
from rocketspark.broker.ignored_settings import IGNORED
from rocketspark.broker.settings import FIELDS, BrokerSettings
from rocketspark.broker.storage.json_tables import next_version
from rocketspark.errors import ConfigError, ServerError
from rocketspark.model.conf_lines import parse_request, setting_name
from rocketspark.model.limited_log import LimitedLog
from rocketspark.protocol.codes import ResponseCode
from rocketspark.protocol.json.bodies import DataVersion
from rocketspark.store.files import config_files
from rocketspark.transport.tls.settings import is_key

log = LimitedLog("rocketspark.broker")


class LiveSettings:
    """The settings of a running broker, shown and changed by RocketMQ's names.

    `actual`: keys and values that only the running broker knows, e.g. the port it was given; `hearers`: by part of the
    broker, what is called after a change of a setting that the part wants to hear of.
    """

    def __init__(
        self, settings: BrokerSettings, actual: dict[str, str], hearers: dict[Hearer, Callable[[], None]]
    ) -> None:
        assert hearers.keys() >= {hearer for setting in FIELDS.values() for hearer in setting.live or ()}
        self._settings = settings
        self._actual = actual
        self._hearers = hearers
        self.version = DataVersion()

    def properties(self) -> dict[str, str]:
        """Return every key with its value."""
        return self._settings.properties() | self._actual

    def document(self) -> str:
        """Return all keys with their values as lines `key=value`."""
        return "".join(f"{key}={value}\n" for key, value in self.properties().items())

    def update(self, text: str) -> list[str]:
        """Change the settings that `text` names in lines of key=value; returns the keys that no RocketMQ knows.

        Raises ServerError 16 for a key that may not be changed, 29 for a wrong value or a key that needs a restart.
        """
        try:
            values = parse_request(text)
            barred = set(self._settings.fixed_keys.split(";"))
            if not barred.isdisjoint(values):
                raise ServerError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
            for key in values:
                is_of_part = is_key(key) or access_settings.is_key(key) or key in tiered_settings.KEYS
                if is_of_part and key not in FIELDS:
                    raise ConfigError(f"{key} cannot change while the broker runs")
            taken, ignored, unknown = convert(values)
            changed = self._changed(taken)
            self._check(taken, ignored)
        except ConfigError as e:
            raise ServerError(ResponseCode.INVALID_PARAMETER, str(e)) from e
        if unknown:
            log.warning(
                "settings that RocketMQ does not know are passed over: %s", ", ".join(map(setting_name, unknown))
            )
        for key in changed:
            setattr(self._settings, FIELDS[key].name, taken[FIELDS[key].name])
            log.info("%s is %s now", key, values.get(key, taken[FIELDS[key].name]))
        self._settings.ignored.update(ignored)
        # One that hears of several of them is told once.
        for hearer in dict.fromkeys(hearer for key in changed for hearer in FIELDS[key].live or ()):
            self._hearers[hearer]()
        if changed or ignored:
            self.version = next_version(self.version)
            shown = self.properties()
            # Those without a value are not shown.
            self._persist({key: shown.get(key, "") for key in [*changed, *ignored]})
        return unknown

    def _changed(self, taken: dict[str, object]) -> list[str]:
        """Return the keys whose value is another one. Raises ConfigError for one that needs a restart."""
        changed = []
        for key, field in FIELDS.items():
            if field.name not in taken or taken[field.name] == getattr(self._settings, field.name):
                continue
            if str(taken[field.name]) == self._actual.get(key):
                continue
            if field.live is None:
                raise ConfigError(
                    f"{key} cannot change while the broker runs; set it in broker.conf and start the broker again"
                )
            changed.append(key)
        return changed

    def _check(self, taken: dict[str, object], ignored: dict[str, str]) -> None:
        candidate = msgspec.structs.replace(self._settings, ignored=self._settings.ignored | ignored, **taken)
        candidate.check()

    def _persist(self, values: dict[str, str]) -> None:
        """Put the values into the file that the settings came from; its other lines stay as they are."""
        path = self._settings.conf_path
        if not path:
            log.info("the broker has no broker.conf (-c): the change lasts until it stops")
            return
        config_files.keep_settings(path, values, until="the broker stops", key_of=_key_of)


def _key_of(name: str) -> str:
    return name if name in FIELDS or name in IGNORED else name.replace("mapedFile", "mappedFile")
