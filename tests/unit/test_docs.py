"""The documents tell no tales: every test and file that they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "DESIGN.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    missing = []
    for path, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", document.read_text("utf-8")):
        found = ROOT / path
        if not found.exists() or (name and f"def {name}(" not in found.read_text("utf-8")):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_the_file_map_names_every_package() -> None:
    design = (ROOT / "DESIGN.md").read_text("utf-8")
    packages = [p.name for p in (ROOT / "src" / "rocketspark").iterdir() if (p / "__init__.py").exists()]
    assert len(packages) > 10
    assert [p for p in packages if f"      {p}/ " not in design] == []


def test_the_file_map_names_every_file_of_the_clients() -> None:
    design = (ROOT / "DESIGN.md").read_text("utf-8")
    client = design.split("      client/ ", 1)[1].split("      admin/ ", 1)[0]
    files = [p.stem for p in (ROOT / "src" / "rocketspark" / "client").glob("[a-z]*.py")]
    assert len(files) > 30
    assert [name for name in sorted(files) if not re.search(rf"\b{name}\b", client)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    titles = {re.sub(r"[^\w -]", "", t).replace(" ", "-").lower() for t in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    assert [link for link in links if link[0] != "#" and not (document.parent / link.split("#")[0]).exists()] == []
    assert [link for link in links if link[0] == "#" and link[1:] not in titles] == []
