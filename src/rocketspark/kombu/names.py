"""Names of kombu's queues and exchanges as names of topics and groups, and back.

Rule: a topic's name says which queue it holds: characters that RocketMQ does not allow are written as in URLs (%2E).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import quote as url_quote
from urllib.parse import unquote

from rocketspark.errors import MessageIllegal

__all__ = ["quote", "unquote"]

# Replies to a client of Celery's rpc:// backend, whose queue is named by a UUID alone, share one topic.
REPLIES = "kombu%replies"
PUBLISHERS = "kombu-publishers"
# Members of it read what is broadcast, each from the end, and commit nothing.
READERS = "kombu-readers"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# The broker's topic of what comes again is named by topic and group, and has 127 characters.
TOPIC_CHARACTERS_MAX = 80
GROUP_OF_TOPIC_MAX = 24


def quote(name: str) -> str:
    """Return a name with every character but letters, digits, - and _ written as %XX."""
    return url_quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def is_reply_queue(queue: str) -> bool:
    """Tell whether a queue is that of one client's replies: its whole name is a UUID."""
    return _UUID.fullmatch(queue) is not None


def queue_topic(queue: str, step: int = 0) -> str:
    """Return the topic of a queue's messages, or of those of one priority step. Raises MessageIllegal if too long."""
    topic = quote(queue) + (f"%p{step}" if step else "")
    if len(topic) > TOPIC_CHARACTERS_MAX:
        text = f"queue {queue[:40]!r}…: its topic's name would have {len(topic)} characters, as others than letters and"
        raise MessageIllegal(f"{text} digits count 3 and more; at most {TOPIC_CHARACTERS_MAX} are allowed", topic=topic)
    return topic


def exchange_topic(exchange: str) -> str:
    """Return the topic of what is broadcast by an exchange."""
    return f"{quote(exchange)}%x"


def group_of(topic: str) -> str:
    """Return the consumer group whose members share a queue's messages; of a long name it has a hash."""
    short = topic if len(topic) <= GROUP_OF_TOPIC_MAX else hashlib.sha256(topic.encode()).hexdigest()[:16]
    return f"kombu-{short}"


def step_of(priority: int, steps: Sequence[int]) -> int:
    """Return the highest of the ascending `steps` that is not above a priority; 0 for the lowest, the plain topic's."""
    reached = [step for step in steps[1:] if step <= priority]
    return reached[-1] if reached else 0
