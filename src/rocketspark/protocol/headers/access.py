"""Ext fields of the requests about users and what they may do (access control 2.0)."""

from __future__ import annotations

from rocketspark.protocol.headers.codec import Header


class UserHeader(Header, kw_only=True, gc=False):
    """AUTH_CREATE_USER (3001), AUTH_UPDATE_USER (3002), AUTH_DELETE_USER (3003), AUTH_GET_USER (3004)."""

    username: str | None = None


class ListUsersHeader(Header, kw_only=True, gc=False):
    """AUTH_LIST_USER (3005). `filter`: part of a name."""

    filter: str | None = None


class SubjectHeader(Header, kw_only=True, gc=False):
    """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007), AUTH_GET_ACL (3009). `subject`: "User:name"."""

    subject: str | None = None


class DeleteAclHeader(Header, kw_only=True, gc=False, rename={"policy_type": "policyType"}):
    """AUTH_DELETE_ACL (3008). Without `resource` everything the subject has."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclHeader(
    Header, kw_only=True, gc=False, rename={"subject_filter": "subjectFilter", "resource_filter": "resourceFilter"}
):
    """AUTH_LIST_ACL (3010): parts of subjects and of resources."""

    subject_filter: str | None = None
    resource_filter: str | None = None
