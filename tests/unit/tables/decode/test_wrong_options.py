"""Wrong options of decoding: one clear line, when Spark asks for the columns of a read."""

from __future__ import annotations

import sys

import pytest

from rocketspark.errors import ConfigError, RocketSparkError
from rocketspark.spark.source import RocketMQDataSource
from rocketspark.tables.decode.bodies import BodyDecoder, resolve
from rocketspark.tables.options import parse_decode_options

pytestmark = pytest.mark.shows(
    "mended: a `decodeErrorTopic` that is read itself, by name or pattern, went round for ever; a bad body "
    "over 4 MiB inflated ended the query"
)

DDL = "id INT"
WRONG = [
    ({"decode": "xml"}, "option decode is 'xml': json or avro or protobuf is needed"),
    ({"decodeSchema": "id INT"}, "option decodeSchema goes with option decode, which is missing"),
    ({"decode": "avro"}, "option decodeSchema is missing"),
    ({"decode": "avro", "decodeSchema": "{}"}, "is no Avro schema"),
    ({"decode": "avro", "decodeSchemaFile": "/none/such"}, "cannot be read on the driver: No such file"),
    ({"decode": "avro", "schemaRegistry": "ftp://x"}, "http://host:port or https://host:port is needed"),
    (
        {"decode": "avro", "schemaRegistry": "http://127.0.0.1:9", "schemaRegistryTimeoutMs": "50"},
        "schema registry http://127.0.0.1:9: Connection refused: no answer about subject",
    ),
    ({"decode": "json", "decodeShema": "id INT"}, "did you mean 'decodeSchema'"),
    ({"decode": "json", "decodeErrorTopic": "a b"}, "option decodeErrorTopic: topic 'a b': only letters"),
    ({"decode": "json", "decodeErrorTopic": "SCHEDULE_TOPIC_XXXX"}, "option decodeErrorTopic: topic"),
    ({"decode": "json", "decodeErrorTopic": "t"}, "is 't', which is read too: bad rows would come in again"),
    ({"decode": "json", "topic": "", "topicPattern": "t.*", "decodeErrorTopic": "t-bad"}, "which is read too"),
    ({"decode": "json", "topic": "", "assign": '{"t": [0]}', "decodeErrorTopic": "t"}, "which is read too"),
    ({"decode": "json", "decodeSchema": DDL, "decodeInto": "body"}, "which is a column of every read"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_wrong_options_before_the_query(options: dict[str, str], said: str) -> None:
    with pytest.raises(RocketSparkError) as told:
        RocketMQDataSource({"namesrv": "127.0.0.1:9", "topic": "t", **options}).schema()
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_columns_of_a_read() -> None:
    options = {"namesrv": "127.0.0.1:9", "topic": "t", "decode": "json", "decodeSchema": DDL}
    for columns, wanted in (
        ("tag", "`tag` string, `value` struct<id INT>, `_decode_error` string"),
        ("value,tag", "`value` struct<id INT>, `tag` string"),
    ):
        assert RocketMQDataSource({**options, "columns": columns}).schema() == wanted


def test_an_executor_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    options = resolve(parse_decode_options({"decode": "avro", "decodeSchema": '"int"'}))
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(
        ConfigError, match=r"on executors too: pip install 'rocketspark\[schemas\]', or `rocketspark spark"
    ):
        BodyDecoder(options)
