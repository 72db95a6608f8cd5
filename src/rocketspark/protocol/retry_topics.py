"""Retry topics of pops: one for each group and topic. Rules for the names: KeyBuilder and ExtraInfoUtil, 5.x.

The first form is `%RETRY%group_topic`, the second `%RETRY%group+topic`, which tells by itself where the group ends.
"""

from __future__ import annotations

from rocketspark.model.namespace import RETRY_PREFIX

# Flag of the topic itself, of a retry topic of the first form, and of the second.
NORMAL, RETRY_V1, RETRY_V2 = "0", "1", "2"
_MARKS = {RETRY_V1: "_", RETRY_V2: "+"}


def retry_flag(topic: str) -> str:
    """Return the flag of a topic by its name."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if _MARKS[RETRY_V2] in topic else RETRY_V1


def retry_topic(topic: str, group: str, flag: str) -> str:
    """Return the retry topic of a group and a topic, of the form that RETRY_V1 or RETRY_V2 says."""
    return f"{RETRY_PREFIX}{group}{_MARKS[flag]}{topic}"


def real_topic(topic: str, group: str, flag: str) -> str:
    """Return the topic that a message with a flag is in: `topic` itself, or the group's retry topic of it."""
    return retry_topic(topic, group, flag) if flag in _MARKS else topic


def may_be_of_others(topic: str) -> bool:
    """Tell whether a retry topic of the first form may be that of several pairs: group `a`, topic `b_c`; `a_b`, `c`."""
    return topic.count(_MARKS[RETRY_V1], len(RETRY_PREFIX)) > 1 and retry_flag(topic) == RETRY_V1


def first_topic(topic: str, group: str) -> str:
    """Return the topic that a group's retry topic is for; another topic is returned as it is."""
    for mark in _MARKS.values():
        prefix = f"{RETRY_PREFIX}{group}{mark}"
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic


def normal_topic(topic: str, group: str) -> str:
    """Return the topic whose retries a topic holds, whatever stands before its name; else the topic itself."""
    prefix = RETRY_PREFIX + group
    if topic.startswith(prefix) and len(topic) > len(prefix) + 1:
        return topic[len(prefix) + 1 :]
    return topic
