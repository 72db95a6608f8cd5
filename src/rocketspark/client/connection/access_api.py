"""Calls of operators on one broker about users and what they may do (access control 2.0). Rule: as in client_api."""

from __future__ import annotations

import msgspec

from rocketspark.client.connection.client_api import TIMEOUT_MS
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers.admin import (
    ListAclHeader,
    ListUsersHeader,
    SubjectHeader,
    UserHeader,
)
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.operator_bodies import AclInfo, UserInfo
from rocketspark.transport.peer import Peer


async def create_user(broker: Peer, user: UserInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Create a user; by default a Normal one that is enabled."""
    await _put_user(broker, RequestCode.AUTH_CREATE_USER, user, "create", timeout_ms)


async def update_user(broker: Peer, user: UserInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change what `user` says of a user."""
    await _put_user(broker, RequestCode.AUTH_UPDATE_USER, user, "update", timeout_ms)


async def _put_user(broker: Peer, code: int, user: UserInfo, doing: str, timeout_ms: float) -> None:
    header = UserHeader(username=user.username)
    reply = await broker.request(code, header, msgspec.json.encode(user), timeout_ms=timeout_ms)
    reply.raise_for_code(f"{doing} user {user.username!r}")


async def delete_user(broker: Peer, username: str, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Remove a user and what he may do; one that is not there is no error."""
    header = UserHeader(username=username)
    reply = await broker.request(RequestCode.AUTH_DELETE_USER, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"delete user {username!r}")


async def get_user(broker: Peer, username: str, *, timeout_ms: float = TIMEOUT_MS) -> UserInfo | None:
    """Return a user, None if the broker has none of the name."""
    header = UserHeader(username=username)
    reply = await broker.request(RequestCode.AUTH_GET_USER, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"get user {username!r}")
    return java_json.decode(reply.body, UserInfo) if reply.body else None


async def list_users(broker: Peer, part: str = "", *, timeout_ms: float = TIMEOUT_MS) -> list[UserInfo]:
    """Return the users whose names hold `part`."""
    header = ListUsersHeader(filter=part or None)
    reply = await broker.request(RequestCode.AUTH_LIST_USER, header, timeout_ms=timeout_ms)
    reply.raise_for_code("list users")
    return java_json.decode(reply.body, list[UserInfo]) if reply.body else []


async def create_acl(broker: Peer, acl: AclInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Allow or deny a subject something; what it has already stays, but for the same resources."""
    await _put_acl(broker, RequestCode.AUTH_CREATE_ACL, acl, "create", timeout_ms)


async def update_acl(broker: Peer, acl: AclInfo, *, timeout_ms: float = TIMEOUT_MS) -> None:
    """Change the rules of a subject for the resources that `acl` names."""
    await _put_acl(broker, RequestCode.AUTH_UPDATE_ACL, acl, "update", timeout_ms)


async def _put_acl(broker: Peer, code: int, acl: AclInfo, doing: str, timeout_ms: float) -> None:
    header = SubjectHeader(subject=acl.subject)
    reply = await broker.request(code, header, msgspec.json.encode(acl), timeout_ms=timeout_ms)
    reply.raise_for_code(f"{doing} rules of {acl.subject!r}")


async def delete_acl(
    broker: Peer,
    subject: str,
    *,
    policy_type: str | None = None,
    resource: str | None = None,
    timeout_ms: float = TIMEOUT_MS,
) -> None:
    """Remove a subject's rule for a resource; without `resource` all of its rules."""
    header = SubjectHeader(subject=subject, policy_type=policy_type, resource=resource)
    reply = await broker.request(RequestCode.AUTH_DELETE_ACL, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"delete rules of {subject!r}")


async def get_acl(broker: Peer, subject: str, *, timeout_ms: float = TIMEOUT_MS) -> AclInfo | None:
    """Return a subject's rules, None if it has none."""
    header = SubjectHeader(subject=subject)
    reply = await broker.request(RequestCode.AUTH_GET_ACL, header, timeout_ms=timeout_ms)
    reply.raise_for_code(f"get rules of {subject!r}")
    return java_json.decode(reply.body, AclInfo) if reply.body else None


async def list_acls(
    broker: Peer, subject_part: str = "", resource_part: str = "", *, timeout_ms: float = TIMEOUT_MS
) -> list[AclInfo]:
    """Return the rules of subjects and for resources whose names hold these parts."""
    header = ListAclHeader(subject_filter=subject_part or None, resource_filter=resource_part or None)
    reply = await broker.request(RequestCode.AUTH_LIST_ACL, header, timeout_ms=timeout_ms)
    reply.raise_for_code("list rules")
    return java_json.decode(reply.body, list[AclInfo]) if reply.body else []
