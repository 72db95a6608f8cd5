"""`produce` and `consume` as kcat does: JSON lines, delimiters, formats, places to read from, bytes unaltered."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from tests.support.forked_commands import forked

from rocketspark import MessageQueue, Producer
from rocketspark.cli.commands import consume
from rocketspark.errors import RouteNotFound
from rocketspark.testing import Cluster, run_cluster

TIMEOUT_S = 120
ALL_BYTES = bytes(range(256))
OWN = ("a", "b", "__LITE_TOPIC", "_SYS_MSG_PRIORITY_")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster(brokers=2) as running:
        yield running


class Shell:
    """Runs commands against a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> bytes:
        done = forked().run(*arguments, "--namesrv", self.cluster.namesrv, stdin=stdin, timeout_s=TIMEOUT_S)
        assert done.returncode == code, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    def read(self, topic: str, *arguments: str) -> bytes:
        """What is printed of all that a topic has."""
        return self("consume", topic, "--from", "first", "--exit", *arguments)

    def bodies(self, topic: str, *arguments: str) -> list[bytes]:
        return sorted(self.read(topic, "-D", "|", *arguments).split(b"|")[:-1])


@pytest.fixture
def shell(cluster: Cluster) -> Shell:
    return Shell(cluster)


def one_queue(shell: Shell, topic: str, count: int) -> None:
    """Send 0, 1, 2… to the first queue of broker-a."""
    shell("topic", "create", topic, "--queues", "4")
    with Producer(shell.cluster.namesrv, "g") as producer:
        for n in range(count):
            producer.send(topic, b"%d" % n, queue=MessageQueue(topic, "broker-a", 0))


@pytest.mark.shows("command line: produce from stdin or a file")
def test_without_a_line_and_without_a_server_produce_fails(shell: Shell) -> None:
    assert json.loads(shell("produce", "empty", "--json"))["sent"] == 0
    # The port of nobody.
    done = forked().run("produce", "empty", "--namesrv", "127.0.0.1:1", stdin=b"", timeout_s=TIMEOUT_S)
    assert done.returncode == 1
    assert b"error: no NameServer answers (127.0.0.1:1)" in done.stderr


@pytest.mark.shows("command line: `consume --json | produce --jsonl` gives the same messages")
def test_what_consume_prints_as_json_produce_sends_again(shell: Shell) -> None:
    with Producer(shell.cluster.namesrv, "g") as producer:
        producer.send(
            "json-from", ALL_BYTES, tag="T", keys=["k1", "k2"], properties={"a": "ö", "b": "x=y"}, sharding_key="s"
        )
        producer.send("json-from", "zwei\nZeilen \u2028 ö".encode(), flag=-7)
        producer.send("json-from", b"\0\x1b[2J", lite_topic="l1")
        producer.send("json-from", b"urgent", priority=3)
    printed = shell.read("json-from", "--json")
    result = json.loads(shell("produce", "json-to", "--jsonl", "--json", stdin=printed))
    assert (result["sent"], result["failed"], result["skipped"]) == (4, 0, 0)

    def sent(text: bytes) -> list[dict[str, object]]:
        found = []
        for line in map(json.loads, text.splitlines()):
            line["properties"] = {
                name: line["properties"].get(name) for name in (*OWN, "TAGS", "KEYS", "__SHARDINGKEY")
            }
            names = ("body", "body_base64", "tag", "keys", "properties", "flag")
            found.append({name: line[name] for name in names if name in line})
        return sorted(found, key=str)

    assert sent(shell.read("json-to", "--json")) == sent(printed)


def test_lines_of_json_name_their_own_fields_and_options_are_of_the_others(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "properties.json").write_text('{"from": "file", "other": "1"}')
    lines = [
        {"body": "all", "tag": "own", "keys": ["a", "b"], "properties": {"from": "line"}, "sharding_key": "s"},
        {"body_base64": "AAE="},
        {"body": "one", "keys": "k"},
    ]
    fields = ["--tag", "T", "-k", "K", "-H", "x=y", "--properties", str(tmp_path / "properties.json")]
    # With the byte order mark that editors of Windows put before it.
    shell("produce", "json-own", "--jsonl", *fields, stdin="\n".join(map(json.dumps, lines)).encode("utf-8-sig"))
    printed = shell.read("json-own", "-f", r"%s %g %k %h\n").splitlines()
    assert sorted(printed) == [
        b"\0\x01 T K from=file,other=1,x=y",
        b"all own a b from=line,other=1,x=y",
        b"one T k from=file,other=1,x=y",
    ]


