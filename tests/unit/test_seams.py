"""What servers and clients take from the machine, they take at one place for each kind of thing.

Rule: time, chance, threads and the process id come from `machine`, asked for when they are needed; connections from the
event loop and `transport/dialing`; a file is changed by `store/files/system_calls`, or in a place that a table names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import rocketspark

PACKAGE = Path(rocketspark.__file__).parent
# Pipelines, commands, recipes and what tests embed run beside the cluster, not in it.
ROOMS = "model protocol filters store transport access namesrv controller broker client proxy".split()

MACHINE = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "datetime": {"now", "utcnow", "today"},
    "random": {"*"},
    "secrets": {"*"},
    "uuid": {"uuid1", "uuid4"},
    "threading": {"Thread", "Timer", "Event"},
    "os": {"urandom", "getpid", "getrandom", "fork"},
}
SOCKETS = {"socket": {"socket", "create_connection", "create_server", "getaddrinfo", "gethostbyname", "socketpair"}}
CHANGES = {
    "os": {
        *("rename", "replace", "remove", "unlink", "truncate", "ftruncate", "mkdir", "makedirs", "rmdir", "link"),
        *("symlink", "write", "pwrite", "fsync", "fdatasync", "posix_fallocate", "utime", "chmod", "fchmod"),
    },
    "shutil": {"*"},
    "tempfile": {"*"},
}
# Of any path.
PATH_CHANGES = {"write_text", "write_bytes", "unlink", "mkdir", "touch", "rmdir", "symlink_to"}

# Why each may: the file, then which calls.
ALLOWED = {
    # Who may read it, passwords and certificates: files of operators, made before a server runs.
    "broker/access/secure_folder.py": {
        *("datetime.now", "secrets.token_urlsafe", "os.fsync", "Path.mkdir", "Path.unlink", "open to write"),
    },
    "transport/tls/certificate_files.py": {
        *("datetime.now", "Path.mkdir", "Path.unlink", "Path.write_bytes", "open to write"),
    },
    "transport/tls/server_contexts.py": {"tempfile.TemporaryDirectory"},
    "broker/access/plain_acl/rule_files.py": {
        *("os.makedirs", "os.replace", "os.unlink", "os.fsync", "os.fchmod", "tempfile.mkstemp", "open to write"),
    },
    # Lines that nothing is read back from.
    "access/audit.py": {"os.write", "os.ftruncate", "os.rename", "os.unlink", "Path.mkdir"},
    # Offsets of a broadcasting client, on the machine of the application.
    "client/consumer/offsets.py": {"os.replace", "os.fsync", "Path.mkdir", "Path.unlink"},
    # A copy that is made while nobody writes into it.
    "store/backup.py": {
        *("os.utime", "os.pwrite", "os.fsync", "os.fchmod", "shutil.rmtree", "Path.mkdir", "Path.unlink"),
        "open to write",
    },
    # Removals and names within a store: what is left of them after a power cut is looked through at the next start.
    "store/consumequeue/consume_queue_store.py": {"os.unlink"},
    "store/files/config_files.py": {"os.replace", "os.unlink", "os.fchmod"},
    "store/files/mapped_file_queue.py": {"os.unlink"},
    "store/index/index_service.py": {"os.unlink"},
    "store/timers/timer_files.py": {"os.rename", "os.replace", "os.unlink", "shutil.rmtree"},
    # A mark; who finds it or does not looks through more or less.
    "broker/pop/lifecycle.py": {"Path.write_text"},
    # Notes of what left an acting slave: they guard against a kill, not against a loss of power.
    "broker/storage/left_messages.py": {"Path.mkdir", "Path.write_bytes", "os.replace"},
    # Calls that may hang, to a second tier, say; a simulation replaces its threads.
    "transport/loose_threads.py": {"threading.Thread"},
    # Threads of applications that use clients without an event loop.
    "client/connection/real_threads.py": {"threading.Thread"},
    # The place for sockets, and that for files.
    "transport/dialing.py": {"socket.socket"},
    "store/files/system_calls.py": {
        *("os.unlink", "os.mkdir", "os.makedirs", "os.ftruncate", "os.posix_fallocate"),
        *("os.write", "os.pwrite", "os.fsync", "os.fdatasync", "os.replace", "shutil.rmtree"),
    },
}


def _wanted(kinds: dict[str, set[str]], module: str, name: str) -> bool:
    return bool(kinds.get(module, set()) & {name, "*"})


def taken(tree: ast.AST) -> Iterator[str]:
    """Yield each thing of the machine that the code names by itself, as "module.name"."""
    modules: dict[str, str] = {}
    names: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            whose = ast.unparse(node.value)
            # datetime.now and datetime.datetime.now are one thing.
            module = "datetime" if whose in ("datetime", "datetime.datetime") else modules.get(whose, "")
            if not module and node.attr in PATH_CHANGES:
                yield f"Path.{node.attr}"
            found = module, node.attr
        elif isinstance(node, ast.Name) and node.id in names:
            found = names[node.id]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "open":
            modes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
            if any(letter in ast.unparse(mode) for mode in modes for letter in "wax+"):
                yield "open to write"
            continue
        else:
            continue
        if any(_wanted(kinds, *found) for kinds in (MACHINE, SOCKETS, CHANGES)):
            yield ".".join(found)


def kept(tree: ast.Module) -> Iterator[int]:
    """Yield lines that keep a function of `machine` from before a simulation could set its own: outside of functions,
    or as what an argument is if it is not given.
    """

    def visit(node: ast.AST, inside: bool) -> Iterator[int]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            outer = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            if not isinstance(node, ast.Lambda):
                outer += node.decorator_list
            for child in outer:
                yield from visit(child, False)
            for child in node.body if isinstance(node.body, list) else [node.body]:
                yield from visit(child, True)
            return
        named = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "machine"
        # Types are no functions that anybody calls.
        if named and not inside and node.attr not in ("Steps", "Joinable", "Event"):
            yield node.lineno
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(tree, False)


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))


@pytest.mark.shows("time, chance, threads, sockets and changes of files each come from one place")
def test_the_machine_is_asked_at_one_place() -> None:
    found: dict[str, set[str]] = {}
    for path in sources():
        if things := set(taken(ast.parse(path.read_text()))):
            found[str(path.relative_to(PACKAGE))] = things
    beyond = {file: more for file, things in found.items() if (more := things - ALLOWED.get(file, set()))}
    assert beyond == {}
    unused = {file: less for file, things in ALLOWED.items() if (less := things - found.get(file, set()))}
    assert unused == {}, "allowed, and not needed any more"


def test_nobody_keeps_a_clock_from_before_a_simulation() -> None:
    found = [f"{path.relative_to(PACKAGE)}:{line}" for path in sources() for line in kept(ast.parse(path.read_text()))]
    assert found == []


@pytest.mark.parametrize(
    ("code", "things"),
    [
        ("import time\ntime.time()", ["time.time"]),
        ("from time import monotonic as now\nnow()", ["time.monotonic"]),
        ("import time as t\nt.sleep(1)", ["time.sleep"]),
        ("from datetime import datetime\ndatetime.now()", ["datetime.now"]),
        ("import datetime\ndatetime.datetime.now()", ["datetime.now"]),
        ("import random\nrandom.Random(1)", ["random.Random"]),
        ("import os\nos.path.exists('a'), os.replace('a', 'b')", ["os.replace"]),
        ("import threading\nthreading.Lock(), threading.Thread()", ["threading.Thread"]),
        ("import socket\nsocket.AF_INET, socket.socket()", ["socket.socket"]),
        ("open('a'), open('a', 'rb')", []),
        ("open('a', 'wb')", ["open to write"]),
        ("path.unlink(), path.read_text()", ["Path.unlink"]),
        ("from rocketspark import machine\nmachine.time()", []),
    ],
)
def test_what_counts_as_taken(code: str, things: list[str]) -> None:
    assert list(taken(ast.parse(code))) == things


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("def f(now=machine.time): ...", [1]),
        ("clock = machine.perf_counter", [1]),
        ("class A:\n    now = machine.time", [2]),
        ("def f(now=lambda: machine.time()):\n    g = machine.time", []),
    ],
)
def test_what_counts_as_kept(code: str, lines: list[int]) -> None:
    assert list(kept(ast.parse(code))) == lines
