"""What clients saw and what stores hold at the end, as values. Rule: nothing here judges; `checker` does.

An operation is noted when it ends, with the time it began. What has no end (its client died) may have happened or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rocketspark.protocol.message import record, sysflags
from rocketspark.store.readonly.log_scan import LogScan

Place = tuple[str, int, int]


class Sent(NamedTuple):
    """A send: which bodies, and what the client was told. `status` is a SendStatus, or "" with an `error`.

    `place`: topic, queue and offset of the first; `position`: in the log of `host`. `attempts`: how often a client may
    have sent it.
    """

    way: str
    client: str
    bodies: tuple[str, ...]
    began_s: float
    ended_s: float
    status: str
    place: Place | None = None
    host: str = ""
    position: int = -1
    key: str = ""
    attempts: int = 1
    due_ms: int = 0
    handle: str = ""
    error: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == "SEND_OK"


class Ended(NamedTuple):
    """A transaction's end: what its producer decided, and when it said so the first time."""

    body: str
    outcome: str
    at_s: float


class Recalled(NamedTuple):
    """A timer message that was taken back. `is_ok`: the broker said so."""

    body: str
    began_s: float
    ended_s: float
    is_ok: bool


class Read(NamedTuple):
    """A message that a consumer was given. `session`: one holding of the queue by one consumer, in order."""

    how: str
    group: str
    client: str
    session: str
    body: str
    place: Place
    at_s: float
    asked_s: float
    times: int = 0
    invisible_s: float = 0.0
    now_ms: int = 0


class Acked(NamedTuple):
    """A popped message that was acknowledged, or whose invisible time was changed (`invisible_s` from then on)."""

    group: str
    body: str
    began_s: float
    ended_s: float
    is_ok: bool
    invisible_s: float | None = None


class Committed(NamedTuple):
    """What a group had committed for a queue when it was asked for."""

    group: str
    topic: str
    queue: int
    offset: int
    at_s: float


class Stored(NamedTuple):
    """A record of a log."""

    position: int
    topic: str
    queue: int
    offset: int
    body: str
    stored_ms: int = 0


class History(NamedTuple):
    """All of a run. `logs`: of each broker, where its log begins, and its bytes; `stored`: its records."""

    sent: list[Sent]
    ended: list[Ended]
    recalled: list[Recalled]
    reads: list[Read]
    acked: list[Acked]
    committed: list[Committed]
    faults: list[dict[str, Any]]
    troubles_s: list[float]
    # From when to when something was wrong, on which machine, and what.
    troubles: list[tuple[float, float, str, str]]
    # From when to when a clock stood, and on which machine: no trouble.
    stands: list[tuple[float, float, str]]
    # What parts of a run note, by its kind.
    more: dict[str, list[Any]]
    logs: dict[str, tuple[int, bytes]]
    stored: dict[str, list[Stored]]
    settled_s: float = 0.0
    faults_end_s: float = 0.0


_KINDS: dict[str, type[Any]] = {
    "sent": Sent,
    "ended": Ended,
    "recalled": Recalled,
    "read": Read,
    "acked": Acked,
    "committed": Committed,
}
KindT = TypeVar("KindT", bound=type[Any])


def kind(value_type: KindT) -> KindT:
    """Have values of a type of a part read back, as `History.more`."""
    _KINDS[value_type.__name__.lower()] = value_type
    return value_type


def noted(value: Any) -> dict[str, Any]:
    """Return the fields of a value for `World.record`, with its kind under `what`."""
    return {"what": type(value).__name__.lower(), **value._asdict()}


def gather(lines: Iterable[dict[str, Any]], stores: dict[str, Path]) -> History:
    """Return the history of the lines that were noted, and of the stores as they are."""
    found: dict[str, list[Any]] = {name: [] for name in _KINDS}
    faults, troubles_s = [], []
    troubles: list[tuple[float, float, str, str]] = []
    under_way: dict[tuple[str, str], list[float]] = {}
    ends: dict[str, float] = {}
    stands: list[tuple[float, float, str]] = []
    for line in lines:
        if line["kind"] == "saw":
            kind = _KINDS[line["what"]]
            fields = {name: line[name] for name in kind._fields}
            if fields.get("place") is not None:
                fields["place"] = tuple(fields["place"])
            found[line["what"]].append(kind(**fields))
        elif line["kind"] in ("fault", "kill", "power loss", "mended", "ready"):
            troubles_s.append(line["t"])
            if line["kind"] == "fault":
                faults.append(line)
                under_way.setdefault((line["what"], line["node"]), []).append(line["t"])
            elif line["kind"] == "mended" and (began := under_way.get((line["what"], line["node"]))):
                troubles.append((began.pop(0), line["t"], line["node"], line["what"]))
            elif line["kind"] != "ready" or troubles:
                # Servers begin, too.
                troubles.append((line["t"], line["t"], line["node"], line["kind"]))
        elif line["kind"] == "stood":
            stands.append((line["began_s"], line["t"], line["node"]))
        elif line["kind"] in ("faults end", "settled"):
            ends[line["kind"]] = line["t"]
    until_s = ends.get("faults end", 1e9)
    troubles += [(begin, max(begin, until_s), name, what) for (what, name), left in under_way.items() for begin in left]
    logs = {name: log_of(path) for name, path in stores.items()}
    return History(
        sent=found["sent"],
        ended=found["ended"],
        recalled=found["recalled"],
        reads=found["read"],
        acked=found["acked"],
        committed=found["committed"],
        faults=faults,
        troubles_s=troubles_s,
        troubles=troubles,
        stands=stands,
        more={name: values for name, values in found.items() if name not in History._fields},
        logs=logs,
        stored={name: list(records_of(path)) for name, path in stores.items()},
        settled_s=ends.get("settled", 0.0),
        faults_end_s=ends.get("faults end", 0.0),
    )


def log_of(store: Path) -> tuple[int, bytes]:
    """Return where the log begins, and its bytes up to the end of its last whole record."""
    scan = LogScan([str(store / "commitlog")])
    for _ in scan.scan(scan.min_position, 1 << 62):
        pass
    first = scan.min_position
    return first, bytes(scan.read(first, scan.end_found - first)) if scan.end_found > first else b""


def ends_of(stores: dict[str, Path]) -> set[int]:
    """Return where the logs end: one position once no replica lacks anything."""
    return {first + len(log) for first, log in map(log_of, stores.values())}


def records_of(store: Path) -> Iterable[Stored]:
    """Yield the messages of a log, in the order of their records."""
    scan = LogScan([str(store / "commitlog")])
    for found in scan.scan(scan.min_position, 1 << 62):
        content = bytes(scan.read(found.position, found.size))
        one = record.decode(content)
        place = one.position, one.topic.decode(), one.queue_id
        if one.sys_flag & sysflags.INNER_BATCH:
            for each in record.decode_messages(content):
                yield Stored(*place, each.queue_offset, each.body.decode("utf-8", "replace"), one.store_time_ms)
        else:
            yield Stored(*place, one.queue_offset, one.body.decode("utf-8", "replace"), one.store_time_ms)
