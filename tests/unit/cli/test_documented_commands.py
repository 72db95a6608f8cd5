"""Every command line in the documents and in --help is one that the commands take: names, options, values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketspark.cli.tree import tree

pytestmark = pytest.mark.shows(
    "every command line and every block of Python in the documents is one that runs as far as its syntax, "
    "names and options"
)

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
TREE = tree()
# A block between fences, or one that is indented.
_BLOCK = re.compile(r"^```\w*\n(.*?)^```|((?:^ {4,}\S.*\n)+)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|[|=(&;] *|[$] |run )(?:\.venv/bin/)?rocketspark ((?!namesrv=).*)")
# Where a text speaks of several commands, or leaves something out.
_ANY = re.compile(r"^pipeline NAME|…")
_IN_TEXT = re.compile(r"`rocketspark ([^`]+)`")


def in_blocks(text: str) -> Iterator[str]:
    for fenced, indented in _BLOCK.findall(text):
        for line in (fenced or indented).replace("\\\n", " ").splitlines():
            yield from _COMMAND.findall(line.strip())


def words(line: str) -> list[str]:
    parted = shlex.shlex(line, posix=True, punctuation_chars="|<>&;)")
    parted.whitespace_split, parted.commenters = True, "#"
    taken = []
    for word in parted:
        if set(word) <= set("|<>&;)"):
            break
        taken.append(word)
    return taken


def mistake(line: str, *, whole: bool) -> str | None:
    """What the commands say of a command line. `whole`: nothing that is needed is left out of it."""
    command, names, given = TREE, ["rocketspark"], words(line)
    while below := getattr(command, "commands", None):
        if not given or given[0].startswith("-"):
            break
        if given[0] not in below:
            return f"no command {' '.join(names)} {given[0]}"
        names.append(given.pop(0))
        command = below[names[-1]]
    try:
        command.make_context(names[-1], given)
    except Exception as e:
        said = getattr(e, "format_message", e.__str__)()
        # In a text an option may stand alone, or with N as its value; --help ends with code 0.
        left_out = "0$" if whole else "0$|$|Missing|Option .* requires an argument|Invalid value"
        return None if re.match(left_out, said) else said
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_what_the_documents_show(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An option that acts as it is read, as --install-completion does, writes there.
    monkeypatch.setenv("HOME", str(tmp_path))
    text = document.read_text("utf-8")
    wrong = [(line, mistake(line, whole=True)) for line in in_blocks(text)]
    wrong += [(line, mistake(line, whole=False)) for line in _IN_TEXT.findall(text) if not _ANY.search(line)]
    assert [(line, why) for line, why in wrong if why] == []


def test_what_help_shows() -> None:
    def helps(command: Any) -> Iterator[str]:
        yield command.help or ""
        for below in getattr(command, "commands", {}).values():
            yield from helps(below)

    lines = [line for text in helps(TREE) for line in re.findall(r"Example: `(?:.*\| )?rocketspark ([^`]+)`", text)]
    assert len(lines) > 40
    assert [(line, why) for line in lines if (why := mistake(line, whole=True))] == []


def test_what_the_documents_show_is_found() -> None:
    lines = [line for document in DOCUMENTS for line in in_blocks(document.read_text("utf-8"))]
    assert len(lines) > 60
    assert {"produce numbers --tag demo", "consume numbers --from first --json"} <= set(lines)
    assert mistake("topic create orders --quues 8", whole=True)
    assert mistake("topic list --quues", whole=False)
    assert mistake("topics list", whole=False)
