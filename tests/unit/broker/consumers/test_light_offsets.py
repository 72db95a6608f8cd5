"""The two files of offsets of a broker with light queues: what is deleted from both stays so, whenever a kill comes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketspark.broker.consumers.consumer_offsets import encode_offsets
from rocketspark.broker.consumers.light_offsets import LIGHT, USUAL, OffsetFiles
from rocketspark.broker.storage.json_tables import ConfigFolder, SaveFailures
from rocketspark.protocol.json.bodies import OffsetTable

ROWS = {"%LMQ%a@%LMQ%gone": {0: 1}, "%LMQ%a@%LMQ%stays": {0: 2}, "T@g": {3: 4}}
DELETED = {key: queues for key, queues in ROWS.items() if "gone" not in key}


@pytest.mark.shows("light queues (LMQ): one message in many queues %LMQ%…, pulled like topics; limits, deletion")
@pytest.mark.parametrize("kill_after", ["nothing", "the first file", "both files"])
def test_a_kill_between_the_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_after: str) -> None:
    (tmp_path / "config").mkdir()
    config = ConfigFolder(str(tmp_path), SaveFailures())

    def files() -> OffsetFiles:
        return OffsetFiles(config, config.file(USUAL, OffsetTable, encode_offsets), light=True)

    files().write(encode_offsets(OffsetTable(offset_table=ROWS)))
    before = {name: (tmp_path / "config" / name).read_bytes() for name in (USUAL, LIGHT)}
    for name in before:
        os.utime(tmp_path / "config" / name, (1, 1))
    real, written = os.replace, list[str]()

    def replace(source: str, target: str) -> None:
        name = os.path.basename(target)
        if name in before:
            if kill_after == "nothing" or (kill_after == "the first file" and written):
                raise KeyboardInterrupt
            written.append(name)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    changed = files()
    if kill_after == "both files":
        changed.write(encode_offsets(OffsetTable(offset_table=DELETED)))
    else:
        with pytest.raises(KeyboardInterrupt):
            changed.write(encode_offsets(OffsetTable(offset_table=DELETED)))
    found = files().load()
    assert found is not None
    assert found.offset_table == (ROWS if kill_after == "nothing" else DELETED)
