"""Which replica a broker is, under a controller: a name and a number given once. Rule: written before it is used.

Two files in RocketMQ's format: the number applied for, with the code that proves who applied, then the number granted.
A kill between any two writes leaves a broker that finds its own number again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import NamedTuple

from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.store.files import config_files
from rocketspark.store.files.system_calls import OsFiles, failure, remove_file

log = logging.getLogger("rocketspark.broker.replication")


class Applied(NamedTuple):
    """A number that this broker applied for. `check_code`: "address;ms", by which it proves that it applied."""

    broker_id: int
    check_code: str


def identity_of(settings: BrokerSettings) -> BrokerIdentity:
    """Return the identity of a broker with these settings. Raises ConfigError."""
    path = settings.identity_file or f"{settings.store_root}/brokerIdentity"
    return BrokerIdentity(path, settings.cluster_name, settings.broker_name)


class BrokerIdentity:
    """The identity files of one broker. Raises ConfigError where a file is another broker's or cannot be understood."""

    def __init__(self, path: str, cluster: str, broker_name: str, files: OsFiles | None = None) -> None:
        self._path = path
        self._temp = f"{path}-temp"
        self._cluster = cluster
        self._name = broker_name
        self._files = files or OsFiles()
        if "#" in cluster or "#" in broker_name:
            raise ConfigError(
                f"brokerName {shown(broker_name)!r} of {shown(cluster)!r}: no # may be in either, it parts them in"
                f" {path}"
            )

    def granted(self) -> int | None:
        """Return this broker's number; None if it has none yet, or if a kill cut its file off."""
        try:
            words = self._words(self._path, 3)
            return None if words is None else self._number(self._path, words[2])
        except ConfigError:
            if os.path.exists(self._temp):
                return None
            raise

    def applied(self) -> Applied | None:
        """Return the number applied for before, which may be granted or not; None if there is none."""
        try:
            words = self._words(self._temp, 4)
            if words is not None and words[3]:
                return Applied(self._number(self._temp, words[2]), words[3])
        except ConfigError:
            pass
        # Cut off by a kill: it was not applied for yet.
        self.forget_applied()
        return None

    def outlives(self, store_root: str) -> bool:
        """Tell whether there is a number whose file lies outside the store, so that it outlives a lost store."""
        return self.granted() is not None and not Path(self._path).resolve().is_relative_to(Path(store_root).resolve())

    def check(self) -> None:
        """Raise ConfigError if a number could not be written. Removes an application that a kill cut off."""
        self.applied()
        folder = os.path.dirname(self._path) or "."
        if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"{self._path} cannot be written: make {folder} writable to the broker")

    def give_up(self, why: str) -> None:
        """Give up this broker's number, because its log lacks what it held.

        It gets a new number and joins like an empty broker. With its old number it could be elected, as a
        replica that held all that was acknowledged, and the others' logs would be cut to its own. Raises
        StoreUnwritable.
        """
        known = self.granted()
        self.forget_applied()
        remove_file(self._path)
        try:
            self._files.sync_directory(os.path.dirname(self._path) or ".")
        except OSError as e:
            raise failure(e, "remove", self._path) from e
        if known is not None:
            log.error(
                "%s: as replica %d of %s it could be elected, and the others' logs be cut like its own; it asks for a"
                " new number and copies from a master. Where no other replica can be master enable the controller's"
                " enableElectUncleanMaster for a moment, to go on with the longest log that is left",
                why,
                known,
                self._name,
            )

    def apply(self, applied: Applied) -> None:
        """Write down a number before the controller is asked for it. Raises StoreFull, StoreUnwritable."""
        self._write(self._temp, f"{self._cluster}#{self._name}#{applied.broker_id}#{applied.check_code}")

    def grant(self, broker_id: int) -> None:
        """Write down the number that the controller granted. Raises StoreFull, StoreUnwritable."""
        self._write(self._path, f"{self._cluster}#{self._name}#{broker_id}")
        self.forget_applied()

    def forget_applied(self) -> None:
        """Forget the number applied for: it is another broker's, or it has been granted."""
        remove_file(self._temp)

    def _write(self, path: str, text: str) -> None:
        config_files.write(path, text, self._files, keep_before=False)

    def _words(self, path: str, count: int) -> list[str] | None:
        try:
            text = Path(path).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
        words = text.split("#")
        if len(words) != count:
            raise ConfigError(
                f"{path} is no identity of a broker: put it right (cluster#brokerName#id), or remove it to get a new"
                " number"
            )
        if words[:2] != [self._cluster, self._name]:
            raise ConfigError(
                f"{path} is that of {shown('#'.join(words[:2]))}, not of {self._cluster}#{self._name}: give the broker"
                " the cluster and name it had, or another store"
            )
        return words

    @staticmethod
    def _number(path: str, text: str) -> int:
        number = whole_number(text, low=1, high=INT_MAX)
        if number is None:
            raise ConfigError(f"{path} gives no number above 0 but {shown(text, characters_max=40)!r}: put it right")
        return number
