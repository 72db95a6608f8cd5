"""Small changes of src, drawn by seed, each with the tests of its room that run the line: which does no test notice?

Rule: a change is made by cosmic-ray in a copy of src, never in the tree. SOAK_MUTANTS=600 says how many are drawn,
MUTANTS_SEED=1 which, MUTANTS_ROOMS="access store" from where. A run goes on where the last one ended: mutants-out holds
which test noticed what (SEED.json), the changes that none noticed (unnoticed-SEED.txt), and which lines each test runs.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import ctypes
import difflib
import functools
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from tests.soak.lines_run import lines_that_tell

pytestmark = [
    pytest.mark.soak,
    pytest.mark.shows("small changes of the source are noticed by tests"),
]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "rocketspark"
OUT = ROOT / "mutants-out"
NOTICED_MIN = 0.9
SOCKETS = LIVE, CLIENTS, SPARK = "tests/live/test_", "tests/clients/test_", "tests/spark/test_"
# What is changed, and the tests that should notice.
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "access": (
        ["access", "broker/access"],
        [
            *(
                "tests/unit/access",
                "tests/unit/broker/access",
                "tests/unit/broker/test_broker_conf.py",
                "tests/unit/controller/test_gate.py",
            ),
            *(LIVE + f"{name}*.py" for name in ("access", "plain_acl", "secure")),
        ],
    ),
    "replication": (
        ["broker/replication", "controller"],
        [
            *("tests/unit/broker/replication", "tests/unit/controller"),
            *(LIVE + f"{name}*.py" for name in ("replication", "ha_", "slave_synchronize", "role_changes")),
            *(LIVE + f"{name}*.py" for name in ("controller", "acting_master")),
        ],
    ),
    "store": (["store"], ["tests/unit/store", "tests/unit/broker/messages/timers/test_timer_messages_grid.py"]),
    "pop": (
        [
            "broker/pop",
            "broker/handlers/pop_message.py",
            "broker/handlers/ack_message.py",
            "broker/handlers/notification.py",
            "broker/consumers/message_filters.py",
        ],
        [
            "tests/unit/broker/pop",
            *(LIVE + f"{name}.py" for name in ("broker_pop*", "pop_requests", "pop_former_names")),
        ],
    ),
    "messages": (
        ["broker/messages", "broker/handlers/end_transaction.py"],
        [
            "tests/unit/broker/messages",
            *(
                LIVE + f"{name}*.py"
                for name in ("broker_transactions", "broker_timers", "broker_redelivery", "half_ranges", "quarantine")
            ),
        ],
    ),
    "clients": (
        ["client"],
        [
            *("tests/unit/client", "tests/unit/protocol/test_pop_answers.py"),
            *(CLIENTS + f"{name}.py" for name in ("failover", "simple_consumer", "pop_push_consumer", "transactions")),
            *(CLIENTS + f"{name}.py" for name in ("consuming", "polling", "producing", "request_reply")),
            *(LIVE + f"{name}.py" for name in ("client_live", "pop_clients", "program_ends")),
        ],
    ),
    "proxy": (["proxy"], ["tests/unit/proxy", *(LIVE + f"proxy_{name}.py" for name in ("remoting", "secure"))]),
    "spark": (
        [
            "spark/exactly_once",
            *(f"tables/{name}.py" for name in ("cluster_queries", "given_options", "offset_ranges", "option_values")),
        ],
        [
            *("tests/unit/spark", "tests/unit/tables"),
            *(SPARK + f"{name}.py" for name in ("exactly_once", "exactly_once_failover", "fetch", "failover", "gaps")),
            *(SPARK + f"{name}.py" for name in ("times", "progress")),
        ],
    ),
}
# Those of cosmic-ray's operators whose changes a reader would call mistakes; with them a call is left out.
OPERATORS = (
    *("ReplaceComparisonOperator_Eq_NotEq", "ReplaceComparisonOperator_NotEq_Eq", "ReplaceComparisonOperator_Is_IsNot"),
    *("ReplaceComparisonOperator_IsNot_Is", "ReplaceComparisonOperator_Lt_LtE", "ReplaceComparisonOperator_LtE_Lt"),
    *("ReplaceComparisonOperator_Gt_GtE", "ReplaceComparisonOperator_GtE_Gt", "ReplaceComparisonOperator_Lt_Gt"),
    *("ReplaceBinaryOperator_Add_Sub", "ReplaceBinaryOperator_Sub_Add", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceBreakWithContinue", "ZeroIterationForLoop"),
    "LeaveOutCall",
)
# Left alone: what no behaviour shows, and lines for a log.
UNSEEN = re.compile(r"\b(frozen|slots|gc|daemon|strict|kw_only)=$")
LOGGED = re.compile(r"\s*(self\.)?(_|trouble_)?log(ger)?\.\w+\(")
# Changes that change nothing that matters.
ALIKE = {
    # One that has just connected looks whether the client is gone.
    "proxy/port.py LeaveOutCall self._dial.cancel() 1",
    # It only spares the processor: the loop looks again.
    "client/sync.py LeaveOutCall self._room.wait_empty(min(end_s, time.monotonic() + LOOK_S)) 1",
    # The loop ends by its condition: all that was received is whole, or nothing is left to fill.
    "store/replica.py ReplaceBreakWithContinue break 5",
    "store/readonly/read_only_files.py ReplaceComparisonOperator_Lt_LtE while done < len(target): 1",
    # The rest of the loop has nothing to do: what was due is cleared.
    "broker/messages/transactions/transaction_checks.py ReplaceBreakWithContinue break 2",
    # One piece is joined to itself.
    "store/index/index_service.py ReplaceComparisonOperator_Gt_GtE if len(self._ready) > 1: 1",
    # Imports for types alone work as well when they are made.
    "store/get_message.py AddNot if TYPE_CHECKING: 1",
    # No two requests of one broker have the same number.
    "controller/replicas_info.py ReplaceComparisonOperator_Lt_LtE"
    " return h.asker != looked.asker or (h.asked or 0) < looked.asked 1",
    # An epoch that is noted already is not noted again.
    "broker/replication/link/links.py ReplaceAndWithOr if piece.epoch != self._epoch and piece.epoch >= 0: 1",
    # A batch that is just full goes at the end of the loop's turn.
    "client/producer/accumulator.py ReplaceComparisonOperator_GtE_Gt"
    " if together.size >= self._bytes_max or len(together) >= _COUNT_MAX: 1",
    # A group of rows in a file is one piece longer.
    "tables/export_topic.py ReplaceComparisonOperator_GtE_Gt"
    " if sum(one.num_rows for one in group) >= GROUP_ROWS or sum(one.nbytes for one in group) >= GROUP_BYTES: 1",
    # The last file never goes.
    "store/expired_files.py ReplaceComparisonOperator_LtE_Lt"
    " starts = [start for start in log.mapped_files.starts if start + log.file_bytes <= log.flushed] 1",
    # The rounds that are left do nothing.
    "broker/messages/batch_properties.py ReplaceBreakWithContinue break 1",
    # It changes a line for a log.
    "broker/handlers/end_transaction.py ReplaceOrWithAnd"
    ' text, request.ext.message_id, request.ext.producer_group, peer.address, request.remark or "no reason" 1',
    # An entry that ends its chain only has the slots made anew, to the same.
    "store/index/index_file.py ReplaceComparisonOperator_LtE_Lt"
    " if blank or found[0] < 0 or found[1] > above or not 0 <= found[3] < count: 1",
    # The next row begins behind a hole then, which ends the read.
    "store/get_message.py ReplaceBreakWithContinue break 7",
    # The general way leaves the same bytes.
    "broker/messages/transactions/half_batch_records.py ReplaceComparisonOperator_NotEq_Eq"
    " if stored[first : first + size] != text: 1",
    "broker/messages/transactions/half_batch_records.py ReplaceComparisonOperator_LtE_Lt"
    " return shape if shape.properties_bytes <= properties.BYTES_MAX else None 1",
}
# What is compiled is kept, and never taken for that of a change made within the same second.
COMPILED = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(OUT / "compiled")}
# One test may take this much longer than five times what it takes without a change.
TEST_S = 30.0


class Mutant(NamedTuple):
    """One change: the operator's `occurrence`-th place in a file of a room; `key` survives changes around it."""

    room: str
    name: str
    operator: str
    occurrence: int
    line: int
    key: str


