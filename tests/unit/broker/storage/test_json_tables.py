"""Tables in files: read from the version before where the newest is broken, which stays until a whole one is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.errors import ConfigError, StoreError
from rocketspark.store.files import config_files

Table = dict[str, int]


def made(path: Path) -> JsonFile[Table]:
    return JsonFile(path, Table)


def test_the_version_before_is_beside_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    file = made(path)
    assert file.load() is None
    for value in (1, 2):
        file.save({"a": value})
    assert (path.read_text(), path.with_name("topics.json.bak").read_text()) == ('{"a":2}', '{"a":1}')
    assert made(path).load() == {"a": 2}


@pytest.mark.shows("mended: a table in which bits flipped while its broker ran was copied over its whole `.bak`")
@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_flips_while_the_broker_runs_is_no_version_before(tmp_path: Path, is_loaded: bool) -> None:
    path = tmp_path / "topics.json"
    file = made(path)
    for value in (1, 2):
        file.save({"a": value})
    if is_loaded:
        file = made(path)
        assert file.load() == {"a": 2}
    for flipped in ('{"a"*2}', '{"a":3}'):
        path.write_text(flipped)
        file.save({"a": 4})
        assert path.with_name("topics.json.bak").read_text() == '{"a":1}'
    file.save({"a": 5})
    assert (path.read_text(), path.with_name("topics.json.bak").read_text()) == ('{"a":5}', '{"a":4}')
    # One that has its checksum in it.
    for value in (1, 2, 3):
        config_files.write(str(path), config_files.sealed({"a": value}), keep_before=value > 1)
    path.write_text(path.read_text().replace("3", "2"))
    config_files.write(str(path), config_files.sealed({"a": 4}))
    assert config_files.unsealed(path.with_name("topics.json.bak").read_text()) == {"a": 2}


@pytest.mark.shows("mended: a broken config file is copied over its whole `.bak`")
def test_a_broken_file_never_takes_the_place_of_the_version_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "topics.json"
    file = made(path)
    for value in (1, 2):
        file.save({"a": value})
    path.write_text('{"a')
    file = made(path)
    assert made(path).load() == {"a": 1}
    assert "the version before it is used" in caplog.text
    assert file.load() == {"a": 1}
    replace = config_files._replace

    def full(files: Any, target: str, text: str, *more: Any) -> None:
        if target == str(path):
            raise OSError(28, "No space left on device")
        replace(files, target, text, *more)

    with mock.patch.object(config_files, "_replace", full), pytest.raises(StoreError):
        file.save({"a": 3})
    assert made(path).load() == {"a": 1}
    file.save({"a": 3})
    file.save({"a": 4})
    assert (path.read_text(), path.with_name("topics.json.bak").read_text()) == ('{"a":4}', '{"a":3}')
    path.write_text("")
    path.with_name("topics.json.bak").write_text("[")
    with pytest.raises(ConfigError, match="mend or remove them"):
        made(path).load()


@pytest.mark.shows("the broker's tables damaged file by file")
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("left", ["", "\0" * 50, '{"a":', '{"a":2}'[:3] + "\0" * 4, "[]"])
def test_a_damaged_file_is_read_from_the_version_before_or_named(
    tmp_path: Path, before: bool, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "topics.json"
    for value in (1, 2) if before else (2,):
        made(path).save({"a": value})
    path.write_text(left)
    if before:
        assert made(path).load() == {"a": 1}
        assert str(path) in caplog.text
    else:
        with pytest.raises(ConfigError, match=r"topics\.json .*(mend or remove them|put it back from a backup)"):
            made(path).load()
    assert path.read_text() == left
