#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What tests leave behind: processes, shared memory, temporary files. Nothing is allowed.

    leftovers.py begin FOLDER    before the first test
    leftovers.py end FOLDER      after the last one; status 1 if something is left

All tests have TMPDIR=FOLDER, which tells their files and their processes, and what those start, from
those of others. Some make files in /tmp and /dev/shm all the same: what is new there and has a name
of ferry's counts as well, unless other tests run on this machine, whose it might be.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

PLACES = ("/tmp", "/dev/shm")
NAMES = ("ferry", "fy_")
OF_TORCH = ("torchelastic_", "torchinductor_")  # torch keeps the logs and caches of its launcher
WAIT_S = 60  # what is killed takes a moment to go


def entries(folder):
    """Those of a shared place that have a name of ferry's."""
    try:
        return sorted(str(Path(place, name)) for place in PLACES for name in os.listdir(place)
                      if name.startswith(NAMES) and Path(place, name) != folder)
    except OSError:
        return []


def processes(folder):
    """{pid: command line} of what tests have started and what still runs, but for this program and
    the one that started it."""
    found, mark = {}, b"TMPDIR=" + os.fsencode(str(folder))
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path("/proc", name, "environ").read_bytes().split(b"\0")
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables and int(name) not in (os.getpid(), os.getppid()):
            found[int(name)] = b" ".join(words[:6]).decode(errors="replace")
    return found


def other_runs():
    """How many other runs of tests are on: (on this machine, and with this folder)."""
    own, pid, n, n_here = set(), os.getpid(), 0, 0
    while pid > 1:
        own.add(pid)
        pid = int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if int(name) not in own and Path("/proc", name, "comm").read_text() == "ctest\n":
                n += 1
                n_here += os.readlink("/proc/%s/cwd" % name) == os.readlink(
                    "/proc/%d/cwd" % os.getppid())
        except OSError:
            continue
    return n, n_here


def begin(folder):
    if other_runs()[1] == 0:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    known = {"entries": entries(folder), "processes": sorted(processes(folder))}
    (folder / "known.json").write_text(json.dumps(known))
    return 0


def left(folder):
    """What is left, a sentence each."""
    known = json.loads((folder / "known.json").read_text())
    found = ["the file %s" % (folder / name) for name in sorted(os.listdir(folder))
             if name != "known.json" and not name.startswith(OF_TORCH)]
    found += ["process %d: %s" % one for one in sorted(processes(folder).items())
              if one[0] not in known["processes"]]
    if other_runs()[0] == 0:
        found += ["the file %s" % name for name in entries(folder) if name not in known["entries"]]
    return found


def end(folder):
    if other_runs()[1] > 0:
        print("SKIPPED leftovers: another run of these tests is on")
        return 77
    until = time.monotonic() + WAIT_S
    while left(folder) and time.monotonic() < until:
        time.sleep(0.2)
    found = left(folder)
    for sentence in found:
        print("left behind:", sentence)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit({"begin": begin, "end": end}[sys.argv[1]](Path(sys.argv[2])))
