"""The bound on the number of files that a call may make in the sandbox's /tmp and /dev/shm.

A file takes a kilobyte of the kernel's memory. bubblewrap bounds their bytes alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from pathlib import Path

MOST_FILES = 10_000  # in each folder; they are folders, links and files
FOLDERS = ("/dev/shm", "/tmp")
_NOSUID, _NODEV, _REMOUNT, _BIND, _REC = 2, 4, 32, 4096, 16384  # of mount(2)
_NEWNS = 0x20000  # of unshare(2)
_CAPABILITIES = 0x20080522  # the third version of capset(2), which has two words of each set
_LIBC = ctypes.CDLL(None, use_errno=True)


def remount(size: int) -> None:
    """Bound the files of both folders, as root does. Raises OSError."""
    for folder in FOLDERS:
        _mount_tmpfs(folder, size, _REMOUNT)


def mount_anew(size: int) -> None:
    """Mount both folders anew with a bound, and give up the right to do so. Raises OSError where
    the kernel forbids it, as Ubuntu 24.04 does in user namespaces.

    bubblewrap's own mounts belong to another user namespace, which this one cannot change. They
    must be read-only: a call can still reach them through bubblewrap's process.
    """
    try:
        _check(_LIBC.unshare(_NEWNS))
        for folder in FOLDERS:
            _cover(folder, size)
        os.chdir("/tmp")
    finally:
        _drop_capabilities()


def _cover(folder: str, size: int) -> None:
    """Mount an empty folder over one, and in it all that is mounted there, such as Python."""
    held = {place: os.open(place, os.O_PATH) for place in _mounted_in(folder)}
    _mount_tmpfs(folder, size, 0)
    for place, descriptor in held.items():
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
        source = f"/proc/self/fd/{descriptor}".encode()
        _check(_LIBC.mount(source, os.fsencode(place), None, _BIND | _REC, None))
        os.close(descriptor)


def _mounted_in(folder: str) -> list[Path]:
    """The places in a folder where something is mounted, and not what is mounted in those."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    escaped = [line.split(" ")[4] for line in lines.splitlines()]
    places = [re.sub(r"\\([0-7]{3})", lambda one: chr(int(one[1], 8)), text) for text in escaped]
    found: list[Path] = []
    for place in sorted(Path(one) for one in places if one.startswith(f"{folder}/")):
        if not any(place.is_relative_to(outer) for outer in found):
            found.append(place)
    return found


def _mount_tmpfs(folder: str, size: int, flags: int) -> None:
    options = f"size={size},nr_inodes={MOST_FILES},mode=1777".encode()
    flags |= _NOSUID | _NODEV
    _check(_LIBC.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options))


def _drop_capabilities() -> None:
    """Give up all capabilities of this process, for good: bubblewrap lets no program gain one."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    _check(_LIBC.capset(header, (ctypes.c_uint32 * 6)()))


def _check(result: int) -> None:
    """Raise OSError for a call of the kernel that failed."""
    if result:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))
