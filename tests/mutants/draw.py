#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Draws mutants at random from the sources, finds a test that catches each, and writes a table.

It takes `mutate` of the package universalmutator, which knows how lines of C are broken. A mutant
that does not compile, or that compiles to the same code, is drawn again. A busy machine can make a
test fail without a reason: run.py, which plants all of them once more, has the last word. The tests of the layer are
tried one after the other, the quickest first; a mutant that none of them catches goes to a second
file, for a person to look at: it needs a test, or a line that says why no test can see it.

    draw.py --mutate build/mutation/bin/mutate --count 200 --seed 7 --out drawn.mutants
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tree import ROOT, Mutant, Stale, Tree

# For each folder the tests to ask, in this order. A name may be the beginning of several.
ASKED = {
    "src/base": ["unit/", "fault/memory", "property/bad_input", "golden/", "launch/command"],
    "src/layout": ["exhaustive/splits", "exhaustive/overlaps", "exhaustive/boxes", "unit/geometry",
                   "unit/", "property/plans_", "property/roster"],
    "src/model": ["unit/", "golden/", "exhaustive/routes", "property/plans_", "property/roster",
                  "property/reshard_param_random", "property/bad_input", "fault/memory"],
    "src/plan": ["exhaustive/routes", "unit/", "golden/", "property/plans_", "property/roster",
                 "property/balance", "property/reshard_param_random", "fault/memory"],
    "src/schedule": ["exhaustive/colours", "unit/peel", "unit/schedule_timing", "unit/simulate",
                     "unit/", "property/schedules_", "property/scheduler_random",
                     "fault/memory_schedule", "fault/misuse_schedule"],
    "src/verify": ["unit/prove", "unit/", "property/plans_", "property/bad_input", "fault/memory"],
    "src/pack": ["unit/area", "unit/cast", "unit/copy_box", "unit/", "service/inproc",
                 "collective/inproc"],
    "src/service": ["unit/", "service/inproc", "service/plans_", "service/shm", "service/mixed",
                    "service/ucx", "service/", "fault/memory"],
    "src/collective": ["unit/mixed", "exhaustive/mixed", "unit/", "collective/inproc",
                       "collective/shm", "collective/mixed", "collective/", "fault/mixed",
                       "fault/memory_mixed"],
    "src/world": ["unit/", "fault/memory_world", "conformance/inproc", "conformance/shm",
                  "multirank/", "fault/shrink_deaths"],
    "src/transport": ["unit/", "conformance/inproc", "conformance/shm", "conformance/ucx",
                      "conformance/", "service/", "fault/memory_transport"],
    "src/checkpoint": ["unit/", "checkpoint/", "launch/reshard", "fault/memory_checkpoint"],
    "tools/ferry": ["launch/", "golden/", "docs/"],
}
LIMIT_S = 300


def sources():
    """The C files by folder of ASKED."""
    listed = subprocess.run(["git", "ls-files", "*.c"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split()
    return {folder: [path for path in listed if path.startswith(folder + "/")] for folder in ASKED}


def is_code(line):
    """Declarations, comments and texts are not worth a mutant."""
    plain = line.strip()
    return bool(plain) and not plain.startswith(("/*", "*", "#", "static", "typedef", "}")) and (
        "(" in plain or "=" in plain or "return" in plain)


def mutants_of(mutate, path):
    """Every mutant of a file that changes one line of code: (index, new lines)."""
    old = (ROOT / path).read_text(encoding="utf-8").split("\n")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([mutate, ROOT / path, "c", "--noCheck", "--mutantDir", folder], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        for file in sorted(Path(folder).glob("*.mutant.*")):
            new = file.read_text(encoding="utf-8").split("\n")
            first = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), None)
            if first is None or not is_code(old[first]):
                continue
            tail = len(old) - first - 1
            if old[first + 1:] == new[len(new) - tail:]:
                found.append((first, new[first:len(new) - tail]))
    return old, found


def as_hunk(path, old, first, new):
    """With as many lines before it as make it unique."""
    for context in range(0, 12):
        begin = max(0, first - context)
        lines = [" " + line for line in old[begin:first]] + ["-" + old[first]] + ["+" + n for n in new]
        mutant = Mutant(path, "?", lines, [], path)
        try:
            mutant.planted_in("\n".join(old))
            return mutant
        except Stale:
            continue
    return None


class Judge:
    """Builds mutants and asks tests about them."""

    def __init__(self, folder, jobs):
        self.tree = Tree(folder, jobs)
        self.seconds = {}
        self.names = [name for name, test in self.tree.tests.items() if "long" not in test["labels"]]

    def asked(self, path):
        folder = next(f for f in ASKED if path.startswith(f + "/"))
        order = []
        for start in ASKED[folder]:
            order += sorted((n for n in self.names if n.startswith(start) and n not in order),
                            key=lambda n: self.seconds.get(n, 1.0))
        words = re.split(r"[_/.]", path)
        near = [n for n in order if any(w in n for w in words[2:-1] if len(w) > 3)]
        return near + [n for n in order if n not in near]

    def code_of(self, path):
        """What the compiler made of a file, to see mutants that change nothing."""
        objects = [t for t in self.tree.targets if t.endswith(path[4:] + ".o") or t.endswith(path + ".o")]
        if not objects or not self.tree.make(objects):
            return None
        return b"".join(
            subprocess.run(["objdump", "-d", "-j", ".text", "--no-show-raw-insn",
                            self.tree.build / o], stdout=subprocess.PIPE, check=False).stdout
            for o in sorted(objects))

    def catches(self, mutant, least_s):
        """The first test that fails, or None."""
        began = time.monotonic()
        for name in self.asked(mutant.path):
            if time.monotonic() - began > least_s:
                return None
            try:
                if not self.tree.make(self.tree.needs(name)):
                    return None
                started = time.monotonic()
                passed = self.tree.passes(name, LIMIT_S)
                self.seconds[name] = time.monotonic() - started
            except Stale:
                continue
            if not passed:
                return name
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--mutate", required=True, help="the command of universalmutator")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True, help="for those that were caught; OUT.alive for the rest")
    parser.add_argument("--only", default="", help="folders that have this text")
    parser.add_argument("--patience", type=float, default=240, help="seconds of tests for each")
    parser.add_argument("--folder", default=ROOT / "build/mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    judge = Judge(options.folder, options.jobs)
    judge.tree.make(["all"])
    folders = {f: paths for f, paths in sources().items() if options.only in f and paths}
    done = 0
    while done < options.count:
        folder = sorted(folders)[done % len(folders)]
        path = draw.choice(folders[folder])
        old, found = mutants_of(options.mutate, path)
        if not found:
            continue
        mutant = as_hunk(path, old, *draw.choice(found))
        if mutant is None:
            continue
        whole = judge.code_of(path)
        judge.tree.plant(mutant)
        try:
            broken = judge.code_of(path)
            if whole is None or broken is None or broken == whole:
                continue
            done += 1
            mutant.test = judge.catches(mutant, options.patience) or "?"
        finally:
            judge.tree.mend(mutant)
        with open(options.out + (".alive" if mutant.test == "?" else ""), "a", encoding="utf-8") as out:
            out.write(str(mutant) + "\n")
        print("%3d %-30s %s" % (done, mutant.test, path), flush=True)


if __name__ == "__main__":
    sys.exit(main())