def sources(room: str) -> list[Path]:
    patterns = [place if place.endswith(".py") else f"{place}/**/*.py" for place in ROOMS[room][0]]
    return sorted(path for pattern in patterns for path in PACKAGE.glob(pattern))


def files_of_tests(room: str) -> list[str]:
    patterns = [part if part.endswith(".py") else f"{part}/**/test_*.py" for part in ROOMS[room][1]]
    return [path for pattern in patterns for path in sorted(glob.glob(pattern, root_dir=ROOT, recursive=True))]


@functools.cache
def text_of(name: str) -> str:
    """Return a file of src as it was when the changes were drawn: somebody may work on while they are tried."""
    return (PACKAGE / name).read_text()


def operator_named(name: str) -> Any:
    import parso
    from cosmic_ray import plugins
    from cosmic_ray.operators.operator import Operator

    class LeaveOutCall(Operator):  # type: ignore[misc]
        """Puts `pass` where a call is a statement."""

        def mutation_positions(self, node: Any) -> Iterator[Any]:
            is_call = node.type == "simple_stmt" and node.children[0].type == "atom_expr"
            if is_call and node.get_last_leaf().get_previous_leaf() == ")":
                yield node.start_pos, node.end_pos

        def mutate(self, node: Any, index: int) -> Any:
            node.children[0] = parso.parse(node.get_first_leaf().prefix + "pass")
            return node

        def examples(self) -> tuple[()]:  # type: ignore[override]
            return ()

    return LeaveOutCall() if name == "LeaveOutCall" else plugins.get_operator(f"core/{name}")()


