"""Files of our own that a newer program wrote refuse to start, and are left as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocketspark.broker.messages.quarantine import Quarantine
from rocketspark.broker.storage.json_tables import JsonFile
from rocketspark.errors import ConfigError
from rocketspark.protocol.json.bodies import QuarantineTable

pytestmark = pytest.mark.shows("files of our own carry a version, a newer one refuses to start")


@pytest.mark.parametrize("name", ["storeFiles.json", "deletedTopics.json"])
def test_a_store_of_a_newer_program(make_store: Any, send: Any, name: str) -> None:
    store = make_store()
    send(store, "t", 0, b"x")
    store.delete_topic("t")
    store.close()
    path = Path(store.settings.root, "config", name)
    table = json.loads(path.read_text())
    assert table["version"] == 1
    path.write_text(json.dumps(table | {"version": 2}))
    with pytest.raises(ConfigError, match=f"{name} is of version 2, this program reads version 1"):
        make_store()
    assert json.loads(path.read_text())["version"] == 2
    path.write_text(json.dumps(table))
    assert make_store().queues() == {}


def test_deleted_topics_without_a_version(make_store: Any, send: Any) -> None:
    """As they were written before; a topic may have any name."""
    store = make_store()
    send(store, "version", 0, b"x")
    end = store.written_position
    store.close()
    path = Path(store.settings.root, "config", "deletedTopics.json")
    path.write_text(json.dumps({"version": end}))
    again = make_store()
    assert again.queues() == {}


def test_a_quarantine_of_a_newer_program(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.json"
    path.write_text('{"entries":[],"version":2}')
    with pytest.raises(ConfigError, match="is of version 2, this program reads"):
        Quarantine(JsonFile(path, QuarantineTable))
