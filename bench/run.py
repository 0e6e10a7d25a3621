#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark that is written in C, and keeps its figures with what they were measured on.

    python3 bench/run.py plan|map|schedule|copy|sum|file_copy|join [--build build/release] [--rounds N]
            [--patience SECONDS] [--json FILE] [-- OPTIONS OF THE PROGRAM]
    python3 bench/run.py largest    # plans and schedules the largest example

A round is a run of each case: the program repeats a case so often before it goes on to the next.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import honest

# How each program is told the rounds, and how many there are if nobody says.
PROGRAMS = {"plan": ("--runs", 15), "map": ("--runs", 21), "schedule": ("--runs", 5),
            "copy": ("--rounds", 9), "sum": ("--rounds", 9), "file_copy": ("--rounds", 5), "join": ("--rounds", 9)}
LARGEST = "examples/kimi-k2-16384-disjoint.json"


def run_program(arguments):
    option, _ = PROGRAMS[arguments.what]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "figures.json"
        subprocess.run([arguments.build / "bench" / f"bench_{arguments.what}", "--json", path,
                        option, str(arguments.rounds), *arguments.options], check=True)
        figures = json.loads(path.read_text())
    return figures if isinstance(figures, dict) else {"cases": figures}


def run_largest(arguments):
    """Seconds, the processor's seconds and memory of the whole command."""
    command = [arguments.build / "ferry", "plan", LARGEST, "--schedule"]
    runs = []
    for _ in range(arguments.rounds):
        began = time.monotonic()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"{command[0]} ended with {child.returncode}")
        runs.append((time.monotonic() - began, used.ru_utime, used.ru_maxrss))
        print("%.2f s, %.2f s of user time, %d KiB" % runs[-1], flush=True)
    seconds, user, peak = zip(*runs)
    return {"spec": LARGEST, "seconds": seconds, "user_s": user, "peak_kib": peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=[*PROGRAMS, "largest"])
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json")
    honest.add_arguments(parser)
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:split])
    arguments.options = words[split + 1:]
    if arguments.rounds is None:
        arguments.rounds = PROGRAMS.get(arguments.what, (None, 5))[1]
    record = honest.begin(arguments.rounds, arguments.patience)
    figures = (run_largest if arguments.what == "largest" else run_program)(arguments)
    honest.end(record)
    if arguments.json:
        honest.write(arguments.json, {**figures, **record})


if __name__ == "__main__":
    main()