@pytest.mark.shows("command line: a bad line ends `produce` with the count, or is left out by `--skip-bad`")
def test_a_bad_line_is_named_and_hurts_itself_alone(shell: Shell) -> None:
    bad = [
        (b"{", "line 2: Input data was truncated; a JSON object with body, body_base64, tag, keys"),
        (b'{"body": 1}', "line 2: Expected `str | null`, got `int` - at `$.body`"),
        (b'{"body": "x", "tga": "T"}', "line 2: Object contains unknown field `tga`"),
        (b'{"tag": "T"}', "line 2: one of body, a text, and body_base64 is needed"),
        (b'{"body": ""}', "line 2: message for topic 'bad': the body is empty"),
        (b'{"body": "x", "keys": ["a b"]}', "line 2: key 'a b': a key is a text without blanks"),
        (b'{"body": "x", "properties": {"KEYS": "k"}}', "line 2: property 'KEYS' is RocketMQ's own: give keys instead"),
        (b'{"body": "\xff"}', "line 2: "),
        (b'{"body": "\\ud800"}', "line 2: "),
        (b"[" * 100_000, "line 2: "),
    ]
    good = b'{"body": "good"}\n'
    for line, says in bad:
        told = shell("produce", "bad", "--jsonl", stdin=good + line + b"\n" + good, code=1).decode().splitlines()
        assert told[0].startswith("sent 1 messages to bad in "), line
        assert told[1].startswith(f"error: {says}"), line
        assert told[1].endswith("; mend it, or leave such out by --skip-bad"), line
        assert len(told) == 2
    given = good + b"\n".join(line for line, _ in bad) + b"\n" + good
    result = json.loads(shell("produce", "skipped", "--jsonl", "--json", "--skip-bad", stdin=given))
    assert (result["sent"], result["skipped"], result["failed"]) == (2, len(bad), 0)
    assert shell.bodies("skipped") == [b"good", b"good"]


def test_a_line_that_is_too_long_is_left_out(shell: Shell) -> None:
    long = b"x" * ((4 << 20) + 3)
    for options, end in (([], b"\n"), (["-D", "|"], b"|")):
        given = end.join([b"a", long, long + long, b"b"])
        result = json.loads(shell("produce", "long", "--skip-bad", "--json", *options, stdin=given))
        assert (result["sent"], result["skipped"]) == (2, 2)
    assert shell.bodies("long") == [b"a", b"a", b"b", b"b"]


@pytest.mark.shows("command line: bytes go in and out unaltered")
def test_bytes_go_in_and_out_unaltered(shell: Shell, tmp_path: Path) -> None:
    big = os.urandom(4 << 20)
    (tmp_path / "all").write_bytes(ALL_BYTES)
    (tmp_path / "big").write_bytes(big)
    shell("produce", "bytes", str(tmp_path / "all"))
    assert shell.read("bytes", "-f", "%s") == ALL_BYTES
    shell("produce", "bytes-big", str(tmp_path / "big"), "-")
    assert shell.read("bytes-big", "-f", "%s") == big
    shell("produce", "bytes-stdin", "-", stdin=b"\n" + ALL_BYTES + b"\r\n")
    assert shell.read("bytes-stdin", "-f", "%s") == b"\n" + ALL_BYTES + b"\r\n"
    shell("topic", "create", "bytes-parted")
    parted = [ALL_BYTES * 3, b"\r\n", b"--", b"x" * 200_000]
    shell("produce", "bytes-parted", "-D", r"-\x00-", "-p", "broker-a/0", stdin=b"-\0-".join(parted))
    assert shell.read("bytes-parted", "-D", r"-\0-") == b"-\0-".join([*parted, b""])
    told = shell("produce", "bytes", str(tmp_path / "all"), "/nowhere", code=1).decode().splitlines()
    assert told[0].startswith("sent 1 messages to bytes")
    assert told[1] == "error: /nowhere: No such file or directory"
    (tmp_path / "big").write_bytes(big + b"x")
    told = shell("produce", "bytes", str(tmp_path / "big"), code=1).decode().splitlines()
    assert "the body has 4194305 bytes; at most 4194304 are allowed" in told[1]


