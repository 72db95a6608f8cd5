"""Ext fields of the requests about users and what they may do (access control 2.0), and about the rules of 1.0."""

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


class PlainAccountHeader(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "access_key": "accessKey",
        "secret_key": "secretKey",
        "white_address": "whiteRemoteAddress",
        "default_topic": "defaultTopicPerm",
        "default_group": "defaultGroupPerm",
        "topics": "topicPerms",
        "groups": "groupPerms",
    },
):
    """UPDATE_AND_CREATE_ACL_CONFIG (50). `topics`, `groups`: name=permission, with commas between."""

    access_key: str | None = None
    secret_key: str | None = None
    white_address: str | None = None
    admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: str | None = None
    groups: str | None = None

    def __repr__(self) -> str:
        return f"PlainAccountHeader(access_key={self.access_key!r}, …)"


class PlainAccountNameHeader(Header, kw_only=True, gc=False, rename={"access_key": "accessKey"}):
    """DELETE_ACL_CONFIG (51)."""

    access_key: str | None = None


class PlainWhiteHeader(
    Header, kw_only=True, gc=False, rename={"addresses": "globalWhiteAddrs", "path": "aclFileFullPath"}
):
    """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53). `addresses`: with commas between; `path`: of the file of rules."""

    addresses: str | None = None
    path: str | None = None


class PlainVersionReply(
    Header,
    kw_only=True,
    gc=False,
    rename={
        "all_versions": "allAclFileVersion",
        "broker_name": "brokerName",
        "broker_address": "brokerAddr",
        "cluster_name": "clusterName",
    },
):
    """Reply to GET_BROKER_CLUSTER_ACL_INFO (52). `version`: a DataVersion as JSON, `all_versions`: one of each file."""

    version: str
    all_versions: str | None = None
    broker_name: str
    broker_address: str
    cluster_name: str
