"""Object stores under Spark: jars and settings of s3a://, credentials that are not shown, and a check of a
place before a query uses it.

Rule: a credential leaves this process in the JVM's Hadoop configuration only, never on a command line, in a plan, a log
or an error.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocketspark.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The SDK that Hadoop's S3A of that version is built with, or the nearest one that can be had in parts.
_SDK_OF_HADOOP = {"3.4": "2.29.52", "3.5": "2.35.4"}
_SDK_PARTS = ("s3", "s3-transfer-manager", "sts")
_ANALYTICS_OF_HADOOP = {"3.4.2": "1.2.1", "3.4.3": "1.2.1", "3.5.0": "1.3.1"}
# The SDK as one jar of 500 MB: its parts do. And what each Spark has.
EXCLUDED = "software.amazon.awssdk:bundle,org.slf4j:slf4j-api"
PROBE_LIMIT_S = 30.0

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,3}")
_SECRET_NAME = re.compile(r"(?i)secret|password|token|access[.]?key|credential(?!s?\.provider)|account\.key|sas\.")
# Secrets that this process was given: what is printed is searched for them.
_secrets: set[str] = set()
_HIDDEN = "(hidden)"
_SECRET_LENGTH_MIN = 6

# A store that does not answer is an error after a minute or so; Hadoop's own defaults go on for many.
S3A_DEFAULTS = {
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "4",
    "spark.hadoop.fs.s3a.retry.interval": "250ms",
    "spark.hadoop.fs.s3a.retry.throttle.limit": "8",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "15s",
    "spark.hadoop.fs.s3a.connection.timeout": "30s",
    "spark.hadoop.fs.s3a.connection.request.timeout": "60s",
    # S3A repeats a read that was cut short, but for vectored ones.
    "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
}
# The look before a query tries once.
_PROBE = {
    "fs.s3a.attempts.maximum": "1",
    "fs.s3a.retry.limit": "1",
    "fs.s3a.retry.throttle.limit": "1",
    "fs.s3a.retry.throttle.interval": "100ms",
    "fs.s3a.connection.timeout": "15s",
}
_CHOOSING = re.compile(r"[][{}*?\\]")


def literal(path: str) -> str:
    """Return a path as Spark reads it: none of its characters chooses among files."""
    return _CHOOSING.sub(r"\\\g<0>", path)


def scheme_of(place: str | Path) -> str:
    """Return the scheme of a place (`s3a`, `gs`, `hdfs`, …), "" for a path. A Path of s3a://b/x is s3a:/b/x."""
    found = _SCHEME.match(str(place))
    return found[1].lower() if found else ""


def uri(place: str | Path) -> str:
    """Return a place as Hadoop wants it: s3:// is s3a://, and the slashes that a Path took away are back.

    Raises ConfigError for credentials in it and for a place without a bucket.
    """
    scheme = scheme_of(place)
    if not scheme:
        return str(place)
    rest = str(place)[len(scheme) + 1 :].lstrip("/")
    if scheme in ("file", "hdfs", "viewfs"):
        return str(place)
    host, _, path = rest.partition("/")
    if "@" in host and scheme in ("s3", "s3n", "s3a"):
        raise ConfigError(
            f"{scheme}://{_HIDDEN}@{host.rpartition('@')[2]}/{path}: give keys by the environment"
            " (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), not in the address"
        )
    if not host:
        raise ConfigError(f"{place}: name a bucket: {scheme}://BUCKET/FOLDER")
    return f"{'s3a' if scheme in ('s3', 's3n') else scheme}://{host}/{path}"


def local(place: str | Path) -> str | Path:
    """Return the path of a place on this machine's disk that is given as file:///path."""
    if scheme_of(place) != "file":
        return place
    return "/" + str(place).partition(":")[2].lstrip("/")


def refuse_object_store(place: str | Path, what: str, instead: str) -> None:
    """Raise ConfigError for a place on an object store. `what`: what needs a folder of a file system; `instead`: what
    the user should do.
    """
    if scheme_of(place):
        raise ConfigError(
            f"{_shown(place)}: {what} needs hard links and renames of a file system, which this place lacks: {instead}"
        )


def refuse_plain_archive(place: str | Path) -> None:
    """Raise ConfigError if the folder for an archive of Parquet files is on an object store or HDFS."""
    refuse_object_store(
        place, "a Parquet archive", "archive with --format delta or --format iceberg, or to a folder that is mounted"
    )


def _shown(place: str | Path) -> str:
    """The place with its slashes, without credentials."""
    scheme = scheme_of(place)
    rest = str(place)[len(scheme) + 1 :].lstrip("/")
    host, _, path = rest.partition("/")
    host = f"{_HIDDEN}@{host.rpartition('@')[2]}" if "@" in host and scheme.startswith("s3") else host
    return f"{scheme}:///{rest}" if scheme == "file" else f"{scheme}://{host}/{path}".rstrip("/")


# ------------------------------------------------------------------ jars


