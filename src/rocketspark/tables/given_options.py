"""Options of format("rocketmq") as they were given, with a getter for each kind of value. Rule: a getter names the
option in its error. A name that nearly is one of ours is a mistake; names of others are ignored.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, overload

from rocketspark.client import validators
from rocketspark.client.connection.credentials import read_secret
from rocketspark.errors import ConfigError, FilterIllegal, MessageIllegal, StoreError
from rocketspark.filters import sql92
from rocketspark.model.text import INT_MAX, shown, whole_number
from rocketspark.tables.client_access import Access
from rocketspark.tables.option_values import (
    COMMITTED,
    EARLIEST,
    LATEST,
    Assigned,
    AtTime,
    AtTimes,
    Where,
    check_offsets,
    check_pattern,
    duration_ms,
    json_option,
    parse_assigned,
    time_ms,
)
from rocketspark.transport.connections import parse_addresses
from rocketspark.transport.tls.client_tls import ClientTls, client_tls

if TYPE_CHECKING:
    from rocketspark.store.readonly.file_places import ObjectStore

# Options of TLS that are texts as they stand.
TLS_TEXTS = ("tlsCa", "tlsCert", "tlsKey", "tlsKeyPassword", "tlsVerify", "tlsServerName")
OBJECT_STORE_NAMES = (
    *("objectStoreEndpoint", "objectStoreAccessKey"),
    *("objectStoreSecretKey", "objectStoreSecretKeyFile"),
)
# Spark hands these on too.
_SPARK_NAMES = ("path", "checkpointLocation", "queryName")
# Lower-case names of options of Spark's Kafka connector that would change the read or write, and their names here.
_KAFKA_NAMES = {
    "kafka.bootstrap.servers": "namesrv",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "kafka.group.id": "consumerGroup",
    "kafka.transactional.id": "transactionalId",
}
# A hint for errors: Spark drops the options of a table of its catalog.
_NONE_GIVEN = (
    "; if this is a table made with CREATE TABLE: Spark hands its options to no Python source, so make a TEMPORARY VIEW"
    " of it, or write FROM name WITH ('namesrv'='host:port', 'topic'='name')"
)


def _root(text: str) -> str:
    """Return a folder as a whole path, or as s3://BUCKET/FOLDER. Raises ConfigError."""
    from rocketspark.store.readonly.file_places import object_folder

    try:
        return object_folder(text) or os.path.abspath(text.removeprefix("file://").removeprefix("file:"))
    except StoreError as e:
        raise ConfigError(f"option store: {e}") from None


def refuse_if(*rules: tuple[object, str]) -> None:
    """Raise ConfigError with the text of the first rule whose condition is true. `rules`: conditions, each with its
    text.
    """
    if text := next((text for is_broken, text in rules if is_broken), None):
        raise ConfigError(text)


class StorePaths(NamedTuple):
    """The store directories that are read instead of brokers, a broker's name for each, and the commit logs that lie
    elsewhere. `objects`: where those are that begin with s3://.
    """

    roots: tuple[str, ...]
    broker_names: tuple[str, ...]
    commit_logs: tuple[str, ...]
    objects: ObjectStore


