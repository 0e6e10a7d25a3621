#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Skips are seen: each runner of tests says them, ends with 77 if there is one, and fails where they
are forbidden; and the list that is made of logs has them.

    check_skips.py --ferry PATH [--program SUITE]...
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent

UNITTEST = """
import unittest
class Some(unittest.TestCase):
    @unittest.skip("alpha is not installed")
    def test_skip(self): pass
    %s
@unittest.skipIf(True, "alpha is not installed")
class All(unittest.TestCase):
    def test_all(self): pass
"""
LAUNCH = """
import sys
sys.path.insert(0, %r)
import cases
def case_one(): raise cases.Skip("alpha is missing")
def case_two(): %%s
sys.exit(cases.run(cases.chosen(globals())))
""" % str(TESTS / "launch")
CHECKPOINT = """
import sys
sys.path.insert(0, %r)
import runner
def one(folder, rng): raise runner.Skip("alpha is missing")
def two(folder, rng): %%s
arguments = runner.parser_of("x", 1).parse_args(["--ferry", "x"])
sys.exit(runner.run_cases(arguments, [("one", one, 1), ("two", two, 1)]))
""" % str(TESTS / "checkpoint")
RANKS = """
import sys
sys.path.insert(0, %r)
import ranks
ranks.options.jobs = 1
def case_one(): raise ranks.Skip("alpha is missing")
def case_two(): %%s
sys.exit(ranks.run_cases([("one", case_one, ()), ("two", case_two, ())], 1))
""" % str(TESTS / "multirank")


def run(command, require, **more):
    environment = {**os.environ, "MUST_NOT_SKIP": require, **more}
    done = subprocess.run([str(word) for word in command], env=environment, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
    return done.returncode, done.stdout.decode()


def must(condition, *about):
    if not condition:
        print("FAILED:", *about)
        sys.exit(1)


def check(name, command, n_skips, status, **more):
    for require, expected in (("", status), ("beta,gamma", status), ("beta,alpha", 1)):
        found, out = run(command, require, **more)
        must(found == expected, name, "with", repr(require), "gives", found, out)
        n_lines = sum(text.startswith("SKIPPED") for text in out.splitlines())
        must(expected == 1 or n_lines == n_skips, name, "says", n_lines, "skips", out)
    return out


def check_scripts(folder):
    works = "pass"
    skips = {UNITTEST: "", LAUNCH: 'raise cases.Skip("alpha too")',
             CHECKPOINT: 'raise runner.Skip("alpha too")', RANKS: 'raise ranks.Skip("alpha too")'}
    for number, (text, skip) in enumerate(skips.items()):
        path = folder / ("some_%d.py" % number)
        command = [sys.executable, path]
        if text is UNITTEST:
            command = [sys.executable, HERE / "run_unittest.py", path.stem]
            works = "def test_good(self): pass"
        for body, n_skips, status in ((works, 2 if text is UNITTEST else 1, 77), (skip, 2, 77)):
            path.write_text(text % body)
            os.chdir(folder)
            check(text.split("(")[0], command, n_skips, status, PYTHONDONTWRITEBYTECODE="1")
        works = "pass"


def check_engines(programs):
    """A plugin that cannot be loaded is a skip, or a failure where it is required."""
    for program in programs:
        for require, expected in (("", 77), ("pmix", 77), ("pmix,ucx", 1)):
            found, out = run([program, "ucx"], require, FERRY_PLUGINS="/nonexistent")
            must(found == expected, program, "with", repr(require), "gives", found, out)


def check_command(ferry):
    """The variable is the tests' own: no command of ferry takes it for one of its settings."""
    found, out = run([ferry, "inspect", "/nonexistent"], "ucx")
    must(found == 1 and "/nonexistent" in out, ferry, "gives", found, out)


def check_list(folder):
    log = folder / "log"
    log.write_text("1/2 Testing: a/b\n1/2 Test: a/b\nSKIPPED one: no alpha\n[  SKIPPED ] two\nfine\n"
                   "2/2 Test: c/d\nSKIPPED: the engine ucx cannot run here\nnot SKIPPED\n")
    found, out = run([sys.executable, TESTS.parent / "scripts" / "list_skips.py", log, log], "")
    must(found == 0 and out.splitlines()[:3] == [
        "skipped in a/b: one: no alpha", "skipped in a/b: two",
        "skipped in c/d: the engine ucx cannot run here"], out)
    must(out.splitlines()[-1] == "6 skipped in 2 tests", out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", action="append", default=[])
    parser.add_argument("--ferry", required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        check_scripts(Path(folder))
        check_list(Path(folder))
        os.chdir("/")
    check_engines(arguments.program)
    check_command(arguments.ferry)


if __name__ == "__main__":
    main()
