"""`topic`, `produce` and `consume` against a running cluster."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.support.forked_commands import forked

from rocketspark import MessageQueue, Producer, PullConsumer
from rocketspark.testing import Cluster, run_cluster

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        yield running


def command(cluster: Cluster, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "rocketspark.cli.main", *arguments, "--namesrv", cluster.namesrv]


def run(cluster: Cluster, *arguments: str, stdin: str | bytes = "", code: int = 0) -> str:
    """What a command prints; it must end with the code, and without a traceback."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = forked().run(*arguments, "--namesrv", cluster.namesrv, stdin=data, timeout_s=TIMEOUT_S)
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return (done.stderr if code else done.stdout).decode()


def read_all(cluster: Cluster, topic: str, count: int, *arguments: str) -> list[dict[str, object]]:
    printed = run(cluster, "consume", topic, "--from", "first", "--count", str(count), "--json", *arguments)
    return [json.loads(line) for line in printed.splitlines()]


@pytest.mark.shows("topic list, show, create, delete")
def test_create_list_show_and_delete(cluster: Cluster) -> None:
    assert run(cluster, "topic", "create", "orders", "--queues", "2") == (
        "created orders with 2 queues on broker-a, broker-b\n"
    )
    assert "orders" in run(cluster, "topic", "list").split()
    assert "TBW102" not in run(cluster, "topic", "list")
    assert {"orders", "TBW102"} <= set(json.loads(run(cluster, "topic", "list", "--all", "--json")))
    run(cluster, "produce", "orders", stdin="a\nb\nc\n")
    shown = json.loads(run(cluster, "topic", "show", "orders", "--json"))
    assert shown["messages"] == 3
    assert [(q["broker_name"], q["queue_id"], q["min_offset"]) for q in shown["queues"]] == [
        ("broker-a", 0, 0),
        ("broker-a", 1, 0),
        ("broker-b", 0, 0),
        ("broker-b", 1, 0),
    ]
    assert sum(q["max_offset"] for q in shown["queues"]) == 3
    assert "orders: 3 messages" in run(cluster, "topic", "show", "orders")
    assert run(cluster, "topic", "delete", "orders", "--yes") == "deleted orders on broker-a, broker-b\n"
    assert "orders" not in run(cluster, "topic", "list").split()


def test_a_topic_on_one_broker(cluster: Cluster) -> None:
    made = json.loads(run(cluster, "topic", "create", "only-b", "--broker", "broker-b", "--json"))
    assert made == {"topic": "only-b", "queues": 4, "brokers": ["broker-b"]}
    shown = json.loads(run(cluster, "topic", "show", "only-b", "--json"))
    assert {q["broker_name"] for q in shown["queues"]} == {"broker-b"}
    error = run(cluster, "topic", "create", "only-c", "--broker", "broker-c", code=1)
    assert error.startswith("error: ")
    assert "broker-c" in error


