"""The arguments of push and pull consumers, with their defaults.

Rule: a typed dict names them for type checkers, the struct after it has the defaults; the consumers' docstrings say
what they mean.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from rocketspark.client import validators
from rocketspark.client.consumer.allocate_queues import Strategy, StrategyName
from rocketspark.client.consumer.offsets import ConsumeFrom
from rocketspark.client.consumer.pop.pop_reading import STRATEGIES
from rocketspark.client.consumer.pop.popper import PopSettings
from rocketspark.client.consumer.puller import PullSettings
from rocketspark.client.consumer.refusals import OnError
from rocketspark.client.hooks import OnQueues
from rocketspark.client.options import ClientOptions
from rocketspark.errors import ConfigError
from rocketspark.model.text import INT_MAX

# How much is pulled and fetched ahead where messages are read as columns, and nothing else was asked for.
COLUMNS_PULLING = {
    "pull_count_max": 16_384,
    "pull_bytes_max": 2 << 20,
    "backlog_count_max": 65_536,
    # Of push consumers.
    "span_max": 65_536,
}
# Attempts until a message is a dead letter, where neither the application nor the group says another number.
ATTEMPTS_MAX = 16


class ConsumerOptions(ClientOptions, total=False):
    """What push and pull consumers have in common."""

    consume_from: ConsumeFrom
    broadcast: bool
    strategy: StrategyName | Strategy
    pull_count_max: int
    pull_bytes_max: int
    backlog_count_max: int
    backlog_bytes_max: int
    rebalance_interval_ms: float
    commit_interval_ms: float
    offset_folder: str | None


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """ConsumerOptions with their defaults. With a `commit_interval_ms` of 0 offsets are committed only when the
    application asks for it.
    """

    consume_from: ConsumeFrom = "last"
    broadcast: bool = False
    strategy: StrategyName | Strategy = "average"
    pull_count_max: int = 512
    pull_bytes_max: int = 256 << 10
    backlog_count_max: int = 1000
    backlog_bytes_max: int = 100 << 20
    rebalance_interval_ms: float = 20_000
    commit_interval_ms: float = 5000
    offset_folder: str | None = None

    def pulling(self, **more: Any) -> PullSettings:
        """Return the settings of this consumer's pullers; `more` sets further fields of PullSettings."""
        return PullSettings(
            count_max=self.pull_count_max,
            bytes_max=self.pull_bytes_max,
            backlog_count_max=self.backlog_count_max,
            backlog_bytes_max=self.backlog_bytes_max,
            **more,
        )

    def pulling_columns(self, given: Collection[str]) -> PullSettings:
        """Return the settings of pullers that deliver messages as columns (MessageBatch), which pull more at once.

        `given`: the names of the settings that the application chose; they stay. A pull asks for no more than a backlog
        bound that was given.
        """
        own = self.__struct_fields__
        wide = {name: value for name, value in COLUMNS_PULLING.items() if name in own and name not in given}
        for name, bound in (("pull_count_max", "backlog_count_max"), ("pull_bytes_max", "backlog_bytes_max")):
            if name in wide and bound in given:
                wide[name] = min(wide[name], getattr(self, bound))
        return msgspec.structs.replace(self, **wide).pulling(columns=True)

    def by_rocketmq_s_names(self) -> dict[str, object]:
        """Return the settings by the names of RocketMQ's properties, which its tools show."""
        return {
            "messageModel": "BROADCASTING" if self.broadcast else "CLUSTERING",
            "consumeFromWhere": self.consume_from,
            "allocateMessageQueueStrategy": self.strategy,
            "pullBatchSize": self.pull_count_max,
            "pullThresholdForQueue": self.backlog_count_max,
            "pullThresholdSizeForQueue": self.backlog_bytes_max >> 20,
        }


class PullConsumerOptions(ConsumerOptions, total=False):
    """The arguments of a pull consumer."""

    auto_commit: bool
    on_assigned: OnQueues | None
    on_revoked: OnQueues | None
    watch_interval_ms: float


