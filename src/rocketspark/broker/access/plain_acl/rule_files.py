"""The files of rules: found, read, compared, written. Rule: all files are one set of rules, or none.

HOME/conf/acl/**/*.yml, *.yaml   in the order of their paths; of accounts of one key the first counts
HOME/conf/plain_acl.yml          last (property rocketmq.acl.plain.file); requests add new accounts here
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rocketspark import machine
from rocketspark.broker.access.plain_acl import documents
from rocketspark.broker.access.plain_acl.addresses import Matches
from rocketspark.broker.access.plain_acl.documents import FILE_BYTES_MAX, AccountEntry, Document, Version
from rocketspark.broker.access.plain_acl.rules import Account, Rules
from rocketspark.errors import ConfigError
from rocketspark.model.text import shown
from rocketspark.store.files.system_calls import OsFiles

PLAIN_FILE = "conf/plain_acl.yml"
FOLDER = "conf/acl"
FILES_MAX = 1000
MODE = 0o600
Stamps = dict[str, tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """What all rule files say together. `owners`: in which file each account is; `warnings`: texts for the operator."""

    rules: Rules
    documents: Mapping[str, Document]
    owners: Mapping[str, str]
    warnings: tuple[str, ...]
    loaded_ms: int

    def entries(self) -> list[AccountEntry]:
        """Return the accounts in force, as they are written: of several with one access key the first."""
        return [
            entry
            for path, document in self.documents.items()
            for entry in {e.access_key: e for e in reversed(document.accounts)}.values()
            if self.owners.get(entry.access_key) == path
        ]

    def version(self, path: str) -> Version:
        """Return how often, and when last, requests changed a file; when it was read, if it does not say."""
        document = self.documents.get(path)
        return (document.version if document else None) or Version(self.loaded_ms, 0)


class RuleFiles:
    """The files of access control 1.0 below one home folder. `plain_file`: the path of plain_acl.yml in it."""

    def __init__(self, home: str, plain_file: str = PLAIN_FILE) -> None:
        self.home = os.path.abspath(home)
        self.plain_path = os.path.join(self.home, plain_file)
        self._folder = os.path.join(self.home, FOLDER)

    def paths(self) -> list[str]:
        """Return the paths of the rule files that exist, in the order in which their accounts count."""
        found = [path for path in self._in_folder() if path != self.plain_path]
        if len(found) >= FILES_MAX:
            raise ConfigError(f"{shown(self._folder)}: {len(found):,} files of rules, {FILES_MAX:,} may be there")
        return found + [self.plain_path] * os.path.exists(self.plain_path)

    def _in_folder(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self._folder):
            folders.sort()
            for name in sorted(names):
                if name.endswith((".yml", ".yaml")):
                    yield os.path.join(folder, name)

    def stamps(self) -> Stamps:
        """Return time, size and inode of each file by path, which differ once a file is changed, added or removed."""
        stamps = {}
        for path in self.paths():
            try:
                found = os.stat(path)
            except OSError:
                continue
            stamps[path] = (found.st_mtime_ns, found.st_size, found.st_ino)
        return stamps

    def load(self) -> LoadedRules:
        """Read all files. Raises ConfigError naming the file that is wrong, and what is."""
        loaded_ms = machine.time_ns() // 1_000_000
        read, owners, warnings = {}, {}, []
        accounts: dict[str, Account] = {}
        white: list[Matches] = []
        for path in self.paths():
            document = read_document(path)
            read[path] = document
            white += document.white_patterns()
            for entry in document.accounts:
                if entry.access_key in accounts:
                    warnings.append(
                        f"{shown(path)}: account {shown(entry.access_key, characters_max=60)!r} is left out, an earlier"
                        " one has its key"
                    )
                    continue
                accounts[entry.access_key] = entry.account()
                owners[entry.access_key] = path
            if document.accounts and _is_open(path):
                warnings.append(f"{shown(path)} holds secrets, and others may read it: chmod 600")
        if not accounts and not white:
            warnings.append(f"no rules in {shown(self.plain_path)} or {shown(self._folder)}: every request is refused")
        return LoadedRules(Rules(accounts, tuple(white)), read, owners, tuple(warnings), loaded_ms)

    def write(self, path: str, document: Document) -> None:
        """Replace a rule file as a whole, readable by its owner only, and put it on the disk. Raises ConfigError."""
        text = documents.write(document).encode("utf-8", "surrogatepass")
        if len(text) > FILE_BYTES_MAX:
            raise ConfigError(f"{shown(path)} would have {len(text):,} bytes, {FILE_BYTES_MAX:,} may be read")
        # The file itself, where a link stands.
        path = os.path.realpath(path)
        folder = os.path.dirname(path)
        temporary = ""
        try:
            os.makedirs(folder, exist_ok=True)
            fd, temporary = tempfile.mkstemp(prefix=".acl-", suffix=".tmp", dir=folder)
            with open(fd, "wb") as file:
                file.write(text)
                file.flush()
                os.fchmod(fd, MODE)
                os.fsync(fd)
            os.replace(temporary, path)
            OsFiles().sync_directory(folder)
        except OSError as e:
            if temporary and os.path.exists(temporary):
                os.unlink(temporary)
            raise ConfigError(f"{shown(path)} cannot be written: {e.strerror or e}") from None


def read_document(path: str) -> Document:
    """Read one file. Raises ConfigError naming it."""
    try:
        # A pipe of that name must not hold up the broker.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ConfigError(f"{shown(path)} is no file")
            data = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Document()
    except OSError as e:
        raise ConfigError(f"{shown(path)} cannot be read: {e.strerror or e}") from None
    try:
        return documents.read(data)
    except ConfigError as e:
        raise ConfigError(f"{shown(path)}: {e}") from None


def _is_open(path: str) -> bool:
    try:
        return bool(os.stat(path).st_mode & 0o077)
    except OSError:
        return False