@pytest.mark.parametrize("arguments", [("show", "missing"), ("delete", "missing", "--yes")])
def test_a_topic_that_is_not_there(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    error = run(cluster, "topic", *arguments, code=1)
    assert error.count("\n") == 1
    assert "'missing'" in error


@pytest.mark.shows("command line: produce from stdin or a file")
def test_lines_become_messages(cluster: Cluster) -> None:
    fields = ["--tag", "T", "--key", "k1", "--key", "k2", "--property", "a=1", "--property", "b=x=y"]
    result = json.loads(run(cluster, "produce", "lines", *fields, "--json", stdin="first\n\nzwei ö\r\nno end"))
    assert (result["topic"], result["sent"], result["failed"], result["empty"]) == ("lines", 3, 0, 1)
    messages = read_all(cluster, "lines", 3)
    assert sorted(str(m["body"]) for m in messages) == ["first", "no end", "zwei ö"]
    for message in messages:
        assert message["tag"] == "T"
        assert message["keys"] == ["k1", "k2"]
        properties = message["properties"]
        assert isinstance(properties, dict)
        assert (properties["a"], properties["b"]) == ("1", "x=y")


def test_a_file_in_order_under_one_sharding_key(cluster: Cluster, tmp_path: Path) -> None:
    lines = [f"line {n}" for n in range(2000)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    run(cluster, "produce", "sharded", "--file", str(tmp_path / "lines.txt"), "--sharding-key", "one")
    messages = read_all(cluster, "sharded", 2000)
    assert [m["body"] for m in messages] == lines
    assert [m["queue_offset"] for m in messages] == list(range(2000))


def test_a_send_that_fails_ends_it_with_the_count(cluster: Cluster) -> None:
    error = run(cluster, "produce", "big", stdin=b"small\n" + b"x" * (5 << 20) + b"\n", code=1)
    lines = error.splitlines()
    assert lines[0].startswith("sent 1 messages to big")
    why = "line 2 is longer than 4194304 bytes, the most that a message may have"
    assert lines[1] == f"error: {why}; mend it, or leave such out by --skip-bad"


@pytest.mark.shows("`produce` with a line without an end")
def test_a_line_without_an_end_is_read_no_further(cluster: Cluster) -> None:
    call = subprocess.Popen(
        command(cluster, "produce", "endless"), stdin=subprocess.PIPE, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert call.stdin is not None
    assert call.stderr is not None
    written = 0
    try:
        while written < 1 << 30:
            written += call.stdin.write(bytes(1 << 20))
    except BrokenPipeError:
        pass
    assert written < 64 << 20
    assert call.wait(TIMEOUT_S) == 1
    assert b"error: line 1 is longer than 4194304 bytes" in call.stderr.read()
    call.stderr.close()


@pytest.mark.shows("SIGTERM of `consume --group`", "SIGTERM where SIGINT is ignored")
@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGTERM, ("sh", "-c", 'trap "" INT; exec "$@"', "sh"))],
    ids=["SIGTERM", "SIGINT", "SIGTERM-in-the-background"],
)
def test_what_was_printed_is_committed_when_it_is_ended(
    cluster: Cluster, number: signal.Signals, before: tuple[str, ...]
) -> None:
    topic = f"ended-{number.name}-{len(before)}"
    run(cluster, "produce", topic, "--sharding-key", "k", stdin="".join(f"{n}\n" for n in range(40)))
    call = command(cluster, "consume", topic, "--from", "first", "--group", topic, "--json")
    reading = subprocess.Popen([*before, *call], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert reading.stdout is not None
        for _ in range(40):
            assert reading.stdout.readline()
        reading.send_signal(number)
        rest, errors = reading.communicate(timeout=TIMEOUT_S)
    finally:
        reading.kill()
    ended = -signal.SIGTERM if number == signal.SIGTERM else 130
    assert (reading.returncode, rest, errors) == (ended, "", "")
    with PullConsumer(cluster.namesrv, topic) as consumer:
        assert sum(consumer.committed(queue) or 0 for queue in consumer.queues(topic)) == 40


def test_bytes_that_are_no_text_are_base64(cluster: Cluster) -> None:
    run(cluster, "produce", "binary", stdin=b"\xff\xfe\x00\n")
    (message,) = read_all(cluster, "binary", 1)
    assert "body" not in message
    assert base64.b64decode(str(message["body_base64"])) == b"\xff\xfe\x00"


def test_text_output_is_one_line_for_each_message(cluster: Cluster) -> None:
    with Producer(cluster.namesrv, "g") as producer:
        result = producer.send("plain", b"two\nlines", tag="T", keys=["k"])
    printed = run(cluster, "consume", "plain", "--from", "first", "--count", "1")
    place = f"{result.queue.broker_name}/{result.queue.queue_id}/0"
    assert printed.split(" ", 1)[1] == f"{place} [T] [k] two\\nlines\n"


def test_consume_by_tag_and_by_time(cluster: Cluster) -> None:
    for tag in ("A", "B", "C"):
        run(cluster, "produce", "tagged", "--tag", tag, stdin=f"of {tag}\n")
    messages = read_all(cluster, "tagged", 2, "--tags", "A || C")
    assert sorted(str(m["body"]) for m in messages) == ["of A", "of C"]
    assert len(read_all(cluster, "tagged", 3)) == 3
    from_2001 = run(cluster, "consume", "tagged", "--from", "2001-01-01", "--count", "3", "--json")
    assert len(from_2001.splitlines()) == 3


def test_a_group_goes_on_where_it_stopped(cluster: Cluster) -> None:
    run(cluster, "produce", "grouped", "--sharding-key", "k", stdin="".join(f"{n}\n" for n in range(10)))
    first = read_all(cluster, "grouped", 4, "--group", "readers")
    rest = read_all(cluster, "grouped", 6, "--group", "readers")
    assert [m["body"] for m in first + rest] == [str(n) for n in range(10)]


def test_consume_of_a_topic_that_is_not_there(cluster: Cluster) -> None:
    for group in ([], ["--group", "readers"]):
        assert "'missing'" in run(cluster, "consume", "missing", *group, code=1)


@pytest.mark.shows(
    "command line: consume, `--json`",
    "mended: Python 3.13: nesting of 5,000; Ctrl-C; tests that need pyspark",
)
def test_a_tail_prints_what_comes_until_ctrl_c(cluster: Cluster) -> None:
    run(cluster, "topic", "create", "tailed", "--queues", "1")
    run(cluster, "produce", "tailed", stdin="before\n")
    tail = subprocess.Popen(
        command(cluster, "consume", "tailed", "--from", "first", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["body"] == "before"
        run(cluster, "produce", "tailed", stdin="after\n")
        assert json.loads(tail.stdout.readline())["body"] == "after"
        tail.send_signal(signal.SIGINT)
        rest, errors = tail.communicate(timeout=TIMEOUT_S)
    finally:
        tail.kill()
    assert (tail.returncode, rest, errors) == (130, "", "")


@pytest.mark.shows("`consume` without a group goes on with queues that come later")
@pytest.mark.parametrize("where", ["first", "last", "2020-01-01T00:00"])
def test_a_tail_goes_on_with_queues_that_its_topic_gets_later(cluster: Cluster, where: str) -> None:
    topic = f"grown-{where[:4]}"
    run(cluster, "topic", "create", topic, "--queues", "1")
    tail = subprocess.Popen(command(cluster, "consume", topic, "--from", where), stdout=subprocess.PIPE, text=True)
    try:
        with Producer(cluster.namesrv, "pg") as producer:
            assert tail.stdout is not None
            # It has begun when it prints.
            begun = threading.Event()

            def read(lines: list[str], source: Iterable[str]) -> None:
                for line in source:
                    lines.append(line.split()[-1])
                    begun.set()

            printed: list[str] = []
            reader = threading.Thread(target=read, args=(printed, tail.stdout))
            reader.start()
            sent = 0
            while not begun.wait(0.2):
                sent += 1
                producer.send(topic, b"before", queue=MessageQueue(topic, "broker-a", 0))
            run(cluster, "topic", "create", topic, "--queues", "3")
            for broker in ("broker-a", "broker-b"):
                for queue in (1, 2):
                    producer.send(topic, f"{broker}/{queue}".encode(), queue=MessageQueue(topic, broker, queue))
            end_s = time.monotonic() + TIMEOUT_S
            while len(set(printed)) < 5 and time.monotonic() < end_s:
                time.sleep(0.05)
            tail.send_signal(signal.SIGINT)
            assert tail.wait(TIMEOUT_S) == 130
            reader.join(TIMEOUT_S)
    finally:
        tail.kill()
        tail.wait()
    assert {"broker-a/1", "broker-a/2", "broker-b/1", "broker-b/2"} <= set(printed)
    assert all(printed.count(body) == 1 for body in set(printed) - {"before"})


def test_a_reader_of_the_output_may_leave(cluster: Cluster) -> None:
    run(cluster, "produce", "piped", stdin="x\n" * 5000)
    tail = subprocess.Popen(
        command(cluster, "consume", "piped", "--from", "first"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert tail.stdout is not None
        assert tail.stdout.readline()
        tail.stdout.close()
        run(cluster, "produce", "piped", stdin="x\n" * 5000)
        assert tail.wait(TIMEOUT_S) == 0
        assert tail.stderr is not None
        assert tail.stderr.read() == b""
    finally:
        tail.kill()
        tail.wait()
        assert tail.stderr is not None
        tail.stderr.close()


@pytest.mark.shows(
    "mended: `consume --group g | true` commits messages that were not written",
    "mended: `produce <&-`, `topic list >&-`, `consume >&-`, PYTHONIOENCODING=ascii: tracebacks or abort",
)
@pytest.mark.parametrize("where", ["closed", "full", "left"])
def test_what_could_not_be_written_is_not_committed(cluster: Cluster, where: str) -> None:
    topic = f"unwritten-{where}"
    run(cluster, "produce", topic, "--sharding-key", "k", stdin="x\n" * 40)
    call = command(cluster, "consume", topic, "--from", "first", "--group", topic)
    if where == "full":
        with open("/dev/full", "wb") as full:
            done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    elif where == "closed":
        shell = ["sh", "-c", '"$@" >&-', "sh", *call]
        done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
    else:
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(call, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S)
        os.close(writing)
    why = {"full": "No space left on device", "closed": "Bad file descriptor"}.get(where)
    line = f"error: stdout cannot be written: {why}; give the command a place to write to\n" if why else ""
    assert (done.returncode, done.stderr) == (1 if why else 0, line)
    with PullConsumer(cluster.namesrv, topic) as consumer:
        assert {consumer.committed(queue) for queue in consumer.queues(topic)} <= {None, 0}


@pytest.mark.shows(
    "mended: `produce <&-`, `topic list >&-`, `consume >&-`, PYTHONIOENCODING=ascii: tracebacks or abort",
    "mended: tags with newlines forge lines, ESC reaches the terminal",
)
def test_what_others_named_cannot_move_the_cursor_or_forge_a_line(cluster: Cluster) -> None:
    with Producer(cluster.namesrv, "g") as producer:
        forged = "a]\n12:00:00 broker-a/0/99 [paid]"
        producer.send("named", b"\x1b]0;owned\x07\tr\xc3\xb6d\xc2\x9b5m\x0b", tag=forged, keys=["k\x1b[2J"])
    printed = run(cluster, "consume", "named", "--from", "first", "--count", "1")
    assert printed.split("/0 ", 1)[1] == (
        "[a]\\n12:00:00 broker-a/0/99 [paid]] [k\\x1b[2J] \\x1b]0;owned\\x07\tröd\\x9b5m\\x0b\n"
    )
    ascii_only = {"env": {**os.environ, "PYTHONIOENCODING": "ascii"}}
    for arguments, wanted in (((), "\tr\\u00f6d"), (("--json",), "r\\u00f6d")):
        call = command(cluster, "consume", "named", "--from", "first", "--count", "1", *arguments)
        done = subprocess.run(call, capture_output=True, timeout=TIMEOUT_S, check=True, **ascii_only)  # type: ignore[call-overload]
        assert wanted.encode() in done.stdout
        assert not arguments or "röd" in json.loads(done.stdout)["body"]


@pytest.mark.shows(
    "mended: `produce <&-`, `topic list >&-`, `consume >&-`, PYTHONIOENCODING=ascii: tracebacks or abort",
)
def test_stdin_that_is_closed_is_said(cluster: Cluster) -> None:
    call = command(cluster, "produce", "closed")
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *call], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "error: stdin cannot be read: Bad file descriptor; pipe lines to it, or give --file"
    )
