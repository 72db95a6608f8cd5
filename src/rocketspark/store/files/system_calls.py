"""The file layer: every call of the store that can fail on a disk goes through here, so that faults can be injected.

With it stand the lock of a store's directory, and the blocks that a store keeps in reserve. Rule: blocks are reserved
before they are written through a map, so a full disk is an error, never a SIGBUS.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from rocketspark import machine
from rocketspark.errors import StoreFull, StoreLocked, StoreUnwritable

PAGE = mmap.PAGESIZE
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
# Pages faulted in by one call: as long waits who wants to map memory.
_POPULATE_BYTES = 2 << 20
_MS_SYNC = 4
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_MAPS_MAX = 32_768
_SYNCS_AT_ONCE = 16
# Up to so many files are put on the disk one after the other.
_FEW_FILES = 128
# Of a thread: one by one they cost as much again.
_PATHS_IN_TURN = 16
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
# Of file systems without locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV, errno.ENOSYS)


def boot_id() -> str:
    """Return an id of the present run of the machine, from its start on; where the system has none, a new text at each
    call.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return machine.token_hex(8)


def is_of_this_boot(mark: str) -> bool:
    """Tell whether the process that left this file ran since the machine started: what it wrote is all there then."""
    try:
        return boot_id() in Path(mark).read_text("utf-8", "replace").split()
    except OSError:
        return False


def remove_file(path: str) -> None:
    """Remove a file; nothing happens if it is not there. Raises StoreUnwritable."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise failure(e, "remove", path) from e


def failure(error: OSError, doing: str, path: str | Path, needed_bytes: int = 0) -> StoreFull | StoreUnwritable:
    """Return the store's error for an OSError, saying what was done to which path and what to do next."""
    if error.errno in _NO_SPACE:
        try:
            stat = os.statvfs(os.path.dirname(path) or ".")
            free = stat.f_bavail * stat.f_frsize
        except OSError:
            free = 0
        return StoreFull(
            f"no room on the disk to {doing} {path} ({needed_bytes} bytes needed, {free} free): "
            "free some space or move the store to a larger disk",
            needed_bytes=needed_bytes,
            free_bytes=free,
        )
    if error.errno in NO_DESCRIPTOR:
        return StoreUnwritable(
            f"cannot {doing} {path}: too many open files; raise the limit (ulimit -n) or let fewer connect",
            retriable=True,
        )
    if error.errno == errno.EFBIG:
        # Refused before anything was written: the disk is well.
        return StoreUnwritable(
            f"cannot {doing} {path}: files of this process, or on this disk, may not be so large; raise the limit"
            " (ulimit -f)",
            retriable=True,
        )
    return StoreUnwritable(
        f"cannot {doing} {path}: {error.strerror or error}; check the disk and that the directory is writable"
    )


