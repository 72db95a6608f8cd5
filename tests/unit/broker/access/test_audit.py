"""The audit: what stands in a line, what never does, what a flood or a full disk costs."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.support.stand_ins import like

from rocketspark.access import audit as audit_module
from rocketspark.access.audit import (
    LINES_MAX,
    LINES_OF_HOST_MAX,
    PERIOD_S,
    SUMMED_MAX,
    Audit,
    AuditFile,
    Check,
    Decision,
    request_name,
)
from rocketspark.broker.access.audit import CHANGES, what
from rocketspark.errors import ServerError, StoreUnwritable
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import NoHeader, Request, TopicHeader
from rocketspark.protocol.headers.admin import SubjectHeader, UserHeader
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

NOON_MS = 1_700_000_000_123
DENIED = Decision(
    Check.AUTHORIZATION,
    "User:alice",
    "10.0.0.7:4711",
    310,
    "Topic:orders",
    ("Pub",),
    allowed=False,
    rule="Custom Topic:orders Deny",
    remark="User:alice has no permission to access Topic:orders from 10.0.0.7, the decision is deny.",
)
ALLOWED = Decision(Check.AUTHORIZATION, "User:root", "10.0.0.7:4711", 17, "", (), allowed=True, rule="super user")


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class Sender:
    address = "10.0.0.7:4711"


def made(path: Path, clock: Clock | None = None, **more: Any) -> Audit:
    return Audit(
        {"broker": "broker-a"},
        path,
        changes=CHANGES,
        what=what,
        wall_ms=lambda: NOON_MS,
        now_s=clock or Clock(),
        **more,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_refusal_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = made(path)
    audit.decided(DENIED)
    audit.decided(ALLOWED)
    audit.close()
    assert lines(path) == [
        {
            "time": "2023-11-14T22:13:20.123Z",
            "broker": "broker-a",
            "event": "refused",
            "user": "alice",
            "from": "10.0.0.7:4711",
            "request": "SEND_MESSAGE_V2",
            "code": 310,
            "resource": "Topic:orders",
            "actions": ["Pub"],
            "check": "authorization",
            "rule": "Custom Topic:orders Deny",
            "outcome": "refused",
            "remark": "User:alice has no permission to access Topic:orders from 10.0.0.7, the decision is deny.",
        }
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert audit.refusals == {(Check.AUTHORIZATION, 310): 1}
    assert audit.lines == {"written": 1, "left_out": 0, "lost": 0}


def test_text_of_a_stranger_moves_no_terminal_and_makes_no_second_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = made(path)
    audit.decided(DENIED._replace(subject="User:a\n\x1b[31m\u202e" + "x" * 9000, resource="Topic:\x9b\u2028"))
    audit.close()
    (line,) = path.read_text().splitlines()
    assert line.isprintable()
    assert len(line) < 1500
    assert json.loads(line)["user"].startswith("a\\n\\x1b[31m\\u202exxx")


def test_a_logger_of_its_own_hears_each_line(tmp_path: Path) -> None:
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())
            raise OSError("this handler is broken")

    own, ear = logging.getLogger("rocketspark.audit"), Ear()
    level = own.level
    own.addHandler(ear)
    own.setLevel(logging.INFO)
    try:
        audit = made(tmp_path / "audit.log")
        audit.decided(DENIED)
        audit.decided(DENIED)
        audit.close()
    finally:
        own.removeHandler(ear)
        own.setLevel(level)
    assert "".join(f"{line}\n" for line in heard) == (tmp_path / "audit.log").read_text()
    assert len(heard) == 2


# -- changes ---------------------------------------------------------------------------------------------------------


def changed(audit: Audit, code: int, answer: Any, header: Any = None, body: bytes = b"") -> Any:
    """Serve one request of a change by a handler that answers, or raises, this."""
    routes = Routes()

    def handler(peer: Any, request: Request[Any], body: bytes) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    routes.add(code, handler, type(header) if header is not None else NoHeader)
    audit.watch(routes)
    return routes.table[code][2](Sender(), Request(code, header or NoHeader()), body)


@pytest.mark.shows("one line for each refusal and each change; who, from where, what, which rule; no secret")
def test_a_change_is_one_line_with_who_and_what_and_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = made(path)
    audit.decided(ALLOWED)
    changed(audit, 17, reply(1), TopicHeader(topic="orders"))
    # No gate decided about this one.
    changed(audit, 215, reply(1, 16, remark="not from a slave"), TopicHeader(topic="orders"))
    audit.decided(ALLOWED._replace(code=215, source="10.9.9.9:1"))
    with pytest.raises(ServerError):
        changed(audit, 215, ServerError(17, "no topic"), TopicHeader(topic="orders"))
    with pytest.raises(KeyError):
        changed(audit, 215, KeyError("of the handler: secret"), TopicHeader(topic="orders"))

    async def later() -> bytes:
        return reply(1, 1, remark="later")

    data = asyncio.run(changed(audit, 215, later(), TopicHeader(topic="orders")))
    assert data == reply(1, 1, remark="later")
    audit.close()
    found = lines(path)
    assert [(e["user"], e["rule"], e["outcome"], e["reply"], e.get("remark")) for e in found] == [
        ("root", "super user", "done", 0, None),
        ("", "no access control", "failed", 16, "not from a slave"),
        ("", "no access control", "failed", 17, "no topic"),
        ("", "no access control", "failed", 1, "KeyError"),
        ("", "no access control", "failed", 1, "later"),
    ]
    assert {(e["event"], e["request"], e["what"]["topic"], e["from"]) for e in found} == {
        ("changed", "UPDATE_AND_CREATE_TOPIC", "orders", "10.0.0.7:4711"),
        ("changed", "DELETE_TOPIC_IN_BROKER", "orders", "10.0.0.7:4711"),
    }
    assert audit.changes == {(17, True): 1, (215, False): 4}


SECRET = "marker-7f3a"


@pytest.mark.shows("one line for each refusal and each change; who, from where, what, which rule; no secret")
@pytest.mark.parametrize(
    ("code", "header", "body", "expected"),
    [
        (
            3001,
            UserHeader(username="alice"),
            f'{{"username":"alice","password":"{SECRET}","userType":"Super"}}',
            {"username": "alice", "user_type": "Super", "password": "changed"},
        ),
        (
            3002,
            UserHeader(username="alice"),
            '{"userStatus":"disable"}',
            {"username": "alice", "user_status": "disable"},
        ),
        (3002, UserHeader(username="alice"), f'{{"password":"{SECRET}"', {"username": "alice", "body": "unreadable"}),
        (
            3006,
            SubjectHeader(subject="User:alice"),
            '{"policies":[{"entries":[{"resource":"Topic:a*","actions":["Pub","Sub"],"decision":"Allow"}]}]}',
            {"subject": "User:alice", "rules": ["Custom Topic:a* Pub,Sub from any Allow"], "rule_count": 1},
        ),
        (
            25,
            NoHeader(),
            f'initAuthenticationUser={{"password":"{SECRET}"}}\nbrokerPermission=4\nother={SECRET}\ntraceOn=false',
            {"settings": {"initAuthenticationUser": "…", "brokerPermission": "4", "other": "…", "traceOn": "false"}},
        ),
        (200, NoHeader(), '{"groupName":"billing"}', {"group": "billing"}),
        (401, NoHeader(), '{"topic":"t","consumerGroup":"g"}', {"group": "g", "topic": "t"}),
        (
            18,
            NoHeader(),
            '{"topicConfigList":[{"topicName":"a"},{"topicName":"b"}]}',
            {"names": ["a", "b"], "count": 2},
        ),
        (18, NoHeader(), "[" * 50_000, {"body": "unreadable"}),
        (18, NoHeader(), "x" * 70_000, {"body_bytes": 70_000}),
        (25, NoHeader(), "\x00\nnothing", {"body": "unreadable"}),
        (25, NoHeader(), f'own=[\\\n{{"secretKey":"{SECRET}=="}}]', {"settings": {"own": "…", "…": "…"}}),
    ],
)
def test_what_is_written_of_a_change_holds_no_secret(
    code: int, header: Any, body: str, expected: dict[str, Any]
) -> None:
    found = what(code, header, body.encode())
    assert found == expected
    assert SECRET not in str(found)


def test_accounts_of_access_control_1_are_written_without_their_keys() -> None:
    class AccountHeader(UserHeader, kw_only=True):
        access_key: str = "billing"
        secret_key: str = SECRET
        topic_perms: str = SECRET

    assert what(50, AccountHeader(), b"") == {"access_key": "billing"}


def test_each_code_is_served_by_name() -> None:
    assert all(not request_name(code).isdigit() for code in CHANGES)
    assert request_name(424242) == "424242"
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in CHANGES


# -- floods and disks ------------------------------------------------------------------------------------------------


@pytest.mark.shows("floods are summed up, files are turned over, a full disk or one that hangs stops nobody")
def test_a_flood_is_counted_and_summed_up_and_hides_nobody_else(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.log", Clock()
    audit = made(path, clock)
    for _ in range(10_000):
        audit.decided(DENIED)
    audit.decided(DENIED._replace(source="10.0.0.8:1", subject="User:bob"))
    audit.decided(ALLOWED)
    changed(audit, 17, reply(1), TopicHeader(topic="orders"))
    clock.s += PERIOD_S - 0.1
    audit.tick()
    clock.s += 0.1
    audit.tick()
    assert not audit._unwritten
    audit.tick()
    audit.decided(DENIED)
    audit.close()
    found = lines(path)
    assert [e["user"] for e in found if e["event"] == "refused"] == ["alice"] * LINES_OF_HOST_MAX + ["bob", "alice"]
    assert [e["event"] for e in found[-3:]] == ["changed", "left_out", "refused"]
    left_out = 10_000 - LINES_OF_HOST_MAX
    assert (found[-2]["refusals"], found[-2]["from"]) == (left_out, {"10.0.0.7": left_out})
    assert audit.left_out == left_out
    assert audit.refusals[Check.AUTHORIZATION, 310] == 10_002


def test_a_flood_ends_with_its_period_also_where_nobody_looks(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.log", Clock()
    audit = made(path, clock)
    for _ in range(LINES_OF_HOST_MAX + 1):
        audit.decided(DENIED)
    clock.s += PERIOD_S
    audit.decided(DENIED)
    audit.close()
    assert [e["event"] for e in lines(path)] == ["refused"] * LINES_OF_HOST_MAX + ["left_out", "refused"]


def test_a_flood_from_one_network_of_ipv6_is_summed_up_as_one_of_one_host(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = made(path)
    for number in range(LINES_OF_HOST_MAX + 7):
        audit.decided(DENIED._replace(source=f"2001:db8::{number:x}:4711"))
    audit.close()
    found = lines(path)
    assert [e["event"] for e in found] == ["refused"] * LINES_OF_HOST_MAX + ["left_out"]
    assert found[-1]["from"] == {"2001:db8::/64": 7}


def test_a_flood_from_everywhere_is_bounded_too(tmp_path: Path) -> None:
    path, clock = tmp_path / "audit.log", Clock()
    audit = made(path, clock)
    for number in range(20_000):
        audit.decided(DENIED._replace(source=f"10.{number >> 8}.{number & 255}.1:1"))
    audit.close()
    found = lines(path)
    assert [e["event"] for e in found].count("refused") == LINES_MAX
    assert found[-1]["event"] == "left_out"
    assert found[-1]["refusals"] == 20_000 - LINES_MAX
    assert len(found[-1]["from"]) == SUMMED_MAX
    assert found[-1]["from"]["others"] == 19_000


@pytest.mark.parametrize("bytes_max", [990, 1000])
def test_files_are_turned_over_and_never_take_more_than_they_may(tmp_path: Path, bytes_max: int) -> None:
    path = tmp_path / "deep" / "deeper" / "audit.log"
    file = AuditFile(path, bytes_max=bytes_max, files_max=3, logger=logging.getLogger("x"), lost_line=lambda n: b"")
    for number in range(100):
        file.put(b"%098d\n" % number)
    file.close()
    assert sorted(p.name for p in path.parent.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    kept = b"".join((path.parent / name).read_bytes() for name in ("audit.log.2", "audit.log.1", "audit.log"))
    assert [int(line) for line in kept.split()] == list(range(70, 100))
    assert all(p.stat().st_size == 990 for p in path.parent.iterdir())
    assert (file.written, file.lost) == (100, 0)


def test_one_file_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, bytes_max=250, files_max=1, logger=logging.getLogger("x"), lost_line=lambda n: b"")
    for number in range(5):
        file.put(b"%098d\n" % number)
    file.close()
    assert [int(line) for line in path.read_text().split()] == [4]


def test_a_file_that_is_moved_away_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = made(path)
    audit.check()
    os.rename(path, tmp_path / "away")
    audit.decided(DENIED)
    audit.close()
    assert (len(lines(path)), (tmp_path / "away").stat().st_size) == (1, 0)


def open_in(folder: Path) -> list[str]:
    """The names of the folder's files that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
    return [path.name for path in found if path.parent == folder]


