"""Places on object stores: how they are named, refused, set up, and what errors say. No Spark starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketspark.errors import ConfigError
from rocketspark.spark.lakehouse import object_store
from rocketspark.spark.pipelines import archive
from rocketspark.spark.pipelines.parts.archive_manifest import open_archive
from rocketspark.spark.pipelines.parts.session import one_line

pytestmark = pytest.mark.shows(
    "object stores: jars of s3a:// without the SDK's bundle, endpoint, region and keys from the environment "
    "or settings",
    "Parquet archives, progress of restores on object stores and HDFS: refused in one line",
)


@pytest.mark.parametrize(
    ("place", "scheme", "uri"),
    [
        ("s3a://b/x", "s3a", "s3a://b/x"),
        (Path("s3a://b/x/y"), "s3a", "s3a://b/x/y"),
        ("s3://b/x", "s3a", "s3a://b/x"),
        ("S3N://b", "s3a", "s3a://b/"),
        (Path("gs://b/x"), "gs", "gs://b/x"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss", "abfss://c@account.dfs.core.windows.net/x"),
        ("hdfs://n:8020/x", "hdfs", "hdfs://n:8020/x"),
        ("/data/archive", "", "/data/archive"),
        ("a:b/c", "", "a:b/c"),
        ("hour=2026-11-21T06:00/x", "", "hour=2026-11-21T06:00/x"),
    ],
)
def test_a_place_is_known_by_its_scheme_even_as_a_path(place: str | Path, scheme: str, uri: str) -> None:
    assert object_store.uri(place) == uri
    assert object_store.scheme_of(uri) == scheme


@pytest.mark.parametrize("place", ["s3a://AKIA1234:topsecret@b/x", Path("s3://AKIA1234:topsecret@b/x")])
def test_keys_in_an_address_are_refused_and_not_repeated(place: str | Path) -> None:
    for refuse in (object_store.uri, object_store.refuse_plain_archive):
        with pytest.raises(ConfigError) as raised:
            refuse(place)
        assert "topsecret" not in str(raised.value)
        assert "AKIA1234" not in str(raised.value)


def test_an_address_without_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"name a bucket: s3a://BUCKET/FOLDER"):
        object_store.uri("s3a:///")


@pytest.mark.parametrize("scheme", ["s3a", "s3", "gs", "abfss", "hdfs"])
def test_a_parquet_archive_on_an_object_store_is_refused_in_one_line(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = f"{scheme}://b/archive"
    uses: list[Callable[[Any], object]] = [
        lambda given: open_archive(given).__enter__(),
        archive.hours,
        lambda given: archive.run(None, "", ["t"], given),  # type: ignore[arg-type]
    ]
    for given in (place, Path(place)):
        for use in uses:
            with pytest.raises(ConfigError) as raised:
                use(given)
            assert str(raised.value).startswith(f"{place}: a Parquet archive needs hard links and renames")
            assert "--format delta" in str(raised.value)
            assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_jars_of_a_hadoop_are_its_own_and_the_parts_of_the_sdk() -> None:
    assert object_store.s3a_packages("3.4.1") == (
        "org.apache.hadoop:hadoop-aws:3.4.1",
        "software.amazon.awssdk:s3:2.29.52",
        "software.amazon.awssdk:s3-transfer-manager:2.29.52",
        "software.amazon.awssdk:sts:2.29.52",
    )
    assert object_store.s3a_packages("3.5.0")[1:3] == (
        "software.amazon.awssdk:s3:2.35.4",
        "software.amazon.awssdk:s3-transfer-manager:2.35.4",
    )
    with pytest.raises(ConfigError, match=r"this Spark has 9\.9\.9: give them with --conf spark\.jars\.packages"):
        object_store.s3a_packages("9.9.9")


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "hadoop_version", lambda: "3.4.1")
    assert object_store.settings_for("/data", {}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}) == {}
    found = object_store.settings_for("s3a://b/x", {}, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"})
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "us-east-1"
    assert found["spark.jars.packages"] == ",".join(object_store.s3a_packages("3.4.1"))
    assert found["spark.jars.excludes"] == "software.amazon.awssdk:bundle,org.slf4j:slf4j-api"
    given = {
        "spark.hadoop.fs.s3a.path.style.access": "false",
        "spark.hadoop.fs.s3a.retry.limit": "9",
        "spark.jars.packages": "a:b:1",
    }
    found = object_store.settings_for("s3a://b/x", given, {"AWS_REGION": "eu-central-1"})
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert not {"spark.hadoop.fs.s3a.retry.limit", "spark.hadoop.fs.s3a.path.style.access"} & set(found)
    assert found["spark.jars.packages"].startswith("a:b:1,org.apache.hadoop:hadoop-aws:3.4.1,")
    jars = {"spark.jars": "/jars/hadoop-aws-3.4.1.jar"}
    assert not {"spark.jars.packages", "spark.jars.excludes"} & set(object_store.settings_for("s3a://b", jars, {}))


def test_credentials_are_kept_from_command_lines_and_from_errors() -> None:
    conf = {
        "spark.hadoop.fs.s3a.access.key": "AKIAUNITTEST",
        "spark.hadoop.fs.s3a.bucket.b.secret.key": "unit/secret+key",
        "spark.hadoop.fs.s3a.session.token": "unit-session-token",
        "spark.sql.catalog.ice.jdbc.password": "unit-password",
        "spark.hadoop.fs.s3a.aws.credentials.provider": "org.example.Provider",
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:1",
    }
    shown, secret = object_store.without_secrets(conf)
    assert sorted(shown) == ["spark.hadoop.fs.s3a.aws.credentials.provider", "spark.hadoop.fs.s3a.endpoint"]
    assert shown | secret == conf
    object_store.remember_secrets(conf, {"AWS_SECRET_ACCESS_KEY": "unit-of-environment"})
    text = one_line("Failed with AKIAUNITTEST unit/secret+key unit-session-token unit-password unit-of-environment")
    assert text == "Failed with (hidden) (hidden) (hidden) (hidden) (hidden)"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x.UnknownStoreException: `s3a://b/': getFileStatus", "there is no such bucket"),
        (
            "java.nio.file.AccessDeniedException: s3a://b: x (Service: S3, Status Code: 403)",
            "refuses these credentials",
        ),
        ("x.NoAuthWithAWSException: No AWS Credentials provided", "no credentials: set AWS_ACCESS_KEY_ID"),
        ("java.net.ConnectException: Connection refused", "cannot be reached: check fs.s3a.endpoint"),
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", "give its jars"),
        ("AWSStatus500Exception: x (Service: S3, Status Code: 503)", "errors of its own"),
        ("An error\n\tat a.b.C\nsomething else\n", "something else"),
    ],
)
def test_an_error_of_a_store_is_one_line(text: str, says: str) -> None:
    said = object_store.said("s3a://b/x", text)
    assert said.startswith("s3a://b/x: ")
    assert says in said
    assert "\n" not in said