def test_what_is_sent_is_printed_too(shell: Shell, tmp_path: Path) -> None:
    assert shell("produce", "teed", "--tee", stdin=b"one\n\n\x00two") == b"one\n\x00two\n"
    assert shell("produce", "teed", "--tee", "-D", "|", stdin=b"three|four") == b"three|four|"
    (tmp_path / "file").write_bytes(ALL_BYTES)
    assert shell("produce", "teed", str(tmp_path / "file"), "-T") == ALL_BYTES
    assert sorted(map(int, shell.read("teed", "-f", "%S ").split())) == [3, 4, 4, 5, 256]
    assert b"leave out --json" in shell("produce", "teed", "--tee", "--json", code=2)


def test_a_key_stands_before_its_delimiter(shell: Shell) -> None:
    shell("produce", "keyed", "-K", ": ", stdin=b"k1: one: 1\nno key\n: empty\n")
    assert sorted(shell.read("keyed", "-K", "=").splitlines()) == [b"=empty", b"=no key", b"k1=one: 1"]
    told = shell("produce", "keyed", "-K", ":", stdin=b"a b:body\n", code=1).decode()
    assert "\nerror: line 1: " in told
    told = shell("produce", "keyed", "-K", ":", stdin=b"\xff:body\n", code=1).decode()
    assert "error: line 1: key b'\\xff' is no UTF-8 text; keys are texts;" in told


@pytest.mark.shows("command line: `consume -f` prints by a format as kcat's")
def test_a_format_names_each_field(shell: Shell) -> None:
    one_queue(shell, "formed", 0)
    with Producer(shell.cluster.namesrv, "g") as producer:
        result = producer.send(
            "formed",
            b"bo\tdy",
            tag="T",
            keys=["k", "ö"],
            properties={"a": "1", "b": "2"},
            queue=MessageQueue("formed", "broker-a", 0),
        )
    (of_json,) = map(json.loads, shell.read("formed", "--json").splitlines())
    printed = shell.read("formed", "-f", r"%t|%p|%q|%o|%k|%K|%s|%S|%R|%T|%C|%h|%g|%i|%b|%%|\x41\\\t\0\r\n")
    times = f"{of_json['store_time_ms']}|{of_json['born_time_ms']}".encode()
    assert printed == b"".join(
        (
            "formed|0|0|0|k ö|4|bo\tdy|5|\0\0\0\x05|".encode(),
            times,
            f"|a=1,b=2|T|{result.message_id}|broker-a|%|A\\\t\0\r\n".encode(),
        )
    )


def test_a_terminal_gets_escapes_and_a_pipe_does_not(shell: Shell) -> None:
    body = b"\x1b[2J\xff\tr\xc3\xb6d"
    with Producer(shell.cluster.namesrv, "g") as producer:
        producer.send("seen", body, keys=["\x1bk"])
    call = [sys.executable, "-m", "rocketspark.cli.main", "consume", "seen", "--from", "first", "--exit", "-f"]
    call += [r"%k %s\n", "-n", shell.cluster.namesrv]
    assert (
        subprocess.run(call, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True).stdout == b"\x1bk " + body + b"\n"
    )
    ours, its = pty.openpty()
    with open(ours, "rb", buffering=0) as seen:
        try:
            assert subprocess.run(call, stdout=its, timeout=TIMEOUT_S).returncode == 0
        finally:
            os.close(its)
        assert seen.read(1000) == "\\x1bk \\x1b[2J\\xff\tröd\r\n".encode()