def test_a_file_in_the_place_of_another_is_written_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = made(path)
    audit.check()
    os.rename(path, tmp_path / "away")
    path.touch()
    assert open_in(tmp_path) == ["away"]
    audit.decided(DENIED)
    audit.close()
    assert (len(lines(path)), (tmp_path / "away").stat().st_size) == (1, 0)
    assert open_in(tmp_path) == []


@pytest.mark.shows("floods are summed up, files are turned over, a full disk or one that hangs stops nobody")
@pytest.mark.parametrize("torn", [0, 40])
def test_a_full_disk_costs_lines_that_are_counted_and_tears_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: int
) -> None:
    path, full, write = tmp_path / "audit.log", [True], os.write

    def limited(descriptor: int, data: bytes) -> int:
        if full[0] and torn:
            return write(descriptor, data[:torn])
        if full[0]:
            raise OSError(errno.ENOSPC, "no space")
        return write(descriptor, data)

    monkeypatch.setattr(audit_module, "os", like(os, write=limited))
    audit = made(path)
    for _ in range(3):
        audit.decided(DENIED)
    audit._file._closed = True
    audit._file._wanted.set()
    audit._file._thread.join(60)  # type: ignore[union-attr]
    audit._file._closed = False
    assert (audit.lines["lost"], path.read_bytes()) == (3, b"")
    full[0] = False
    audit._file._thread = None
    audit.decided(DENIED)
    audit.close()
    assert [(e["event"], e.get("lines")) for e in lines(path)] == [("lost", 3), ("refused", None)]
    assert audit.lines == {"written": 1, "left_out": 0, "lost": 3}


def test_a_disk_that_hangs_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "LINES_WAITING_MAX", 5)
    monkeypatch.setattr(audit_module, "CLOSE_TIMEOUT_S", 0.05)
    released, begun = threading.Event(), threading.Event()
    write = os.write

    def hangs(descriptor: int, data: bytes) -> int:
        begun.set()
        released.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(audit_module, "os", like(os, write=hangs))
    audit = made(tmp_path / "audit.log")
    try:
        audit.decided(DENIED)
        assert begun.wait(60)
        for _ in range(20):
            audit.decided(DENIED)
        assert audit.lines["lost"] == 15
        audit.close()
    finally:
        released.set()
        audit._file._thread.join(60)  # type: ignore[union-attr]


def test_a_file_that_cannot_be_opened_refuses_to_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "audit.log"):
        with pytest.raises(StoreUnwritable, match=r"the audit log .* cannot be written"):
            made(path).check()
