"""Patterns of remote addresses in the files of access control 1.0 (rule: RemoteAddressStrategyFactory of 5.2.0).

    (empty)              nobody                  1.2.3.4              one address
    *  *.*.*.*           everybody               1.2.3.4,1.2.3.5      some
    1.2.3.{4,5}          some of one network     1.2.3.*  1.2.3.4-9   a range; what follows the range is not looked at
    2::ac5:78:*          IPv6, the same forms    2::ac5:78:1-200:*    a range, then anything

Rule: a pattern that cannot be read is an error of its file, never one that lets somebody in.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from rocketspark.errors import ConfigError
from rocketspark.model.text import shown

# Gets an address as `plain_address` returns it.
Matches = Callable[[str], bool]

_ALL = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
_V6_GROUPS = 8
_NUMBER = re.compile(r"[0-9]{1,3}")
_GROUP = re.compile(r"[0-9a-fA-F]{1,4}")


def plain_address(host: str) -> str:
    """Return an address in one form: without an IPv6 zone, and an IPv4 address of an IPv6 socket as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0].removeprefix("[").removesuffix("]"))
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def address_pattern(text: str | None) -> Matches:
    """Return a function that tells whether an address fits a pattern. Raises ConfigError for an invalid pattern."""
    if text is None or not text.strip():
        return _nobody
    if text in _ALL:
        return _everybody
    if text.endswith("}"):
        return _one_of(_in_braces(text), text)
    if "," in text:
        return _one_of([part for part in text.split(",") if part], text)
    if "*" in text or "-" in text:
        return _v6_range(text) if ":" in text else _v4_range(text)
    return _one_of([text], text)


def _nobody(host: str) -> bool:
    return False


def _everybody(host: str) -> bool:
    return True


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"{shown(text, characters_max=80)!r} is no address: one such as 10.1.2.3, 10.1.2.*, 10.1.2.5-20, 10.1.2.{{5,6}}"
        " or fe80::1 is needed, some are separated by commas"
    )


def _in_braces(text: str) -> list[str]:
    head, brace, tail = text[:-1].partition("{")
    if not brace or not head.endswith((".", ":")) or "}" in tail:
        raise _wrong(text)
    return [head + part for part in tail.split(",") if part]


def _one_of(parts: list[str], text: str) -> Matches:
    wanted = set()
    for part in parts:
        try:
            if "%" in part:
                raise ValueError
            ipaddress.ip_address(part)
        except ValueError:
            raise _wrong(text) from None
        wanted.add(plain_address(part))
    return wanted.__contains__


def _v4_range(text: str) -> Matches:
    parts = [part.strip() for part in text.split(".") if part]
    if len(parts) != 4:
        raise _wrong(text)
    for at in (1, 2, 3):
        span = _span(parts[at], _NUMBER, 10, 255, text)
        if span is not None:
            break
    else:
        raise _wrong(text)
    low, high = span
    for part in parts[:at]:
        # One "*" before the range is a number that no address has, as it is to Java.
        if part != "*" and (not _NUMBER.fullmatch(part) or int(part) > 255):
            raise _wrong(text)
    head = parts[:at]

    def matches(host: str) -> bool:
        numbers = host.split(".")
        return len(numbers) == 4 and ":" not in host and numbers[:at] == head and low <= int(numbers[at]) <= high

    return matches


def _v6_range(text: str) -> Matches:
    parts = text.split(":")
    # "*" stands last, a range last or right before it.
    at = len(parts) - 1
    if parts[at] == "*" and "-" in parts[at - 1]:
        at -= 1
    if any("*" in part or "-" in part for part in parts[:at]):
        raise _wrong(text)
    span = _span(parts[at].strip(), _GROUP, 16, 0xFFFF, text)
    if span is None:
        raise _wrong(text)
    low, high = span
    head = _groups(parts[:at], _V6_GROUPS - (len(parts) - at), text)

    def matches(host: str) -> bool:
        if ":" not in host:
            return False
        try:
            packed = ipaddress.IPv6Address(host).packed
        except ValueError:
            return False
        groups = [int.from_bytes(packed[i : i + 2], "big") for i in range(0, 16, 2)]
        return groups[: len(head)] == head and low <= groups[len(head)] <= high

    return matches


def _span(part: str, number: re.Pattern[str], base: int, limit: int, text: str) -> tuple[int, int] | None:
    """The lowest and highest number of "*" or "low-high"; None for what is neither."""
    if part == "*":
        return 0, limit
    if "-" not in part:
        return None
    ends = part.split("-")
    if len(ends) != 2 or not all(number.fullmatch(end) for end in ends):
        raise _wrong(text)
    low, high = (int(end, base) for end in ends)
    if not low <= high <= limit:
        raise _wrong(text)
    return low, high


def _groups(parts: list[str], count: int, text: str) -> list[int]:
    """The numbers of the first groups of an IPv6 address, in which one "::" may stand for zeros."""
    joined = ":".join(parts)
    left, double, right = joined.partition("::")
    before, after = ([part for part in side.split(":") if part] for side in (left, right))
    zeros = count - len(before) - len(after)
    if not all(_GROUP.fullmatch(part) for part in before + after) or "::" in right or (zeros != 0 and not double):
        raise _wrong(text)
    if zeros < 0 or (double and zeros < 1):
        raise _wrong(text)
    return [int(part, 16) for part in before] + [0] * zeros + [int(part, 16) for part in after]
