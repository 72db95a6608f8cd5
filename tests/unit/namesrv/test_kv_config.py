"""Key-value tables: kept by namespace, on disk before the reply, read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocketspark.errors import ConfigError, ServerError
from rocketspark.namesrv import kv_config
from rocketspark.namesrv.kv_config import KvConfig

pytestmark = pytest.mark.shows('mended: the NameServer\'s settings take "²" or 4,400 digits')


def test_values_by_namespace_and_key() -> None:
    kv = KvConfig()
    assert kv.get("n", "k") is None
    assert kv.table("n") is None
    kv.put("n", "k", "v")
    kv.put("n", "k2", "")
    kv.put("m", "k", "other")
    assert (kv.get("n", "k"), kv.get("n", "k2"), kv.get("m", "k")) == ("v", "", "other")
    assert kv.table("n") == {"k": "v", "k2": ""}
    kv.put("n", "k", "changed")
    kv.delete("m", "k")
    kv.delete("m", "k")
    kv.delete("zzz", "k")
    assert kv.get("n", "k") == "changed"
    assert kv.get("m", "k") is None


def test_they_are_in_rocketmq_s_file_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    kv = KvConfig(path)
    assert not path.exists()
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    kv.put("n", 'k "ü"', "v")
    assert json.loads(path.read_bytes()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4;broker-b:4"}, "n": {'k "ü"': "v"}}
    }
    again = KvConfig(path)
    assert again.get("n", 'k "ü"') == "v"
    again.delete("n", 'k "ü"')
    assert KvConfig(path).get("n", 'k "ü"') is None
    assert KvConfig(path).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4;broker-b:4"
    assert [p.name for p in path.parent.iterdir()] == ["kvConfig.json"]


def test_a_file_that_is_no_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    for text in (
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"configTable":' * 5000,
        b'{"configTable":{"n":[]}}',
        b'{"configTable":{"n":{"k":"\xff"}}}',
        b"",
    ):
        path.write_bytes(text)
        with pytest.raises(ConfigError, match=r"kvConfig\.json cannot be read: .*mend or remove it"):
            KvConfig(path)
    path.write_text("{}")
    assert KvConfig(path).table("n") is None


@pytest.mark.shows("mended: names of 15 MB persisted, NameServer half (key-value tables)")
def test_what_is_too_long_or_too_much_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "CHARACTERS_MAX", 100)
    kv = KvConfig(tmp_path / "kv.json")
    kv.put("n", "k", "v" * 50)
    for namespace, key, value in (
        ("x" * 256, "k", "v"),
        ("n", "", "v"),
        ("n", "a\x1b[31m", "v"),
        ("n", "k", "v" * (kv_config.VALUE_CHARACTERS_MAX + 1)),
        ("n", "k2", "v" * 50),
    ):
        with pytest.raises(ServerError) as caught:
            kv.put(namespace, key, value)
        assert caught.value.remark.isprintable()
        assert len(caught.value.remark) < 250
        assert kv.table("n") == KvConfig(tmp_path / "kv.json").table("n") == {"k": "v" * 50}
    # Room that was given back, or is there after a restart, is had again.
    kv = KvConfig(tmp_path / "kv.json")
    kv.delete("n", "k")
    kv.put("n", "k2", "v" * 90)
    kv.put("n", "k2", "v")
    kv.put("m", "k", "v" * 90)


def test_what_cannot_be_written_is_refused_and_not_told(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "kv.json"
    kv = KvConfig(path)
    kv.put("n", "k", "v")
    path.with_suffix(".tmp").mkdir()
    with pytest.raises(ServerError, match=r"cannot be written: .*nothing was changed"):
        kv.put("n", "k", "w")
    with pytest.raises(ServerError, match="cannot be written"):
        kv.delete("n", "k")
    assert kv.get("n", "k") == "v"
    path.with_suffix(".tmp").rmdir()
    kv.put("n", "k", "w")
    assert KvConfig(path).get("n", "k") == "w"
