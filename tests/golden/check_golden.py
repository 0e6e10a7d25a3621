#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Printed plans stay what they were, byte for byte.

    check_golden.py --ferry PATH

The plan of tiny.json was worked out by hand from docs/formats.md: each source row block meets each
destination column block, nothing has a second holder that would have to be chosen. (Only its digest
comes from ferry.) The others record what ferry prints; that it is right is checked by the
property tests. A line of output says how to write a file anew, for a change that is meant: then the
planner's version in the digest goes up as well.
"""

import argparse
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples"

# (expected file, spec, options)
CASES = [
    ("tiny.plan.json", HERE / "tiny.json", ["--json"]),
    ("tiny.rank1.plan.json", HERE / "tiny.json", ["--json", "--rank", "1"]),
    ("llama-tiny.summary.json", EXAMPLES / "llama-tiny.json", ["--json", "--summary"]),
    ("llama-tiny.seed.summary.json", EXAMPLES / "llama-tiny.json",
     ["--json", "--summary", "--replica", "seed"]),
    ("llama-tiny.rank3.norm.json", EXAMPLES / "llama-tiny.json",
     ["--json", "--rank", "3", "--subset", "*norm*"]),
]


def first_difference(wanted, have):
    wanted, have = wanted.split(b"\n"), have.split(b"\n")
    for number, (one, two) in enumerate(zip(wanted, have), 1):
        if one != two:
            return "line %d\n  wanted %s\n  have   %s" % (number, one.decode(), two.decode())
    return "%d lines wanted, %d printed" % (len(wanted), len(have))


def check(ferry, name, spec, options):
    command = [ferry, "plan", str(spec), *options]
    done = subprocess.run(command, capture_output=True, check=False)
    expected = HERE / name
    if done.returncode != 0:
        print("FAILED %s: %s" % (name, done.stderr.decode().strip()))
        return False
    if not expected.exists() or done.stdout != expected.read_bytes():
        print("FAILED %s: %s" % (name, first_difference(
            expected.read_bytes() if expected.exists() else b"", done.stdout)))
        print("If that is meant: %s > %s" % (" ".join(command), expected))
        return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True)
    arguments = parser.parse_args()
    good = [check(arguments.ferry, *case) for case in CASES]
    print("%d of %d as recorded" % (sum(good), len(good)))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
