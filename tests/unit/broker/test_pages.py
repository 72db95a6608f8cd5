"""Each broker.conf in docs/run is one that a broker takes without a warning, and its mistakes are said as there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocketspark.broker.broker_conf import read_broker_conf
from rocketspark.broker.settings import FIELDS
from rocketspark.errors import ConfigError

pytestmark = pytest.mark.shows("docs/run: every broker.conf on a page is read without a warning")

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs" / "run").glob("*.md"))
FILES = [
    (page.stem, text)
    for page in PAGES
    for text in re.findall(r"^```properties\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
]
CONFIGURATION = next(page for page in PAGES if page.stem == "configuration").read_text("utf-8")


@pytest.mark.parametrize(("page", "text"), FILES, ids=[f"{page}-{i}" for i, (page, _) in enumerate(FILES)])
def test_a_file_of_a_page(page: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(text, "utf-8")
    settings, warnings = read_broker_conf(tmp_path / "broker.conf")
    assert warnings == []
    settings.check()


@pytest.mark.parametrize("line", ["fileReservedTimes=3", "fileReservedTime=x", "a=1\n#\ntraceOn"])
def test_a_mistake_is_said_as_on_the_page(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broker.conf").write_text(line, "utf-8")
    try:
        said = read_broker_conf(Path("broker.conf"))[1][0]
    except ConfigError as e:
        said = str(e)
    assert f"`{said}`" in CONFIGURATION


def test_the_settings_that_one_needs_have_the_defaults_of_the_page() -> None:
    part = CONFIGURATION.split("\n## The ten settings")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", part, re.M)
    assert len(rows) == 10
    assert [key for key, _ in rows if key not in FIELDS] == []


def test_what_is_live_is_live() -> None:
    part = CONFIGURATION.split("\n| part | live | at start |")[1].split("\n\n")[0]
    for names, live in re.findall(r"^\| (.+?) \| (yes)? ?\|", part, re.M):
        for key in re.findall(r"`(\w+)`", names):
            assert (FIELDS[key].live is not None) == bool(live), key
