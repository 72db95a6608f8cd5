"""The files in config/: small texts, replaced whole, the version before kept as `.bak`.

Rule: at any moment either the file or its `.bak` holds a whole text; callers bring and read the JSON.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocketspark.errors import ConfigError, LogMissing, ServerError, StoreError
from rocketspark.model.conf_lines import parse_properties, replace_values
from rocketspark.protocol.codes import ResponseCode
from rocketspark.store.files.system_calls import OsFiles, failure, make_folder

# In a store's folder while a backup is copied into it.
RESTORE_MARK = "restoreUnderWay"
# So much of a log file tells whether it has a record.
_LOG_HEAD_BYTES = 64
_SEAL = re.compile(r'\{"crc":([0-9]{1,10}),')


def read(path: str) -> str | None:
    """Return the text of a config file, or of its `.bak` if the file is missing or empty; None if there is neither.

    Raises StoreUnwritable if the file is there and cannot be read.
    """
    for candidate in (path, f"{path}.bak"):
        text = _text(candidate)
        if text:
            return text
    return None


def read_backup(path: str) -> str | None:
    """Return the text of the previous version (`.bak`), for a caller that cannot parse the newest."""
    return _text(f"{path}.bak") or None


def sealed(table: dict[str, object]) -> str:
    """Return a table as JSON that begins with a checksum of the rest, which other readers ignore."""
    text = json.dumps(table, ensure_ascii=False, separators=(",", ":"))
    return f'{{"crc":{zlib.crc32(text.encode())},{text[1:]}'


def unsealed(text: str) -> Any:
    """Return the table in a text that `sealed` made, or in one of an older program, without a checksum. Raises
    ValueError if it is damaged.
    """
    seal = _SEAL.match(text)
    if seal is not None:
        text = "{" + text[seal.end() :]
        if zlib.crc32(text.encode()) != int(seal[1]):
            raise ValueError("the checksum is another")
    return json.loads(text)


def check_version(path: str, known: int, *, beside: str = "") -> None:
    """Raise ConfigError if a JSON file of ours says that it has another version of its layout than `known`.

    `beside`: the version counts only if the file also has a table of this name.
    """
    try:
        table = json.loads(read(path) or "{}")
        told = isinstance(table, dict) and (not beside or isinstance(table.get(beside), dict))
        found = table.get("version", known) if told else known
    except (ValueError, RecursionError):
        return  # Whoever reads it knows what to do with one that cannot be parsed.
    if found != known and isinstance(found, int):
        raise ConfigError(
            f"{path} is of version {found}, this program reads version {known}: start the newer program, or move the"
            " file away"
        )


def check_restored(root: str) -> None:
    """Raise ConfigError if a backup was not copied whole into a store's folder: messages would be missing."""
    if os.path.exists(f"{root}/{RESTORE_MARK}"):
        raise ConfigError(
            f"the backup was not restored whole into {root}: run `rocketspark restore` with this folder once more"
        )


def check_log_folder(set_folder: str, other: str, noted_end: int = 0) -> None:
    """Raise ConfigError if a store's log lies in another folder than the empty one that the settings name, LogMissing
    if it went up to `noted_end` in this one: a start there would take all messages for lost, with their queues, and
    what it stores would be hidden once the log's disk is mounted.
    """
    if _log_files(set_folder):
        return
    if os.path.realpath(other) == os.path.realpath(set_folder):
        if noted_end > 0:
            raise LogMissing(
                f"the log of this store lay in {other} up to position {noted_end}, and no file of it is there: mount"
                " its disk, or bring a copy of its files; to begin without them remove config/storeFiles.json"
            )
        return
    for path in _log_files(other):
        with open(path, "rb") as file:
            has_record = any(file.read(_LOG_HEAD_BYTES))
        if has_record:
            raise ConfigError(
                f"the log of this store lies in {other}, and {set_folder}, where the settings have it, has none: move"
                " its files there, or set storePathCommitLog as it was"
            )