class GivenOptions:
    """The options of a read or write as the user gave them. `names`: those that it has; `other_names`: those that are
    known but do not matter for it.
    """

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...], other_names: tuple[str, ...]) -> None:
        self._values = {name.lower(): str(value).strip() for name, value in options.items()}
        known = {name.lower(): name for name in (*names, *other_names, *_SPARK_NAMES)}
        for name in self._values:
            if name in known:
                continue
            if name in _KAFKA_NAMES:
                raise ConfigError(
                    f"option {name!r} is one of Spark's Kafka connector; it is {_KAFKA_NAMES[name]!r} here"
                )
            # Others' options pass; a slip of the pen must not.
            if close := difflib.get_close_matches(name, known, 1, 0.8):
                raise ConfigError(f"option {name!r} is unknown; did you mean {known[close[0]]!r}?")

    def text(self, name: str, default: str) -> str:
        """Return an option's text; `default` if the option is not given, or is empty."""
        return self._values.get(name.lower(), "") or default

    def _none(self) -> str:
        """Return a hint for errors where no option was given at all."""
        return "" if self._values else _NONE_GIVEN

    @overload
    def number(self, name: str, default: int, least: int, most: int = INT_MAX) -> int: ...
    @overload
    def number(self, name: str, default: None, least: int, most: int = INT_MAX) -> int | None: ...
    def number(self, name: str, default: int | None, least: int, most: int = INT_MAX) -> int | None:
        """Return a whole number between two bounds, the default if the option is not given."""
        text = self.text(name, "")
        if not text:
            return default
        value = whole_number(text)
        if value is None and re.fullmatch("[0-9]+", text):
            value = most + 1  # More digits than any number has.
        if value is not None and value > most:
            raise ConfigError(f"option {name} is {shown(text)!r}: at most {most}")
        if value is None or value < least:
            raise ConfigError(f"option {name} is {shown(text)!r}: a whole number from {least} up is needed")
        return value

    def group(self, name: str) -> str | None:
        """Return the name of a group, None if it is not given."""
        text = self.text(name, "")
        try:
            return validators.check_group(text) if text else None
        except MessageIllegal as e:
            raise ConfigError(f"option {name}: {e}") from None

    def duration_ms(self, name: str, default: str) -> int:
        """Return a duration as Spark writes it: a number and a unit, ms where there is none."""
        return duration_ms(f"option {name}", self.text(name, default))

    def truth(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        text = self.text(name, "").lower()
        if text not in ("", "true", "false"):
            raise ConfigError(f"option {name} is {text!r}: true or false is needed")
        return text == "true" if text else default

    def namesrv(self) -> str:
        """Return the addresses of the NameServers. Raises ConfigError if none are given."""
        text = self.text("namesrv", "")
        if not text:
            raise ConfigError(
                f'option namesrv is missing: .option("namesrv", "host:port"), several with a semicolon{self._none()}'
            )
        return ";".join(parse_addresses(text))

    def several(self, name: str) -> tuple[str, ...]:
        """Return the values of an option that may have several, separated by commas."""
        return tuple(part.strip() for part in self.text(name, "").split(",") if part.strip())

    def store(self) -> StorePaths | None:
        """Return the store directories to read; None if the read is from brokers."""
        roots = tuple(map(_root, self.several("store")))
        names, logs = self.several("brokerName"), self.several("storePathCommitLog")
        if not roots:
            for name in ("brokerName", "storePathCommitLog", *OBJECT_STORE_NAMES):
                if self.text(name, ""):
                    raise ConfigError(f"option {name} goes with option store, which is missing")
            return None
        far = [root for root in roots if root.startswith("s3://")]
        if self.text("namesrv", ""):
            raise ConfigError("options store and namesrv: one reads files, the other asks servers; leave one out")
        refuse_if(
            (
                logs and far,
                "option storePathCommitLog is for a store's folder: leave it out for a tier in an object store",
            ),
            (logs and len(roots) > 1, "option storePathCommitLog is for one store: read each of several by its own"),
            (
                names and len(names) != len(roots),
                f"option brokerName has {len(names)} names for {len(roots)} stores: one for each is needed",
            ),
        )
        names = names or tuple(os.path.basename(root) for root in roots)
        if len(set(names)) < len(names):
            raise ConfigError(
                f"option store: two stores go by one broker name ({', '.join(names)}): give option brokerName, one name"
                " for each, by commas"
            )
        return StorePaths(roots, names, tuple(os.path.abspath(log) for log in logs), self._objects(bool(far)))

    def _objects(self, needed: bool) -> ObjectStore:
        from rocketspark.store.readonly.file_places import ObjectStore

        found = ObjectStore(
            self.text("objectStoreEndpoint", ""),
            self.text("objectStoreAccessKey", ""),
            self.secret("objectStoreSecretKey"),
        )
        given = next((name for name in OBJECT_STORE_NAMES if self.text(name, "")), "")
        refuse_if(
            (given and not needed, f"option {given} goes with a store s3://BUCKET/FOLDER, and there is none"),
            (
                bool(found.access_key) != bool(found.secret_key),
                "options objectStoreAccessKey and objectStoreSecretKey belong together: give both, or neither",
            ),
        )
        return found

    def access(self) -> Access:
        """Return what every connection needs: the namespace, the keys and the TLS."""
        found = Access(
            namespace=self.text("namespace", ""),
            access_key=self.text("accessKey", ""),
            secret_key=self.secret("secretKey"),
            security_token=self.text("securityToken", ""),
            tls=self._tls(),
        )
        if bool(found.access_key) != bool(found.secret_key):
            raise ConfigError("options accessKey and secretKey belong together: give both, or neither")
        if found.security_token and not found.access_key:
            raise ConfigError("option securityToken needs accessKey and secretKey: give all three")
        return found

    def secret(self, name: str) -> str:
        """Return a secret, from the option itself or from the file on the driver that its sister option names."""
        value, path = self.text(name, ""), self.text(f"{name}File", "")
        if value and path:
            raise ConfigError(f"options {name} and {name}File are both given: give one of them")
        return read_secret(path, f"option {name}File") if path else value

    def _tls(self) -> ClientTls | None:
        given = {snake_case(name): self.text(name, "") for name in TLS_TEXTS}
        given["tls_key_password"] = self.secret("tlsKeyPassword")
        uses_tls = self.truth("useTls", False)
        try:
            return client_tls(uses_tls, **given)
        except ConfigError as e:
            text = re.sub(r"\b(?:use_tls|tls_[a-z_]+)\b", lambda found: _camel(found[0]), str(e))
            raise ConfigError(f"option {text.replace('useTls=True', 'useTls=true')}") from None

    def topics(self) -> tuple[tuple[str, ...], str | None, Assigned | None]:
        """Return what is read: the topics, the pattern, or the assigned queues. Raises ConfigError unless just one of
        them is given.
        """
        named = [name for name in ("topic", "topicPattern", "assign") if self.text(name, "")]
        if len(named) > 1:
            raise ConfigError(f"options {' and '.join(named)} are given: each says what is read, so give one of them")
        if pattern := self.text("topicPattern", ""):
            return (), check_pattern(pattern), None
        if text := self.text("assign", ""):
            assigned = parse_assigned(text)
            return tuple(assigned), None, assigned
        topics = tuple(dict.fromkeys(t.strip() for t in self.text("topic", "").split(",") if t.strip()))
        if not topics:
            raise ConfigError(
                'option topic is missing: .option("topic", "name"), several with a comma; or topicPattern, or assign'
                + self._none()
            )
        return topics, None, None

    def expression(self, name: str) -> str | None:
        """Return an SQL92 filter, checked; None if it is not given."""
        text = self.text(name, "")
        try:
            return sql92.compile(text).expression if text else None
        except FilterIllegal as e:
            raise ConfigError(f"option {name}: {e}") from None

    def key(self, name: str) -> str | None:
        """Return the message key to read by; None if it is not given."""
        text = self.text(name, "")
        if len(text.split()) > 1:
            raise ConfigError(f"option {name} is {text!r}: keys hold no blank; name one key")
        return text or None

    def choice(self, name: str, *choices: str) -> str:
        """Return an option's word, which must be one of `choices`; the first of them if the option is not given."""
        text = self.text(name, choices[0]).lower()
        if text not in choices:
            raise ConfigError(f"option {name} is {text!r}: {' or '.join(choices)} is needed")
        return text

    def starting(self, default: str) -> Where:
        """Return where a read begins. If a time is given, it counts, and offsets do not, as in Spark's Kafka source."""
        strategy = self.choice("startingOffsetsByTimestampStrategy", LATEST, "error")
        if at := self.time("startingTimestamp") or self.times("startingOffsetsByTimestamp"):
            return at._replace(strict=strategy == "error")
        return self.where("startingOffsets", default)

    def ending(self) -> Where:
        """Return where a read ends. If a time is given, it counts, and offsets do not."""
        at = self.time("endingTimestamp") or self.times("endingOffsetsByTimestamp")
        return at or self.where("endingOffsets", LATEST)

    def time(self, name: str) -> AtTime | None:
        """Return an option's time, which is for all queues; None if it is not given."""
        text = self.text(name, "")
        return AtTime(time_ms(f"option {name}", text)) if text else None

    def times(self, name: str) -> AtTimes | None:
        """Return an option's table of times by queue; None if it is not given."""
        text = self.text(name, "")
        needed = (
            'JSON with ms since 1970 for each queue, such as {"topic": {"broker-a": {"0": 1767225600000}}}, is needed'
        )
        return AtTimes(json_option(name, text, partial(check_offsets, least=0), needed)) if text else None

    def where(self, name: str, default: str) -> Where:
        """Return an option's word, such as earliest, or its table of offsets by queue."""
        text = self.text(name, default)
        if text.lower() in (EARLIEST, LATEST, COMMITTED):
            return text.lower()
        example = '{"topic": {"broker-a": {"0": 12, "1": -1}}} is needed (-2 earliest, -1 latest)'
        return json_option(name, text, check_offsets, f"earliest, latest, committed or JSON such as {example}")


def snake_case(name: str) -> str:
    """Return an option's name as the name of an argument: access_key for accessKey."""
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _camel(name: str) -> str:
    return re.sub("_([a-z])", lambda found: found[1].upper(), name)
