"""The file of contexts: clusters by name, with how to connect to each. Rule: a context's keys go to its own address
alone, and a file that others may change, or that holds a secret and others may read, is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rocketspark.errors import ConfigError
from rocketspark.model import typed_json
from rocketspark.model.text import nearest, shown

# Where the file is, if not below the folder of settings.
FILE_VARIABLE = "ROCKETSPARK_CONTEXTS"
FILE_BYTES_MAX = 1 << 20
COMMAND_TIMEOUT_S = 120.0
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CONTROL = re.compile("[\x00-\x1f\x7f]")


class Context(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One cluster: its NameServers, the keys and the TLS to connect with; the fields are those of the file.

    The secret key is the first line of the file `secret_key_file`, or of what the command `secret_key_command` prints;
    `secret_key` holds it itself.
    """

    namesrv: str
    access_key: str = ""
    secret_key_file: str = ""
    secret_key_command: tuple[str, ...] = ()
    secret_key: str = ""
    tls: bool | None = None
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_key_password_file: str = ""
    tls_verify: str = ""
    tls_server_name: str = ""

    def __repr__(self) -> str:
        return f"Context({self.namesrv!r}, {'signed' if self.access_key else 'not signed'})"

    @property
    def secret(self) -> str:
        """Return where the secret key is, for people; "" for none."""
        if self.secret_key_command:
            return f"command: {shlex.join(self.secret_key_command)}"
        return f"file: {self.secret_key_file}" if self.secret_key_file else "in this file" if self.secret_key else ""

    def check(self, name: str) -> None:
        """Raise ConfigError for a context that nobody could connect with."""
        from rocketspark.transport.connections import parse_addresses

        if not _NAME.fullmatch(name):
            raise ConfigError(f"context {shown(name)!r}: a name of up to 64 letters, digits, _ . - is needed")
        parse_addresses(self.namesrv)
        texts = [value for value in msgspec.structs.astuple(self) if isinstance(value, str)]
        if any(map(_CONTROL.search, [*texts, *self.secret_key_command])):
            raise ConfigError(f"context {name}: its values must be texts without control characters")
        secrets = [bool(given) for given in (self.secret_key_file, self.secret_key_command, self.secret_key)]
        if sum(secrets) > 1:
            raise ConfigError(f"context {name}: of secret_key_file, secret_key_command and secret_key one is needed")
        if any(secrets) != bool(self.access_key):
            raise ConfigError(f"context {name}: access_key and a secret key belong together")


class Contexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the file of contexts holds. `current`: the name of the one that commands use, "" for none."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def get(self, name: str) -> Context:
        """Return a context by its name. Raises ConfigError."""
        if name not in self.contexts:
            hint = nearest(name, self.contexts) or f": there are {', '.join(sorted(self.contexts)) or 'none'}"
            raise ConfigError(f"no context {shown(name)!r}{hint}")
        return self.contexts[name]


def contexts_path() -> Path:
    """Return where the file of contexts is."""
    if named := os.environ.get(FILE_VARIABLE):
        return Path(named)
    # Rule of the XDG base directories: a relative path there is passed over.
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".config") / "rocketspark" / "contexts.toml"


def read_contexts() -> Contexts:
    """Return what the file of contexts holds; nothing if it is not there. Raises ConfigError."""
    path = contexts_path()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as e:
        raise ConfigError(f"{shown(path)} cannot be read: {e.strerror}") from None
    _check_owner(path, status)
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{shown(path)} is longer than {FILE_BYTES_MAX} bytes")
    try:
        found = typed_json.convert(tomllib.loads(text.decode()), Contexts)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError, RecursionError) as e:
        # A message of theirs never holds a value.
        raise ConfigError(f"{shown(path)}: {e}") from None
    for name, context in found.contexts.items():
        try:
            context.check(name)
        except ConfigError as e:
            raise ConfigError(f"{shown(path)}: {e}") from None
        if context.secret_key and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(f"{shown(path)} holds a secret key and others may read it: chmod 600 {shown(path)}")
    if found.current and found.current not in found.contexts:
        raise ConfigError(f"{shown(path)}: current is {shown(found.current)!r}, and there is no such context")
    return found


def _check_owner(path: Path, status: os.stat_result) -> None:
    # Whoever may change it says which command runs for a secret key, and where the keys go.
    if hasattr(os, "getuid") and status.st_uid not in (os.getuid(), 0):
        raise ConfigError(f"{shown(path)} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"others may change {shown(path)}: chmod go-w {shown(path)}")


def write_contexts(contexts: Contexts) -> None:
    """Write the file of contexts anew, whole or not at all, for its owner alone. Raises ConfigError."""
    path = Path(os.path.realpath(contexts_path()))
    lines = [f"current = {_toml(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.contexts.items()):
        values = msgspec.to_builtins(context)
        lines += ["", f"[contexts.{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Made for its owner alone.
        descriptor, made = tempfile.mkstemp(prefix=".contexts-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines).lstrip("\n") + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(made)
            raise
    except OSError as e:
        raise ConfigError(f"{shown(path)} cannot be written: {e.strerror}") from None


@contextlib.contextmanager
def changing() -> Iterator[Contexts]:
    """Keep other commands from changing the file of contexts meanwhile; yields what it holds. Raises ConfigError."""
    import fcntl

    folder = Path(os.path.realpath(contexts_path())).parent
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as e:
        raise ConfigError(f"{shown(folder)} cannot be opened: {e.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield read_contexts()
    finally:
        os.close(lock)


def _toml(value: Any) -> str:
    # Texts and lists of texts without control characters: TOML writes them as JSON does.
    return json.dumps(value, ensure_ascii=False)


def secret_of_command(words: tuple[str, ...]) -> str:
    """Run a command without a shell and return the first line that it prints; its stderr is the terminal's.

    Raises ConfigError if it fails, prints nothing, or takes longer than two minutes.
    """
    name = shown(os.path.basename(words[0]), characters_max=60)
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, timeout=COMMAND_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{name} gave no secret key within {COMMAND_TIMEOUT_S:.0f} s") from None
    except (OSError, ValueError) as e:
        raise ConfigError(f"{name}, which gives the secret key, cannot be run: {getattr(e, 'strerror', e)}") from None
    if done.returncode:
        raise ConfigError(f"{name} gave no secret key: it ended with code {done.returncode}")
    try:
        lines = done.stdout.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} gave a secret key that is no UTF-8 text") from None
    if not lines or not lines[0].strip():
        raise ConfigError(f"{name} gave no secret key: it printed nothing")
    return lines[0]
