#!/usr/bin/env python3
"""Tests of what all commands have in common: output that is lost, and files that they replace.

    check_all_commands.py --ferry PATH

Prints the name of every failing case with its reason and exits 1.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import cases

LIMIT_S = 600
FERRY = ""

WHOLE = {"mesh": [["tp", 2]], "rules": [{"match": "*"}]}
SPEC = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8], "dtype": "f32"}],
        "source": WHOLE, "destination": WHOLE}


def ask(*words, stdout=subprocess.PIPE, program=None):
    done = subprocess.run([*(program or [FERRY]), *map(str, words)], stdout=stdout,
                          stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                          timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def spec_in(folder):
    path = Path(folder) / "spec.json"
    path.write_text(json.dumps(SPEC))
    return path


def case_output_that_is_lost():
    """Also where the end of a long text finds room again, or where there is nothing but help."""
    with tempfile.TemporaryDirectory() as folder, open("/dev/full", "w") as full:
        spec = spec_in(folder)
        for words in [["--help"], ["--version"], ["--man"], ["help"], ["help", "plan"],
                      ["bench", "--help"], ["reshard", "--help"], ["launch", "--man"],
                      ["bench"], ["plan", spec], ["plan", spec, "--json"], ["inspect", spec]]:
            status, _, error = ask(*words, stdout=full)
            assert status == 1, (words, status)
            assert error.count("\n") == 1 and "could not be written" in error, (words, error)


def case_trace_beside_a_link():
    """The name that a trace has while it is written is not one that another could have guessed."""
    with tempfile.TemporaryDirectory() as folder:
        spec, victim = spec_in(folder), Path(folder) / "victim"
        victim.write_text("untouched")
        script = 'cd "$1" && ln -s victim trace.$$.tmp && exec "$2" plan spec.json --trace trace'
        status, _, error = ask(folder, FERRY, program=["sh", "-c", script, "sh"])
        assert (status, error) == (0, ""), (status, error)
        assert victim.read_text() == "untouched", spec
        trace = Path(folder) / "trace"
        assert not trace.is_symlink() and json.loads(trace.read_text()), trace


def main():
    global FERRY
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    FERRY = os.path.realpath(arguments.ferry)
    return cases.run(cases.chosen(globals(), arguments.only))


if __name__ == "__main__":
    sys.exit(main())
