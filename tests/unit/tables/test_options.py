"""Options: what is taken, and what each wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketspark.errors import ConfigError
from rocketspark.tables.option_values import AtTime
from rocketspark.tables.options import over, parse_columns, parse_read, parse_write

pytestmark = pytest.mark.shows(
    "`topic`, `topicPattern`, `assign`; NameServer list, namespace, credentials (in no plan, log or error); "
    "from our brokers and Apache's",
    "Spark over TLS with keys and an encrypted client key: batch, stream, exactly once, archive, restore; "
    "files that an executor lacks are named with the machine",
)

BASE = {"namesrv": "127.0.0.1:9876", "topic": "orders"}


def test_names_are_case_insensitive_and_values_typed() -> None:
    options = parse_read(
        {
            "NameSrv": "http://a:1; b:2",
            "TOPIC": " x , y,x ",
            "startingoffsets": "EARLIEST",
            "endingOffsets": '{"x": {"broker-a": {"0": 12, "1": -1}}}',
            "tags": " a || b ",
            "maxMessagesPerTrigger": "10",
            "minPartitions": "4",
            "maxRecordsPerPartition": "1000",
            "failOnDataLoss": "False",
            "consumerGroup": "g",
        },
        streaming=False,
    )
    assert options.namesrv == "a:1;b:2"
    assert options.topics == ("x", "y")
    assert options.starting == "earliest"
    assert options.ending == {"x": {"broker-a": {"0": 12, "1": -1}}}
    assert options.tags == "a || b"
    assert (options.rows_per_trigger_max, options.partitions_min, options.rows_per_partition_max) == (10, 4, 1000)
    assert options.fail_on_data_loss is False
    assert options.group == "g"


def test_defaults_are_those_of_spark_s_kafka_source() -> None:
    batch, stream = parse_read(BASE, streaming=False), parse_read(BASE, streaming=True)
    assert (batch.starting, batch.ending, stream.starting) == ("earliest", "latest", "latest")
    assert batch.fail_on_data_loss
    assert batch.tags == "*"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"namesrv": ""}, "option namesrv is missing"),
        ({"namesrv": "nohost"}, "'nohost' is no address"),
        ({"topic": " , "}, "option topic is missing"),
        ({"topicPattern": "a.*"}, "options topic and topicPattern are given"),
        ({"topicPattern": "a", "assign": '{"t": [0]}'}, "options topic and topicPattern and assign are given"),
        ({"topic": "", "topicPattern": "a("}, "topicPattern is 'a\\('. it is no regular expression"),
        ({"topic": "", "assign": "t:0"}, "option assign is 't:0'"),
        ({"accessKey": "k"}, "accessKey and secretKey belong together"),
        ({"secretKey": "k"}, "accessKey and secretKey belong together"),
        ({"securityToken": "k"}, "securityToken needs accessKey and secretKey"),
        ({"startingOffsets": "first"}, "option startingOffsets is 'first'.*earliest, latest, committed or JSON"),
        ({"startingOffsets": "committed"}, "startingOffsets is committed: name the group"),
        ({"endingOffsets": "committed"}, "endingOffsets is committed: name the group"),
        (
            {"startingOffsets": "committed", "endingOffsets": "committed", "consumerGroup": "g"},
            "both committed: there is nothing between",
        ),
        ({"committedFallback": "first"}, "is 'first': earliest or latest or error is needed"),
        ({"consumerGroup": "a b"}, "option consumerGroup: group 'a b': only letters"),
        ({"committedGroup": "DEFAULT_CONSUMER"}, "option committedGroup: .* is RocketMQ's placeholder"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon': a time such as"),
        ({"maxTriggerDelay": "5 parsecs"}, "a time such as"),
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "is more than maxMessagesPerTrigger"),
        ({"startingOffsets": "[1]"}, "it is no JSON object"),
        ({"startingOffsets": '{"t": 1}'}, "under 't' an object of brokers"),
        ({"startingOffsets": '{"t": {"b": 1}}'}, "under 't', 'b' an object of queues"),
        ({"startingOffsets": '{"t": {"b": {"x": 1}}}'}, "'x' is no queue id"),
        ({"startingOffsets": '{"t": {"b": {"²": 1}}}'}, "'²' is no queue id"),
        ({"startingOffsets": '{"t": {"b": {"0": -3}}}'}, "-3 is no offset"),
        ({"startingOffsets": '{"t": {"b": {"0": "1"}}}'}, "'1' is no offset"),
        ({"startingOffsets": "latest"}, "a batch would read nothing"),
        ({"endingOffsets": "earliest"}, "a batch would read nothing"),
        ({"minPartitions": "0"}, "option minPartitions is '0': a whole number from 1 up"),
        ({"pollTimeoutMs": "99999999999999"}, "option pollTimeoutMs is '99999999999999': at most 2147483647"),
        ({"maxBytesPerTrigger": "9223372036854775808"}, "at most 9223372036854775807"),
        ({"maxRecordsPerPartition": "many"}, "option maxRecordsPerPartition is 'many'"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss is 'yes': true or false"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": '{"t": {"b": {"\u00b2": 1}}}'}, "is no queue id"),
        ({"startingOffsetsByTimestamp": "5"}, "startingOffsetsByTimestamp is '5' .it is no JSON object"),
        ({"endingOffsetsByTimestamp": '{"t": {"b": {"0": -1}}}'}, "-1 is no time of queue 0"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday': ms since 1970, or ISO 8601"),
        ({"endingTimestamp": "-5"}, "option endingTimestamp is '-5'"),
        ({"startingTimestamp": "2", "endingTimestamp": "1"}, "startingTimestamp is after endingTimestamp"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "x"}, "is 'x': latest or error is needed"),
        ({"topics": "a"}, "did you mean 'topic'"),
        ({"compacted": "yes"}, "option compacted is 'yes': true or false"),
        ({"compacted": "true", "minPartitions": "2"}, "leave out minPartitions and maxRecordsPerPartition"),
        ({"compacted": "true", "maxRecordsPerPartition": "9"}, "leave out minPartitions and maxRecordsPerPartition"),
        ({"compacted": "true", "pushDownPredicate": "true"}, "pushDownPredicate does not go with compacted"),
    ],
)
def test_wrong_read_options_are_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_read({**BASE, **change}, streaming=False)


def test_a_stream_has_no_end() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(ConfigError, match=f"{name} is for batch reads"):
            parse_read({**BASE, name: "latest"}, streaming=True)
    with pytest.raises(ConfigError, match="option compacted is for batch reads"):
        parse_read({**BASE, "compacted": "true"}, streaming=True)


@pytest.mark.shows(
    "mended: without effect and without a word: `pushDownPredicate` on a stream, options of decoding in "
    "pipelines that keep bodies, `json` beside `decode` in `pipeline sql`"
)
def test_a_stream_is_told_no_filters() -> None:
    with pytest.raises(ConfigError, match="pushDownPredicate is for batch reads: no Spark tells a stream its filters"):
        parse_read({**BASE, "pushDownPredicate": "true"}, streaming=True)
    parse_read({**BASE, "pushDownPredicate": "false"}, streaming=True)


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("0", 0),
        ("1767225600123", 1767225600123),
        ("2026-01-01", 1767225600000),
        ("2026-01-01T00:00:00.123", 1767225600123),
        ("2026-01-01T00:00:00.1231Z", 1767225600124),
        ("2026-01-01T02:00:00+02:00", 1767225600000),
        ("1969-12-31T23:59:59Z", 0),
    ],
)
def test_times_are_ms_or_iso_8601_and_utc_where_no_zone_is_named(text: str, time_ms: int) -> None:
    options = parse_read({**BASE, "startingTimestamp": text, "endingTimestamp": text}, streaming=False)
    assert options.starting == options.ending == AtTime(time_ms)


@pytest.mark.parametrize(
    ("text", "time_ms"), [("", 900_000), ("250", 250), ("3s", 3000), ("15m", 900_000), ("2 hours", 7_200_000)]
)
def test_durations_are_spark_s(text: str, time_ms: int) -> None:
    assert parse_read({**BASE, "maxTriggerDelay": text}, streaming=True).trigger_delay_max_ms == time_ms


def test_groups() -> None:
    plain = parse_read(BASE, streaming=True)
    assert (plain.group, plain.committed_group, plain.mirror_group) == ("SPARK_READER", None, None)
    given = parse_read({**BASE, "consumerGroup": "g"}, streaming=True)
    assert (given.group, given.committed_group, given.mirror_group) == ("g", "g", "g")
    both = parse_read({**BASE, "consumerGroup": "g", "committedGroup": "h"}, streaming=True)
    assert (both.group, both.committed_group, both.mirror_group) == ("g", "h", "g")
    assert parse_read({**BASE, "consumerGroup": "g"}, streaming=False).mirror_group is None


def test_a_time_goes_before_offsets() -> None:
    given = {**BASE, "startingOffsets": "earliest", "startingTimestamp": "7"}
    strict = {"startingOffsetsByTimestampStrategy": "error"}
    assert parse_read(given, streaming=True).starting == AtTime(7)
    assert parse_read({**given, **strict}, streaming=True).starting == AtTime(7, strict=True)


def test_options_of_others_pass() -> None:
    parse_read({**BASE, "path": "x", "checkpointLocation": "y", "mergeSchema": "true"}, streaming=True)
    parse_write({**BASE, "startingOffsets": "latest", "checkpointLocation": "y"})


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("kafka.bootstrap.servers", "namesrv"),
        ("subscribe", "topic"),
        ("subscribePattern", "topicPattern"),
        ("maxOffsetsPerTrigger", "maxMessagesPerTrigger"),
        ("minOffsetsPerTrigger", "minMessagesPerTrigger"),
        ("kafka.group.id", "consumerGroup"),
    ],
)
def test_names_of_the_kafka_connector_are_told_theirs_here(name: str, here: str) -> None:
    with pytest.raises(ConfigError, match=f"one of Spark's Kafka connector; it is '{here}' here"):
        parse_read({**BASE, name: "1"}, streaming=True)


def test_no_option_at_all_may_be_a_table_of_the_catalog() -> None:
    for parse in (lambda: parse_read({}, streaming=False), lambda: parse_write({})):
        with pytest.raises(ConfigError, match=r"is missing: .*CREATE TABLE: .* TEMPORARY VIEW"):
            parse()
    with pytest.raises(ConfigError) as told:
        parse_read({"topic": "orders"}, streaming=False)
    assert "TABLE" not in str(told.value)


def test_write_options() -> None:
    options = parse_write({"namesrv": "a:1", "maxBatchBytes": "99999999", "sendAttempts": "2"})
    assert options.topic is None
    assert options.batch_bytes_max == 4 << 20
    assert options.attempts_max == 2
    with pytest.raises(ConfigError, match="a write takes one"):
        parse_write({"namesrv": "a:1", "topic": "a,b"})


def test_compression_of_a_write() -> None:
    made = parse_write({"namesrv": "a:1", "compression": "ZSTD", "compressOverBytes": "0"})
    assert (made.compression, made.compress_over_bytes) == ("zstd", 0)
    made = parse_write({"namesrv": "a:1"})
    assert (made.compression, made.compress_over_bytes) == (None, 4096)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"compression": "gzip"}, "option compression is 'gzip': none or one of zlib, lz4, zstd is needed"),
        ({"compressOverBytes": "-1"}, "compressOverBytes is '-1': a whole number from 0 up"),
        ({"topic": "a b"}, "option topic: topic 'a b': only letters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "option topic: .* belongs to the broker itself"),
        ({"producerGroup": "DEFAULT_PRODUCER"}, "option producerGroup: .* placeholder"),
        ({"maxBatchsInFlight": "3"}, "did you mean 'maxBatchesInFlight'"),
    ],
)
def test_wrong_write_options_are_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_write({"namesrv": "a:1", **change})


def test_secrets_stand_in_no_repr() -> None:
    given = {**BASE, "accessKey": "hide-1", "secretKey": "hide-2", "securityToken": "hide-3", "namespace": "team"}
    for options in (parse_read(given, streaming=True), parse_write(given)):
        assert (options.access.access_key, options.access.secret_key) == ("hide-1", "hide-2")
        assert options.access.security_token == "hide-3"
        assert "hide" not in f"{options!r} {options}"
        assert "team" in repr(options)


EXACT = {"namesrv": "127.0.0.1:9876", "topic": "t", "delivery": "exactly-once"}


def test_exactly_once_needs_a_name() -> None:
    assert parse_write(EXACT | {"transactionalId": "q-1"}).transactional_id == "q-1"
    assert parse_write(EXACT | {"delivery": "at-least-once"}).transactional_id is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "option transactionalId is missing: delivery exactly-once needs a name of its own"),
        ({"transactionalId": "a b"}, "option transactionalId is 'a b'"),
        ({"transactionalId": "x" * 101}, "1 to 100 of the characters"),
        ({"delivery": "once"}, "option delivery is 'once': at-least-once or exactly-once is needed"),
        ({"delivery": "", "transactionalId": "q"}, "option transactionalId is 'q', but delivery is at-least-once"),
        ({"transactionalId": "q", "commitTimeoutMs": "0"}, "option commitTimeoutMs"),
    ],
)
def test_wrong_options_of_exactly_once_are_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_write(EXACT | change)


@pytest.mark.shows(
    "mended: tracebacks (YAML 2026-02-30, 0b_, deep nesting, deep JSON, 5,000 digits; 120-character names; "
    "NaN in JSON; exit code)"
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", "[" * 100_000),
        ("startingOffsets", '{"T": {"b": {"' + "9" * 5000 + '": 1}}}'),
        ("startingOffsets", '{"T": {"b": {"0": ' + "9" * 30 + "}}}"),
        ("startingOffsets", '{"T": {"b": {"\u00b2": 1}}}'),
        ("startingOffsetsByTimestamp", "[" * 100_000),
        ("startingTimestamp", "9" * 5000),
        ("minPartitions", "\u00b2"),
        ("minPartitions", "9" * 5000),
        ("minPartitions", "1_0"),
        ("maxMessagesPerPull", "1e3"),
        ("failOnDataLoss", "\x1b[0m"),
        ("badBodies", "drop"),
    ],
    ids=lambda text: text[:30],
)
def test_odd_texts_are_mistakes_of_one_line(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name) as raised:
        parse_read({"namesrv": "127.0.0.1:1", "topic": "T", name: text}, streaming=False)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("text", ["[" * 100_000, '{"T": [99999999999]}'], ids=["deep", "large"])
def test_odd_queues_by_hand_are_mistakes(text: str) -> None:
    with pytest.raises(ConfigError, match="option assign"):
        parse_read({"namesrv": "127.0.0.1:1", "assign": text}, streaming=False)


def test_bad_bodies_go_on_as_null_where_loss_is_no_error() -> None:
    given = {"namesrv": "127.0.0.1:1", "topic": "T"}
    assert parse_read(given, streaming=True).bad_bodies == "error"
    assert parse_read({**given, "failOnDataLoss": "false"}, streaming=True).bad_bodies == "null"
    assert parse_read({**given, "failOnDataLoss": "false", "badBodies": "error"}, streaming=True).bad_bodies == "error"


def test_columns_are_parted_by_commas() -> None:
    assert parse_read(BASE, streaming=False).columns == ()
    for given in ({"columns": " body, tag ,queueOffset"}, {"COLUMNS": "body,tag,queueOffset,"}):
        assert parse_read({**BASE, **given}, streaming=True).columns == ("body", "tag", "queueOffset")
        # The names are read before anything else is looked at, for a write too.
        assert parse_columns({"no": "topic", **given}) == ("body", "tag", "queueOffset")
    with pytest.raises(ConfigError, match="did you mean 'columns'"):
        parse_read({**BASE, "column": "body"}, streaming=False)


def test_secrets_may_stand_in_files(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hide-4\nmore\n")
    taken = parse_write({"namesrv": "a:1", "accessKey": "k", "secretKeyFile": str(file)})
    assert taken.access.secret_key == "hide-4"
    assert "hide" not in repr(taken)
    for change, says in (
        ({"secretKey": "x", "secretKeyFile": str(file)}, "options secretKey and secretKeyFile are both given"),
        ({"secretKeyFile": "/nowhere/key"}, "option secretKeyFile=/nowhere/key cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse_write({"namesrv": "a:1", "accessKey": "k", **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"useTls": "yes"}, "option useTls is 'yes'"),
        ({"tlsCa": "/x"}, "option tlsCa is given, but useTls is not: set useTls=true"),
        ({"useTls": "true", "tlsVerify": "some"}, "option tlsVerify='some': full, ca, none are known"),
        ({"useTls": "true", "tlsCa": "/nowhere/ca.pem"}, r"option tlsCa=/nowhere/ca\.pem cannot be read"),
        ({"useTls": "true", "tlsKey": "/x"}, "option tlsKey is given without tlsCert"),
        ({"useTSL": "true"}, "did you mean 'useTls'"),
    ],
)
def test_wrong_options_of_tls_are_named(change: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_write({"namesrv": "a:1", **change})


def test_keys_and_tls_over_others_are_taken_whole() -> None:
    base = {"namesrv": "a:1", "accessKey": "one", "secretKey": "1", "useTls": "true", "tlsCa": "/one"}
    assert over(base, {"SecretKeyFile": "/two", "accesskey": "two"}) == {
        "namesrv": "a:1",
        "useTls": "true",
        "tlsCa": "/one",
        "SecretKeyFile": "/two",
        "accesskey": "two",
    }
    assert over(base, {"useTls": "false", "topic": "t"}).keys() == {
        "namesrv",
        "accessKey",
        "secretKey",
        "useTls",
        "topic",
    }
