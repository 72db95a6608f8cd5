"""Where metrics go, as the settings say it: RocketMQ's form of labels and headers, and of the collector's address."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.broker.broker_conf import settings_from
from rocketspark.broker.settings import BrokerSettings
from rocketspark.errors import ConfigError
from rocketspark.transport.metrics.settings import ExportSettings, Target, pairs

pytestmark = pytest.mark.shows(
    "metricsLabel, metricsGrpcExporterHeader and metricsGrpcExporterTarget in RocketMQ's form, wrong ones one line"
)

PLAIN = ExportSettings.of(BrokerSettings())
MARK = "marker-secret"
names = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8).map(lambda text: f"a{text}")
values = st.text(string.ascii_letters + string.digits + " ;=/+\"'", min_size=1, max_size=8).map(lambda text: f"{text}.")


@given(st.lists(st.tuples(names, values.map(str.strip)), max_size=8), st.sampled_from([",", ",,", " , ", ", ,"]))
def test_pairs_are_read_as_they_were_written(written: list[tuple[str, str]], comma: str) -> None:
    text = comma.join(f"{name}:{value}" for name, value in written)
    assert pairs("metricsLabel", text) == list(dict(written).items())
    assert dict(PLAIN._replace(metrics_label=text).labels()) == dict(written)


def rocketmq(text: str) -> dict[str, str] | None:
    """What RocketMQ takes of a text whose items are all valid there; None if it leaves an item out."""
    found = {}
    for item in filter(None, text.split(",")):
        # Java's split drops empty parts at the end.
        parts = item.split(":")
        while parts and not parts[-1]:
            parts.pop()
        if len(parts) != 2:
            return None
        found[parts[0]] = parts[1]
    return found


@given(st.text("ab:, ", max_size=16))
def test_what_is_taken_is_what_rocketmq_takes(text: str) -> None:
    try:
        found = dict(pairs("metricsLabel", text))
    except ConfigError:
        return
    # Blanks around names and values stay there.
    theirs = rocketmq(",".join(item for item in text.split(",") if item.strip()))
    assert theirs is not None
    assert found == {name.strip(): value.strip() for name, value in theirs.items()}


@given(st.text(max_size=40))
def test_any_text_is_headers_and_labels_or_one_line_without_it(text: str) -> None:
    settings = PLAIN._replace(metrics_label=text, metrics_header=f"k:{MARK}:{text}")
    with pytest.raises(ConfigError) as caught:
        settings.headers()
    assert MARK not in str(caught.value)
    said = ""
    try:
        settings.labels()
    except ConfigError as e:
        said = str(e)
    assert said.isprintable()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"metricsExporterType": "OTLP_HTTP"}, "DISABLE, PROM, OTLP_GRPC or LOG is needed"),
        ({"metricsExporterType": "OTLP_GRPC"}, "needs metricsGrpcExporterTarget=http://HOST:PORT"),
        (
            {"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "http://u:p@h:1"},
            "http://HOST:PORT is nee",
        ),
        ({"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "http://h:1/v1"}, "http://HOST:PORT is nee"),
        ({"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "ftp://h"}, "http://HOST:PORT is needed"),
        ({"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "http://h:x"}, "http://HOST:PORT is needed"),
        ({"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "http://[h"}, "http://HOST:PORT is needed"),
        ({"metricsLabel": "a"}, "metricsLabel: item 1 is no NAME:VALUE"),
        ({"metricsLabel": "a:b,c:d:e"}, "metricsLabel: item 2 is no NAME:VALUE"),
        ({"metricsLabel": "1a:b"}, "metricsLabel: the name of item 1, '1a'"),
        ({"metricsLabel": "le:b"}, "metricsLabel: the name of item 1, 'le'"),
        ({"metricsLabel": "a-b:1,a.b:2"}, "metricsLabel: two names differ in . and - alone"),
        ({"metricsLabel": ",".join(f"a{n}:b" for n in range(65))}, "metricsLabel has 65 items: at most 64"),
        ({"metricsGrpcExporterHeader": f"a:b,{MARK}"}, "metricsGrpcExporterHeader: item 2 is no NAME:VALUE"),
        ({"metricsGrpcExporterHeader": f"x-bin:{MARK}"}, "metricsGrpcExporterHeader: the name of item 1"),
        ({"metricsGrpcExporterHeader": f"k:{MARK}\u00e9"}, "metricsGrpcExporterHeader: the value of item 1: ASCII"),
        ({"metricsGrpcExporterHeader": f"k:{MARK}\x01"}, "metricsGrpcExporterHeader: a text of at most 4096"),
        ({"metricGrpcExporterIntervalInMills": "99"}, "a whole number is needed, from 100 to"),
    ],
)
def test_what_cannot_be_is_one_line_without_a_secret(values: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings_from(values)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert MARK not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("http://h:4317", Target("h:4317", False)),
        ("https://h:4317/", Target("h:4317", True)),
        ("h:4317", Target("h:4317", True)),
        ("https://h", Target("h:443", True)),
        ("http://[::1]:4317", Target("[::1]:4317", False)),
    ],
)
def test_the_collector(text: str, target: Target) -> None:
    assert PLAIN._replace(metrics_target=text).target() == target


def test_headers_are_lower_case_and_shown_to_nobody() -> None:
    settings, _ = settings_from({"metricsGrpcExporterHeader": f"Api-Key:{MARK}"})
    assert ExportSettings.of(settings).headers() == [("api-key", MARK)]
    assert settings.properties()["metricsGrpcExporterHeader"] == "(hidden)"
    assert MARK not in repr(settings)
