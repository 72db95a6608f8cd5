from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.errors import ConfigError
from rocketspark.proxy import settings as proxy_settings
from rocketspark.proxy.settings import ProxySettings


def written(folder: Path, values: Any) -> Path:
    path = folder / "rmq-proxy.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_keys_are_settings_of_ours_in_our_units(tmp_path: Path) -> None:
    values = {
        "rocketMQClusterName": "DefaultCluster",
        "namesrvAddr": "127.0.0.1:9876",
        "grpcServerPort": 8091,
        "useEndpointPortFromRequest": "true",
        "maxDelayTimeMills": "1000",
        "enableTopicMessageTypeCheck": "false",
        "transactionHeartbeatPeriodSecond": 3,
        "proxyMode": "cluster",
    }
    found, warnings = proxy_settings.read_file(written(tmp_path, values))
    settings = ProxySettings(**found)
    assert (settings.namesrv, settings.port, settings.delay_ms_max) == ("127.0.0.1:9876", 8091, 1000)
    assert (settings.check_topic_type, settings.heartbeat_interval_ms, settings.asked_port) == (False, 3000, True)
    assert warnings == [f"{tmp_path / 'rmq-proxy.json'}: key 'rocketMQClusterName' has no effect"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("{", "is no JSON object of settings"),
        ([1], "is no JSON object of settings"),
        ({"grpcServerPort": "x"}, "grpcServerPort=x: a whole number is needed"),
        ({"maxMessageSize": -1}, "maxMessageSize=-1: a number from 0 on is needed"),
        ({"enableBatchAck": "perhaps"}, "enableBatchAck=perhaps: true or false is needed"),
        ({"metricsExporterType": "PROM", "metricsPromExporterPort": 65536}, "a port from 0 to 65535 is needed"),
        ({"metricsPromExporterPort": "x"}, "metricsPromExporterPort=x: a whole number is needed"),
        ({"metricsExporterType": "JAEGER"}, "metricsExporterType=JAEGER: DISABLE, PROM, OTLP_GRPC or LOG is needed"),
        ({"metricsExporterType": "OTLP_GRPC"}, "metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget=http://"),
        ({"metricsExporterType": "LOG", "metricsLabel": "a"}, "metricsLabel: item 1 is no NAME:VALUE"),
        ({"metricsExporterType": "LOG", "metricLoggingExporterIntervalInMills": 99}, "is needed, from 100 to"),
        ({"metricsGrpcExporterHeader": ["k:marker"]}, "json: metricsGrpcExporterHeader: text is needed"),
        ({"metricCollectorMode": "proxy"}, "metricCollectorMode=proxy: OFF or ON is needed"),
        ({"metricCollectorMode": "on"}, "metricCollectorAddress=: host:port is needed"),
        ({"metricCollectorMode": "on", "metricCollectorAddress": "h:0"}, "=h:0: host:port is needed"),
        ({"proxyMode": "LOCAL"}, "leave it out, or say CLUSTER"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path: Path, values: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        proxy_settings.read_file(written(tmp_path, values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"metricsPromExporterPort": 9100}, {}),
        ({"metricsExporterType": "DISABLE", "metricsPromExporterPort": 9100}, {}),
        ({"metricsExporterType": "PROM"}, {"metrics_port": 5557}),
        (
            {"metricsExporterType": "OTLP_GRPC", "metricsGrpcExporterTarget": "http://h:1", "metricsLabel": "a:b"},
            {"metrics_exporter": "OTLP_GRPC", "metrics_target": "http://h:1", "metrics_label": "a:b"},
        ),
        ({"metricsExporterType": "log", "metricsInDelta": "true"}, {"metrics_exporter": "LOG", "metrics_delta": True}),
        ({"metricsExporterType": "PROM", "metricsPromExporterPort": None}, {"metrics_port": 5557}),
        ({"metricsExporterType": "PROM", "metricsPromExporterPort": "9100"}, {"metrics_port": 9100}),
        ({"metricCollectorMode": "off", "metricCollectorAddress": "h:1"}, {}),
        ({"metricCollectorMode": "on", "metricCollectorAddress": "h:1"}, {"metric_collector": "h:1"}),
        ({"proxyClusterName": "c", "proxyName": "p"}, {"cluster_name": "c", "name": "p"}),
    ],
)
def test_keys_of_metrics_count_when_metrics_are_asked_for(tmp_path: Path, values: Any, expected: Any) -> None:
    assert proxy_settings.read_file(written(tmp_path, values)) == (expected, [])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        proxy_settings.read_file(tmp_path / "none.json")


anything = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=3)
keys = st.sampled_from([*proxy_settings.FIELDS, *proxy_settings.SECONDS, *proxy_settings.CHOICES, "proxyMode", "other"])


@given(st.dictionaries(keys, anything, max_size=4))
def test_any_values_are_settings_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, values: Any) -> None:
    path = written(tmp_path_factory.getbasetemp(), values)
    try:
        found, _ = proxy_settings.read_file(path)
    except ConfigError:
        return
    ProxySettings(**{"namesrv": "", **found})