def has_log(folder: str) -> bool:
    """Tell whether a folder has any file of a log."""
    return bool(_log_files(folder))


def _log_files(folder: str) -> list[str]:
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    return [f"{folder}/{name}" for name in names if len(name) == 20 and name.isdigit()]


def read_whole(path: str) -> str | None:
    """Return the text of a file that has no `.bak`; None if there is no file. Raises StoreUnwritable."""
    return _text(path)


def write(
    path: str,
    text: str,
    files: OsFiles | None = None,
    *,
    keep_before: bool = True,
    crc_before: int | None = None,
    mode: int | None = None,
) -> None:
    """Replace the text at once: readers, and a kill at any time, see the old or the new one.

    Without `keep_before` the `.bak` stays as it is, as the file does not hold a whole text now; so it does if the file
    has another checksum than `crc_before`, or than it says itself, as bits have flipped in it. `mode`: the file's
    permissions from its first byte on; without it those of the old file. Raises StoreFull or StoreUnwritable.
    """
    files = files or OsFiles()
    before = None
    try:
        before = _text(path) if keep_before else None
    except StoreError:
        pass
    try:
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            make_folder(files, folder)
        if before and before != text and _is_whole(before, crc_before):
            _replace(files, f"{path}.bak", before, mode)
        _replace(files, path, text, mode)
        # So that after a power cut there is this text, not the one before.
        files.sync_directory(folder)
    except OSError as e:
        raise failure(e, "write", path, len(text)) from e


def read_settings(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return keys and values of a file of settings. Raises ConfigError if it cannot be read, or names a wrong line."""
    try:
        # Editors of Windows put a byte order mark first.
        text = Path(path).read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read: {getattr(e, 'strerror', None) or e}") from None
    return parse_properties(text, str(path))


def keep_settings(
    path: str, values: dict[str, str], *, until: str, key_of: Callable[[str], str] = lambda name: name
) -> None:
    """Write settings that were changed while a server runs into the .conf file that it read; the file's other lines
    stay as they are.

    `until`: for the error, how long the change lasts if it is not in the file. `key_of`: gives the setting that a name
    in the file means. Raises ServerError 1 if the file cannot be written.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
        # Not in the place of a link: whoever edits the file that it leads to would edit one that is read no more.
        write(os.path.realpath(path), replace_values(text, values, key_of), keep_before=False)
    except (OSError, UnicodeDecodeError, StoreError) as e:
        raise ServerError(
            ResponseCode.SYSTEM_ERROR,
            f"changed, but {path} cannot be written: {getattr(e, 'strerror', None) or e}; the change lasts until"
            f" {until}",
        ) from e


def remove_leftovers(directory: str) -> None:
    """Remove the unfinished files that a killed process left in a directory. Only the directory's owner may call it,
    before it writes.
    """
    try:
        for name in os.listdir(directory):
            if name.endswith(".tmp"):
                os.unlink(f"{directory}/{name}")
    except OSError:
        pass  # They are in nobody's way.


def _is_whole(text: str, crc: int | None) -> bool:
    """Tell whether no bits have flipped in a text, by its checksum `crc`, or the one that it begins with."""
    if crc is not None:
        return crc == zlib.crc32(text.encode())
    try:
        unsealed(text) if _SEAL.match(text) else None
    except ValueError:
        return False
    return True


def _replace(files: OsFiles, path: str, text: str, mode: int | None) -> None:
    temporary = f"{path}.tmp"
    try:
        _make_as_closed(temporary, path, mode)
        files.write_file(temporary, text.encode("utf-8"))
        os.replace(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise


def _make_as_closed(temporary: str, path: str, mode: int | None) -> None:
    """Make an empty file that only those may read who may read `path`, or as `mode` says: it may hold secrets."""
    try:
        mode = os.stat(path).st_mode & 0o777 if mode is None else mode
    except OSError:
        return
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _text(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8", "replace").strip("\0")
    except FileNotFoundError:
        return None
    except OSError as e:
        raise failure(e, "read", path) from e
