"""The kernel's side of a file system in user space (FUSE): messages of /dev/fuse, and the mount.

Only the messages that a broker's data folder needs are known; the kernel is told ENOSYS for all others and does without
them. No library is used, so that the file system runs wherever Linux has /dev/fuse and mounting is allowed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable
from typing import NamedTuple

HEAD = struct.Struct("=IIQQIIIHH")
ANSWER = struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=6Q10I")
ENTRY = struct.Struct("=4Q2I")
ATTR_HEAD = struct.Struct("=QII")
OPENED = struct.Struct("=QII")
TRANSFER = struct.Struct("=QQIIQII")
SETATTR = struct.Struct("=IIQQQQQQ8I")
STATFS = struct.Struct("=5Q10I")
DIRENT = struct.Struct("=QQII")
INIT_OUT = struct.Struct("=IIIIHHIIHHII6I")

WRITE_BYTES_MAX = 1 << 20
BUFFER_BYTES = WRITE_BYTES_MAX + (1 << 16)
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
SET_MODE, SET_SIZE = 1, 8
MS_NOSUID, MS_NODEV = 2, 4
MNT_DETACH = 2
ROOT = 1


class Attributes(NamedTuple):
    """The attributes of a file or folder that differ from file to file."""

    number: int
    mode: int
    size: int


class Refused(Exception):
    """A request is answered with an error number."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.number = number


class Later(Exception):
    """A request is answered at some other time, by `Mount.answer`."""


