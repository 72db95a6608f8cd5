"""The arguments that several clients have in common.

Rule: a typed dict names them for type checkers, and says what they mean; the defaults stand in a struct of the same
names: beside it, or in `instance` for those of every client.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from numbers import Real
from typing import Any, Literal, TypedDict, TypeVar

import msgspec

from rocketspark.client import validators
from rocketspark.client.connection.topic_routes import DEFAULT_TOPIC
from rocketspark.client.hooks import Hooks
from rocketspark.client.producer.latency_faults import FaultTable
from rocketspark.client.producer.send_attempts import RETRY_CODES
from rocketspark.errors import ConfigError
from rocketspark.model.route import DEFAULT_QUEUE_COUNT
from rocketspark.protocol.message.compression import KINDS, Kind

TlsVerify = Literal["full", "ca", "none"]
S = TypeVar("S", bound=msgspec.Struct)
F = TypeVar("F", bound=Callable[..., Any])


def take_settings(kind: type[S], options: Any) -> S:
    """Move the arguments that are fields of the struct `kind` out of `options` into a `kind`; the other fields get
    their defaults.
    """
    return kind(**{name: options.pop(name) for name in kind.__struct_fields__ if name in options})


def named_arguments(kind: type[msgspec.Struct]) -> Callable[[F], F]:
    """Have `inspect.signature` and `help` show the fields of `kind`, with their defaults, among a function's arguments.

    The function takes them by its `**options`, which a typed dict of the same names declares for type checkers.
    """

    def give(function: F) -> F:
        *plain, options = inspect.signature(function).parameters.values()
        types: dict[str, Any] = {}
        for base in reversed(kind.__mro__):
            types |= inspect.get_annotations(base)
        fields = [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in msgspec.structs.fields(kind)
        ]
        options = options.replace(annotation="Unpack[ClientOptions]")
        function.__signature__ = inspect.Signature([*plain, *fields, options], return_annotation="None")  # type: ignore[attr-defined]
        return function

    return give


class AccessOptions(TypedDict, total=False):
    """By what every client and the operations are let in (the name in brackets is ClientConfig's).

    access_key, secret_key, security_token: every request is signed with them (ACL).
    use_tls: talk TLS to NameServers and brokers: no [useTLS]. Then tls_ca: file of the certificates that are trusted,
        PEM; without it those of the system. tls_verify: `full` checks a server's certificate and that it is for the
        name or address dialled, or for tls_server_name; `ca` the certificate alone; `none` nothing. tls_cert, tls_key,
        tls_key_password: this client's own pair, where servers ask for one.
    """

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    use_tls: bool
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_key_password: str | None
    tls_verify: TlsVerify | None
    tls_server_name: str | None


class ClientOptions(AccessOptions, total=False):
    """Arguments of every client, besides AccessOptions (the name in brackets is ClientConfig's).

    namesrv_url: where to fetch the NameServers' addresses by HTTP, every 2 min, if they are not given; by default
        http://{ROCKETMQ_NAMESRV_DOMAIN}:8080/rocketmq/nsaddr if the environment has that and no addresses
        [rocketmq.namesrv.domain]. "-{unit_name}?nofix=1" is put after it.
    instance_name, client_ip, unit_name: parts of the client id ip@instance[@unit]; by default unique to this object,
        and this machine's address [instanceName, clientIP, unitName].
    unit_mode: sends and heartbeats say so, and retry topics are made for units: no [unitMode].
    namespace: put before the names of topics and groups [namespace].
    route_interval_ms, heartbeat_interval_ms: how often routes are fetched and brokers told of this client: 30 s
        [pollNameServerInterval, heartbeatBrokerInterval].
    timeout_ms: of one question to a NameServer or broker that is no send, pull or call of the application: 3 s
        [mqClientApiTimeout].
    hooks: objects of a class derived from `hooks.Hooks`, called in their order.
    trace: write message traces, to RMQ_SYS_TRACE_TOPIC or the topic given [enableTrace, traceTopic].
    telemetry: OpenTelemetry spans, with their context in the messages' properties; None: if opentelemetry-api is
        installed and the application has set a tracer provider.
    """

    namesrv_url: str | None
    instance_name: str | None
    client_ip: str | None
    unit_name: str | None
    unit_mode: bool
    namespace: str
    route_interval_ms: float
    heartbeat_interval_ms: float
    timeout_ms: float
    hooks: Sequence[Hooks]
    trace: bool | str
    telemetry: bool | None


class ProducerOptions(ClientOptions, total=False):
    """Arguments of every producer, besides ClientOptions; defaults are DefaultMQProducer's, 5.x, whose name is given.

    send_timeout_ms: the budget of one send, over all its attempts: 3 s [sendMsgTimeout].
    attempt_timeout_ms: the time of each attempt but the last, so that a broker that hangs costs a delay and not the
        send: None, what is left of the budget [sendMsgMaxTimeoutPerRequest].
    retries: attempts after the first: 2 [retryTimesWhenSendFailed].
    future_retries: the same for `send_future`: 2 [retryTimesWhenSendAsyncFailed].
    retry_codes: response codes after which a send is tried again [retryResponseCodes].
    future_retry_codes: the same for `send_future`: None, those of `retry_codes`. RocketMQ hands every code of a broker
        to the caller of an asynchronous send: () does that.
    retry_not_stored: try another broker also if the status is not SEND_OK: no [retryAnotherBrokerWhenNotStoreOK].
    compress_over_bytes: bodies from that size on are compressed, if that makes them smaller: 4096
        [compressMsgBodyOverHowmuch];
        `compression`: zlib, lz4 or zstd [compressType]; `compress_level`: 5 [compressLevel].
    body_bytes_max: larger bodies are refused: 4 MiB [maxMessageSize].
    default_topic, default_queue_count: whose route a topic that does not exist yet takes, on how many queues: TBW102, 4
        [createTopicKey, defaultTopicQueueNums].
    topics: whose brokers are told of this producer from `start` on, besides those of default_topic; so transactions
        left open by one that ended are asked of it before it sends: none [topics].
    fault_tolerance: leave brokers alone for a while that were slow or failed: no [sendLatencyFaultEnable].
    fault_table: how long: "4.x" or "5.x", or a FaultTable [latencyMax, notAvailableDuration].
    fault_detector: look every 2 s whether a broker that was unreachable answers again: no [startDetectorEnable].
    in_flight_max, oneway_in_flight_max, in_flight_bytes_max: how much may be on its way at once: 65535 sends, as many
        one-way sends, 100 MiB of each; later sends wait, at most for their own timeout.
    vip_channel: send to the brokers' port - 2: no [vipChannelEnabled].
    linger_ms: gather small sends for so long and send them in one request, each with a result of its own; 0 gathers
        what comes in one turn of the loop; None: no [autoBatch, batchMaxDelayMs].
    batch_bytes: such a request is sent at the latest when it has this size: 32 KiB [batchMaxBytes].
    callback_executor: where callbacks of `send_future` run; None: in up to four threads [setCallbackExecutor].
    log_sends: each attempt's result and keys go to the logger "rocketspark.sends", failures as warnings: no.
    """

    send_timeout_ms: float
    attempt_timeout_ms: float | None
    retries: int
    future_retries: int
    retry_codes: Collection[int]
    future_retry_codes: Collection[int] | None
    retry_not_stored: bool
    compress_over_bytes: int
    compression: Kind
    compress_level: int
    body_bytes_max: int
    default_topic: str
    default_queue_count: int
    topics: Sequence[str]
    fault_tolerance: bool
    fault_table: Literal["4.x", "5.x"] | FaultTable
    fault_detector: bool
    in_flight_max: int
    oneway_in_flight_max: int
    in_flight_bytes_max: int
    vip_channel: bool
    linger_ms: float | None
    batch_bytes: int
    callback_executor: Executor | None
    log_sends: bool


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """ProducerOptions with their defaults."""

    send_timeout_ms: float = 3000
    attempt_timeout_ms: float | None = None
    retries: int = 2
    future_retries: int = 2
    retry_codes: Collection[int] = RETRY_CODES
    future_retry_codes: Collection[int] | None = None
    retry_not_stored: bool = False
    compress_over_bytes: int = 4096
    compression: str = "zlib"
    compress_level: int = 5
    body_bytes_max: int = validators.BODY_BYTES_MAX
    default_topic: str = DEFAULT_TOPIC
    default_queue_count: int = DEFAULT_QUEUE_COUNT
    topics: Sequence[str] = ()
    fault_tolerance: bool = False
    fault_table: str | FaultTable = "4.x"
    fault_detector: bool = False
    in_flight_max: int = 65535
    oneway_in_flight_max: int = 65535
    in_flight_bytes_max: int = 100 << 20
    vip_channel: bool = False
    linger_ms: float | None = None
    batch_bytes: int = 32 << 10
    callback_executor: Executor | None = None
    log_sends: bool = False


# -1: its own default.
ZLIB_LEVELS = range(-1, 10)


def producer_settings(options: ProducerOptions) -> tuple[ProducerSettings, ClientOptions]:
    """Return the producer's own settings, and those of every client. Raises ConfigError for values that cannot be."""
    settings = take_settings(ProducerSettings, options)
    for field in msgspec.structs.fields(ProducerSettings):
        value = getattr(settings, field.name)
        # Not a number is none either.
        if type(field.default) in (int, float) and (not isinstance(value, Real) or value != value):
            raise ConfigError(f"{field.name} {value!r}: a number is needed")
    if settings.compression not in KINDS:
        raise ConfigError(f"compression {settings.compression!r} is not one of {', '.join(KINDS)}")
    if settings.compression == "zlib" and settings.compress_level not in ZLIB_LEVELS:
        raise ConfigError(f"compress_level {settings.compress_level!r}: zlib has the levels 0 to 9")
    if isinstance(settings.topics, str):
        raise ConfigError(f"topics {settings.topics!r}: a list of topics is needed, such as [{settings.topics!r}]")
    if min(settings.retries, settings.future_retries) < 0 or settings.send_timeout_ms <= 0:
        raise ConfigError("retries and future_retries must be 0 or more, send_timeout_ms more than 0")
    if settings.attempt_timeout_ms is not None and not settings.attempt_timeout_ms > 0:
        raise ConfigError(f"attempt_timeout_ms {settings.attempt_timeout_ms!r} must be more than 0, or None")
    return settings, options
