"""The library of the group: its version is checked, and what is called of it that is private to it is there."""

from __future__ import annotations

import errno
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pysyncobj import SyncObj

from rocketspark.controller.group import group_journal, raft_member
from rocketspark.controller.group.group_journal import check_library
from rocketspark.controller.group.raft_member import SNAPSHOT, RaftMember
from rocketspark.errors import ConfigError, StoreFull


def test_a_disk_that_is_full_as_a_snapshot_comes_is_one_line(tmp_path: Path) -> None:
    """The library writes it into a file of its own."""
    coming = mock.Mock(flush=mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    taking: Any = mock.Mock(raftCommitIndex=0, _folder=str(tmp_path))
    taking._SyncObj__serializer._Serializer__incomingTransmissionFile = coming
    with pytest.raises(StoreFull, match=SNAPSHOT):
        RaftMember._wants(taking, None, {"commit_index": 0, "serialized": (b"", False, True)})


def test_another_version_or_none_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    check_library()
    # That version forgets its term and its vote at each start.
    monkeypatch.setattr(group_journal, "version", lambda name: "0.3.14")
    with pytest.raises(ConfigError, match=r"extra controllers: .*has pysyncobj 0\.3\.17; 0\.3\.14 is installed"):
        check_library()

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(group_journal, "version", missing)
    with pytest.raises(ConfigError, match="takes the extra controllers: pip install"):
        check_library()


def test_what_is_replaced_is_there() -> None:
    source = Path(raft_member.__file__).read_text("utf-8")
    replaced = [line.split("def ")[1].split("(")[0] for line in source.splitlines() if "def _SyncObj__" in line]
    assert len(replaced) == 4
    for name in replaced:
        assert hasattr(SyncObj, name)