def places(room: str) -> Iterator[Mutant]:
    """Yield every change that could be made in a room."""
    from cosmic_ray.ast import ast_nodes, get_ast

    for path in sources(room):
        name = str(path.relative_to(PACKAGE))
        lines = text_of(name).splitlines()
        nodes = list(ast_nodes(get_ast(text_of(name))))
        alike: collections.Counter[str] = collections.Counter()
        for operator in OPERATORS:
            make = operator_named(operator)
            for occurrence, (number, column) in enumerate(
                at for node in nodes for at, _ in make.mutation_positions(node)
            ):
                line = lines[number - 1]
                if UNSEEN.search(line[:column]) or LOGGED.match(line):
                    continue
                key = f"{name} {operator} {line.strip()}"
                alike[key] += 1
                yield Mutant(room, name, operator, occurrence, number, f"{key} {alike[key]}")


def drawn(count: int, seed: int, rooms: list[str]) -> list[Mutant]:
    """Draw as many changes of each room: the same ones after src changed elsewhere."""

    def rank(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).digest()

    return [mutant for room in rooms for mutant in sorted(places(room), key=rank)[: count // len(rooms)]]


def changed(mutant: Mutant) -> tuple[str, list[str]]:
    """Return the text of the file with the change, and how it differs."""
    from cosmic_ray.mutating import mutate_code

    before = text_of(mutant.name)
    made = str(mutate_code(before, operator_named(mutant.operator), mutant.occurrence))
    return made, list(difflib.unified_diff(before.splitlines(), made.splitlines(), lineterm="", n=2))[2:]


class Room:
    """The tests of a room, and which lines each runs: found out once, anew for files that changed."""

    def __init__(self, name: str, src: Path, folder: Path) -> None:
        self.src, self.folder = src, folder
        kept = OUT / f"lines-{name}.json"
        known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
        of_src = b"".join(path.read_bytes() for path in [*sources(name), Path(__file__).with_name("lines_run.py")])
        states = {file: digest(of_src + (ROOT / file).read_bytes()) for file in files_of_tests(name)}
        known = {file: known[file] for file in states if known.get(file, {}).get("state") == states[file]}
        for file in states.keys() - known.keys():
            seen = folder / "seen.json"
            seen.write_text('{"": {"lines": {}}}')
            _, failed = self.told([file], 3600, "-p", "tests.soak.lines_run", LINES_RUN=str(seen))
            print(f"lines of {file}", f"without {failed}, which fails" if failed else "", flush=True)
            known[file] = {"state": states[file], "tests": json.loads(seen.read_text())}
            kept.write_text(json.dumps(known))
        self.state = digest("".join(states.values()).encode())
        self.tests: dict[str, Any] = {
            test: ran for file in known.values() for test, ran in file["tests"].items() if test
        }
        self.imports = [file["tests"][""]["lines"] for file in known.values()]

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Return those that run the changed line: quick ones first, sockets last.

        For a line that an import runs (that of a test's file, or one within a test) these are all.
        """
        tree = ast.parse(text_of(mutant.name))
        tells = lines_that_tell(tree, mutant.line)
        ran = {test: found["lines"].get(mutant.name, ()) for test, found in self.tests.items()}
        importing = [lines.get(mutant.name, ()) for lines in self.imports]
        importing += [lines for lines in ran.values() if {node.lineno for node in tree.body[1:]}.intersection(lines)]
        known = {test for test, lines in ran.items() if tells.intersection(lines)}
        tests = ran if any(not tells or tells.intersection(lines) for lines in importing) else known

        def rank(test: str) -> tuple[bool, bool, bool, float]:
            return test.startswith(SOCKETS), test not in known, not ran[test], self.tests[test]["seconds"]

        return sorted(tests, key=rank)

    def notices(self, tests: list[str]) -> str:
        """Return the test that fails, "" if none does. What a test over sockets notices it must notice twice."""
        if not tests:
            return ""
        seconds = [self.tests[test]["seconds"] for test in tests]
        limits = ("-x", f"--timeout={TEST_S + 5 * max(seconds)}", "--timeout-method=thread")
        all_s = 5 * TEST_S + 10 * sum(seconds)
        code, failed = self.told(tests, all_s, *limits)
        if code == pytest.ExitCode.USAGE_ERROR:
            # The change gave other names to tests whose parameters come from src.
            code, failed = self.told(sorted({test.partition("::")[0] for test in tests}), all_s, *limits)
        if failed.startswith(SOCKETS) and self.told([failed], all_s, *limits)[0] == 0:
            return self.notices(tests[tests.index(failed) + 1 :] if failed in tests else [])
        return "" if code == 0 else failed or "hangs"

    def told(self, tests: list[str], limit_s: float, *options: str, **more: str) -> tuple[int | None, str]:
        """Run tests: pytest's code (None for a hang) and the first that failed. What they started ends with them."""
        listed, said = self.folder / "tests.txt", self.folder / "said.txt"
        listed.write_text("\n".join(tests))
        arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, "-m", "not official and not soak"]
        arguments += [f"--basetemp={self.folder / 'tests'}", f"@{listed}"]
        before = children()
        run = os.fork()
        if not run:
            be_pytest(self.src, said, arguments, more)
        code, ends = None, time.monotonic() + limit_s
        while code is None and time.monotonic() < ends:
            ended, status = os.waitpid(run, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run, signal.SIGKILL)
        if code is None:
            os.waitpid(run, 0)
        end_orphans(before)
        text = said.read_text()
        assert code in (None, 0, 1, 2, 4, 5), text[-4000:]
        found = re.search(r"^(?:FAILED|ERROR) (tests/\S+?::.*?)(?: - .*)?$", text, re.MULTILINE)
        return code, found[1] if found else ""


def adopt_orphans() -> None:
    """Become the parent of what a run leaves behind: servers in sessions of their own whose test hung."""
    if sys.platform == "linux":
        set_child_subreaper = 36
        assert ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0) == 0


def children() -> set[int]:
    """Return the processes whose parent this one is, on Linux."""
    return {int(child) for path in glob.glob("/proc/self/task/*/children") for child in Path(path).read_text().split()}


def end_orphans(kept: set[int]) -> None:
    """End the processes that came to this one since it had those kept alone, and what comes to it when they end."""
    while left := children() - kept:
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def be_pytest(src: Path, said: Path, arguments: list[str], more: dict[str, str]) -> NoReturn:
    """Be a pytest of its own, without a module of src: a fork, as to start one takes longer than most tests."""
    code: int = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setsid()
        sys.stdout = sys.stderr = said.open("w", buffering=1)
        for fd in (1, 2):
            os.dup2(sys.stdout.fileno(), fd)
        os.chdir(ROOT)
        os.environ.update(COMPILED, PYTHONPATH=str(src), **more)
        sys.dont_write_bytecode, sys.pycache_prefix = False, COMPILED["PYTHONPYCACHEPREFIX"]
        sys.path.insert(0, str(src))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("rocketspark", "tests")]:
            del sys.modules[name]
        code = pytest.main(arguments)
    finally:
        os._exit(code)


