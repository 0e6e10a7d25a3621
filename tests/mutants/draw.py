#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Draws mutants at random from the sources, finds a test that catches each, and writes a table.

It takes the package universalmutator, which knows how lines of C are broken, and runs with the Python
that has it. A mutant that draws a warning, which no build lets pass, or that compiles to the same code,
or with which a test hangs or fails only once, is drawn again. A mutant is shown to the tests that call its file, by the
symbols of their objects, then to those of its folder.
What none of them catches goes to a second file, OUT.alive, for a person to look at: it needs a test, or
a line that says why no test can see it. A busy machine can make a test fail without a reason: run.py,
which plants all of them once more, has the last word.

    python3 -m venv build/mutation && build/mutation/bin/pip install universalmutator
    build/mutation/bin/python tests/mutants/draw.py --count 200 --seed 7 --out drawn.mutants
"""

import argparse
import contextlib
import io
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from build import FAILED, HANGS, PASSED, Build
from table import ROOT, Mutant, Stale, read_tables

# For each folder the tests of whole programs that come by it, after those that call it by name. None
# waits for limits to pass, or counts on being alone.
SUITES = {
    "src/base": ["property/bad_input", "launch/command"],
    "src/layout": ["exhaustive/splits", "exhaustive/overlaps", "property/plans_1 --count 10", "property/plan_order --count 8"],
    "src/model": ["property/roster_random", "property/plans_1 --count 10", "property/bad_input", "golden/plans"],
    "src/plan": ["property/plans_1 --count 10", "property/balance --count 8", "property/reshard_param_random",
                 "property/plan_order --count 8", "golden/plans"],
    "src/schedule": ["property/schedules_small --count 150", "property/schedules_traffic --count 15",
                     "property/schedules_relays --count 15", "property/schedules_fan-out --count 3"],
    "src/prove": ["unit/prove", "unit/prove_layouts", "property/plans_1 --count 10"],
    "src/host": ["checkpoint/bad_input --count 4", "launch/command"],
    "src/exec": ["service/inproc"],
    "src/service": ["service/inproc", "fault/hostile_service", "service/plans_inproc --count 5", "service/memory",
                    "service/shm"],
    "src/collective": ["collective/inproc", "fault/mixed_controls", "fault/memory_mixed",
                       "collective/shm"],
    "src/world": ["conformance/inproc", "conformance/shm", "launch/command"],
    "src/transport": ["conformance/inproc", "conformance/shm", "conformance/inproc_reorder"],
    "src/transport/ucx": ["conformance/ucx_late", "fuzz/ucx"],
    "src/checkpoint": ["checkpoint/random --count 6", "checkpoint/bad_input --count 4", "checkpoint/short_forms --count 4",
                       "checkpoint/other_files", "checkpoint/faults", "launch/reshard"],
    "tools/ferry": ["launch/command", "golden/plans", "launch/reshard", "launch/run"],
    "bindings/python/src": ["python/arguments", "python/service", "python/plan", "python/refit",
                            "python/checkpoint", "python/mixed"],
}
MOST_NEAR = 3
IN_A_ROW = 4  # of one file: what is whole is compiled once for all of them
CONTEXT = 2  # lines before a mutated one, to make it the only one: rows are to outlive their neighbours


def is_code(line):
    """Declarations, comments and texts are not worth a mutant."""
    plain = line.strip()
    return bool(plain) and not plain.startswith(("/*", "*", "#", "static", "typedef", "}")) and (
        "(" in plain or "=" in plain or "return" in plain)


def ways_to_break(line):
    """What universalmutator makes of a line."""
    from universalmutator import mutator
    with contextlib.redirect_stdout(io.StringIO()):
        found = mutator.mutants_regexp([line + "\n"], ["universal.rules", "c_like.rules", "c.rules"],
                                       ignorePatterns=[], ignoreStringOnly=True)
    return [text.rstrip("\n").split("\n") for _, text, *_ in found]


def as_hunk(path, old, number, new):
    """With as many lines before it as make it the only one."""
    for context in range(0, CONTEXT + 1):
        begin = max(0, number - 1 - context)
        lines = [" " + line for line in old[begin:number - 1]]
        mutant = Mutant(path, "?", (), lines + ["-" + old[number - 1]] + ["+" + n for n in new], (), path)
        with contextlib.suppress(Stale):
            mutant.planted_in("\n".join(old))
            return mutant
    return None


class Callers:
    """Which test programs call what a source defines, by the symbols of their objects."""

    def __init__(self, build):
        self.build = build
        objects = [o for o in build.inputs if o.endswith(".o") and "fuzz_" not in o and (
            "ferry_objects.dir" in o or o.startswith("tests/CMakeFiles"))]
        defined, self.used = {}, {}
        for line in build.output_of("nm", "-A", *(o for o in objects if (build.folder / o).exists())
                                    ).decode().split("\n"):
            place, _, symbol = line.rpartition(" ")
            name, _, rest = place.partition(":")
            if rest.endswith(" U"):
                self.used.setdefault(name, set()).add(symbol)
            elif rest[-1:] in ("T", "D", "R", "B"):
                if symbol not in defined or "ferry_objects.dir" in name:
                    defined[symbol] = name
        self.used = {name: {defined[s] for s in symbols if s in defined} - {name}
                     for name, symbols in self.used.items()}

    def distances(self, source):
        """For each test program's name how many calls lie between it and the source."""
        near = {"CMakeFiles/ferry_objects.dir/%s.o" % source}
        found = {}
        for distance in range(3):
            for name, used in self.used.items():
                if used & near and name.startswith("tests/"):
                    found.setdefault(name.split("/")[2][:-len(".dir")], distance)
            near |= {name for name, used in self.used.items() if used & near}
        return found

    def tests(self, source, seconds):
        """The tests to ask, in this order."""
        distances = self.distances(source)
        near = [word for word in re.split(r"[_/.]", source)[2:-1] if len(word) > 3]
        ranked = []
        for name, test in self.build.tests.items():
            program = os.path.basename(test["words"][0]) if test["words"] else ""
            if program in distances and "long" not in test["labels"] and name.split("/")[0] in (
                    "unit", "exhaustive", "fault"):
                ranked.append((distances[program] - 2 * any(w in name for w in near),
                               seconds.get(name, 0.3), name))
        names = [name for *_, name in sorted(ranked)][:int(os.environ.get("NEAR", MOST_NEAR))]
        folder = max((f for f in SUITES if source.startswith(f + "/")), key=len)
        return names + [n for n in SUITES[folder][:int(os.environ.get("SUITES", 9))] if n not in names and n.split()[0] in self.build.tests]


