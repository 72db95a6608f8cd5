"""Requests about the rules of access control 1.0 (50 to 54). Rule: no reply holds a secret."""

from __future__ import annotations

from typing import Any

import msgspec

from rocketspark.broker.access.plain_acl.changes import AccountChange, split
from rocketspark.broker.access.plain_acl.check import PlainAcl
from rocketspark.broker.access.plain_acl.documents import Version
from rocketspark.errors import ConfigError, ServerError
from rocketspark.protocol.codes import RequestCode
from rocketspark.protocol.headers import NoHeader, Request
from rocketspark.protocol.headers.admin import (
    PlainAccountHeader,
    PlainAccountNameHeader,
    PlainVersionReply,
    PlainWhiteHeader,
)
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

# 5.5.0 has given these numbers to other failures.
UPDATE_FAILED, DELETE_FAILED, WHITE_FAILED = 209, 210, 211


class PlainAclHandler:
    """Serves the requests about the rules. `broker`: the name, cluster and address of this broker, for replies."""

    def __init__(self, acl: PlainAcl, broker_name: str, cluster_name: str, address: str) -> None:
        self._acl = acl
        self._broker = {"broker_name": broker_name, "cluster_name": cluster_name, "broker_address": address}

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, self.update, PlainAccountHeader)
        routes.add(RequestCode.DELETE_ACL_CONFIG, self.delete, PlainAccountNameHeader)
        routes.add(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, self.version, NoHeader)
        routes.add(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, self.update_white, PlainWhiteHeader)
        routes.add(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, self.show, NoHeader)

    async def update(self, peer: Peer, request: Request[PlainAccountHeader], body: bytes) -> bytes:
        """UPDATE_AND_CREATE_ACL_CONFIG (50): add or change an account. Code 209: it is invalid or not writable."""
        e = request.ext
        change = AccountChange(
            access_key=e.access_key,
            secret_key=e.secret_key,
            white_address=e.white_address,
            admin=e.admin,
            default_topic=e.default_topic,
            default_group=e.default_group,
            topics=split(e.topics),
            groups=split(e.groups),
        )
        try:
            await self._acl.update_account(change)
        except ConfigError as failure:
            raise ServerError(UPDATE_FAILED, str(failure)) from None
        return reply(request.opaque)

    async def delete(self, peer: Peer, request: Request[PlainAccountNameHeader], body: bytes) -> bytes:
        """DELETE_ACL_CONFIG (51): remove an account. Code 210: it does not exist, or its file cannot be written."""
        access_key = request.ext.access_key
        try:
            if access_key and await self._acl.delete_account(access_key):
                return reply(request.opaque)
        except ConfigError as failure:
            raise ServerError(DELETE_FAILED, str(failure)) from None
        name = "null" if access_key is None else access_key
        raise ServerError(
            DELETE_FAILED, f"The accessKey[{name}] corresponding to accessConfig has been deleted failed."
        )

    async def update_white(self, peer: Peer, request: Request[PlainWhiteHeader], body: bytes) -> bytes:
        """UPDATE_GLOBAL_WHITE_ADDRS_CONFIG (53): set a white list. Code 211: it is invalid, or cannot be written."""
        addresses = split(request.ext.addresses)
        try:
            if addresses is not None and await self._acl.update_white(addresses, request.ext.path or ""):
                return reply(request.opaque)
        except ConfigError as failure:
            raise ServerError(WHITE_FAILED, str(failure)) from None
        text = "null" if addresses is None else request.ext.addresses
        raise ServerError(WHITE_FAILED, f"The globalWhiteAddresses[{text}] has been updated failed.")

    def version(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_CLUSTER_ACL_INFO (52): how often, and when last, requests changed the rules."""
        loaded = self._acl.loaded
        versions = {path: _version(loaded.version(path)) for path in loaded.documents}
        answer = PlainVersionReply(
            version=msgspec.json.encode(_version(loaded.version(self._acl.files.plain_path))).decode(),
            all_versions=msgspec.json.encode(versions).decode(),
            **self._broker,
        )
        return reply(request.opaque, header=answer)

    def show(self, peer: Peer, request: Request[Any], body: bytes) -> bytes:
        """GET_BROKER_CLUSTER_ACL_CONFIG (54): all rules, without the secrets (5.2.0 does not serve this)."""
        loaded = self._acl.loaded
        accounts = [
            {
                "accessKey": entry.access_key,
                "admin": entry.admin,
                "defaultGroupPerm": entry.default_group,
                "defaultTopicPerm": entry.default_topic,
                "groupPerms": entry.groups,
                "topicPerms": entry.topics,
                "whiteRemoteAddress": entry.white_address,
            }
            for entry in loaded.entries()
        ]
        white = [text for document in loaded.documents.values() for text in document.white]
        table = {"globalWhiteAddrs": white, "plainAccessConfigs": accounts}
        return reply(request.opaque, body=msgspec.json.encode(table))


def _version(version: Version) -> dict[str, int]:
    return {"counter": version.counter, "stateVersion": 0, "timestamp": version.timestamp_ms}