def is_python(text: str) -> bool:
    """Tell whether it can be compiled: `not` before a named expression cannot, which any test would notice."""
    with contextlib.suppress(SyntaxError):
        compile(text, "", "exec")
        return True
    return False


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def test_small_changes_are_noticed(tmp_path: Path) -> None:
    for module in ("cosmic_ray", "coverage"):
        pytest.importorskip(module, reason="pip install 'rocketspark[mutants]' brings what makes the changes")
    adopt_orphans()
    names = os.environ.get("MUTANTS_ROOMS", " ".join(ROOMS)).split()
    seed = int(os.environ.get("MUTANTS_SEED", "1"))
    OUT.mkdir(exist_ok=True)
    src = OUT / "src"
    shutil.rmtree(src, ignore_errors=True)
    shutil.copytree(ROOT / "src", src, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(src)]
    subprocess.run(compiling, check=True, env=os.environ | COMPILED)
    kept = OUT / f"{seed}.json"
    met: dict[str, dict[str, str]] = json.loads(kept.read_text()) if kept.exists() else {}
    rooms: dict[str, Room] = {}
    counted: collections.Counter[str] = collections.Counter()
    unnoticed: dict[str, list[str]] = collections.defaultdict(list)
    for mutant in drawn(int(os.environ.get("SOAK_MUTANTS", "600")), seed, names):
        if mutant.room not in rooms:
            rooms[mutant.room] = Room(mutant.room, src, tmp_path)
        room = rooms[mutant.room]
        text, differs = changed(mutant)
        if mutant.key in ALIKE or not is_python(text):
            continue
        tests = room.tests_for(mutant)
        known = met.get(mutant.key, {"by": "", "state": ""})
        if not known["by"] and known["state"] != room.state:
            target = src / "rocketspark" / mutant.name
            target.write_text(text)
            known = met[mutant.key] = {"by": room.notices(tests), "state": room.state}
            target.write_text(text_of(mutant.name))
            kept.write_text(json.dumps(met, indent=1))
        counted[mutant.room] += 1
        if not known["by"]:
            told = f"{mutant.room}: {mutant.name}:{mutant.line} {mutant.operator}, run by {len(tests)} tests"
            unnoticed[mutant.room].append("\n".join([told, *differs]))
            (OUT / f"unnoticed-{seed}-{mutant.room}.txt").write_text("\n\n".join(unnoticed[mutant.room]) + "\n")
        print(f"{counted[mutant.room]}: {known['by'] or 'NOT NOTICED'}: {mutant.key}", flush=True)
    for name, room in rooms.items():
        print(f"{name}: {counted[name] - len(unnoticed[name])} of {counted[name]} noticed")
        own = {str(path.relative_to(PACKAGE)) for path in sources(name)}
        idle = [test for test, ran in room.tests.items() if not own & ran["lines"].keys()]
        print(f"{name}: {len(idle)} of {len(room.tests)} tests run no line of it", *idle, sep="\n  ")
    passed = [told for room in unnoticed.values() for told in room]
    assert len(passed) <= (1 - NOTICED_MIN) * counted.total(), "\n\n".join(passed)
