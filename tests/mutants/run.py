#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Plants each fault of the tables in a copy of the sources, and sees whether its test fails.

A test that passes on broken code tells nothing about whole code. The tables, tests/mutants/*.mutants,
name faults and for each the test that must fail; tree.py says how they are written.

    run.py                      all of them
    run.py --sample 30          so many, drawn by the day or by --seed
    run.py --only src/plan/     those whose file or test has this text

Status 1 if a mutant survives, if one does not compile or does not fit the sources, or if fewer than
95 of 100 are caught.
"""

import argparse
import collections
import datetime
import os
import random
import sys
import time
from pathlib import Path

from tree import EQUIVALENT, ROOT, Stale, Tree, read_table

LIMIT_S = 600  # of a test of whole sources
LEAST_CAUGHT = 0.95


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sample", type=int, metavar="N", help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, help="draws the sample (default: the day)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those that have this text")
    parser.add_argument("--folder", default=ROOT / "build/mutants", help="for the copy and its build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the compiler")
    return parser.parse_args()


def choose(options):
    """The mutants to run."""
    mutants = [mutant for table in sorted(Path(__file__).parent.glob("*.mutants"))
               for mutant in read_table(table)]
    chosen = [m for m in mutants if options.only in m.path or options.only in m.test]
    able = [m for m in chosen if m.test != EQUIVALENT]
    if options.sample is not None and options.sample < len(able):
        seed = options.seed
        if seed is None:
            seed = datetime.date.today().toordinal()
        print("%d of %d mutants, drawn with --seed %d" % (options.sample, len(able), seed))
        able = random.Random(seed).sample(able, options.sample)
    return sorted(able, key=lambda m: (m.path, m.place)), len(chosen) - len(
        [m for m in chosen if m.test != EQUIVALENT])


def judge(tree, mutant, seconds):
    """caught, survived, or a sentence that says what is wrong with the mutant. A test that takes many
    times what it takes on whole sources will not end."""
    targets = tree.needs(mutant.test)
    tree.plant(mutant)
    try:
        if not tree.make(targets):
            return "does not compile"
        return "survived" if tree.passes(mutant.test, 30 + 10 * seconds[mutant.test]) else "caught"
    finally:
        tree.mend(mutant)


def check_whole(tree, mutants):
    """A test that fails on the whole sources catches nothing; how long each takes there."""
    tests = sorted({mutant.test for mutant in mutants})
    if not tree.make(sorted({target for test in tests for target in tree.needs(test)})):
        sys.exit("the sources do not build:\n%s" % tree.said)
    seconds = {}
    for test in tests:
        began = time.monotonic()
        if not tree.passes(test, LIMIT_S):
            sys.exit("%s fails without a mutant:\n%s" % (test, tree.said))
        seconds[test] = time.monotonic() - began
    return seconds


def main():
    options = parse()
    mutants, n_equivalent = choose(options)
    for mutant in mutants:  # before minutes are spent
        mutant.planted_in((ROOT / mutant.path).read_text(encoding="utf-8"))
    if not mutants:
        sys.exit("no mutant has %r" % options.only)
    tree = Tree(options.folder, options.jobs)
    seconds = check_whole(tree, mutants)
    counts = collections.Counter()
    for number, mutant in enumerate(mutants, 1):
        began = time.monotonic()
        said = judge(tree, mutant, seconds)
        counts[said] += 1
        print("%3d/%d %-9s %6.1f s  %s  %s  %s" % (
            number, len(mutants), said, time.monotonic() - began, mutant.path, mutant.test,
            mutant.place), flush=True)
        if said != "caught":
            print(mutant, flush=True)
    caught = counts["caught"]
    print("\n%d of %d mutants caught, %.1f %%; %d more change nothing that a test can see" % (
        caught, len(mutants), 100.0 * caught / len(mutants), n_equivalent))
    print("%d passed, %d failed" % (caught, len(mutants) - caught))
    return 0 if caught >= LEAST_CAUGHT * len(mutants) and not counts["does not compile"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stale as error:
        sys.exit(str(error))