class OsFiles:
    """The operating system's files. Tests subclass it and raise OSError where a disk would."""

    def __init__(self) -> None:
        self._madvise = self._msync = self._mmap = None
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            self._madvise, self._msync = libc.madvise, libc.msync
            for call in (self._madvise, self._msync):
                call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
            if sys.platform == "linux" and sys.maxsize > 1 << 32:
                self._mmap = libc.mmap
                self._mmap.restype = ctypes.c_void_p
                sizes = (ctypes.c_void_p, ctypes.c_size_t)
                self._mmap.argtypes = (*sizes, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        except (OSError, AttributeError):
            pass

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)
        except OSError:
            os.makedirs(path, exist_ok=True)  # Its parents, too, or there is one already.

    def replace(self, source: str, target: str) -> None:
        """Give a file or folder another name, in one step; a file of that name is gone then."""
        os.replace(source, target)

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all that is in it, or a file. What a link leads to stays."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)

    def create(self, path: str, size: int, *, keep: bool = False) -> None:
        """Make a file of `size` zero bytes without blocks. `keep`: a file that exists keeps its content."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if keep else os.O_TRUNC), 0o644)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def map(self, path: str, *, scattered: bool = False) -> mmap.mmap:
        """Map the whole file, readable and writable in memory. Touches none of its pages, keeps no descriptor.

        `scattered`: few bytes here and there are used, so nothing is read ahead around them: the first touch of
        a sparse file costs 9 us instead of 670 where the disk reads 8 MiB ahead.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            mapped = self._map(fd) if self._mmap is not None else mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        if scattered:
            mapped.madvise(mmap.MADV_RANDOM)
        return mapped

    def _map(self, fd: int) -> mmap.mmap:
        # Python's own map of a file keeps a copy of its descriptor (until 3.13): map nothing, the file over it.
        assert self._mmap is not None
        size = os.fstat(fd).st_size
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)
        at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        if self._mmap(at, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != at:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return mapped

    def maps_max(self) -> int:
        """Return how many files may be mapped at a time: half of what the kernel or the limit of open files allows."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        found = descriptors // 2 if descriptors > 0 else _MAPS_MAX
        if self._mmap is not None:
            try:
                with open("/proc/sys/vm/max_map_count") as file:
                    found = int(file.read()) // 2
            except (OSError, ValueError):
                found = _MAPS_MAX
        return max(64, min(found, _MAPS_MAX))

    def reserve(self, path: str, at: int, count: int) -> None:
        """Give bytes [at, at + count) of the file blocks on the disk. Raises OSError(ENOSPC) if it is full."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, at, count)
        except OSError as e:
            # A file system without reservation: sparse then, as RocketMQ's own files are.
            if e.errno not in _NO_FALLOCATE:
                raise
        finally:
            os.close(fd)

    def keep_blocks(self, path: str, size: int) -> None:
        """Make a file of zeros that has all its blocks. Raises OSError(ENOSPC) if there are not so many."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(fd, 0, size)
        finally:
            os.close(fd)

    def data_end(self, path: str) -> int:
        """Return the byte after the last that the file has blocks for; its size where that cannot be told.

        Where a file system keeps files in memory (tmpfs), even reading a byte without a block takes one: on a full disk
        that ends the process.
        """
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            end = 0
            while True:
                end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as e:
            return end if e.errno == errno.ENXIO else os.fstat(fd).st_size
        finally:
            os.close(fd)

    def write_at(self, path: str, at: int, content: bytes | bytearray | memoryview) -> None:
        """Write into a file that is there; every map of it shows that at once."""
        self.write_pieces(path, [(at, content)])

    def write_pieces(self, path: str, pieces: Iterable[tuple[int, bytes | bytearray | memoryview]]) -> None:
        """Write pieces, each at its place, into a file that is there, one after the other."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for at, content in pieces:
                left = memoryview(content)
                while left:
                    count = os.pwrite(fd, left, at)
                    at, left = at + count, left[count:]
        finally:
            os.close(fd)

    def cut(self, path: str, at: int, size: int) -> None:
        """Make every byte from `at` on zero, keeping the size."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, at)
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def any_data(self, path: str, at: int) -> bool:
        """Tell whether a byte from `at` on is other than zero."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while True:
                # Only what the file system holds is read, not the holes of a sparse file.
                end = os.lseek(fd, at, os.SEEK_HOLE)
                while at < end:
                    chunk = os.pread(fd, min(end - at, 1 << 20), at)
                    if chunk != bytes(len(chunk)):
                        return True
                    at += len(chunk) or end
                at = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as e:
            if e.errno == errno.ENXIO:
                return False
            raise
        finally:
            os.close(fd)

    def sync_map(self, mapped: mmap.mmap, at: int, end: int) -> None:
        """Put bytes [at, end) of a map on the disk; the GIL is free meanwhile (`mmap.flush` keeps it until 3.13)."""
        at -= at % PAGE
        if self._msync is None:
            mapped.flush(at, end - at)
            return
        held = ctypes.c_char.from_buffer(mapped)  # Nobody can close the map meanwhile.
        if end > at and self._msync(ctypes.addressof(held) + at, end - at, _MS_SYNC) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def write_again(self, mapped: mmap.mmap, at: int, end: int) -> None:
        """Have the pages of bytes [at, end) of a map count as changed, so that the next flush writes them.

        After a flush that failed the kernel takes them for written, whoever flushes next. They must have blocks.
        """
        pages = memoryview(mapped)[at - at % PAGE : end : PAGE]
        pages[:] = bytes(pages)

    def sync_file(self, path: str) -> None:
        """Put all writes to a file, by any of its maps, on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def sync_files(self, paths: Sequence[str]) -> None:
        """Put all writes to these files on the disk; those that are gone meanwhile are passed over.

        Many several at a time, as a file system puts new files on the disk together: 1,500 take 0.3 s instead of 5.
        """

        def sync(path: str) -> None:
            try:
                self.sync_file(path)
            except FileNotFoundError:
                pass

        if len(paths) <= _FEW_FILES:
            for path in paths:
                sync(path)
            return
        _each(sync, paths)

    def sync_all(self, folder: str) -> None:
        """Put every file below a folder on the disk, and all names. Raises StoreFull, StoreUnwritable."""

        def sync(path: str) -> None:
            try:
                self.sync_directory(path) if os.path.isdir(path) else self.sync_file(path)
            except (FileNotFoundError, PermissionError):
                pass  # What cannot be read is not counted on.
            except OSError as e:
                raise failure(e, "flush", path) from e

        folders = list(os.walk(folder, followlinks=True))
        files = (file for at, _, names in folders for name in names if os.path.isfile(file := f"{at}/{name}"))
        # Several at a time: a file system puts them on the disk together.
        _each(sync, files)
        _each(sync, (at for at, _, _ in folders))

    def lock(self, path: str) -> int:
        """Lock a file, which is made if it is not there, against all others that open it; return its descriptor for
        `unlock`. Raises BlockingIOError while another one has it.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def unlock(self, descriptor: int) -> None:
        """Let others lock it, also if a child of this process has the descriptor too."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def sync_directory(self, path: str) -> None:
        """Put the names in a directory on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_file(self, path: str, content: bytes) -> None:
        """Write a small file whole and put it on the disk."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def overwrite(self, path: str, content: bytes, size: int) -> None:
        """Write the first bytes of a file of `size` bytes in place and put them on the disk."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            os.pwrite(fd, content, 0)
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def populate(self, mapped: mmap.mmap, at: int, end: int, *, for_map: bool = True) -> bool:
        """Bring the pages [at, end) of a map into memory, without the GIL. False if the kernel cannot do it (before
        5.14).

        `for_map`: for writes through the map; without it only for writes by a system call, which costs a fraction.
        """
        if self._madvise is None or end <= at:
            return False
        at -= at % PAGE
        held = ctypes.c_char.from_buffer(mapped)
        begin, advice = ctypes.addressof(held), _MADV_POPULATE_WRITE if for_map else _MADV_POPULATE_READ
        return all(
            self._madvise(begin + piece, min(_POPULATE_BYTES, end - piece), advice) == 0
            for piece in range(at, end, _POPULATE_BYTES)
        )


def _each(act: Callable[[str], None], paths: Iterable[str]) -> None:
    """Call `act` with each path, several at a time. Raises what it raises: of several errors one that is no lack of
    descriptors, after which all is tried again.
    """
    failed = list[Exception]()

    def some(part: list[str]) -> None:
        for path in part:
            try:
                act(path)
            except Exception as e:
                failed.append(e)

    left = iter(paths)
    with ThreadPoolExecutor(_SYNCS_AT_ONCE) as threads:
        for part in iter(lambda: list(islice(left, _PATHS_IN_TURN)), []):
            try:
                threads.submit(some, part)
            except RuntimeError:
                # The process may have no more threads.
                some(part)
    if failed:
        raise next((e for e in failed if getattr(e, "errno", 0) not in NO_DESCRIPTOR), failed[0])


def deepest_first(directory: str) -> Iterator[str]:
    """Yield what lies in the folders of a directory, each folder after what is in it."""
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        path = f"{directory}/{name}"
        if os.path.isdir(path):
            yield from (f"{path}/{name}" for name in os.listdir(path))
        yield path


# A record lock does not keep out its own process, and closing any descriptor of the file gives it up.
_held: set[str] = set()


def make_folder(files: OsFiles, path: str) -> None:
    """Make a folder and its parents, and put the name of each new one on the disk, as all files below depend on it.

    A folder that holds nothing yet counts as new: whoever made it may have been killed before its name was on the disk.
    Raises OSError.
    """
    new = []
    at = path
    while at and not os.path.isdir(at):
        new.append(at)
        at = os.path.dirname(at)
    if new:
        files.make_directory(new[0])
    elif set(os.listdir(path)) <= {"lock"}:
        new = [path]
    for made in reversed(new):
        try:
            files.sync_directory(os.path.dirname(made) or ".")
        except PermissionError:
            pass  # Who may not read a folder cannot put it on the disk.


class DirectoryLock:
    """A lock file, locked as Java's FileChannel.tryLock does it (bytes 0 to 1). `elsewhere`: a folder outside that is
    locked too, by a file beside it, if one can be made there.
    """

    def __init__(self, path: str, elsewhere: str | None = None) -> None:
        self.path = os.path.realpath(path)
        self._folder = os.path.dirname(self.path)
        self._descriptor = -1
        self._other: DirectoryLock | None = None
        if elsewhere:
            # In the folder itself RocketMQ's broker would take it for a damaged file of the log. That of another store
            # has that one's lock.
            log = os.path.realpath(elsewhere)
            other = f"{os.path.dirname(log)}/lock" if os.path.basename(log) == "commitlog" else f"{log}.lock"
            if other != self.path:
                self._other = DirectoryLock(other)
                self._other._folder = elsewhere

    def acquire(self) -> None:
        """Take the lock. Raises StoreLocked if another store has it, StoreUnwritable if the file cannot be opened."""
        if self.path in _held:
            raise self._locked()
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as e:
            raise failure(e, "open", self.path) from e
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as e:
            os.close(descriptor)
            if e.errno in (errno.EACCES, errno.EAGAIN):
                raise self._locked() from e
            raise failure(e, "lock", self.path) from e
        self._descriptor = descriptor
        _held.add(self.path)
        try:
            if self._other is not None:
                self._other.acquire()
        except (StoreFull, StoreUnwritable):
            pass  # Nobody may write there: as with RocketMQ's broker the store's own lock is all there is.
        except StoreLocked:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; nothing happens if it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held.discard(self.path)
        if self._other is not None:
            self._other.release()

    def _locked(self) -> StoreLocked:
        return StoreLocked(
            f"the store in {self._folder} is in use by another server: stop that one or choose another directory"
        )


SPARE_BYTES = 1 << 20
_LEAST_BYTES = 64 << 10


def free_bytes(path: str) -> int:
    """Return the bytes free for ordinary users on the disk of a folder; 1 << 62 if that cannot be told."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 1 << 62
    return found.f_bavail * found.f_frsize


class ReservedBlocks:
    """Disk blocks that a store keeps in reserve, for a full disk: the file `spare`, full of zeros."""

    def __init__(self, root: str, files: OsFiles) -> None:
        self._root = root
        self._path = f"{root}/spare"
        self._files = files
        self._held = False

    def release(self) -> None:
        """Give the blocks back, by removing the file, if the disk is full otherwise."""
        if free_bytes(self._root) < SPARE_BYTES:
            self._remove()

    def keep(self) -> None:
        """Reserve the blocks if that is not done: at most half of what is free. Never fails."""
        if self._held:
            return
        size = min(SPARE_BYTES, free_bytes(self._root) // 2)
        if size < _LEAST_BYTES:
            return
        try:
            if not os.path.exists(self._path) or os.path.getsize(self._path) < size:
                self._files.keep_blocks(self._path, size)
            self._held = True
        except OSError:
            self._remove()

    def _remove(self) -> None:
        self._held = False
        try:
            os.unlink(self._path)
        except OSError:
            pass