class PullConsumerSettings(ConsumerSettings, frozen=True, kw_only=True):
    """PullConsumerOptions with their defaults."""

    auto_commit: bool = True
    on_assigned: OnQueues | None = None
    on_revoked: OnQueues | None = None
    watch_interval_ms: float = 30_000

    def pulling(self, **more: Any) -> PullSettings:
        """Return the settings of this consumer's pullers, whose pulls bring the subscription and no commits."""
        return super().pulling(send_subscription=True, send_commits=False, **more)

    def by_rocketmq_s_names(self) -> dict[str, object]:
        """Return the settings by the names of RocketMQ's properties, which its tools show."""
        own = {"autoCommit": self.auto_commit, "autoCommitIntervalMillis": self.commit_interval_ms}
        return super().by_rocketmq_s_names() | own


class PushConsumerOptions(ConsumerOptions, total=False):
    """The arguments of a push consumer."""

    ordered: bool
    threads: int
    batch_max: int
    max_reconsume_times: int | None
    suspend_ms: float
    consume_timeout_ms: float
    topic_count_max: int
    topic_bytes_max: int
    span_max: int
    close_timeout_ms: float
    pop: bool
    pop_settings: PopSettings | None
    on_error: OnError | None


class PushConsumerSettings(ConsumerSettings, frozen=True, kw_only=True):
    """PushConsumerOptions with their defaults."""

    ordered: bool = False
    threads: int = 20
    batch_max: int = 1
    max_reconsume_times: int | None = None
    suspend_ms: float = 1000
    consume_timeout_ms: float = 900_000
    topic_count_max: int = 0
    topic_bytes_max: int = 0
    span_max: int = 2000
    close_timeout_ms: float = 30_000
    pop: bool = False
    pop_settings: PopSettings | None = None
    on_error: OnError | None = None

    def check(self) -> None:
        """Raise ConfigError if a setting is out of its range, or two do not go together."""
        validators.check_counts(threads=self.threads, batch_max=self.batch_max)
        validators.check_intervals(
            consume_timeout_ms=self.consume_timeout_ms, commit_interval_ms=self.commit_interval_ms
        )
        times = self.max_reconsume_times
        if times is not None and not -1 <= times <= INT_MAX:
            raise ConfigError(f"max_reconsume_times {times} is not from -1 (the default) to {INT_MAX}")
        if self.pop and (self.ordered or self.broadcast):
            raise ConfigError("pop=True is not for ordered or broadcast")
        if self.pop and (self.consume_from not in ("last", "first") or self.strategy not in STRATEGIES):
            raise ConfigError(
                f"pop=True takes consume_from last or first, and as strategy one of {', '.join(STRATEGIES)}"
            )
        if self.on_error is not None and not callable(self.on_error):
            raise ConfigError(f"on_error {self.on_error!r} is no function: name it, without calling it")

    def pulling(self, **more: Any) -> PullSettings:
        """Return the settings of this consumer's pullers, which bound a topic and, unless in order, a queue's span."""
        return super().pulling(
            topic_count_max=self.topic_count_max,
            topic_bytes_max=self.topic_bytes_max,
            span_max=0 if self.ordered else self.span_max,
            send_commits=not self.broadcast,
            **more,
        )

    @property
    def attempts_max(self) -> int:
        """Return after how many attempts a message is a dead letter; -1: never."""
        times = self.max_reconsume_times
        # Java's default is -1, and means the same.
        if times is None or times == -1:
            return -1 if self.ordered else ATTEMPTS_MAX
        return times

    @property
    def attempts_max_told(self) -> int | None:
        """Return the number of attempts that brokers are told with a message; None if the group's own number counts."""
        return None if self.max_reconsume_times is None and not self.ordered else self.attempts_max

    def by_rocketmq_s_names(self) -> dict[str, object]:
        """Return the settings by the names of RocketMQ's properties, which its tools show."""
        return super().by_rocketmq_s_names() | {
            "consumeThreadMax": self.threads,
            "consumeMessageBatchMaxSize": self.batch_max,
            "maxReconsumeTimes": -1 if self.max_reconsume_times is None else self.attempts_max,
            "suspendCurrentQueueTimeMillis": self.suspend_ms,
            "consumeTimeout": self.consume_timeout_ms / 60_000,
            "pullBatchSizeInBytes": self.pull_bytes_max,
            "persistConsumerOffsetInterval": self.commit_interval_ms,
        }
