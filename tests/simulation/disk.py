"""The disk of a simulated machine: a folder holds what its processes see, and beside it is known what was synced.

Rule: after a power cut a file has what was synced; of what was written since, each sector is there or not, and so is
each name. Nothing is ever kept because of the order in which it was written. As Linux does it, a page whose sync failed
counts as written: no later sync writes it before it was changed again.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.simulation import loop

if TYPE_CHECKING:
    from tests.simulation.world import Node

SECTOR = 512
PAGE = 4096
_ZEROS = bytes(PAGE)
_WRITES = {"create", "reserve", "keep_blocks", "write_at", "write_file", "overwrite", "make_directory", "cut"}
_SYNCS = {"sync_map", "sync_file", "sync_directory"}
_real_statvfs, _real_listdir, _real_scandir = os.statvfs, os.listdir, os.scandir


class Pages:
    """Content by page of 4096 bytes; what is not there is zeros."""

    __slots__ = ("pages", "size")

    def __init__(self) -> None:
        self.pages: dict[int, bytes] = {}
        self.size = 0

    def put(self, at: int, data: bytes) -> None:
        """Take data that begins with a page."""
        for begin in range(0, len(data), PAGE):
            page = data[begin : begin + PAGE]
            if len(page) < PAGE:
                page += self.pages.get((at + begin) // PAGE, _ZEROS)[len(page) :]
            self.pages[(at + begin) // PAGE] = page
        self.size = max(self.size, at + len(data))

    def empty(self, at: int, end: int) -> None:
        """Be zeros from a page on, up to another."""
        for number in [number for number in self.pages if at <= number * PAGE < end]:
            del self.pages[number]
        self.size = max(self.size, end)

    def read(self, fd: int, at: int, end: int) -> None:
        """Take what a file holds from a page on; of a sparse one what it has, as holes that are read are none any
        more, and a wheel of 38 MB is nearly all holes.
        """
        while at < end:
            try:
                begin = min(os.lseek(fd, at, os.SEEK_DATA), end)
            except OSError:
                begin = end  # Nothing but a hole.
            if begin > at:
                self.empty(at, begin)
            if begin < end:
                stop = min(os.lseek(fd, begin, os.SEEK_HOLE), end)
                self.put(begin, os.pread(fd, stop - begin, begin))
                begin = stop
            at = begin

    @classmethod
    def of(cls, path: str) -> Pages:
        """Read a file."""
        found = cls()
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found.read(fd, 0, os.fstat(fd).st_size)
        finally:
            os.close(fd)
        return found

    def write(self, path: str) -> None:
        """Make the file, sparse."""
        with open(path, "wb") as file:
            file.truncate(self.size)
            for number, page in self.pages.items():
                if number * PAGE < self.size and page != _ZEROS:
                    file.seek(number * PAGE)
                    file.write(page[: self.size - number * PAGE])


class SimDisk:
    """One machine's disk. `full`, `failing` ({"write", "sync"}) and `slow_s` are its faults."""

    def __init__(self, node: Node, root: Path) -> None:
        self.node = node
        self.root = root
        root.mkdir(parents=True)
        self.full = False
        self.failing: set[str] = set()
        self.slow_s = 0.0
        self.random = node.world.random(f"disk {node.name}")
        self._files: dict[int, Pages] = {}
        self._names: dict[int, dict[str, int]] = {}
        # By file and page: what a sync that failed did not write.
        self._forgotten: dict[int, dict[int, bytes]] = {}
        self._maps: dict[int, tuple[mmap.mmap, int, str]] = {}

    # -- calls of the product ------------------------------------------------------------------------------------

    def step(self, call: str) -> None:
        """Be asked for something: it may fail, take its time, or be the last thing its process did."""
        self.node.count_call()
        if call in _SYNCS:
            strand = loop.current_strand()
            if strand is not None:
                strand.pause(self.random.uniform(0.0001, 0.002) + self.slow_s)
            if "sync" in self.failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        elif call in _WRITES:
            if "write" in self.failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def mapped(self, path: str, found: mmap.mmap) -> None:
        self._maps[id(found)] = found, os.stat(path).st_ino, path

    def sync_map(self, mapped: mmap.mmap, at: int, end: int) -> None:
        at -= at % mmap.PAGESIZE
        _, number, path = self._maps[id(mapped)]
        synced = self._synced(number)
        before = self._before(number)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            synced.put(at, mapped[at:end])
            return
        try:
            if os.fstat(fd).st_ino == number:
                synced.read(fd, at, end)
            else:
                synced.put(at, mapped[at:end])
        finally:
            os.close(fd)
        self._keep_forgotten(number, before)

    def sync_descriptor(self, fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            self._names[found.st_ino] = _names(f"/proc/self/fd/{fd}")
            return
        before = self._before(found.st_ino)
        # By its place in /proc, as one that was opened for writing alone cannot be read.
        self._files[found.st_ino] = Pages.of(f"/proc/self/fd/{fd}")
        self._keep_forgotten(found.st_ino, before)

    def sync_failed(self, call: str, what: Any, at: int = 0, end: int = sys.maxsize) -> None:
        """Note what a call that fails does not put on the disk."""
        if call == "sync_map":
            _, number, path = self._maps[id(what)]
            self.forget(path, number, at, end)
        elif call == "sync_file" and os.path.exists(what):
            self.forget(what, os.stat(what).st_ino, at, end)

    def forget(self, path: str, number: int, at: int, end: int) -> None:
        """Note what a sync that fails does not write, and no later one either."""
        if os.path.isfile(path) and os.stat(path).st_ino == number:
            now, synced = Pages.of(path), self._synced(number)
            lost = self._forgotten.setdefault(number, {})
            for place, page in now.pages.items():
                if at <= place * PAGE + PAGE and place * PAGE < end and page != synced.pages.get(place, _ZEROS):
                    lost[place] = page

    def written(self, path: str, at: int = 0, end: int = sys.maxsize) -> None:
        """Note that bytes of a file were changed, or as good as that."""
        lost = self._forgotten.get(os.stat(path).st_ino) if os.path.exists(path) else None
        for place in [place for place in lost or () if at < place * PAGE + PAGE and place * PAGE < end]:
            del self._forgotten[os.stat(path).st_ino][place]

    def _before(self, number: int) -> dict[int, bytes]:
        synced = self._synced(number)
        return {place: synced.pages.get(place, _ZEROS) for place in self._forgotten.get(number, ())}

    def _keep_forgotten(self, number: int, before: dict[int, bytes]) -> None:
        lost, synced = self._forgotten.get(number, {}), self._synced(number)
        for place, page in list(lost.items()):
            if synced.pages.get(place, _ZEROS) == page:
                synced.pages[place] = before[place]
            else:
                del lost[place]

    def _synced(self, number: int) -> Pages:
        found = self._files.get(number)
        if found is None:
            found = self._files[number] = Pages()
        return found

    def free(self) -> Any:
        """Return what statvfs says."""
        free = 0 if self.full else 1 << 24
        return SimpleNamespace(f_bavail=free, f_bfree=free, f_frsize=4096, f_blocks=1 << 25)

    # -- faults --------------------------------------------------------------------------------------------------

    def wipe(self) -> None:
        """Be a new disk."""
        shutil.rmtree(self.root)
        self.root.mkdir()
        self._files.clear()
        self._forgotten.clear()
        self._names.clear()

    def flip(self, path: Path, at: int, bit: int) -> None:
        """Have a file hold another bit than was written, and synced; nothing runs that has it open."""
        content = bytearray(path.read_bytes())
        content[at] ^= 1 << bit
        with path.open("r+b") as file:
            file.seek(at)
            file.write(content[at : at + 1])
        self._files[path.stat().st_ino] = Pages.of(str(path))

    def lose_power(self) -> None:
        """Hold what is on the disk, and of the rest what happens to be."""
        left = self.root.with_name(f"{self.root.name}.left")
        left.mkdir()
        self._leave(str(self.root), os.stat(self.root).st_ino, str(left))
        shutil.rmtree(self.root)
        left.rename(self.root)
        self._files.clear()
        self._forgotten.clear()
        self._names.clear()
        self._maps.clear()
        for folder, _, files in os.walk(self.root):
            self._names[os.stat(folder).st_ino] = _names(folder)
            for name in files:
                self._files[os.stat(f"{folder}/{name}").st_ino] = Pages.of(f"{folder}/{name}")

    def _leave(self, source: str, number: int, target: str) -> None:
        now = _names(source)
        before = self._names.get(number, {})
        for name in sorted(now.keys() | before.keys()):
            found = now.get(name)
            if found != before.get(name) and self.random.random() < 0.5:
                found = before.get(name)
            if found is None:
                continue
            path = f"{source}/{name}"
            is_now = now.get(name) == found
            if is_now and os.path.isdir(path):
                os.mkdir(f"{target}/{name}")
                self._leave(path, found, f"{target}/{name}")
            elif is_now:
                self._left(self._files.get(found, Pages()), Pages.of(path)).write(f"{target}/{name}")
            elif found in self._files:
                self._files[found].write(f"{target}/{name}")

    def _left(self, synced: Pages, now: Pages) -> Pages:
        left = Pages()
        left.size = now.size if now.size == synced.size else self.random.choice([now.size, synced.size])
        share = self.random.choice([0.0, 0.3, 0.7, 1.0])
        for number in sorted(synced.pages.keys() | now.pages.keys()):
            old, new = synced.pages.get(number, _ZEROS), now.pages.get(number, _ZEROS)
            if old != new and share:
                sectors = [new if self.random.random() < share else old for _ in range(PAGE // SECTOR)]
                old = b"".join(of[at * SECTOR : (at + 1) * SECTOR] for at, of in enumerate(sectors))
            left.pages[number] = old
        return left


class _Entries:
    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __iter__(self) -> Any:
        return self._left

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def close(self) -> None:
        return


def _in_any_order(names: list[Any]) -> list[Any]:
    process = loop.current_process()
    if process is not None:
        process.node.disk.random.shuffle(names)
    return names


def _names(folder: str) -> dict[str, int]:
    with _real_scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def install() -> None:
    """Have the store's file layer ask the disk of the node that runs."""
    from rocketspark.store.files import system_calls
    from rocketspark.transport import dialing

    # No sockets here: connections are made by the loop.
    dialing._family = lambda host: None
    files = system_calls.OsFiles

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            process = loop.current_process()
            if process is None:
                return original(self, *arguments, **more)
            disk = process.node.disk
            try:
                disk.step(name)
            except OSError:
                disk.sync_failed(name, *arguments)
                raise
            if name == "sync_map":
                return disk.sync_map(*arguments)
            found = original(self, *arguments, **more)
            if name == "map":
                disk.mapped(arguments[0], found)
            elif name == "write_at":
                disk.written(arguments[0], arguments[1], arguments[1] + len(arguments[2]))
            elif name in ("cut", "create", "write_file", "overwrite"):
                disk.written(arguments[0], arguments[1] if name == "cut" else 0)
            return found

        return call

    for name in sorted(_WRITES | _SYNCS | {"map"}):
        setattr(files, name, wrapped(name, getattr(files, name)))

    def write_again(self: Any, mapped: mmap.mmap, at: int, end: int) -> None:
        process = loop.current_process()
        if process is not None:
            process.node.disk.written(process.node.disk._maps[id(mapped)][2], at, end)

    files.write_again = write_again  # type: ignore[method-assign]

    def populate(self: Any, mapped: Any, at: int, end: int, *, for_map: bool = True) -> bool:
        return True

    files.populate = populate  # type: ignore[method-assign]

    def statvfs(path: Any) -> Any:
        process = loop.current_process()
        return _real_statvfs(path) if process is None else process.node.disk.free()

    os.statvfs = statvfs

    # A file system lists names in any order; here a seed says in which.
    def listdir(path: Any = ".") -> list[Any]:
        return _in_any_order(sorted(_real_listdir(path)))

    def scandir(path: Any = ".") -> Any:
        with _real_scandir(path) as entries:
            return _Entries(_in_any_order(sorted(entries, key=lambda entry: entry.name)))

    os.listdir, os.scandir = listdir, scandir  # type: ignore[assignment]
    replace_everywhere(system_calls.boot_id, lambda: str(loop.current_process().node.boot_id))


def replace_everywhere(original: object, replacement: object) -> None:
    """Put something in the place of a thing of the product, by each name that a module of it has for it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("rocketspark"):
            for attribute, value in list(vars(module).items()):
                if value is original:
                    setattr(module, attribute, replacement)


def forget_locks(root: Path) -> None:
    """Let go of the store locks of a process that died."""
    from rocketspark.store.files import system_calls

    for path in [path for path in system_calls._held if path.startswith(os.path.realpath(root) + "/")]:
        system_calls._held.discard(path)