def spark_jars() -> list[str]:
    """Return the names of the jars that PySpark, or SPARK_HOME, has."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return sorted(path.name for path in (home / "jars").glob("*.jar"))


def hadoop_version() -> str:
    """Return the version of the Hadoop that PySpark brought, from the names of its jars; "" if it has none."""
    names = (name for name in spark_jars() if name.startswith("hadoop-client-api-"))
    return next(names, "").removeprefix("hadoop-client-api-").removesuffix(".jar")


def s3a_packages(hadoop: str) -> tuple[str, ...]:
    """Return the Maven coordinates of the jars of s3a:// for a version of Hadoop. The packages in EXCLUDED must be left
    out of their dependencies.

    Raises ConfigError for a Hadoop whose SDK is not known.
    """
    sdk = _SDK_OF_HADOOP.get(hadoop.rpartition(".")[0])
    if sdk is None:
        known = " and ".join(f"{version}.x" for version in _SDK_OF_HADOOP)
        raise ConfigError(
            f"s3a:// needs the jars of hadoop-aws, which are known for Hadoop {known}, and this Spark has"
            f" {hadoop or 'none'}: give them with --conf spark.jars.packages=…"
        )
    analytics = _ANALYTICS_OF_HADOOP.get(hadoop)
    parts = tuple(f"software.amazon.awssdk:{part}:{sdk}" for part in _SDK_PARTS)
    more = (f"software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:{analytics}",) if analytics else ()
    return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *parts, *more)


def _has_s3a(conf: Mapping[str, str]) -> bool:
    """Tell whether jars of s3a:// are given, or lie with Spark's."""
    names = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
    given = ",".join(conf.get(name, "") for name in names)
    return "hadoop-aws" in given or any(name.startswith("hadoop-aws-") for name in spark_jars())


# ------------------------------------------------------------------ settings