class FileSystem:
    """What a mount asks for. Files and folders go by number; the root has number 1. Methods raise Refused."""

    def lookup(self, folder: int, name: str) -> Attributes:
        raise NotImplementedError

    def attributes(self, number: int) -> Attributes:
        raise NotImplementedError

    def make(self, folder: int, name: str, mode: int) -> Attributes:
        raise NotImplementedError

    def remove(self, folder: int, name: str, is_folder: bool) -> None:
        raise NotImplementedError

    def rename(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        raise NotImplementedError

    def link(self, number: int, folder: int, name: str) -> Attributes:
        raise NotImplementedError

    def names(self, number: int) -> list[tuple[str, Attributes]]:
        raise NotImplementedError

    def read(self, number: int, offset: int, size: int) -> bytes:
        raise NotImplementedError

    def write(self, number: int, offset: int, data: bytes) -> None:
        raise NotImplementedError

    def resize(self, number: int, size: int) -> None:
        raise NotImplementedError

    def set_mode(self, number: int, mode: int) -> None:
        raise NotImplementedError

    def sync(self, number: int) -> None:
        raise NotImplementedError

    def free_bytes(self) -> tuple[int, int]:
        """Returns how many bytes are free, and how many there are."""
        raise NotImplementedError


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def unmount(folder: str) -> None:
    if _libc().umount2(folder.encode(), MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)


class Mount:
    """A mounted file system. `on_request` answers one request of the kernel."""

    def __init__(self, folder: str, files: FileSystem) -> None:
        self.files = files
        self.descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.descriptor},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0,allow_other,default_permissions"
        flags = MS_NOSUID | MS_NODEV
        if _libc().mount(b"forgetful", folder.encode(), b"fuse.forgetful", flags, options.encode()):
            number = ctypes.get_errno()
            os.close(self.descriptor)
            raise OSError(number, os.strerror(number), folder)
        self._handlers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 8: self._mknod, 9: self._mkdir, 10: self._unlink,
            11: self._rmdir, 12: self._rename, 13: self._link, 14: self._open, 15: self._read, 16: self._write,
            17: self._statfs, 18: self._nothing, 20: self._fsync, 25: self._nothing, 26: self._init, 27: self._open,
            28: self._readdir, 29: self._nothing, 30: self._fsync, 35: self._create, 45: self._rename2,
        }  # fmt: skip

    def on_request(self) -> bool:
        """Reads and answers a request; returns False when the file system has been unmounted."""
        try:
            request = os.read(self.descriptor, BUFFER_BYTES)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):  # ENOENT: it was interrupted meanwhile.
                return True
            if error.errno == errno.ENODEV:
                return False
            raise
        _, code, unique, node, *_ = HEAD.unpack_from(request)
        if code in (2, 36, 42):  # FORGET, INTERRUPT and BATCH_FORGET have no answer.
            return True
        self.perform(code, unique, node, request[HEAD.size :])
        return True

    def perform(self, code: int, unique: int, node: int, body: bytes) -> None:
        """Performs a request, for the first time or again, and answers it unless that has to wait."""
        handler = self._handlers.get(code)
        try:
            answer = self._unknown() if handler is None else handler(node, body)
        except Refused as refused:
            self.answer(unique, b"", refused.number)
        except Later as later:
            later.args = (code, unique, node, body)
            self.on_later(later)
        else:
            self.answer(unique, answer)

    def on_later(self, later: Later) -> None:
        """Keeps a request that cannot be answered now. Its arguments are those of `perform`."""
        raise NotImplementedError

    def answer(self, unique: int, data: bytes, error: int = 0) -> None:
        try:
            os.write(self.descriptor, ANSWER.pack(ANSWER.size + len(data), -error, unique) + data)
        except OSError as problem:
            if problem.errno not in (errno.ENOENT, errno.ENODEV):  # The asker was killed, or the mount is gone.
                raise

    # -- Requests ------------------------------------------------------------------------------------------------

    def _unknown(self) -> bytes:
        raise Refused(errno.ENOSYS)

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""

    def _init(self, node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("=I", body, 8)[0]
        pages = WRITE_BYTES_MAX // 4096
        return INIT_OUT.pack(
            7, 31, readahead, BIG_WRITES | MAX_PAGES, 12, 10, WRITE_BYTES_MAX, 1, pages, 0, 0, 0, *[0] * 6
        )

    def _lookup(self, node: int, body: bytes) -> bytes:
        return _entry(self.files.lookup(node, _name(body)))

    def _getattr(self, node: int, body: bytes) -> bytes:
        return _attr(self.files.attributes(node))

    def _setattr(self, node: int, body: bytes) -> bytes:
        fields = SETATTR.unpack_from(body)
        if fields[0] & SET_SIZE:
            self.files.resize(node, fields[3])
        if fields[0] & SET_MODE:
            self.files.set_mode(node, fields[11])
        return _attr(self.files.attributes(node))

    def _mknod(self, node: int, body: bytes) -> bytes:
        mode = struct.unpack_from("=I", body)[0]
        return _entry(self.files.make(node, _name(body[16:]), mode))

    def _mkdir(self, node: int, body: bytes) -> bytes:
        mode = struct.unpack_from("=I", body)[0]
        return _entry(self.files.make(node, _name(body[8:]), stat.S_IFDIR | mode & 0o7777))

    def _create(self, node: int, body: bytes) -> bytes:
        mode = struct.unpack_from("=4I", body)[1]
        return _entry(self.files.make(node, _name(body[16:]), mode)) + OPENED.pack(0, 0, 0)

    def _unlink(self, node: int, body: bytes) -> bytes:
        self.files.remove(node, _name(body), False)
        return b""

    def _rmdir(self, node: int, body: bytes) -> bytes:
        self.files.remove(node, _name(body), True)
        return b""

    def _rename(self, node: int, body: bytes) -> bytes:
        return self._renamed(node, struct.unpack_from("=Q", body)[0], body[8:])

    def _rename2(self, node: int, body: bytes) -> bytes:
        to_folder, flags = struct.unpack_from("=QI", body)
        if flags:
            raise Refused(errno.EINVAL)
        return self._renamed(node, to_folder, body[16:])

    def _renamed(self, node: int, to_folder: int, names: bytes) -> bytes:
        old, new = names.split(b"\0")[:2]
        self.files.rename(node, os.fsdecode(old), to_folder, os.fsdecode(new))
        return b""

    def _link(self, node: int, body: bytes) -> bytes:
        return _entry(self.files.link(struct.unpack_from("=Q", body)[0], node, _name(body[8:])))

    def _open(self, node: int, body: bytes) -> bytes:
        self.files.attributes(node)
        return OPENED.pack(0, 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        return self.files.read(node, offset, size)

    def _write(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        self.files.write(node, offset, body[TRANSFER.size : TRANSFER.size + size])
        return struct.pack("=II", size, 0)

    def _fsync(self, node: int, body: bytes) -> bytes:
        self.files.sync(node)
        return b""

    def _statfs(self, node: int, body: bytes) -> bytes:
        free, total = (count // 4096 for count in self.files.free_bytes())
        return STATFS.pack(total, free, free, 1 << 20, 1 << 20, 4096, 255, 4096, *[0] * 7)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = TRANSFER.unpack_from(body)
        answer = b""
        for place, (name, attributes) in list(enumerate(self.files.names(node), 1))[offset:]:
            raw = os.fsencode(name)
            entry = DIRENT.pack(attributes.number, place, len(raw), attributes.mode >> 12 & 15) + raw
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def _name(body: bytes) -> str:
    return os.fsdecode(body[: body.index(b"\0")])


def _attributes(one: Attributes) -> bytes:
    blocks = -(-one.size // 512)
    return ATTRIBUTES.pack(one.number, one.size, blocks, 0, 0, 0, 0, 0, 0, one.mode, 1, 0, 0, 0, 4096, 0)


def _attr(one: Attributes) -> bytes:
    return ATTR_HEAD.pack(0, 0, 0) + _attributes(one)


def _entry(one: Attributes) -> bytes:
    return ENTRY.pack(one.number, 0, 0, 0, 0, 0) + _attributes(one)
