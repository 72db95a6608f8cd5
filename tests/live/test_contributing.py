"""The recipes of CONTRIBUTING.md, "How to add", followed on a copy of the source: what they add works there.

Rule: a file that a step changes is one that its recipe names; whoever moves a file mends the recipe and the step here.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rocketspark"


class Step(NamedTuple):
    """`text` goes behind the first line that `behind` is found in; "" is the end of a file, which may be a new one."""

    recipe: str
    file: str
    behind: str
    text: str


CODE, SETTING, METRIC = "A request code", "A setting of the broker", "A metric"
COMMAND, OPTION = "A command", "An option of the Spark source"

HEADERS = '''

class GreetHeader(Header, kw_only=True, gc=False, rename={"name": "whom"}):
    """GREET (7310999)."""

    name: str


class GreetReply(Header, kw_only=True, gc=False):
    """Reply to GREET (7310999)."""

    text: str
'''
HANDLER = '''
    def greet(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GREET (7310999)."""
        from rocketspark.protocol.headers.admin import GreetReply

        self._stats.greetings = getattr(self._stats, "greetings", 0) + 1
        return reply(request.opaque, header=GreetReply(text=f"{self._settings.greeting}, {request.ext.name}"))
'''
CALL = '''

async def greet(broker: Peer, name: str, *, timeout_ms: float = TIMEOUT_MS) -> str:
    """Have a broker greet somebody."""
    from rocketspark.protocol.headers.admin import GreetHeader, GreetReply

    reply = await broker.request(RequestCode.GREET, GreetHeader(name=name), timeout_ms=timeout_ms)
    reply.raise_for_code(f"greet {name!r}")
    return reply.header(GreetReply).text
'''
OPERATION = '''
    async def greet(self, name: str) -> list[str]:
        """Have every master greet somebody."""
        masters = await self._masters(None, None)
        return [await admin_api.greet(await self._broker(m.address), name) for m in masters]

'''
METRICS = """
    def _greetings(self) -> Iterator[Told]:
        yield COUNTER, "rocketspark_greetings", "Greetings given.", [({}, getattr(self._stats, "greetings", 0))]
"""
NEW_COMMAND = '''"""`greet`: have the brokers greet somebody."""

from rocketspark.cli.operate import print_json, run_operation
from rocketspark.cli.options import HERE, ClusterAccess


def greet(name: str, at: ClusterAccess = HERE) -> None:
    """Print what the brokers say.

    Example: `rocketspark greet Ada`
    """
    print_json(run_operation(at, lambda operations: operations.greet(name)))
