# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The page cache and the disk before a measurement: dropped, filled, looked at, quiet."""

import ctypes
import mmap
import os
import pathlib
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PIECE = 4 << 20
QUIET_S = 0.5
MOST_WAIT_S = 60


def call(function, *arguments):
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def sync_file_system(path):
    """Until all that was written to the file system of path is on its device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        call(LIBC.syncfs, descriptor)
    finally:
        os.close(descriptor)


def discards(path):
    """(in flight, discards so far) of the device; None where it has no such counters."""
    number = os.stat(path).st_dev
    file = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
    if not file.exists():
        return None
    words = [int(word) for word in file.read_text().split()]
    return (words[8], words[11]) if len(words) > 11 else None


def wait_for_discards(path):
    """Until the device has discarded nothing for a while, and then has nothing in flight."""
    limit = time.monotonic() + MOST_WAIT_S
    quiet_since, last = time.monotonic(), discards(path)
    while last is not None and time.monotonic() < limit:
        time.sleep(0.02)
        now = discards(path)
        if now[1] != last[1]:
            quiet_since = time.monotonic()
        elif now[0] == 0 and time.monotonic() - quiet_since > QUIET_S:
            return
        last = now


def drop(paths):
    """What is clean of these files leaves the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def drop_everything():
    """The machine's page cache and the file systems' own caches; False where that is forbidden."""
    try:
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return True
    except OSError:
        return False


def read_all(paths):
    buffer = memoryview(bytearray(PIECE))
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer) > 0:
                pass


def resident_share(paths):
    """The share of the files' pages that is in the page cache."""
    resident = total = 0
    for path in paths:
        size = os.path.getsize(path)
        if size == 0:
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0,
                                                 access=mmap.ACCESS_COPY) as mapping:
            pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
            first = ctypes.c_char.from_buffer(mapping)
            try:
                call(LIBC.mincore, ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size),
                     pages)
            finally:
                del first
            resident += bytes(pages).count(1)
            total += len(pages)
    return resident / total if total > 0 else 1.0


def split_in_two(paths, folder):
    """Files 0 and 1 in folder, each of half of the bytes of all files, in their order."""
    half = sum(os.path.getsize(path) for path in paths) // 2
    with open(folder / "0", "wb") as one, open(folder / "1", "wb") as other:
        left = half
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while piece := file.read(PIECE):
                    one.write(piece[:left])
                    other.write(piece[left:])
                    left -= min(left, len(piece))


def file_system_of(path):
    """Its type and options, from the longest mount point above path."""
    path, best = os.path.realpath(path), ("", "?", "")
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind, options)
    return f"{best[1]} {best[2]}"
