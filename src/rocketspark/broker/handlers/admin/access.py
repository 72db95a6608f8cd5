"""Requests about users and what they may do (AUTH_…, 3001-3010). Texts and codes: AdminBrokerProcessor, 5.5.0.

Rule: a change is answered once it is on the disk. A slave takes its master's tables and changes none by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import msgspec

from rocketspark.access.policies import Acl, Policy, parse_resource
from rocketspark.access.tables import (
    ENABLE,
    NORMAL,
    SUPER,
    AccessTables,
    User,
    subject_of,
    user_status_of,
    user_type_of,
    username_of,
)
from rocketspark.access.wire_forms import Unfit, acl_info, policies_of, policy_type_of, user_info
from rocketspark.broker.replication.role import ON_SLAVE
from rocketspark.errors import ServerError
from rocketspark.protocol.codes import RequestCode, ResponseCode
from rocketspark.protocol.headers import Request
from rocketspark.protocol.headers.admin import ListAclHeader, ListUsersHeader, SubjectHeader, UserHeader
from rocketspark.protocol.json import java_json
from rocketspark.protocol.json.operator_bodies import AclInfo, UserInfo
from rocketspark.transport.peer import Peer
from rocketspark.transport.processor_table import Routes
from rocketspark.transport.request_frames import reply

NOT_CONFIGURED = "An system error occurred, please try again later."


class AccessHandler:
    """Serves the requests about users and their rules.

    `users`, `acls`: the tables, None where the broker is configured without their providers; `is_master`: whether this
    broker is the master, which alone changes them.
    """

    def __init__(self, users: AccessTables | None, acls: AccessTables | None, *, is_master: Callable[[], bool]) -> None:
        self._users = users
        self._acls = acls
        self._is_master = is_master

    def routes(self, routes: Routes) -> None:
        """Add what this handler serves."""
        routes.add(RequestCode.AUTH_CREATE_USER, self.create_user, UserHeader)
        routes.add(RequestCode.AUTH_UPDATE_USER, self.update_user, UserHeader)
        routes.add(RequestCode.AUTH_DELETE_USER, self.delete_user, UserHeader)
        routes.add(RequestCode.AUTH_GET_USER, self.get_user, UserHeader)
        routes.add(RequestCode.AUTH_LIST_USER, self.list_users, ListUsersHeader)
        routes.add(RequestCode.AUTH_CREATE_ACL, self.put_acl, SubjectHeader)
        routes.add(RequestCode.AUTH_UPDATE_ACL, self.put_acl, SubjectHeader)
        routes.add(RequestCode.AUTH_DELETE_ACL, self.delete_acl, SubjectHeader)
        routes.add(RequestCode.AUTH_GET_ACL, self.get_acl, SubjectHeader)
        routes.add(RequestCode.AUTH_LIST_ACL, self.list_acls, ListAclHeader)

    # -- users ---------------------------------------------------------------------------------------------------

    def create_user(self, peer: Peer, request: Request[UserHeader], body: bytes) -> bytes:
        """AUTH_CREATE_USER (3001): create a user; only a super user creates another one."""
        username, info = self._user_told(request, body)
        user_type = user_type_of(info.user_type)
        if user_type == SUPER and self._is_not_super(request):
            _error("The super user can only be create by super user")
        users = self._users_table()
        if not username.strip():
            _refuse("username can not be blank")
        if not (info.password or "").strip():
            _refuse("password can not be blank")
        if username in users.users:
            _refuse("The user is existed")
        assert info.password is not None
        status = user_status_of(info.user_status)
        users.put_user(User(username, info.password, user_type or NORMAL, status or ENABLE))
        return reply(request.opaque)

    def update_user(self, peer: Peer, request: Request[UserHeader], body: bytes) -> bytes:
        """AUTH_UPDATE_USER (3002): change a user; what the body leaves out stays as it is."""
        username, info = self._user_told(request, body)
        user_type = user_type_of(info.user_type)
        if user_type == SUPER and self._is_not_super(request):
            _error("The super user can only be update by super user")
        users = self._users_table()
        if not username.strip():
            _refuse("username can not be blank")
        old = users.users.get(username)
        if old is None:
            _refuse("The user is not exist")
        if old.is_super and self._is_not_super(request):
            _refuse("The super user can only be update by super user")
        password = info.password if (info.password or "").strip() else old.password
        assert password is not None
        status = user_status_of(info.user_status) or old.user_status
        users.put_user(User(username, password, user_type or old.user_type, status))
        return reply(request.opaque)

    def delete_user(self, peer: Peer, request: Request[UserHeader], body: bytes) -> bytes:
        """AUTH_DELETE_USER (3003): the user and his rules are deleted. A user who does not exist is no error."""
        self._on_master()
        users = self._users_table()
        username = _name_told(request.ext.username)
        old = users.users.get(username)
        if old is None:
            return reply(request.opaque)
        if old.is_super and self._is_not_super(request):
            _refuse("The super user can only be update by super user")
        self._acls_table()
        users.delete_user(username)
        return reply(request.opaque)

    def get_user(self, peer: Peer, request: Request[UserHeader], body: bytes) -> bytes:
        """AUTH_GET_USER (3004): return a user; the reply has no body if no such user exists."""
        username = request.ext.username or ""
        if not username.strip():
            raise ServerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._users_table().users.get(username)
        return reply(request.opaque, body=msgspec.json.encode(user_info(user)) if user is not None else b"")

    def list_users(self, peer: Peer, request: Request[ListUsersHeader], body: bytes) -> bytes:
        """AUTH_LIST_USER (3005): return the users whose names contain the filter; no body if there are none."""
        part = request.ext.filter or ""
        users = self._users_table().users
        found = [user_info(users[name]) for name in sorted(users) if not part.strip() or part in name]
        return reply(request.opaque, body=msgspec.json.encode(found) if found else b"")

    def _user_told(self, request: Request[UserHeader], body: bytes) -> tuple[str, UserInfo]:
        self._on_master()
        username = request.ext.username
        if not username:
            raise ServerError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        return username, java_json.decode_request(body, UserInfo)

    def _is_not_super(self, request: Request[UserHeader]) -> bool:
        """Return whether a signed request is of somebody who is no super user; False where requests are not signed."""
        access_key = request.ext.access_key
        if not access_key:
            return False
        user = self._users_table().users.get(access_key)
        if user is None:
            _refuse(f"User:{access_key} is not found")
        return not user.is_super

    # -- rules ---------------------------------------------------------------------------------------------------

    def put_acl(self, peer: Peer, request: Request[SubjectHeader], body: bytes) -> bytes:
        """AUTH_CREATE_ACL (3006), AUTH_UPDATE_ACL (3007): set a user's rules for resources; his others stay."""
        self._on_master()
        told = java_json.decode_request(body, AclInfo)
        if not told.policies:
            _error("The body of acl is null")
        username = username_of(told.subject)
        if username is None:
            username = username_of(request.ext.subject)
        if username is None:
            _error("The subject is null.")
        try:
            policies = policies_of(told.policies)
        except Unfit as e:
            _refuse(str(e))
        users, acls = self._users_table(), self._acls_table()
        if username not in users.users:
            _refuse(f"The subject of {subject_of(username)} is not exist.")
        old = acls.acls.get(username)
        acls.put_acl(username, Acl.of(policies) if old is None else old.updated(policies))
        return reply(request.opaque)

    def delete_acl(self, peer: Peer, request: Request[SubjectHeader], body: bytes) -> bytes:
        """AUTH_DELETE_ACL (3008): a user's rule for one resource is deleted, or all of his rules."""
        self._on_master()
        username, acls = self._subject(request), self._acls_table()
        acl = acls.acls.get(username)
        if acl is None:
            _refuse("The acl is not exist.")
        resource = parse_resource(request.ext.resource)
        if resource is not None:
            acl = acl.without(policy_type_of(request.ext.policy_type), resource)
        if resource is None or not acl.policies:
            acls.delete_acl(username)
        else:
            acls.put_acl(username, acl)
        return reply(request.opaque)

    def get_acl(self, peer: Peer, request: Request[SubjectHeader], body: bytes) -> bytes:
        """AUTH_GET_ACL (3009): return a user's rules; the reply has no body if the user has none."""
        username = self._subject(request)
        acl = self._acls_table().acls.get(username)
        return reply(request.opaque, body=msgspec.json.encode(acl_info(username, acl)) if acl is not None else b"")

    def list_acls(self, peer: Peer, request: Request[ListAclHeader], body: bytes) -> bytes:
        """AUTH_LIST_ACL (3010): return the rules whose subjects and resources contain the filters; else no body."""
        subject_part, resource_part = request.ext.subject_filter or "", request.ext.resource_filter or ""
        acls = self._acls_table().acls
        found = []
        for name in sorted(acls):
            if subject_part.strip() and subject_part not in subject_of(name):
                continue
            acl = acls[name]
            if resource_part.strip():
                acl = _only(acl, resource_part)
            if acl.policies:
                found.append(acl_info(name, acl))
        return reply(request.opaque, body=msgspec.json.encode(found) if found else b"")

    def _subject(self, request: Request[SubjectHeader]) -> str:
        """Return the name of the user that a request is about. Raises ServerError if no such user exists."""
        username = username_of(request.ext.subject)
        if username is None:
            _refuse("The subject is null.")
        if username not in self._users_table().users:
            _refuse("The subject is not exist.")
        return username

    # -- the tables ----------------------------------------------------------------------------------------------

    def _on_master(self) -> None:
        if not self._is_master():
            _error(ON_SLAVE)

    def _users_table(self) -> AccessTables:
        if self._users is None:
            _error(NOT_CONFIGURED)
        return self._users

    def _acls_table(self) -> AccessTables:
        if self._acls is None:
            _error(NOT_CONFIGURED)
        return self._acls


def _refuse(remark: str) -> NoReturn:
    raise ServerError(ResponseCode.NO_PERMISSION, remark)


def _error(remark: str) -> NoReturn:
    raise ServerError(ResponseCode.SYSTEM_ERROR, remark)


def _name_told(username: str | None) -> str:
    if not (username or "").strip():
        _refuse("username can not be blank")
    assert username is not None
    return username


def _only(acl: Acl, part: str) -> Acl:
    """Return the rules for resources whose texts hold `part`."""
    policies = []
    for policy in acl.policies:
        entries = tuple(entry for entry in policy.entries if part in entry.resource.key)
        if entries:
            policies.append(Policy(policy.type, entries))
    return Acl(tuple(policies))
