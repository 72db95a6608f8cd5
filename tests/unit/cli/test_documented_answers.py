"""docs/reference/cli.md: each command of an operator that prints JSON has its section, and no section is of another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.answers import PAGE, check_answer, documented

from rocketspark.cli.tree import tree

pytestmark = pytest.mark.shows("`--json` of every command of an operator: one schema each, in docs/reference/cli.md")

# Of commands that print JSON beside a pipeline's, a database's or messages themselves, other pages tell.
ELSEWHERE = {"outbox", "pipeline", "consume", "produce", "export", "import", "query", "backup", "restore", "spark-env"}


def paths(command: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, command
    for name, below in getattr(command, "commands", {}).items():
        yield from paths(below, (*names, name))


def test_every_command_has_its_section() -> None:
    with_json = (names for names, c in paths(tree()) if any("--json" in each.opts for each in c.params))
    commands = {" ".join(names) for names in with_json if names[0] not in ELSEWHERE}
    assert len(commands) > 20
    # One that has an option with an answer of its own has a section for that too.
    assert commands == {name.partition(" --")[0] for name in documented()}


def test_mqadmin_s_commands_are_set_beside_commands_that_there_are() -> None:
    text = PAGE.read_text("utf-8").partition("## mqadmin's commands here")[2]
    rows = re.findall(r"^\| (`.+`) \| (`.+) \|$", text, re.MULTILINE)[1:]
    assert len(rows) > 20
    known = set(re.findall(r"^\| `(\w+)` \|", (PAGE.parent / "mqadmin.md").read_text("utf-8"), re.MULTILINE))
    assert {name for theirs, _ in rows for name in re.findall("`(.+?)`", theirs)} <= known
    named = {name.partition(" --")[0] for _, ours in rows for name in re.findall("`(.+?)`", ours)}
    assert named <= {" ".join(names) for names, _ in paths(tree())}


def test_an_answer_that_is_not_as_the_page_says_is_found() -> None:
    queue = {"broker_name": "a", "queue_id": 0, "min_offset": 0, "max_offset": 1}
    answer = {"topic": "t", "messages": 1, "queues": [queue]}
    check_answer("topic show", answer)
    check_answer("topic show", answer | {"type": "FIFO", "queues": []})
    check_answer("topic list", ["a", "b"])
    check_answer("user copy", {"broker-a": ["alice"], "broker-b": []})
    wrong: list[Any] = [
        {"topic": "t", "messages": 1, "queues": [queue | {"queue_id": "0"}]},
        answer | {"more": 1},
        {"messages": 1, "queues": []},
        answer | {"messages": True},
        answer | {"messages": None},
    ]
    for each in wrong:
        with pytest.raises(AssertionError):
            check_answer("topic show", each)
