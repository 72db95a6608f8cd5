"""Folders of the brokers that one `server` starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.cli.serving.child_processes import store_folders, unserved_stores

LAYOUTS = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3)]


@pytest.mark.shows("`server` with other --brokers or --replicas than before names the stores that nobody serves")
@pytest.mark.parametrize("before", LAYOUTS)
@pytest.mark.parametrize("now", LAYOUTS)
def test_stores_that_nobody_serves_are_found(tmp_path: Path, before: tuple[int, int], now: tuple[int, int]) -> None:
    made = store_folders(tmp_path, "broker-a", *before)
    for folder in (*made, tmp_path / "namesrv", tmp_path / "secure", tmp_path / "controller"):
        (folder / "config").mkdir(parents=True)
    for folder in made:
        (folder / "commitlog").mkdir()
    served = store_folders(tmp_path, "broker-a", *now)
    assert unserved_stores(tmp_path, served) == []
    for folder in made:
        (folder / "commitlog" / f"{0:020d}").touch()
    assert unserved_stores(tmp_path, served) == [folder for folder in made if folder not in served]


def test_a_store_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert unserved_stores(tmp_path / "none", store_folders(tmp_path / "none", "b", 2, 1)) == []
    assert store_folders(tmp_path, "b", 2, 1) == [tmp_path / "b-0", tmp_path / "b-1"]
