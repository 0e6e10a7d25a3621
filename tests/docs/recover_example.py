#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs docs/examples_c/recover.c: ranks that end in a run, also one behind the plan's last.

    recover_example.py --ferry COMMAND --program RECOVER [--patience N]
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

PLAN_RANKS = 4
RUNS = 5

SPEC = {
    "format": "ferry.spec/1",
    "tensors": [{"name": "layer.{0}.w", "count": [3], "shape": [512, 2048], "dtype": "f32"},
                {"name": "norm", "shape": [512], "dtype": "f32"}],
    "source": {"mesh": [["dp", 2], ["tp", 2]],
               "rules": [{"match": "norm"},
                         {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
    "destination": {"mesh": [["tp", PLAN_RANKS]],
                    "rules": [{"match": "norm"},
                              {"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]},
}

# Ranks, the one that ends and the run in which it does: after an even number of versions, an odd
# one, in the first, and a rank that has no part in the plan.
CASES = [(4, 3, 3), (4, 0, 4), (4, 2, 1), (5, 4, 2), (5, 1, 2), (4, None, None)]


def one(arguments, spec, n, victim, run):
    command = [arguments.ferry, "launch", "-n", str(n), "--", arguments.program, spec, str(RUNS)]
    command += [str(victim), str(run)] if victim is not None else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=600 * arguments.patience,
                          check=False)
    found = {int(rank): (int(version), int(left)) for rank, version, left in re.findall(
        r"rank (\d+): version (\d+) is whole, on (\d+) ranks", done.stdout)}
    left = n - (victim is not None)
    wanted = {rank: (RUNS, left) for rank in range(n) if rank != victim}
    if done.returncode != 0 or found != wanted:
        return "%d ranks, rank %s ends in run %s: exit status %d, %s\n%s" % (
            n, victim, run, done.returncode, found, done.stderr)
    if victim is not None and "rank %d" % victim not in done.stderr:
        return "%d ranks, rank %s ends in run %s: nobody says so" % (n, victim, run)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--patience", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = pathlib.Path(folder) / "spec.json"
        spec.write_text(json.dumps(SPEC))
        problems = [problem for case in CASES if (problem := one(arguments, str(spec), *case))]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
