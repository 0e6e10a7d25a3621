# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What every figure is kept with: which source, which machine, what else ran on it, and how.

    result = honest.begin(rounds=5, patience_s=60)   # waits for a quiet machine
    ...
    honest.end(result)                               # before the file is written
"""

import datetime
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time

QUIET = 0.5
HERE = pathlib.Path(__file__).resolve().parent


def commit():
    """Of the source, with "+" where files are changed; None outside of a repository."""
    def git(*words):
        done = subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True,
                              check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    number = git("rev-parse", "HEAD")
    return number and number + ("+" if git("status", "--porcelain", "-uno") else "")


def cpu_model():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model", "cpu model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def wait_for_quiet(patience_s):
    """The load of the last minute, once it is below QUIET or nobody waits any longer."""
    end = time.monotonic() + patience_s
    while os.getloadavg()[0] > QUIET and time.monotonic() < end:
        time.sleep(2)
    return os.getloadavg()[0]


def begin(rounds, patience_s=60):
    print(f"load {os.getloadavg()[0]:.2f}; waiting at most {patience_s:g} s for {QUIET} or less",
          flush=True)
    load = wait_for_quiet(patience_s)
    if load > QUIET:
        print(f"NOT QUIET: load {load:.2f}; the figures are marked as such", flush=True)
    return {"commit": commit(), "date": datetime.datetime.now(datetime.timezone.utc)
            .isoformat(timespec="seconds"), "cpu": cpu_model(), "cores": os.cpu_count(),
            "rounds": rounds, "command": shlex.join(["python3", *sys.argv]),
            "load_before": os.getloadavg(), "quiet": load <= QUIET}


def end(result):
    """May be called again and again. Own processes are in the load behind: only that before says
    whether others were at work."""
    result["load_after"] = os.getloadavg()
    return result


def add_arguments(parser):
    parser.add_argument("--patience", type=float, default=60,
                        help="seconds to wait for a quiet machine (60)")
