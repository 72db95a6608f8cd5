"""The checks of what an application gives: topics, groups, bodies, numbers, and arguments that a call does not have.

Rule: RocketMQ's (Validators and TopicValidator, 5.x), checked before anything is sent; the error for an unknown
argument names the nearest one that there is.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, TypeVar, cast

from rocketspark.errors import ConfigError, MessageIllegal, UsageError
from rocketspark.model.route import MessageQueue
from rocketspark.model.text import LONG_MAX, nearest
from rocketspark.protocol.light_queues import NAME_PREFIX

TOPIC_CHARACTERS_MAX = 127
GROUP_CHARACTERS_MAX = 120
BODY_BYTES_MAX = 4 << 20
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
REPLY_SUFFIX = "_REPLY_TOPIC"

LITE_TOPIC_CHARACTERS_MAX = 64
_LITE = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
# Brokers write these themselves; a client's send to them is refused.
SYSTEM_TOPICS = frozenset(
    """SCHEDULE_TOPIC_XXXX RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC
    RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT""".split()
)
DEFAULT_GROUPS = frozenset(("DEFAULT_PRODUCER", "DEFAULT_CONSUMER"))


@lru_cache(maxsize=4096)
def check_topic(topic: str) -> str:
    """Return the topic. Raises MessageIllegal if it is empty, too long or has characters that are not allowed."""
    if not isinstance(topic, str) or not topic.strip():
        raise MessageIllegal("the topic is empty: give the name of a topic", topic=str(topic))
    if len(topic) > TOPIC_CHARACTERS_MAX:
        text = f"topic {topic[:40]!r}… has {len(topic)} characters; at most {TOPIC_CHARACTERS_MAX} are allowed"
        raise MessageIllegal(text, topic=topic)
    if not _LEGAL.fullmatch(topic):
        raise MessageIllegal(f"topic {topic!r}: only letters, digits and % | _ - are allowed", topic=topic)
    return topic


def check_read(topic: str) -> str:
    """Return a topic whose queues are read. Raises MessageIllegal; a light queue may have any name."""
    return topic if isinstance(topic, str) and topic.startswith(NAME_PREFIX) else check_topic(topic)


@lru_cache(maxsize=4096)
def check_target(topic: str) -> str:
    """Return a topic that clients may send to. Raises MessageIllegal also for RocketMQ's own topics."""
    if check_topic(topic) in SYSTEM_TOPICS:
        raise MessageIllegal(f"topic {topic!r} belongs to the broker itself; choose another", topic=topic)
    return topic


def check_batch_target(topic: str) -> str:
    """Return a topic that clients may send batches to. Raises MessageIllegal, for retry topics too."""
    if check_target(topic).startswith(RETRY_PREFIX):
        raise MessageIllegal(f"topic {topic!r}: a retry topic takes no batches", topic=topic)
    return topic


@lru_cache(maxsize=1024)
def check_group(group: str) -> str:
    """Return the group. Raises MessageIllegal if it is empty, too long, has other characters or is a placeholder."""
    if not isinstance(group, str) or not group.strip():
        raise MessageIllegal("the group is empty: give producers and consumers the name of a group")
    if len(group) > GROUP_CHARACTERS_MAX:
        text = f"group {group[:40]!r}… has {len(group)} characters; at most {GROUP_CHARACTERS_MAX} are allowed"
        raise MessageIllegal(text)
    if not _LEGAL.fullmatch(group):
        raise MessageIllegal(f"group {group!r}: only letters, digits and % | _ - are allowed")
    if group in DEFAULT_GROUPS:
        raise MessageIllegal(f"group {group!r} is RocketMQ's placeholder; choose a name of your own")
    return group


@lru_cache(maxsize=4096)
def check_lite_topic(name: str) -> str:
    """Return the name of a lite topic. Raises MessageIllegal if it is empty, too long or has other characters."""
    if not isinstance(name, str) or not _LITE.fullmatch(name):
        given = repr(name[:80]) if isinstance(name, str) else repr(name)
        text = f"lite topic {given}: 1 to {LITE_TOPIC_CHARACTERS_MAX} letters, digits, _ and - are needed"
        raise MessageIllegal(text)
    return name


