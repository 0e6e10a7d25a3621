# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What every figure is kept with: which source, which machine, what else ran on it, and how.

    result = honest.begin(rounds=5, patience_s=60)   # waits for a quiet machine
    ...
    honest.end(result)                               # before the file is written
    honest.write(path, result)                       # a list of numbers is one line

scripts/figures.py makes docs/figures.md of such files; it refuses those that lack a word of KEPT.
"""

import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time

KEPT = ("date", "commit", "cpu", "cores", "load_before", "quiet", "rounds", "command")
COLUMNS = 100
LOAD = 0.5
QUIET = 0.1  # of all cores' time: the load average remembers what has ended for minutes
HERE = pathlib.Path(__file__).resolve().parent
began = {}  # the cores' and the own ticks, for end


def commit():
    """Of the source, with "+" where files are changed; None outside of a repository. New results,
    which one benchmark after another writes, change nothing that is measured."""
    def git(*words):
        done = subprocess.run(["git", "-C", HERE, *words], capture_output=True, text=True,
                              check=False)
        return done.stdout.strip() if done.returncode == 0 else None
    number = git("rev-parse", "HEAD")
    return number and number + ("+" if git("status", "--porcelain", "-uno", "--", ":/",
                                         ":(top,exclude)bench/results") else "")


def cpu_model():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model", "cpu model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def ticks():
    """Of all cores since the machine began: those at work, and all."""
    user, nice, system, idle, waits, *other = map(
        int, pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return user + nice + system + sum(other), user + nice + system + idle + waits + sum(other)


def busy_share(seconds=1):
    """What everybody uses of the cores, at this moment."""
    before = ticks()
    time.sleep(seconds)
    after = ticks()
    return (after[0] - before[0]) / max(after[1] - before[1], 1)


def command_line():
    """Less where the figures go, and less the folders of this machine."""
    words = list(sys.argv)
    if "--json" in words[:-1]:
        at = words.index("--json")
        del words[at:at + 2]
    return shlex.join(["python3", *map(without_folder, words)])


def without_folder(word):
    path = pathlib.PurePath(word)
    if not path.is_absolute():
        return word
    if path.is_relative_to(HERE.parent):
        return str(path.relative_to(HERE.parent))
    return f"ELSEWHERE/{path.name}"


def text(value, indent=""):
    """As JSON: what is nothing but numbers and words is one line, and so is what fits into one."""
    line = json.dumps(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    is_flat = indent and not any(isinstance(part, (list, dict)) for part in parts)
    if not parts or is_flat or (indent and len(indent) + len(line) <= COLUMNS):
        return line
    step = indent + " "
    if isinstance(value, list):
        return "[\n" + ",\n".join(step + text(v, step) for v in value) + "\n" + indent + "]"
    return "{\n" + ",\n".join(f"{step}{json.dumps(str(k))}: {text(v, step)}"
                              for k, v in value.items()) + "\n" + indent + "}"


def write(path, result):
    pathlib.Path(path).write_text(text(result) + "\n")


def wait_for_quiet(patience_s):
    """What others use, once it is below QUIET or nobody waits any longer."""
    end = time.monotonic() + patience_s
    share = busy_share()
    while share > QUIET and time.monotonic() < end:
        share = busy_share()
    return share


def begin(rounds, patience_s=60):
    print(f"load {os.getloadavg()[0]:.2f}; waiting at most {patience_s:g} s until others use "
          f"{QUIET:.0%} of the cores or less", flush=True)
    share = wait_for_quiet(patience_s)
    if share > QUIET:
        print(f"NOT QUIET: others use {share:.0%}; the figures are marked as such", flush=True)
    elif os.getloadavg()[0] > LOAD:
        print(f"load {os.getloadavg()[0]:.2f}, of what has ended: others use {share:.0%} now",
              flush=True)
    began["busy"], began["total"] = ticks()
    began["own"] = own_ticks()
    return {"commit": commit(), "date": datetime.datetime.now(datetime.timezone.utc)
            .isoformat(timespec="seconds"), "cpu": cpu_model(), "cores": os.cpu_count(),
            "rounds": rounds, "command": command_line(),
            "load_before": os.getloadavg(), "busy_before": round(share, 3),
            "quiet": share <= QUIET}


def own_ticks():
    """Of this process and of all that it has started and seen the end of."""
    return sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")


def end(result):
    """May be called again and again, when all that was started has ended. Own processes are in the
    load behind; the share of the cores that others had all the while is what says how quiet it
    was."""
    (busy, total), own = ticks(), own_ticks()
    share = (busy - began["busy"] - (own - began["own"])) / max(total - began["total"], 1)
    result["load_after"] = os.getloadavg()
    result["busy_during"] = round(share, 3)
    result["quiet"] = result["quiet"] and share <= QUIET
    return result


def add_arguments(parser):
    parser.add_argument("--patience", type=float, default=60,
                        help="seconds to wait for a quiet machine (60)")
