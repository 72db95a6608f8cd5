"""What `server --secure` prints: the variables and commands by which an operator connects.

Rule: it can be copied into a shell as it stands.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketspark.broker.access.secure_folder import SecureFolder


def how_to_enter(door: SecureFolder, namesrv: str, *, ca: str, on_terminal: bool) -> str:
    """Return the lines by which an operator connects to a secured server: all of them at its first start, later the
    short ones.

    `ca`: the file of what clients trust; `on_terminal`: the lines go to a terminal and into no log, so the first start
    may show the password.
    """
    from rocketspark.broker.access.secure_folder import ADMIN, ADMIN_SECRET, INNER, INNER_SECRET

    reset = (
        f"ROCKETMQ_ACCESS_KEY={INNER} ROCKETMQ_SECRET_KEY_FILE={_quoted(door, INNER_SECRET)}"
        f" rocketspark user update {ADMIN} --generate"
    )
    base = f"export ROCKETMQ_NAMESRV_ADDR={shlex.quote(namesrv)} ROCKETMQ_TLS_CA={shlex.quote(ca)}"
    if not door.is_new:
        known = f"export ROCKETMQ_ACCESS_KEY={ADMIN} ROCKETMQ_SECRET_KEY_FILE={_quoted(door, ADMIN_SECRET)}"
        lines = [base, known if door.admin_password else "", f"# a new password for {ADMIN}:", f"# {reset}"]
        return _framed("secured: TLS and signed requests alone, as before", lines)
    shown = f", password {door.admin_password}" if on_terminal else ""
    lines = [
        f"# the certificate is {ca}," if ca != str(door.ca) else f"# a certificate was made, {ca},",
        f"# and a user who may do everything: {ADMIN}{shown}",
        f"# ({'shown this once, and' if shown else 'his password is'} kept in {door.folder / ADMIN_SECRET}:"
        " remove that file once you have it elsewhere)",
        base,
        f"export ROCKETMQ_ACCESS_KEY={ADMIN} ROCKETMQ_SECRET_KEY_FILE={_quoted(door, ADMIN_SECRET)}",
        "",
        "rocketspark topic create orders",
        "echo hello | rocketspark produce orders",
        "rocketspark consume orders --from first --count 1",
        "# someone who may send to it and nothing else:",
        "rocketspark user create shop --generate",
        "rocketspark acl create shop -r Topic:orders -a Pub",
        f"# should the password of {ADMIN} be lost, a new one:",
        f"# {reset}",
    ]
    return _framed("secured: TLS and signed requests alone. In another terminal:", lines)


def _quoted(door: SecureFolder, name: str) -> str:
    return shlex.quote(str(door.folder / name))


def _framed(title: str, lines: list[str]) -> str:
    return "\n".join([title, "", *(f"    {line}".rstrip() for line in lines), ""])
