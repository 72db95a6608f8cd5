"""Names in a namespace: "space%name", after the prefix of retry topics and dead letters. Rule: NamespaceUtil, 5.x."""

from __future__ import annotations

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
# Groups every broker has (rule: SubscriptionGroupManager, 5.x).
SYSTEM_GROUPS = (
    *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
    *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS"),
)


def is_system_group(group: str) -> bool:
    """Tell whether a group is one that brokers make for themselves."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def wrap(namespace: str, name: str) -> str:
    """Return the full name of a topic or group; names that belong to the system or have it already stay as they are."""
    if not namespace or not name or name.startswith((SYSTEM_GROUP_PREFIX, "rmq_sys_")):
        return name
    prefix, bare = _apart(name)
    return name if bare.startswith(f"{namespace}%") else f"{prefix}{namespace}%{bare}"


def unwrap(namespace: str, name: str) -> str:
    """Return the name without the namespace, if it is in it."""
    if not namespace:
        return name
    prefix, bare = _apart(name)
    return prefix + bare.removeprefix(f"{namespace}%")


def _apart(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
