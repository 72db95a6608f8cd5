"""The settings of access control 2.0, by RocketMQ's keys (AuthConfig, 5.5.0), and what their values mean here.

Rule: the broker does not start with a provider class that RocketSpark does not have, or a user that cannot be created.
No message shows a password."""

from __future__ import annotations

from typing import Any

import msgspec

from rocketspark.access.tables import SUPER, User, user_status_of
from rocketspark.errors import ConfigError
from rocketspark.model.conf_lines import typed_values
from rocketspark.model.text import INT_MAX, shown, whole_number

_PREFIX = "org.apache.rocketmq.auth."
_AUTHENTICATION, _AUTHORIZATION = f"{_PREFIX}authentication.", f"{_PREFIX}authorization."
STATEFUL_AUTHENTICATION = f"{_AUTHENTICATION}strategy.StatefulAuthenticationStrategy"
# The classes that may be named, by key; ours are picked by the same names.
CLASSES: dict[str, tuple[str, ...]] = {
    "authenticationProvider": (f"{_AUTHENTICATION}provider.DefaultAuthenticationProvider",),
    "authenticationMetadataProvider": (f"{_AUTHENTICATION}provider.LocalAuthenticationMetadataProvider",),
    "authenticationStrategy": (f"{_AUTHENTICATION}strategy.StatelessAuthenticationStrategy", STATEFUL_AUTHENTICATION),
    "authorizationProvider": (f"{_AUTHORIZATION}provider.DefaultAuthorizationProvider",),
    "authorizationMetadataProvider": (f"{_AUTHORIZATION}provider.LocalAuthorizationMetadataProvider",),
    "authorizationStrategy": (
        f"{_AUTHORIZATION}strategy.StatelessAuthorizationStrategy",
        f"{_AUTHORIZATION}strategy.StatefulAuthorizationStrategy",
    ),
}


class AccessSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The settings of access control 2.0 but for the two that turn it on, which are in BrokerSettings.

    The settings of caches are accepted and have no effect, as users and rules are all in memory. Two settings are
    RocketSpark's own. `authorization_complete_enable`: false leaves those requests unchecked that RocketMQ does not
    check; `signature_age_minutes_max`: how old a signature with a time may be, 0 for any age.
    """

    authentication_provider: str = ""
    authentication_metadata_provider: str = ""
    authentication_strategy: str = ""
    authentication_whitelist: str = ""
    init_authentication_user: str = ""
    inner_client_authentication_credentials: str = ""
    authorization_provider: str = ""
    authorization_metadata_provider: str = ""
    authorization_strategy: str = ""
    authorization_whitelist: str = ""
    authorization_complete_enable: bool = True
    migrate_auth_from_v1_enabled: bool = msgspec.field(name="migrateAuthFromV1Enabled", default=False)
    user_cache_max_num: int = 1000
    user_cache_expired_second: int = 600
    user_cache_refresh_second: int = 60
    acl_cache_max_num: int = 1000
    acl_cache_expired_second: int = 600
    acl_cache_refresh_second: int = 60
    stateful_authentication_cache_max_num: int = 10_000
    stateful_authentication_cache_expired_second: int = 60
    stateful_authorization_cache_max_num: int = 10_000
    stateful_authorization_cache_expired_second: int = 60
    signature_age_minutes_max: int = 0

    def __repr__(self) -> str:
        return "AccessSettings(…)"

    @property
    def is_stateful(self) -> bool:
        """True if the signature of one request counts for the later requests of the same connection."""
        return self.authentication_strategy == STATEFUL_AUTHENTICATION

    def check(self) -> None:
        """Raise ConfigError for an unknown provider class, or a user or a list of request codes that cannot be read."""
        for field in msgspec.structs.fields(AccessSettings):
            known = CLASSES.get(field.encode_name)
            value = getattr(self, field.name)
            if known is not None and value.strip() and value not in known:
                raise ConfigError(f"{field.encode_name}={shown(value)!r}: known here are {', '.join(known)}")
        self.whitelists()
        if self.first_users() and not self.authentication_metadata_provider:
            raise ConfigError(
                "initAuthenticationUser and innerClientAuthenticationCredentials need authenticationMetadataProvider="
                + CLASSES["authenticationMetadataProvider"][0]
            )

    def whitelists(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the request codes that pass unchecked. Names of gRPC requests are left out."""
        return (
            _codes("authenticationWhitelist", self.authentication_whitelist),
            _codes("authorizationWhitelist", self.authorization_whitelist),
        )

    def first_users(self) -> list[User]:
        """Return the users that are created at the start if they do not exist. Raises ConfigError."""
        users = []
        if self.init_authentication_user.strip():
            key = "initAuthenticationUser"
            found = _object(key, self.init_authentication_user)
            status = user_status_of(_text(found, "userStatus")) or "enable"
            users.append(_super_user(key, _text(found, "username"), _text(found, "password"), status))
        credentials = self.inner_credentials()
        if credentials is not None:
            users.append(_super_user("innerClientAuthenticationCredentials", *credentials[:2], "enable"))
        return users

    def inner_credentials(self) -> tuple[str, str, str | None] | None:
        """Return access key, secret and security token with which the broker signs its own requests; None for none."""
        key = "innerClientAuthenticationCredentials"
        text = self.inner_client_authentication_credentials
        if not text.strip():
            return None
        found = _object(key, text)
        access_key, secret = _text(found, "accessKey"), _text(found, "secretKey")
        if not access_key.strip() or not secret.strip():
            raise ConfigError(f'{key} needs {{"accessKey":"…","secretKey":"…"}}')
        return access_key, secret, _text(found, "securityToken") or None


KEYS = {field.encode_name: field for field in msgspec.structs.fields(AccessSettings)}


def is_key(key: str) -> bool:
    """Return whether a key of broker.conf is a setting of access control."""
    return key in KEYS


def from_values(values: dict[str, str]) -> AccessSettings:
    """Return the settings of a broker.conf. Raises ConfigError naming the key that is wrong."""
    settings = AccessSettings(**typed_values(KEYS, values, {}, INT_MAX))
    settings.check()
    return settings


def _codes(key: str, text: str) -> frozenset[int]:
    codes = set()
    for part in text.split(","):
        name = part.strip()
        if not name or name.startswith("apache.rocketmq."):
            continue
        code = whole_number(name, low=0, high=INT_MAX)
        if code is None:
            raise ConfigError(f"{key}: {shown(name)!r} is no request code; numbers with commas between are needed")
        codes.add(code)
    return frozenset(codes)


def _object(key: str, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{key} is not the JSON object that it should be")
    return found


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""


def _super_user(key: str, username: str, password: str, status: str) -> User:
    if not username.strip():
        raise ConfigError(f"{key}: username can not be blank")
    if not password.strip():
        raise ConfigError(f"{key}: password can not be blank")
    return User(username, password, SUPER, status)
