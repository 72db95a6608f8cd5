"""Names of queues and exchanges as names of topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketspark.client.validators import check_topic
from rocketspark.errors import MessageIllegal
from rocketspark.kombu.names import exchange_topic, group_of, is_reply_queue, queue_topic, quote, step_of, unquote

pytestmark = pytest.mark.shows("names of Celery's queues that are no names of topics, and back")


@given(st.text(min_size=1, max_size=6))
def test_every_name_becomes_a_legal_one_and_comes_back(name: str) -> None:
    assert unquote(quote(name)) == name
    assert check_topic(queue_topic(name, 6))
    assert len({queue_topic(name), queue_topic(name, 6), exchange_topic(name)}) == 3


@pytest.mark.parametrize(
    ("queue", "topic"),
    [
        ("celery", "celery"),
        ("app.high", "app%2Ehigh"),
        ("a%p6", "a%25p6"),
        ("%RETRY%x", "%25RETRY%25x"),
        ("z~é", "z%7E%C3%A9"),
    ],
)
def test_topics_are_named_after_queues(queue: str, topic: str) -> None:
    assert queue_topic(queue) == topic


def test_a_name_that_gets_too_long_is_refused() -> None:
    with pytest.raises(MessageIllegal, match="at most 80 are allowed"):
        queue_topic("." * 27)
    # The longest, with that of what comes again.
    topic = queue_topic("." * 26)
    assert len(f"%RETRY%{group_of(topic)}_{topic}") <= 127
    assert group_of("celery") == "kombu-celery"


def test_queues_of_replies_are_named_by_a_uuid_alone() -> None:
    name = "0b3ccd06-b2a4-3b5c-8a5a-cfecedfd9a60"
    assert is_reply_queue(name)
    assert not is_reply_queue(f"{name}.reply.celery.pidbox")
    assert not is_reply_queue("celery")


@pytest.mark.parametrize(
    ("priority", "steps", "step"),
    [
        (0, (0,), 0),
        (9, (0,), 0),
        (2, (0, 3, 6), 0),
        (3, (0, 3, 6), 3),
        (9, (0, 3, 6), 6),
        (1, (2, 5), 0),
        (2, (2, 5), 0),
    ],
)
def test_a_priority_belongs_to_the_step_below_it(priority: int, steps: tuple[int, ...], step: int) -> None:
    assert step_of(priority, steps) == step
