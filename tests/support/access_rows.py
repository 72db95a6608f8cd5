"""The table of access decisions: requests sent as they are written there, to any broker, with what is answered.

Each row of tests/vectors/access_decisions.jsonl is one request, in its order: `as`: the user who signs ("" for nobody),
`sign`: right, wrong (another secret), none (an access key without signature) or late (a field added after signing);
`ip`: the last number of the address that it comes from; `form`: json or binary, the header's; `answer`, `remark`: what
RocketMQ's broker 5.5.0 says. Nothing here uses our code for requests.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.patience import LIMIT_S

FILE = Path(__file__).parents[1] / "vectors/access_decisions.jsonl"
AUTH = "org.apache.rocketmq.auth"
ADMIN, SECRET = "admin", "secret-of-admin"
CONFIG = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}.authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ADMIN, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": "secret-of-inner"}),
    "authenticationWhitelist": "31, 32",
    "authorizationWhitelist": "32",
}
# As in the rows that create the users.
SECRETS = {ADMIN: SECRET, "inner": "secret-of-inner"}


# Codes of which the table holds the remark too: refusals. Others come from what would have been done.
TOLD = (1, 16, 29)


class Row(NamedTuple):
    """One request, and its answer."""

    who: str
    sign: str
    ip: int
    form: str
    version: int
    code: int
    ext: dict[str, str]
    body: str
    answer: int = -1
    remark: str = ""


def rows() -> Iterator[Row]:
    """Return the table."""
    for line in FILE.read_text().splitlines():
        yield Row(**json.loads(line))


def line_of(row: Row) -> str:
    """Return a row as the table holds it."""
    return json.dumps(row._asdict(), ensure_ascii=False)


def secret_of(username: str) -> str:
    """Return the secret of a user of the table."""
    return SECRETS.get(username, f"secret-of-{username}")


def frame(row: Row, opaque: int) -> bytes:
    """Return the bytes of a row's request."""
    ext = dict(row.ext)
    body = row.body.encode()
    if row.who or row.sign == "none":
        ext["AccessKey"] = row.who
    if row.sign in ("right", "wrong", "late") and row.who:
        secret = secret_of(row.who) if row.sign != "wrong" else "another"
        signed = "".join(ext[name] for name in sorted(ext)).encode() + body
        ext["Signature"] = base64.b64encode(hmac.new(secret.encode(), signed, hashlib.sha1).digest()).decode()
    if row.sign == "late":
        ext["_UNIQUE_KEY_QUERY"] = "true"
    if row.form == "binary":
        pairs = b"".join(
            struct.pack(">H", len(k)) + k + struct.pack(">I", len(v)) + v
            for k, v in ((name.encode(), value.encode()) for name, value in ext.items())
        )
        header = struct.pack(">hbhiii", row.code, 0, row.version, opaque, 0, 0) + struct.pack(">I", len(pairs)) + pairs
        mark = 1 << 24 | len(header)
    else:
        fields: dict[str, Any] = {"code": row.code, "language": "JAVA", "version": row.version, "opaque": opaque}
        header = json.dumps(fields | {"flag": 0, "extFields": ext}).encode()
        mark = len(header)
    return struct.pack(">II", 4 + len(header) + len(body), mark) + header + body


async def play(address: str, table: list[Row]) -> list[Row]:
    """Send the rows one after the other; return them with the answers of this broker."""
    host, port = address.rsplit(":", 1)
    links: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
    played = []
    try:
        for opaque, row in enumerate(table, 1):
            if row.ip not in links:
                local = (f"127.0.0.{row.ip}", 0)
                links[row.ip] = await asyncio.open_connection(host, int(port), local_addr=local)
            reader, writer = links[row.ip]
            writer.write(frame(row, opaque))
            async with asyncio.timeout(LIMIT_S):
                answer = await _answer(reader)
                while answer["opaque"] != opaque:
                    # The broker tells a consumer that its group has changed.
                    answer = await _answer(reader)
            remark = (answer.get("remark") or "") if answer["code"] in TOLD else ""
            played.append(row._replace(answer=answer["code"], remark=remark))
    finally:
        for _, writer in links.values():
            writer.close()
    return played


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    (total,) = struct.unpack(">I", await reader.readexactly(4))
    data = await reader.readexactly(total)
    (mark,) = struct.unpack(">I", data[:4])
    header = data[4 : 4 + (mark & 0xFFFFFF)]
    if mark >> 24 == 0:
        answer: dict[str, Any] = json.loads(header)
        return answer
    code, _, _, opaque, _, remark_size = struct.unpack_from(">hbhiii", header)
    return {"code": code, "opaque": opaque, "remark": header[17 : 17 + remark_size].decode()}
