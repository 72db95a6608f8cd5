"""Files of chosen messages: what is downloaded is read again as rows that can be sent, in each format."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from rocketspark.console.content import exports
from rocketspark.errors import ConfigError, UsageError
from rocketspark.model import ReceivedMessage
from rocketspark.tables.file_rows import batches_of

BODIES = [b'{"a": 1}', b"\x00\xff", b'=cmd|"x",\n', b"'=quoted", b"@SUM(1)", b"-1", b"\tx", b"'plain", b"\xfb"]


def messages() -> list[ReceivedMessage]:
    return [
        ReceivedMessage(
            topic="orders",
            body=body,
            tag="sale" if n else None,
            keys=(f"k{n}", "all"),
            properties={"TAGS": "sale", "KEYS": f"k{n} all", "own": "<b>"} if n else {"own": "<b>"},
            broker_name="broker-a",
            queue_id=n,
            queue_offset=7,
            physical_offset=1000 * n,
            stored_bytes=100,
            message_id=f"M{n}",
            offset_message_id=f"O{n}",
            born_time_ms=1_700_000_000_000,
            born_host="127.0.0.1:1",
            store_time_ms=1_700_000_000_001,
            store_host="127.0.0.1:2",
        )
        for n, body in enumerate(BODIES)
    ]


@pytest.mark.parametrize("kind", exports.MEDIA_TYPES)
def test_a_file_holds_the_messages_and_can_be_imported(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"chosen.{kind}"
    file.write_bytes(exports.file_of(messages(), kind))
    rows = [row for batch in batches_of(file, 0) for row in batch.to_pylist()]
    assert [row["body"] for row in rows] == BODIES
    assert [row["tag"] for row in rows] == [None, *["sale"] * (len(BODIES) - 1)]
    assert [row["keys"] for row in rows] == [[f"k{n}", "all"] for n in range(len(BODIES))]


def test_lines_tell_where_each_message_was() -> None:
    first = json.loads(exports.file_of(messages(), "jsonl").splitlines()[0])
    place = {"topic": "orders", "broker": "broker-a", "queueId": 0, "queueOffset": 7, "messageId": "M0"}
    assert first | place == first


def test_no_cell_of_csv_is_run_as_a_formula() -> None:
    found = exports.file_of(messages(), "csv").decode()
    rows = list(csv.DictReader(found.splitlines(keepends=True)))
    assert [row["body"] for row in rows][2:8] == ['\'=cmd|"x",\n', "''=quoted", "'@SUM(1)", "'-1", "'\tx", "'plain"]
    assert rows[-1]["body_base64"] == "'+w=="
    assert not any(str(cell).startswith(("=", "+", "-", "@", "\t")) for row in rows for cell in row.values())
    assert json.loads(exports.file_of(messages(), "jsonl").splitlines()[2])["body"] == BODIES[2].decode()


def test_another_format_or_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="jsonl, csv, parquet, not xlsx"):
        exports.file_of([], "xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"rocketspark\[arrow\]"):
        exports.file_of([], "csv")