class Judge:
    """Builds mutants and asks tests about them."""

    def __init__(self, options):
        self.build = Build(options.build, options.folder, flags=["-g0", "-O1"])
        self.callers, self.patience, self.most_s = Callers(self.build), options.patience, options.most
        self.seconds, self.codes = {}, {}

    def code_of(self, path, text):
        """What the compiler makes of a text of a file, or None; the text stays planted."""
        self.build.plant(path, text)
        objects = self.build.objects()[:1]
        if not objects or not self.build.make(objects[0]):
            return None
        return self.build.changed[objects[0]].read_bytes()  # without what debuggers want

    def is_other_code(self, mutant):
        """Leaves the mutant planted."""
        if mutant.path not in self.codes:
            self.codes[mutant.path] = self.code_of(
                mutant.path, (ROOT / mutant.path).read_text(encoding="utf-8"))
        code = self.code_of(mutant.path, mutant.planted())
        return code is not None and code != self.codes[mutant.path]

    def whole_seconds(self, name):
        """How long a test takes on whole sources; for ever if it fails there, or takes too long."""
        if name not in self.seconds:
            whole = Build.__new__(Build)
            whole.__dict__.update(self.build.__dict__, changed={}, made={},
                                  over=self.build.over / "whole")
            state, seconds = whole.timed(name.split()[0], name.split()[1:], self.most_s)
            self.seconds[name] = seconds if state == PASSED else float("inf")
        return self.seconds[name]

    def catcher(self, names):
        """The first test that fails; None if none does, HANGS if one does not end."""
        began = time.monotonic()
        for name in names:
            if time.monotonic() - began > self.patience:
                break
            limit_s = 10 + 5 * self.whole_seconds(name)
            if limit_s == float("inf") or not self.build.make_for(name.split()[0]):
                continue
            states = {self.build.run(name.split()[0], name.split()[1:], limit_s)}
            if FAILED in states:  # and does so again
                states.add(self.build.run(name.split()[0], name.split()[1:], limit_s))
            if states != {PASSED}:
                return name if states == {FAILED} else HANGS
        return None


def draw_one(draw, judge, taken, path):
    """A mutant that is new, with its test or ?; None to draw again."""
    lines = (ROOT / path).read_text(encoding="utf-8").split("\n")
    number = draw.choice([i + 1 for i, line in enumerate(lines) if is_code(line)] or [1])
    ways = ways_to_break(lines[number - 1])
    mutant = as_hunk(path, lines, number, draw.choice(ways)) if ways else None
    if mutant is None or str(mutant.lines) in taken or not judge.is_other_code(mutant):
        return None
    taken.add(str(mutant.lines))
    names = judge.callers.tests(path, judge.seconds)
    mutant.test = judge.catcher(names) or "?"
    mutant.comment = [] if mutant.test != "?" else ["# line %d: %s" % (number, " ".join(names))]
    if mutant.test == HANGS:
        print("    hangs: %s" % path, flush=True)
    return None if mutant.test == HANGS else mutant


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="drawn.mutants", help="for the caught; OUT.alive for the rest")
    parser.add_argument("--only", default="", help="files that match this pattern")
    parser.add_argument("--patience", type=float, default=25, help="seconds of tests for each")
    parser.add_argument("--most", type=float, default=5, help="seconds of a test, on whole sources")
    parser.add_argument("--build", default=ROOT / "build/release", help="of whole sources")
    parser.add_argument("--folder", default=ROOT / "build/draw", type=Path)
    options = parser.parse_args()
    draw, judge = random.Random(options.seed), Judge(options)
    taken = {str(mutant.lines) for mutant in read_tables()}
    listed = subprocess.run(["git", "ls-files", "*.c"], cwd=ROOT, check=True, stdout=subprocess.PIPE,
                            text=True).stdout.split()
    files = {f: [p for p in listed if p.startswith(f + "/") and re.search(options.only, p)] for f in SUITES}
    files = {folder: paths for folder, paths in files.items() if paths}
    done, n_tries, n_files, mutant = 0, 0, 0, None
    while done < options.count:
        if n_tries % (2 * IN_A_ROW) == 0 or done % IN_A_ROW == 0 and mutant is not None:
            n_files += 1
            folder = sorted(files)[n_files % len(files)]
            path = draw.choices(files[folder], [os.path.getsize(ROOT / f) for f in files[folder]])[0]
        n_tries += 1
        mutant = draw_one(draw, judge, taken, path)
        if mutant is None:
            continue
        done += 1
        with open(options.out + (".alive" if mutant.test == "?" else ""), "a", encoding="utf-8") as out:
            out.write(str(mutant) + "\n")
        print("%3d %-30s %s" % (done, mutant.test, mutant.path), flush=True)
    judge.build.clear()
    return 0


if __name__ == "__main__":
    sys.exit(main())