@pytest.mark.shows("command line: `consume --from`, `--until`, `--exit`, `--queue`")
def test_where_reading_begins_and_ends(shell: Shell) -> None:
    begun_ms = int(time.time() * 1000)
    one_queue(shell, "placed", 10)

    def read(*arguments: str) -> list[int]:
        return [int(n) for n in shell("consume", "placed", *arguments, "-f", r"%s\n").split()]

    assert read("-o", "beginning", "-e") == list(range(10))
    assert read("--from", "end", "-e") == []
    assert read("--from", "7", "--exit") == [7, 8, 9]
    assert read("--from", "-4", "--exit") == [6, 7, 8, 9]
    assert read("--from", "-400", "--until", "end") == list(range(10))
    assert read("--from", "2", "--until", "5") == [2, 3, 4]
    assert read("--from", "2", "--until", "-5") == [2, 3, 4]
    assert read("--from", "100", "--exit") == []
    assert read("--from", f"@{begun_ms}", "--exit") == list(range(10))
    assert read("--from", "first", "--until", f"@{begun_ms}") == []
    assert read("--from", "1h", "--until", f"@{int(time.time() * 1000) + 300}") == list(range(10))
    assert read("--from", "1", "--exit", "--count", "2") == [1, 2]
    assert read("--from", "first", "--exit", "--tags", "none") == []
    assert read("--from", "first", "--exit", "--queue", "broker-a/0") == list(range(10))
    assert read("--from", "first", "--exit", "-p", "1", "-p", "2") == []
    error = shell("consume", "placed", "--queue", "broker-b/77", code=2).decode()
    assert "'broker-b/77' is no queue of this topic, there are: broker-a/0, broker-a/1" in error


def test_a_member_of_a_group_ends_too_and_the_next_goes_on(shell: Shell) -> None:
    one_queue(shell, "ended", 3)
    group = ("consume", "ended", "--from", "first", "--group", "enders", "--exit", "-f", "%s ")
    assert shell(*group) == b"0 1 2 "
    assert shell(*group) == b""
    one_queue(shell, "ended", 2)
    assert shell(*group) == b"0 1 "


@pytest.mark.shows("command line: consume reads several topics, with a group too")
def test_several_topics_are_read_as_one(shell: Shell) -> None:
    for topic in ("left", "right"):
        one_queue(shell, topic, 3)
    both = ("consume", "left", "right", "left", "--from", "first", "--exit", "-f", r"%t %s\n")
    expected = [b"left 0", b"left 1", b"left 2", b"right 0", b"right 1", b"right 2"]
    assert sorted(shell(*both).splitlines()) == expected
    assert sorted(shell(*both, "--group", "readers").splitlines()) == expected
    assert shell(*both, "--group", "readers") == b""
    assert b"nowhere" in shell("consume", "left", "nowhere", "--exit", code=1)


def test_new_queues_are_read_while_another_topic_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume, "FOLLOW_MS", 1)
    old, new = MessageQueue("right", "broker-a", 0), MessageQueue("right", "broker-a", 1)

    async def queues(topic: str) -> list[MessageQueue]:
        if topic == "gone":
            raise RouteNotFound(topic)
        return [old, new]

    async def main() -> None:
        assigned = asyncio.get_running_loop().create_future()
        reader = Mock(queues=queues, assignment=lambda: {old})
        reader.assign = AsyncMock(side_effect=lambda found, tags: assigned.done() or assigned.set_result(found))
        following = asyncio.ensure_future(consume._follow(reader, ["gone", "right"], "*", every=True))
        assert await asyncio.wait_for(assigned, TIMEOUT_S) == [old, new]
        following.cancel()

    asyncio.run(main())


def test_a_member_that_is_given_no_queue_ends_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, mine = MessageQueue("taken", "broker-a", 0), set[MessageQueue]()
    reader = Mock(assignment=lambda: mine, end_offset=AsyncMock(return_value=3), position=AsyncMock(return_value=2))

    async def ends() -> list[bool]:
        found = consume.Ends(reader, consume.LAST, cuts=False)
        await found.fix([queue])
        told = [await found.are_reached()]
        mine.add(queue)
        monkeypatch.setattr(consume, "WITHOUT_QUEUES_S", 0)
        told.append(await found.are_reached())
        mine.clear()
        return [*told, await found.are_reached()]

    assert asyncio.run(ends()) == [False, False, True]
    assert capsys.readouterr().err == "other members of the group have all queues\n"


