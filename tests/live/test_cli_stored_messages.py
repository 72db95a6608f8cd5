"""`message`, `dlq`, `delayed` and `transaction` of the command line: what they print and what they do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.live.test_message_operations import Undecided, bury, until
from tests.support.answers import check_answer
from tests.support.cli_calls import Called, call
from tests.support.patience import LIMIT_S

from rocketspark import Producer, PushConsumer, ReceivedMessage, TransactionProducer
from rocketspark.admin import Admin
from rocketspark.errors import RocketSparkError
from rocketspark.testing import Cluster, run_cluster

pytestmark = pytest.mark.shows("`rocketspark message`, `dlq`, `delayed`, `transaction`: tables, JSON, exit codes")

EVIL = "\x1b[31m\u202e<script>\x00"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running, Admin(running.namesrv) as admin:
        for topic in ("orders", "other"):
            admin.create_topic(topic, queue_count=2)
        yield running


def run(cluster: Cluster, *arguments: str, code: int = 0) -> Called:
    done = call(*arguments, "--namesrv", cluster.namesrv)
    assert done.exit_code == code, done.told
    return done


def answer(cluster: Cluster, *arguments: str, code: int = 0) -> Any:
    """The JSON that a command prints, as docs/reference/cli.md says."""
    found = json.loads(run(cluster, *arguments, "--json", code=code).stdout)
    check_answer(" ".join(arguments[:2]), found)
    return found


def send(cluster: Cluster, *arguments: str) -> Any:
    return answer(cluster, "message", "send", "orders", *arguments)


def test_a_message_is_sent_and_got_by_ids_and_place(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(bytes(range(256)))
    text = send(
        cluster,
        '{"id": 1, "who": {"name": "Zoé"}}',
        "--key",
        "k1",
        "--key",
        "k2",
        "--tag",
        "new",
        "--property",
        "p=a=b",
    )
    named = tmp_path / "properties.json"
    named.write_text('{"q": "of a file"}')
    raw = send(
        cluster, "--file", str(file), "--queue", "1", "--sharding-key", "s", "--properties", str(named), "-H", "p=line"
    )
    assert (text["status"], raw["queue_id"], raw["broker_name"]) == ("SEND_OK", 1, "broker-a")
    for ids in ((text["message_id"],), (text["offset_message_id"],), (text["message_id"], "--topic", "orders")):
        got = answer(cluster, "message", "get", *ids)
        assert (got["message_id"], got["keys"], got["tag"]) == (text["message_id"], ["k1", "k2"], "new")
        assert (got["properties"]["p"], json.loads(got["body"])["id"]) == ("a=b", 1)
    place = ("orders", "--queue", "1", "--offset", str(raw["queue_offset"]))
    got = answer(cluster, "message", "get", *place)
    assert "body_base64" in got
    assert (got["properties"]["p"], got["properties"]["q"]) == ("line", "of a file")
    lines = run(cluster, "message", "get", *place, "--save", str(tmp_path / "saved")).stdout.splitlines()
    assert (tmp_path / "saved").read_bytes() == bytes(range(256))
    assert "00000040  40 41 42 43 44 45 46 47  48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO" in lines
    assert "body               256 bytes" in lines
    with pytest.raises(FileExistsError):
        raise run(cluster, "message", "get", *place, "--save", str(tmp_path / "saved"), code=1).exception or OSError
    lines = run(cluster, "message", "get", text["message_id"]).stdout.splitlines()
    assert lines[-6:] == ["{", '  "id": 1,', '  "who": {', '    "name": "Zoé"', "  }", "}"]
    assert f"message id         {text['message_id']}" in lines
    hexed = run(cluster, "message", "get", text["message_id"], "--body", "hex").stdout
    assert '00000000  7b 22 69 64 22 3a 20 31  2c 20 22 77 68 6f 22 3a  {"id": 1, "who":' in hexed


def test_a_body_that_finds_no_room_leaves_no_file(cluster: Cluster, tmp_path: Path) -> None:
    message_id = send(cluster, "x" * 100)["message_id"]
    target = tmp_path / "saved"
    command = ["message", "get", message_id, "--namesrv", cluster.namesrv, "--save", str(target)]
    # What `ulimit -f` does: a file may have so many bytes.
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60, 60)); "
    begun = f"{limited}from rocketspark.cli import main; raise SystemExit(main.run({command!r}))"
    done = subprocess.run([sys.executable, "-B", "-c", begun], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {target}: File too large\n")
    assert not target.exists()


def test_a_body_is_decoded_by_a_schema(cluster: Cluster, tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "fruit", "type": "string"}]
    (tmp_path / "order.avsc").write_text(json.dumps({"type": "record", "name": "Order", "fields": fields}))
    (tmp_path / "body").write_bytes(b"\x0e\x0aapple")
    message_id = send(cluster, "--file", str(tmp_path / "body"))["message_id"]
    decode = ("--decode", "avro", "--schema", str(tmp_path / "order.avsc"))
    assert json.loads(answer(cluster, "message", "get", message_id, *decode)["decoded"]) == {"id": 7, "fruit": "apple"}
    printed = run(cluster, "message", "get", message_id, *decode).stdout
    assert printed.endswith('{\n  "id": 7,\n  "fruit": "apple"\n}\n')
    text = send(cluster, "no avro")["message_id"]
    assert "the body is not of this schema" in run(cluster, "message", "get", text, *decode, code=1).told
    run(cluster, "message", "get", text, "--decode", "avro", code=2)


def test_what_is_not_there_is_said_in_one_line(cluster: Cluster) -> None:
    nowhere = "AC1100010000000000000000000000AB"
    for arguments in (
        ("message", "get", nowhere),
        ("message", "resend", nowhere, "--topic", "orders"),
        ("message", "trace", nowhere),
        ("message", "consume-directly", nowhere, "--group", "g"),
    ):
        error = run(cluster, *arguments, code=1).exception
        assert isinstance(error, RocketSparkError)
        assert f"no message {nowhere}" in str(error)
    assert (
        "has no such queue 9; these are there: broker-a/0, broker-a/1"
        in run(cluster, "message", "get", "orders", "-q", "9", "-o", "0", code=1).told
    )
    assert "no dead letters of group 'nobody'" in run(cluster, "dlq", "show", "nobody", code=1).told
    assert "no open or given-up transaction" in run(cluster, "transaction", "check", nowhere, code=1).told
    for arguments in (
        ("message", "get", "orders", "--queue", "1"),
        ("message", "send", "orders", "x", "--delay", "soon"),
        ("message", "send", "orders", "x", "--file", "y"),
        ("message", "find", "orders", "--since", "1h", "--until", "2h"),
        ("dlq", "resend", "g"),
        ("dlq", "resend", "g", "--all"),
        ("dlq", "resend", "g", "an-id", "--since", "1h"),
        ("dlq", "resend", "g", "an-id", "--contains", "x"),
    ):
        run(cluster, *arguments, code=2)


def test_messages_are_found(cluster: Cluster) -> None:
    for n in range(6):
        arguments = ("message", "send", "other", json.dumps({"n": n, "a=b": {"c": "x"}}), "--key", f"n{n}")
        answer(cluster, *arguments)
    every = answer(cluster, "message", "find", "other")
    assert ([json.loads(m["body"])["n"] for m in every["messages"]], every["looked_at"]) == (list(range(6)), 6)
    assert every["stopped"] == ""
    newest = answer(cluster, "message", "find", "other", "--newest", "--limit", "2")
    assert [json.loads(m["body"])["n"] for m in newest["messages"]] == [5, 4]
    for path, count in (("$.n=3", 1), ("$.n", 6), ("$['a=b'].c=x", 6), ("$.*.c", 6), ("$.n=x", 0)):
        assert len(answer(cluster, "message", "find", "other", "--json-path", path)["messages"]) == count, path
    assert len(answer(cluster, "message", "find", "other", "--key", "n4")["messages"]) == 1
    assert len(answer(cluster, "message", "find", "other", "--contains", '"n": 2')["messages"]) == 1
    assert answer(cluster, "message", "find", "other", "--until", "1h")["messages"] == []
    told = run(cluster, "message", "find", "other", "--limit", "2")
    assert "2 found, 2 looked at: stopped at the limit of 2; go on with --since 0" in told.stderr
    assert "n1" in told.stdout
    told = run(cluster, "message", "find", "other", "--contains", "nothing")
    assert (told.stdout, told.stderr) == ("", "0 found, 6 looked at: all there are\n")
    told = run(cluster, "message", "find", "other", "--contains", "nothing", "--scan-max", "1")
    assert "stopped at --scan-max" in told.stderr


def test_nothing_of_a_message_reaches_the_terminal_as_it_is(cluster: Cluster) -> None:
    sent = send(cluster, f"{EVIL}\nsecond\tline", "--tag", "\x1b[31m", "--property", f"p={EVIL}")
    for arguments in (
        ("message", "get", sent["message_id"]),
        ("message", "get", sent["message_id"], "--body", "text"),
        ("message", "find", "orders"),
    ):
        printed = run(cluster, *arguments).stdout
        assert not set("\x1b\u202e\x00") & set(printed)
    assert (
        "\\x1b[31m\\u202e<script>\\x00\nsecond\tline\n"
        in run(cluster, "message", "get", sent["message_id"], "--body", "text").stdout
    )


def test_a_long_body_is_cut_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.write_bytes("é".encode() * 1_000_000)
    sent = send(cluster, "--file", str(file))
    printed = run(cluster, "message", "get", sent["message_id"]).stdout
    assert len(printed) < 20_000
    assert "… 1,983,616 more bytes: --save FILE has them all" in printed
    run(cluster, "message", "get", sent["message_id"], "--save", str(tmp_path / "saved"))
    assert (tmp_path / "saved").read_bytes() == file.read_bytes()


def test_a_message_is_sent_again_and_followed(cluster: Cluster) -> None:
    with Producer(cluster.namesrv, "tracing", trace=True) as producer:
        message_id = producer.send("orders", b"traced").message_id
    again = answer(cluster, "message", "resend", message_id, "--to", "other")
    assert (again["topic"], again["message_id"]) == ("other", message_id)
    assert "sent again" in run(cluster, "message", "resend", message_id, "--topic", "orders").stdout

    def listen(m: ReceivedMessage) -> bool:
        return m.body != b"bad"

    consumer = PushConsumer(cluster.namesrv, "buyers", consume_from="last")
    consumer.subscribe("orders")
    consumer.listen(listen)
    with consumer:
        until(lambda: call(*DIRECTLY, message_id, "--namesrv", cluster.namesrv).exit_code == 0)
        done = answer(cluster, *DIRECTLY, message_id)
        assert (done["result"], done["client_id"]) == ("CR_SUCCESS", consumer.client_id)
        bad = send(cluster, "bad")["message_id"]
        assert "CR_LATER" in run(cluster, *DIRECTLY, bad, code=1).stdout
        told = answer(cluster, "message", "trace", message_id, "--topic", "orders")
        assert [(e["kind"], e["group"]) for e in told["events"]] == [("sent", "tracing")]
        assert [g["group"] for g in told["groups"]] == ["buyers"]
        table = run(cluster, "message", "trace", message_id).stdout
        assert "sent" in table
        assert "tracing" in table
    no_trace = run(cluster, "message", "trace", message_id, "--trace-topic", "other", "--topic", "orders")
    assert "no client told of it in other" in no_trace.stderr


DIRECTLY = ("message", "consume-directly", "--group", "buyers", "--topic", "orders")


def test_dead_letters(cluster: Cluster) -> None:
    with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, "senders") as producer:
        admin.create_topic("bills", queue_count=1)
        for n in range(2):
            producer.send(
                "bills", b"bill %d" % n, keys=[f"k{n}"], properties={"why": f"{EVIL}no funds".replace("\x00", "")}
            )
    bury(cluster, "bills", "payers", 2)
    (count,) = answer(cluster, "dlq", "list")
    assert (count["group"], count["letters"], count["readable"]) == ("payers", 2, True)
    assert "payers" in run(cluster, "dlq", "list").stdout
    assert answer(cluster, "dlq", "list", "others") == []
    shown = answer(cluster, "dlq", "show", "payers", "--error-property", "why")
    assert [x["origin_topic"] for x in shown["letters"]] == ["bills", "bills"]
    assert "no funds" in shown["letters"][0]["error"]
    table = run(cluster, "dlq", "show", "payers", "--error-property", "why").stdout
    assert "bill 0" in table
    assert not set("\x1b\u202e") & set(table)
    first = shown["letters"][0]["message_id"]
    chosen = answer(cluster, "dlq", "resend", "payers", "--all", "--key", "k1", "--contains", "bill", "--dry-run")
    assert [x["message_id"] for x in chosen["letters"]] == [shown["letters"][1]["message_id"]]
    would = answer(cluster, "dlq", "resend", "payers", first, "--dry-run")
    assert [x["outcome"] for x in would["letters"]] == ["would send"]
    done = answer(cluster, "dlq", "resend", "payers", first)
    assert [(x["outcome"], x["target"]) for x in done["letters"]] == [("sent", "bills")]
    told = run(cluster, "dlq", "resend", "payers", "--all", "--yes")
    assert told.stderr == "1 sent, 1 already\n"
    told = run(cluster, "dlq", "resend", "payers", "--all", "--yes")
    assert told.stderr == "2 already\n"
    assert len(answer(cluster, "message", "find", "bills")["messages"]) == 4
    assert "no dead letter nothing" in run(cluster, "dlq", "resend", "payers", "nothing", code=1).told


def test_what_waits(cluster: Cluster) -> None:
    assert "no transaction is open" in run(cluster, "transaction", "list").stdout
    answer(cluster, "message", "send", "orders", "later", "--delay-level", "18")
    answer(cluster, "message", "send", "orders", "later", "--delay", "2h")
    timed = until(lambda: (x := answer(cluster, "delayed", "list"))["whole"] and len(kinds(x)) == 2 and x)
    assert kinds(timed) == [("level", "orders", 1), ("timer", "orders", 1)]
    assert sum(d["messages"] for d in timed["due"]) >= 2
    assert "orders" in run(cluster, "delayed", "list").stdout
    with TransactionProducer(cluster.namesrv, "undecided", listener=Undecided()) as producer:
        sent = producer.send_in_transaction("orders", b"open").sent
        (one,) = answer(cluster, "transaction", "list")["transactions"]
        assert (one["message_id"], one["group"], one["topic"]) == (sent.message_id, "undecided", "orders")
        assert "undecided" in run(cluster, "transaction", "list").stdout
        asked = answer(cluster, "transaction", "check", one["offset_message_id"])
        assert asked["transaction"]["message_id"] == sent.message_id
        assert answer(cluster, "transaction", "list", "--given-up")["transactions"] == []


def kinds(found: Any) -> list[tuple[str, str, int]]:
    return [(t["kind"], t["topic"], t["waiting"]) for t in found["topics"] if t["topic"] == "orders"]