'''
STEPS = [
    Step(CODE, "protocol/codes.py", r"^    SEND_MESSAGE = 10$", "    GREET = 7_310_999\n"),
    Step(CODE, "protocol/headers/admin.py", "", HEADERS),
    Step(
        CODE,
        "broker/handlers/admin/admin_broker.py",
        r"^        add = routes.add$",
        "        from rocketspark.protocol.headers.admin import GreetHeader\n\n"
        "        add(RequestCode.GREET, self.greet, GreetHeader)\n",
    ),
    Step(CODE, "broker/handlers/admin/admin_broker.py", r"^        self\._cold_reads = ", HANDLER),
    Step(CODE, "client/connection/admin_api.py", "", CALL),
    Step(
        SETTING,
        "broker/settings.py",
        r"^    broker_name: str = setting\(",
        '    greeting: str = setting("greetingText", "hello", live=AT_USE)\n',
    ),
    Step(
        METRIC,
        "broker/operations/metrics.py",
        r"^            \*self\._messages\(\),$",
        "            *self._greetings(),\n",
    ),
    Step(METRIC, "broker/operations/metrics.py", r"^        return Collected\(", METRICS),
    Step(COMMAND, "cli/commands/greet.py", "", NEW_COMMAND),
    Step(
        COMMAND,
        "cli/tree.py",
        r'^app\.command\("server"\)',
        'from rocketspark.cli.commands import greet\n\napp.command("greet")(greet.greet)\n',
    ),
    Step(COMMAND, "admin/operations.py", r"^    # -- what brokers set aside", OPERATION),
    Step(
        COMMAND,
        "admin/operations.py",
        r"^    list_topics = blocking\(",
        "    greet = blocking(AsyncAdmin.greet)\n",
    ),
    Step(OPTION, "tables/options.py", r"^_READ_NAMES = \($", '    "greeting",\n'),
    Step(
        OPTION,
        "tables/options.py",
        r"^class ReadOptions\b",
        '    """With one more."""\n\n    greeting: str\n',
    ),
    Step(
        OPTION,
        "tables/options.py",
        r"^    parsed = ReadOptions\($",
        '        greeting=given.choice("greeting", "hello", "hi"),\n',
    ),
]

# Prints what came of it, as JSON.
PROGRAM = """
import contextlib, io, json, sys, urllib.request
from pathlib import Path
from rocketspark.admin.operations import Admin
from rocketspark.broker.broker_conf import read_broker_conf
from rocketspark.cli.tree import tree
from rocketspark.testing import run_cluster
from tests.support.ports import free_ports

conf = Path(sys.argv[1]) / "broker.conf"
conf.write_text("greetingText=good morning\\n")
port = free_ports(0)
with run_cluster(greeting="good day", metrics_exporter="PROM", metrics_port=port) as cluster:
    with Admin(cluster.namesrv) as operations:
        said = operations.greet("Ada")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tree().main(args=["greet", "Bob", "--namesrv", cluster.namesrv], prog_name="rocketspark")
    scraped = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
print(json.dumps({
    "said": said,
    "setting": read_broker_conf(conf)[0].greeting,
    "printed": json.loads(printed.getvalue()),
    "counted": [line.split()[-1] for line in scraped.splitlines() if line.startswith("rocketspark_greetings_total")],
}))
"""
PARSING = """
import json
from rocketspark.tables.options import parse_read

given = {"namesrv": "127.0.0.1:9876", "topic": "t"}
print(json.dumps([parse_read(given | more, streaming=False).greeting for more in ({}, {"greeting": "hi"})]))
"""


def recipe(name: str) -> str:
    """The text of one recipe."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = re.search(rf"^\*\*{name}\.\*\* (.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"CONTRIBUTING.md has no recipe {name!r}"
    return found.group(1)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with every step taken."""
    source = tmp_path_factory.mktemp("copy") / "src"
    shutil.copytree(PACKAGE, source / "rocketspark", ignore=shutil.ignore_patterns("__pycache__"))
    for step in STEPS:
        path = source / "rocketspark" / step.file
        text = path.read_text("utf-8") if path.exists() else ""
        at = len(text)
        if step.behind:
            line = re.search(step.behind + r".*\n", text, re.MULTILINE)
            assert line, f"{step.recipe}: {step.file} has no line {step.behind!r} any more; mend this step"
            at = line.end()
        path.write_text(text[:at] + step.text + text[at:], "utf-8")
        ast.parse(path.read_text("utf-8"))
    return source


def result_of(program: str, source: Path, *arguments: str) -> object:
    """What a program prints that runs with the changed source."""
    paths = os.pathsep.join((str(source), str(ROOT)))
    call = [sys.executable, "-c", program, *arguments]
    ran = subprocess.run(call, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def named_in(text: str, file: str) -> bool:
    """Whether a recipe names a file; where it says `<kind>` or `<name>`, any will do."""
    names = re.findall(r"`([\w<>/.]+\.py)`", text)
    return any(re.fullmatch(re.sub(r"<\w+>", ".+", name), file) for name in names)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.recipe}-{step.file}")
def test_a_recipe_names_the_file_of_each_of_its_steps(step: Step) -> None:
    assert named_in(recipe(step.recipe), step.file)


def test_a_code_a_setting_a_metric_and_a_command_that_were_added_work(copy: Path, tmp_path: Path) -> None:
    assert result_of(PROGRAM, copy, str(tmp_path)) == {
        "said": ["good day, Ada"],
        "setting": "good morning",
        "printed": ["good day, Bob"],
        "counted": ["2.0"],
    }


def test_an_option_of_the_source_that_was_added_is_parsed(copy: Path) -> None:
    pytest.importorskip("pyspark")
    assert result_of(PARSING, copy) == ["hello", "hi"]