@pytest.mark.shows("command line: what `consume --group --exit` did not print is not committed")
def test_members_that_end_while_messages_come_lose_none(shell: Shell) -> None:
    one_queue(shell, "flowing", 1)
    count, ended = 1, threading.Event()

    def send() -> None:
        nonlocal count
        with Producer(shell.cluster.namesrv, "g") as producer:
            while not ended.wait(0.001):
                producer.send("flowing", b"%d" % count, queue=MessageQueue("flowing", "broker-a", 0))
                count += 1

    sending = threading.Thread(target=send)
    sending.start()
    reading = ("consume", "flowing", "--from", "first", "--group", "flow", "--exit", "-f", r"%s\n")
    try:
        printed = [line for _ in range(4) for line in shell(*reading).split()]
    finally:
        ended.set()
        sending.join()
    printed += shell(*reading).split()
    assert printed == [b"%d" % n for n in range(count)]


def test_an_offset_that_is_to_come_is_waited_for(shell: Shell) -> None:
    one_queue(shell, "to-come", 3)
    call = [sys.executable, "-m", "rocketspark.cli.main", "consume", "to-come", "-o", "5", "-c", "1", "-f", "%o %s"]
    reading = subprocess.Popen([*call, "-n", shell.cluster.namesrv], stdout=subprocess.PIPE)
    try:
        one_queue(shell, "to-come", 3)
        assert reading.communicate(timeout=TIMEOUT_S)[0] == b"5 2"
    finally:
        reading.kill()


def test_send_to_a_queue_at_a_rate_and_no_more_than_a_count(shell: Shell) -> None:
    given = b"".join(b"%d\n" % n for n in range(100))
    options = ("--queue", "broker-b/1", "--rate", "200", "--count", "41", "--json")
    shell("topic", "create", "paced", "--queues", "4")
    result = json.loads(shell("produce", "paced", *options, stdin=given))
    assert (result["sent"], result["failed"]) == (41, 0)
    assert 0.2 <= result["seconds"] < 20
    printed = shell.read("paced", "-p", "broker-b/1", "-f", "%b/%p %s,").decode()
    assert printed == "".join(f"broker-b/1 {n}," for n in range(41))
    error = shell("produce", "paced", "--queue", "1", code=2).decode()
    assert "'1' names several queues, write one of: broker-a/1, broker-b/1" in error


@pytest.mark.shows("command line: Ctrl-C and SIGTERM end `produce` after what is under way, with the count")
@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGTERM, ()), (signal.SIGINT, ()), (signal.SIGTERM, ("sh", "-c", 'trap "" INT; exec "$@"', "sh"))],
    ids=["SIGTERM", "SIGINT", "SIGTERM-in-the-background"],
)
@pytest.mark.parametrize("rate", [(), ("--rate", "0.001")], ids=["reading", "pausing"])
def test_a_signal_ends_it_with_the_count(
    shell: Shell, number: signal.Signals, before: tuple[str, ...], rate: tuple[str, ...]
) -> None:
    topic = f"signal-{number.name}-{len(before)}-{len(rate)}"
    call = [sys.executable, "-m", "rocketspark.cli.main", "produce", topic, *rate, "-n", shell.cluster.namesrv]
    sending = subprocess.Popen([*before, *call], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert sending.stdin is not None
        assert sending.stderr is not None
        sending.stdin.write(b"one\ntwo\n")
        sending.stdin.flush()
        wanted = 1 if rate else 2
        await_topic(shell, topic)
        shell("consume", topic, "--from", "first", "--count", str(wanted))
        sending.send_signal(number)
        told = sending.communicate(timeout=TIMEOUT_S)[1].decode()
    finally:
        sending.kill()
    assert sending.returncode == (-signal.SIGTERM if number == signal.SIGTERM else 130)
    assert told.startswith(f"sent {wanted} messages to {topic} in ")
    assert told.count("\n") == 1


def await_topic(shell: Shell, topic: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    with Producer(shell.cluster.namesrv, "g") as producer:
        while time.monotonic() < end_s:
            try:
                producer.queues(topic)
                return
            except RouteNotFound:
                time.sleep(0.02)


def test_a_reader_that_has_enough_ends_it_quietly(shell: Shell) -> None:
    shell("produce", "enough", stdin=b"x\n" * 5000)
    call = f"{sys.executable} -m rocketspark.cli.main consume enough --from first -n '{shell.cluster.namesrv}'"
    for form in ("-f '%s\\n'", "--json"):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {call} {form} | head -1 | wc -l"], capture_output=True, timeout=TIMEOUT_S
        )
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, b"1", b"")
