#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Plants each fault of the tables, and sees whether its test fails.

A test that passes on broken code tells nothing about whole code. The tables, tests/mutants/*.mutants,
name faults and for each the test that must fail; table.py says how they are written. Needs a build of
the presets, of whole sources: a mutant is one file compiled anew and one program linked beside it.

    run.py                      all of them
    run.py --sample 30          so many, drawn by the day or by --seed
    run.py --only src/plan/     those whose file or test has this text
    run.py --check              only whether each still has its place in the sources

Status 1 if fewer than 95 of 100 are caught (90 of a sample), those counted that no test sees yet, or if
a mutant does not compile, or has lost its place: then write it anew beside the change that moved it.
"""

import argparse
import collections
import datetime
import os
import random
import sys
import time

from build import FAILED, HANGS, PASSED, Build
from table import EQUIVALENT, OPEN, ROOT, Stale, read_tables

LIMIT_S = 600  # of a test of whole sources
LEAST_CAUGHT = 0.95
LEAST_OF_SAMPLE = 0.9  # of thirty, by chance, two or three may be among the few that survive


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sample", type=int, metavar="N", help="only so many, drawn at random")
    parser.add_argument("--seed", type=int, help="draws the sample (default: the day)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those that have this text")
    parser.add_argument("--check", action="store_true", help="only look for their places")
    parser.add_argument("--build", default=ROOT / "build/release", help="of whole sources")
    parser.add_argument("--folder", default=ROOT / "build/mutants", help="for what is built of mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the whole build")
    return parser.parse_args()


def check_places(mutants):
    """All of them, so that a change of the sources sees at once which it moved."""
    lost = []
    for mutant in mutants:
        try:
            mutant.planted()
        except Stale as error:
            lost.append(str(error))
    if lost:
        raise Stale("\n".join(lost + ["%d mutants have lost their place" % len(lost)]))


def choose(options, mutants):
    """The mutants to run, and those of which a comment says why no test sees them."""
    chosen = [m for m in mutants if options.only in m.path or options.only in m.asked]
    able = [m for m in chosen if m.test not in (EQUIVALENT, OPEN)]
    told = [m for m in chosen if m.test in (EQUIVALENT, OPEN)]
    if options.sample is not None and options.sample < len(able):
        seed = datetime.date.today().toordinal() if options.seed is None else options.seed
        print("%d of %d mutants, drawn with --seed %d" % (options.sample, len(able), seed))
        able, told = random.Random(seed).sample(able, options.sample), []
    return sorted(able, key=lambda m: (m.path, m.place)), told


def needs_nvcc(mutant, tests):
    """Whether a build without nvcc lacks what it changes, or its test. Tests with other names are
    everywhere: one that is missing is a mistake."""
    is_of_devices = any(word in mutant.test for word in ("device/", "cuda", "nvshmem"))
    return "/cuda/" in mutant.path or (is_of_devices and mutant.test not in tests)


def leave_out_ucx(build, every):
    """Those that want a UCX with memory of CUDA devices, where the build has found none."""
    able = [m for m in every if m.test in build.tests or "/ucx_cuda" not in m.test]
    if len(able) < len(every):
        print("%d mutants are left out: this build has found no UCX that has memory of CUDA devices "
              "(FERRY_UCX_CUDA)" % (len(every) - len(able)))
    return able


def leave_out_plugins(build, every):
    """Those of the plugins for CUDA and NVSHMEM, where the build has no compiler for the first, and so
    no stand-ins, on which both are tried."""
    if "libferry_cuda.so" in build.inputs:
        return leave_out_ucx(build, every)
    able = [m for m in every if not needs_nvcc(m, build.tests)]
    if len(able) < len(every):
        print("%d mutants of the plugins for CUDA and NVSHMEM are left out: this build was made without "
              "nvcc, and has no tests of them" % (len(every) - len(able)))
    return able


def check_whole(build, mutants, jobs):
    """A test that fails on whole sources catches nothing; how long each takes there."""
    tests = sorted({(m.test, tuple(m.arguments)) for m in mutants})
    if not build.make_whole({test for test, _ in tests}, jobs):
        sys.exit("the sources do not build:\n%s" % build.said)
    seconds = {}
    for test, arguments in tests:
        state, seconds[test, arguments] = build.timed(test, arguments, LIMIT_S)
        if state != PASSED:
            sys.exit("%s %s without a mutant:\n%s" % (test, state, build.said))
    return seconds


def judge(build, mutant, seconds):
    """caught, or what is wrong with the mutant. A test that takes many times what it takes on whole
    sources will not end, which counts if it does so twice."""
    build.plant(mutant.path, mutant.planted())
    if not build.make_for(mutant.test):
        return "does not compile"
    if not build.changed.keys() & build.made.keys():
        return "is no part of the test"
    limit_s = 8 + 5 * seconds[mutant.test, tuple(mutant.arguments)]
    for _ in range(2):
        state = build.run(mutant.test, mutant.arguments, limit_s)
        if state != HANGS:
            break
    return {FAILED: "caught", HANGS: "caught", PASSED: "survived"}[state]


def layer_of(path):
    """src/LAYER/..., or what comes first."""
    words = path.split("/")
    return words[1] if words[0] == "src" else words[0]


def say_counts(mutants, said, told, least):
    """A line for each layer, then all."""
    layers = collections.defaultdict(collections.Counter)
    for mutant in mutants:
        layers[layer_of(mutant.path)]["caught" if said[mutant] == "caught" else "missed"] += 1
    for mutant in told:
        layers[layer_of(mutant.path)][mutant.test] += 1
    for layer, counts in sorted(layers.items()):
        print("%-12s %3d caught, %d not, %d open, %d equivalent" % (
            layer, counts["caught"], counts["missed"], counts[OPEN], counts[EQUIVALENT]))
    caught = sum(counts["caught"] for counts in layers.values())
    most = sum(sum(counts.values()) - counts[EQUIVALENT] for counts in layers.values())
    print("%d of %d mutants caught, %.1f %%" % (caught, most, 100.0 * caught / most))
    return caught >= least * most


def main():
    options = parse()
    every = read_tables()
    check_places(every)
    if options.check:
        print("%d mutants have their places" % len(every))
        return 0
    build = Build(options.build, options.folder)
    every = leave_out_plugins(build, every)
    mutants, told = choose(options, every)
    if not mutants:
        sys.exit("no mutant has %r" % options.only)
    for mutant in every:
        if mutant.test not in (EQUIVALENT, OPEN):
            build.test(mutant.test)
    seconds, said = check_whole(build, mutants, options.jobs), {}
    for number, mutant in enumerate(mutants, 1):
        began = time.monotonic()
        said[mutant] = judge(build, mutant, seconds)
        print("%3d/%d %-9s %6.1f s  %s  %s  %s" % (
            number, len(mutants), said[mutant], time.monotonic() - began, mutant.path, mutant.asked,
            mutant.place), flush=True)
        if said[mutant] != "caught":
            print(mutant, flush=True)
    build.clear()
    least = LEAST_OF_SAMPLE if options.sample else LEAST_CAUGHT
    enough = say_counts(mutants, said, told, least)
    return 0 if enough and not set(said.values()) - {"caught", "survived"} else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stale as error:
        sys.exit(str(error))
