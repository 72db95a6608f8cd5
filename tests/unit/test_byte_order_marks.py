"""A file that somebody wrote by hand may begin with a byte order mark, as editors of Windows put it there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketspark.cli.passwords import read_password
from rocketspark.client.connection.credentials import read_secret
from rocketspark.proxy import settings as proxy_settings
from rocketspark.spark.pipelines.parts.sql_file import read_plan
from rocketspark.store.files.config_files import keep_settings, read_settings
from rocketspark.transport.tls import settings as tls

pytestmark = pytest.mark.shows("byte order marks; two accounts of one name in plain_acl.yml")

PLAN = """sources:
  - {name: orders, topic: orders}
sinks:
  - {name: out, from: orders, format: parquet, path: out}
"""


def kept(path: Path) -> dict[str, str]:
    keep_settings(str(path), {"brokerName": "b"}, until="the next start")
    return read_settings(path)


@pytest.mark.parametrize(
    ("text", "read", "found"),
    [
        ("brokerName=a\n", read_settings, {"brokerName": "a"}),
        ("brokerName=a\n", kept, {"brokerName": "b"}),
        ("tls.server.need.client.auth=require\n", lambda path: tls._file(str(path)), None),
        ('{"grpcServerPort": 9000}', proxy_settings.read_file, None),
        ("a secret\n", lambda path: read_secret(str(path), "--secret-key-file"), "a secret"),
        ("a password\n", read_password, "a password"),
        (PLAN, lambda path: read_plan(path).views, ["orders"]),
    ],
)
def test_it_is_read_as_without(tmp_path: Path, text: str, read: Callable[[Path], Any], found: Any) -> None:
    plain, marked = tmp_path / "plain.yaml", tmp_path / "marked.yaml"
    plain.write_text(text, "utf-8")
    marked.write_text(text, "utf-8-sig")
    told = read(marked)
    assert told == read(plain)
    assert found is None or told == found