def settings_for(
    place: str | Path, conf: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the settings that a session needs for a place on an object store, beside those of `conf`: jars, time-outs,
    endpoint.

    `environment`: its AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL and AWS_REGION or AWS_DEFAULT_REGION are used where
    `conf` says nothing. Spark itself takes AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN.
    """
    if scheme_of(place) not in ("s3", "s3a", "s3n"):
        return {}
    uri(place)
    wanted = dict(S3A_DEFAULTS)
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    if endpoint:
        wanted["spark.hadoop.fs.s3a.endpoint"] = endpoint
    endpoint = conf.get("spark.hadoop.fs.s3a.endpoint", endpoint)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if region:
        wanted["spark.hadoop.fs.s3a.endpoint.region"] = region
    elif endpoint and "amazonaws." not in endpoint:
        # Without one the SDK asks for it, where other stores have nobody to ask.
        wanted["spark.hadoop.fs.s3a.endpoint.region"] = "us-east-1"
    if endpoint and "amazonaws." not in endpoint:
        wanted["spark.hadoop.fs.s3a.path.style.access"] = "true"
    if not _has_s3a(conf):
        packages = s3a_packages(hadoop_version())
        wanted["spark.jars.packages"] = joined(conf.get("spark.jars.packages"), *packages)
        wanted["spark.jars.excludes"] = joined(conf.get("spark.jars.excludes"), EXCLUDED)
        return {name: value for name, value in wanted.items() if name not in conf or name.startswith("spark.jars.")}
    return {name: value for name, value in wanted.items() if name not in conf}


def joined(*lists: str | None) -> str:
    """Join several values of a setting that is a comma-separated list to one, without repetitions."""
    return ",".join(dict.fromkeys(part for one in lists if one for part in one.split(",") if part))


# ------------------------------------------------------------------ credentials


def is_secret(name: str) -> bool:
    """Tell whether a setting of that name holds a credential."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(conf: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Divide a session's settings in two: those that a command line may show, and those that are credentials of stores
    and catalogs.
    """
    keep, secret = {}, {}
    for name, value in conf.items():
        if name.startswith(("spark.hadoop.", "spark.sql.catalog.")) and is_secret(name):
            secret[name] = value
        else:
            keep[name] = value
    return keep, secret


def remember_secrets(conf: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Remember the credentials in settings and in the environment, so that `hidden` removes them from texts."""
    found = [value for name, value in conf.items() if is_secret(name)]
    found += [environment.get(f"AWS_{name}", "") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")]
    _secrets.update(value for value in found if len(value) >= _SECRET_LENGTH_MIN)


def hidden(text: str) -> str:
    """Return a text without the credentials that were given to `remember_secrets`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def give_secrets(spark: SparkSession, secrets: Mapping[str, str]) -> None:
    """Give a running session the credentials that `without_secrets` set apart, so that no command line of its JVM has
    them.
    """
    context = getattr(spark, "_jsc", None)
    for name, value in secrets.items():
        if context is not None and name.startswith("spark.hadoop."):
            context.hadoopConfiguration().set(name.removeprefix("spark.hadoop."), value)
        else:  # Over Spark Connect a session's own settings are all there is.
            spark.conf.set(name.removeprefix("spark.hadoop."), value)


# ------------------------------------------------------------------ the look before a query


def check_place(spark: SparkSession, place: str | Path, *, writes: bool, limit_s: float = PROBE_LIMIT_S) -> None:
    """Raise ConfigError, in one line, unless a place on an object store can be reached and read; with `writes` also
    written, and a new folder is made then.

    A place on a file system is not checked. `limit_s`: how long it may take.
    """
    if not scheme_of(place) or scheme_of(place) == "file":
        return
    target = uri(place)
    failed: list[BaseException] = []

    def look() -> None:
        try:
            _look(spark, target, writes)
        except Exception as e:
            failed.append(e)

    # What hangs is left to end by itself: the command ends before it.
    thread = threading.Thread(target=look, name="object-store-check", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise ConfigError(f"{target}: the store did not answer within {limit_s:g} s: check {_endpoint_key(target)}")
    if failed:
        raise ConfigError(hidden(said(target, str(failed[0])))) from None


def _look(spark: SparkSession, target: str, writes: bool) -> None:
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        _look_from_afar(spark, target)
        return
    conf = jvm.org.apache.hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    for name, value in _PROBE.items():
        conf.set(name, value)
    path = jvm.org.apache.hadoop.fs.Path(target)
    system = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), conf)
    try:
        # A folder that is not there is no error; a bucket that is not there is one.
        system.exists(path)
        root = jvm.org.apache.hadoop.fs.Path(f"{target.partition('://')[0]}://{path.toUri().getAuthority()}/")
        if target.startswith("s3a:"):
            system.listStatusIterator(path if system.exists(path) else root).hasNext()
        if writes:
            system.mkdirs(path)
    finally:
        system.close()


def is_there(spark: SparkSession, place: str) -> bool:
    """Tell whether a file or folder exists. Over Spark Connect, which cannot tell, the answer is no."""
    if not scheme_of(place):
        return Path(place).exists()
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    path = jvm.org.apache.hadoop.fs.Path(uri(place))
    return bool(path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path))


def write_text(spark: SparkSession, place: str | Path, text: str) -> None:
    """Write a file on an object store, whole or not at all. Raises ConfigError over Spark Connect, which cannot."""
    jvm: Any = getattr(spark, "_jvm", None)
    target = uri(place)
    if jvm is None:
        raise ConfigError(f"{target}: over Spark Connect no file can be written there: name a local file")
    path = jvm.org.apache.hadoop.fs.Path(target)
    out = path.getFileSystem(spark._jsc.hadoopConfiguration()).create(path, True)
    try:
        out.write(bytearray(text.encode()))
    finally:
        out.close()


def _look_from_afar(spark: SparkSession, target: str) -> None:
    """Over Spark Connect: the server's own read of a name that is not there says whether the bucket is."""
    from pyspark.errors import AnalysisException

    try:
        spark.read.format("binaryFile").load(f"{target.rstrip('/')}/_is_the_bucket_there").schema  # noqa: B018
    except AnalysisException as e:
        if "PATH_NOT_FOUND" not in str(e):
            raise


def _endpoint_key(target: str) -> str:
    return "fs.s3a.endpoint and the network" if target.startswith("s3a:") else "its address and the network"


_CAUSES = (
    (r"ClassNotFoundException: Class org\.apache\.hadoop\.fs\.s3a|No FileSystem for scheme|UnsupportedFileSystem",
     "Spark has no file system for it: give its jars with --conf spark.jars.packages=…"),
    (r"UnknownStoreException|NoSuchBucket|[Bb]ucket .*does not exist", "there is no such bucket"),
    (r"NoAuthWithAWSException|NoAwsCredentialsException|No AWS Credentials|Unable to load credentials",
     "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or fs.s3a.aws.credentials.provider"),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|Status Code: 401",
     "the store does not know these credentials, or they expired"),
    (r"AccessDenied|Status Code: 403|Forbidden", "the store refuses these credentials (403)"),
    (r"UnknownHostException", "the endpoint's name is not known: check fs.s3a.endpoint"),
    (r"ConnectException|Connection refused|NoRouteToHost|NoHttpResponse|SocketTimeout|timed out|Timeout"
     r"|Connection reset|failed to respond|[Uu]nable to execute HTTP request",
     "the store cannot be reached: check fs.s3a.endpoint and the network"),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|Status Code: 301|Moved",
     "the bucket is in another region: set fs.s3a.endpoint.region"),
    (r"Status Code: 50\d|SlowDown|InternalError|ServiceUnavailable|AWSStatus500|AWSServiceThrottled",
     "the store answers with errors of its own (5xx): try again later"),
)  # fmt: skip


def said(target: str, text: str) -> str:
    """Return a line for a user that says why an object store failed. `target`: the place; `text`: the store's error."""
    for pattern, says in _CAUSES:
        if re.search(pattern, text):
            return f"{target}: {says}"
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return f"{target}: {lines[-1] if len(lines) > 1 else ''.join(lines) or 'the store failed and did not say why'}"
