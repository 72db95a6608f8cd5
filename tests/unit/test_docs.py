"""The documents tell no tales: every test and file that they name is there."""

from __future__ import annotations

import ast
import pkgutil
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.shows(
    "words of the field: modules, classes and identifiers",
    "DESIGN.md, rules beside their tests, how to add things",
)

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "DESIGN.md", ROOT / "tests" / "RULES.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    missing = []
    for path, name in re.findall(r"`(tests/[\w/.]+)(?:::(\w+))?`", document.read_text("utf-8")):
        found = ROOT / path
        if not found.exists() or (name and f"def {name}(" not in found.read_text("utf-8")):
            missing.append(f"{path}::{name}")
    assert missing == []


@pytest.mark.shows("each page that installs says how, until the package index has the package")
def test_every_page_that_installs_says_how_to_do_it_from_a_clone() -> None:
    without = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text("utf-8")
        installs = re.search(r"pip install (--upgrade )?'?rocketspark", text)
        if installs and "/path/to/clone" not in text and "index.md#install" not in text:
            without.append(page.name)
    assert without == []


# Names of loggers, not of modules.
LOGGERS = {"rocketspark.sends", "rocketspark.audit"}


@pytest.mark.shows("plain English in docstrings, pages and errors")
@pytest.mark.parametrize("document", [ROOT / "README.md", *DOCUMENTS], ids=lambda p: p.name)
def test_every_name_of_ours_exists(document: Path) -> None:
    text = document.read_text("utf-8")
    names = set(re.findall(r"`(rocketspark(?:\.\w+)+)", text)) - LOGGERS
    for module, imported in re.findall(r"^ *from (rocketspark[\w.]*) import ([\w, ]+)$", text, re.MULTILINE):
        names |= {f"{module}.{name}" for name in imported.replace(" ", "").split(",")}
    for name in names:
        pkgutil.resolve_name(name)


SOURCE = ROOT / "src" / "rocketspark"
PACKAGES = sorted(p.parent for p in SOURCE.rglob("__init__.py"))


def test_the_file_map_names_every_package_where_it_lies() -> None:
    design = (ROOT / "DESIGN.md").read_text("utf-8").partition("```text")[2].partition("```")[0]
    parts = re.split(r"^  (?=\w+/)", design, flags=re.MULTILINE)
    of_package = {part.partition("/")[0]: part for part in parts}
    places = [p.relative_to(SOURCE).parts for p in PACKAGES if p != SOURCE]
    assert len(places) > 30
    assert [place for place in places if f"{place[-1]}/" not in of_package.get(place[0], "")] == []


def test_the_file_map_names_no_module_that_is_gone() -> None:
    design = (ROOT / "DESIGN.md").read_text("utf-8").partition("```text")[2].partition("```")[0]
    there = {p.stem for folder in ("src", "tests") for p in (ROOT / folder).rglob("*")}
    names = set(re.findall(r"\b[a-z0-9]+_[a-z0-9_]+\b", design)) - {"run_cluster"}
    assert len(names) > 100
    assert names - there == set()


@pytest.mark.shows(
    "rooms: packages of at most 14 modules, each says what it is and where to start; contracts inside "
    "packages; no circles of imports"
)
def test_no_package_is_crowded() -> None:
    crowded = {str(p.relative_to(SOURCE)): len(list(p.glob("[a-z]*.py"))) for p in PACKAGES}
    assert {name: count for name, count in crowded.items() if count > 14} == {}


@pytest.mark.shows(
    "rooms: packages of at most 14 modules, each says what it is and where to start; contracts inside "
    "packages; no circles of imports"
)
@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: str(p.relative_to(SOURCE.parent)))
def test_a_package_says_what_it_holds_and_where_to_begin(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    starts = re.search(r"Start with (?:the file of|`?(\w+))", text)
    assert starts is not None, "its __init__ does not say where to start reading"
    if name := starts.group(1):
        assert (package / name).is_dir() or (package / f"{name}.py").exists(), f"there is no {name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text("utf-8")
    titles = {re.sub(r"[^\w -]", "", t).replace(" ", "-").lower() for t in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")]
    assert [link for link in links if link[0] != "#" and not (document.parent / link.split("#")[0]).exists()] == []
    assert [link for link in links if link[0] == "#" and link[1:] not in titles] == []


@pytest.mark.shows(
    "every command line and every block of Python in the documents is one that runs as far as its syntax, "
    "names and options"
)
@pytest.mark.parametrize("document", [ROOT / "README.md", *DOCUMENTS], ids=lambda p: p.name)
def test_every_block_of_python_is_python(document: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```", document.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        ast.parse(code)


@pytest.mark.shows("sources name no page that is not in the project")
def test_no_text_names_a_page_that_is_not_here() -> None:
    """Pages of the project alone: whoever reads the sources has no others."""
    folders = [ROOT / name for name in ("src", "tests", "docs", "bench", "examples", "scripts")]
    texts = [
        path for folder in folders for ending in ("py", "md", "sh", "proto") for path in folder.rglob(f"*.{ending}")
    ]
    texts += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    pages = {path.name for path in texts}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        for name in re.findall(r"\b[\w-]+\.md\b", path.read_text("utf-8"))
        if name not in pages
    }
    assert missing == set()


# What they test has a file of that name elsewhere by chance.
OF_ANOTHER_NAME = {"controller/test_gate.py", "store/commitlog/test_record_crc.py"}


def test_unit_tests_lie_where_what_they_test_lies() -> None:
    """A folder of tests is one of the source, and the tests of a file are not in another folder than the file."""
    units = Path(__file__).resolve().parent
    modules: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        modules.setdefault(path.stem, set()).add(path.parent.relative_to(SOURCE).as_posix())
    folders = {path.relative_to(SOURCE).as_posix() for path in PACKAGES} | {"bench", "examples"}
    tests = [path.relative_to(units) for path in units.rglob("test_*.py")]
    assert [str(test) for test in tests if test.parent.as_posix() not in folders] == []
    astray = []
    for test in tests:
        name, folder = test.stem.removeprefix("test_"), test.parent.as_posix()
        is_package = f"{folder}/{name}" in folders or name in folders
        if folder not in ({".", "bench", "examples"} | modules.get(name, {folder})) and not is_package:
            astray.append(test.as_posix())
    assert set(astray) - OF_ANOTHER_NAME == set()


def test_the_changelog_is_by_version_and_kind() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased"
    assert versions[1:] == sorted(versions[1:], key=lambda version: [*map(int, version.split("."))], reverse=True)
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert kinds == [kind for kind in KINDS_OF_CHANGES if kind in kinds]
    assert max(map(len, text.splitlines())) <= 120


KINDS_OF_CHANGES = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