def check_body(topic: str, body: bytes, bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise MessageIllegal unless the body is bytes, not empty and within the limit."""
    if not isinstance(body, bytes):
        kind = type(body).__name__
        raise MessageIllegal(f"message for topic {topic!r}: the body must be bytes, not {kind}; encode it", topic=topic)
    if not body:
        raise MessageIllegal(f"message for topic {topic!r}: the body is empty; RocketMQ takes none such", topic=topic)
    if len(body) > bytes_max:
        text = f"message for topic {topic!r}: the body has {len(body)} bytes; at most {bytes_max} are allowed"
        raise MessageIllegal(text, topic=topic)


def check_queue(queue: MessageQueue) -> MessageQueue:
    """Return the queue. Raises UsageError for anything that is not a queue."""
    if not isinstance(queue, MessageQueue):
        raise UsageError(
            f"{queue!r} is no MessageQueue: take a message's or result's `queue`, or one of `queues(topic)`"
        )
    return queue


def check_counts(**settings: object) -> None:
    """Raise ConfigError for a setting that is no whole number of 1 or more: with 0 nothing would ever be read."""
    for name, value in settings.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name} {value!r}: a whole number of 1 or more is needed")


def check_intervals(**settings: object) -> None:
    """Raise ConfigError for a setting that is not a number of ms over 0: with 0 a task would run without a pause."""
    for name, value in settings.items():
        if not isinstance(value, Real) or isinstance(value, bool) or not float(value) > 0:
            raise ConfigError(f"{name} {value!r}: a number of ms over 0 is needed")


def check_time(name: str, time_ms: int) -> int:
    """Return a time in ms since 1970 that an application gave. Raises UsageError for what brokers do not take as one,
    such as `time.time() * 1000`, which is no whole number.
    """
    if isinstance(time_ms, Integral) and not isinstance(time_ms, bool) and -LONG_MAX <= time_ms <= LONG_MAX:
        return int(time_ms)
    raise UsageError(f"{name} {time_ms!r}: a whole number of ms since 1970 is needed; make an int of it")


F = TypeVar("F", bound=Callable[..., Any])


def unknown_argument(called: str, name: str, known: Iterable[str]) -> TypeError:
    """Return the error for an argument that `called` does not have."""
    return TypeError(f"{called} has no argument {name!r}{nearest(name, known)}")


def arguments_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments, those of an `Unpack[…]` at its end too."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found.append(parameter.name)
        elif given := typing.get_args(typing.get_type_hints(function, include_extras=True).get(parameter.name)):
            found += typing.get_type_hints(given[0])
    return found


def name_arguments(kind: type) -> None:
    """Make the constructor and public methods of a class name, for an unknown argument, the one that was probably
    meant.

    Methods that take `**` arguments are left as they are: they check these themselves.
    """
    for name, method in list(vars(kind).items()):
        if (name == "__init__" or not name.startswith("_")) and inspect.isfunction(method):
            kinds = {p.kind for p in inspect.signature(method).parameters.values()}
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                setattr(kind, name, names_arguments(method))


def names_arguments(function: F) -> F:
    """Wrap a function so that the error for an unknown argument names the nearest known one, as Python does from 3.13
    on.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            known = arguments_of(function) if kwargs else []
            for name in kwargs:
                if name not in known:
                    owner = function.__qualname__.removesuffix(".__init__")
                    called = f"{owner}()" if owner == function.__qualname__ else owner
                    raise unknown_argument(called, name, known) from None
            raise

    if inspect.iscoroutinefunction(function):
        # What looks at it, as mocks do, sees what it is.
        getattr(inspect, "markcoroutinefunction", lambda marked: None)(call)
        call._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)  # type: ignore[attr-defined]
    return cast(F, call)
