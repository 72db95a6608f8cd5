"""The site is built without a warning: every link and anchor leads somewhere, and every page is in its navigation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.browser import chromium
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.shows(
    "the site: a strict build without a broken link or anchor, every page in the navigation, searched from a disk"
)

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "zensical.toml"
DOCS = ROOT / "docs"


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the pages in a folder's `docs`, with the project's configuration."""
    shutil.copy(CONFIG, folder)
    command = [Path(sys.executable).parent / "zensical", "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.mark.browser
def test_it_is_built_without_a_warning_and_draws_nothing_from_elsewhere(tmp_path: Path) -> None:
    shutil.copytree(DOCS, tmp_path / "docs")
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if not (tmp_path / "site" / page).is_file()] == []
    front = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="?https?:[^>]*>', front) == []
    asked = searched((tmp_path / "site" / "run" / "sizing.html").as_uri(), "visibility_timeout", "Transport options")
    # Nothing but files.
    assert [address for address in asked if not address.startswith(("file:", "about:", "blob:"))] == []


def searched(address: str, words: str, title: str) -> list[str]:
    """Search the site from one of its pages until a title is found; return all addresses that were asked."""
    asked: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.keyboard.press("/")
        page.get_by_role("combobox").or_(page.get_by_role("textbox")).first.fill(words)
        page.get_by_text(title).first.wait_for(timeout=LIMIT_S * 1000)
    return asked


def test_a_broken_anchor_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[there](index.md#nowhere)\n", "utf-8")
    done = build(tmp_path)
    assert done.returncode != 0
    assert "1 issue found" in done.stdout + done.stderr


def test_every_page_is_in_the_navigation_once() -> None:
    with CONFIG.open("rb") as file:
        sections = tomllib.load(file)["project"]["nav"]
    named = [page for section in sections for pages in section.values() for page in pages]
    assert sorted(named) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_the_front_page_names_every_extra() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"].keys()
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    # What makes the project itself is no matter of who uses it.
    assert set(rows) == extras - {"demo", "dev", "docs", "mutants", "tests"}
