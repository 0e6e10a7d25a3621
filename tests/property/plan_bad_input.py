#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Bad input for `ferry plan`: one sentence, the right status, little memory, soon.

    plan_bad_input.py --ferry PATH [--only TEXT] [--no-limits]
    plan_bad_input.py --check-table

A bad spec ends with status 1, nothing on stdout and exactly one line on stderr that names what is
wrong; wrong usage ends with status 2. Prints the name of every failing row and exits 1.
`--check-table` needs no command: it asks the reference reading in tests/oracle whether the specs of
the table are as good and as bad as it says.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from pathlib import Path

import bad_boxes
import bad_models
import bad_specs
from bad_specs import small

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from ferry_boxes import model_of  # noqa: E402
from ferry_layout import SpecError  # noqa: E402

LIMIT_S = 5
ADDRESS_SPACE = 2 << 30
PEAK_KBYTES = 300 * 1000

Result = namedtuple("Result", "status stdout stderr peak_kbytes in_time")


def run(command, limited):
    """Runs the command to its end, or for LIMIT_S at most, and measures its memory."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                 preexec_fn=limit if limited else None)
        late = threading.Event()

        def end():
            late.set()
            os.kill(child.pid, 9)

        timer = threading.Timer(LIMIT_S if limited else 20 * LIMIT_S, end)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Result(child.returncode, out.read(), err.read().decode("utf-8", "replace"),
                      usage.ru_maxrss, not late.is_set())


def found(needle, text):
    choices = (needle,) if isinstance(needle, str) else needle
    return not choices or any(choice in text for choice in choices)


def complaints(result, limited, status, needles=()):
    """What is wrong with a refusal."""
    if not result.in_time:
        yield "not done within %d s" % LIMIT_S
    elif result.status not in status:
        yield "exit status %d, not %s" % (result.status, " or ".join(map(str, status)))
    if limited and result.peak_kbytes > PEAK_KBYTES:
        yield "peak memory %d kB" % result.peak_kbytes
    if result.status == 0:
        return
    if result.stdout:
        yield "%d bytes on stdout" % len(result.stdout)
    lines = result.stderr.split("\n")
    if status == (2,):
        if not result.stderr.strip():
            yield "nothing on stderr"
    elif len(lines) != 2 or lines[1] or not lines[0].strip():
        yield "stderr has %d lines, not one" % (len(lines) - 1)
    for needle in needles:
        if not found(needle, result.stderr):
            yield "stderr lacks %s" % " or ".join((needle,) if isinstance(needle, str) else needle)


def place(content, folder):
    """Writes the content of a row and returns the path to give to the command."""
    if callable(content):
        return content(folder)
    path = folder / "spec.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


# ---- rows that are no spec file ------------------------------------------------------------------


def path_rows():
    yield bad_specs.row("missing file", lambda folder: folder / "none.json", "none.json")
    yield bad_specs.row("a directory", lambda folder: folder, ())
    yield bad_specs.row("a file as a folder", file_as_folder, "inside.json")


def file_as_folder(folder):
    (folder / "plain").write_bytes(b"")
    return folder / "plain" / "inside.json"


USAGE = [
    ("no spec", ["plan"]),
    ("two specs", ["plan", "SPEC", "SPEC"]),
    ("unknown option", ["plan", "SPEC", "--colour"]),
    ("unknown short option", ["plan", "SPEC", "-Z"]),
    ("unknown replica policy", ["plan", "SPEC", "--replica", "fate"]),
    ("--replica without a value", ["plan", "SPEC", "--replica"]),
    ("--rank without a value", ["plan", "SPEC", "--rank"]),
    ("--rank that is not a number", ["plan", "SPEC", "--rank", "x"]),
    ("--rank with a tail", ["plan", "SPEC", "--rank", "1x"]),
    ("--rank below 0", ["plan", "SPEC", "--rank", "-1"]),
    ("--subset without a value", ["plan", "SPEC", "--subset"]),
    ("--save without a value", ["plan", "SPEC", "--save"]),
    ("--save to no name", ["plan", "SPEC", "--save", ""]),
    ("two values of an option that takes one", ["plan", "SPEC", "--rank", "0", "--rank", "1"]),
    ("unknown scheduling rule", ["plan", "SPEC", "--schedule=fate"]),
    ("a rule that is taken for a spec", ["plan", "SPEC", "--schedule", "first-fit"]),
    ("--duplex without a schedule", ["plan", "SPEC", "--duplex", "half"]),
    ("--duplex without a value", ["plan", "SPEC", "--schedule", "--duplex"]),
    ("unknown duplex", ["plan", "SPEC", "--schedule", "--duplex", "quarter"]),
    ("half duplex at full duplex",
     ["plan", "SPEC", "--schedule=first-fit-half", "--duplex", "full"]),
    ("--slot-bytes without a schedule", ["plan", "SPEC", "--slot-bytes", "4096"]),
    ("--slot-bytes without a value", ["plan", "SPEC", "--schedule", "--slot-bytes"]),
    ("--slot-bytes 0", ["plan", "SPEC", "--schedule", "--slot-bytes", "0"]),
    ("--slot-bytes 0K", ["plan", "SPEC", "--schedule", "--slot-bytes", "0K"]),
    ("--slot-bytes below 0", ["plan", "SPEC", "--schedule", "--slot-bytes", "-1"]),
    ("--slot-bytes that is not a number", ["plan", "SPEC", "--schedule", "--slot-bytes", "M"]),
    ("--slot-bytes in an unknown unit", ["plan", "SPEC", "--schedule", "--slot-bytes", "16MB"]),
    ("--slot-bytes of 2^64", ["plan", "SPEC", "--schedule", "--slot-bytes", str(2**64)]),
    ("--slot-bytes of 2^64 by its unit",
     ["plan", "SPEC", "--schedule", "--slot-bytes", "%dG" % 2**34]),
    ("--max-tasks without a schedule", ["plan", "SPEC", "--max-tasks", "5"]),
    ("--max-tasks 0", ["plan", "SPEC", "--schedule", "--max-tasks", "0"]),
    ("--max-tasks of 2^32", ["plan", "SPEC", "--schedule", "--max-tasks", str(2**32)]),
    ("--max-tasks with a unit", ["plan", "SPEC", "--schedule", "--max-tasks", "1K"]),
    ("--no-relays without a schedule", ["plan", "SPEC", "--no-relays"]),
    ("--trace without a value", ["plan", "SPEC", "--trace"]),
    ("--trace to no name", ["plan", "SPEC", "--trace", ""]),
    ("unknown command", ["plane", "SPEC"]),
]

# Right usage that must fail: (name, arguments, what the one line on stderr must contain).
FAILING = [
    ("a slot smaller than an element", ["--schedule", "--slot-bytes", "3"],
     [bad_specs.NAME, "4 bytes", "slot of 3"]),
    ("the same for a trace", ["--trace", "FOLDER/trace", "--slot-bytes", "3"],
     [bad_specs.NAME, "4 bytes", "slot of 3"]),
    ("a rank outside the world", ["--schedule", "--rank", "12"], ["12 ranks"]),
    ("a lost rank outside the world", ["--without", "0,12"], ["rank 12", "12 ranks"]),
]

# Legal or not, these may not cost much: (name, spec).
COSTLY = [
    ("stride 10^18 on 12 elements", small(bad_specs.cut(stride=10**18))),
    ("cycle 10^18", small(bad_specs.cut(cycle=10**18))),
    ("10^15 elements, cut evenly", small(bad_specs.cut(), bad_specs.cut(), shape=[10**15])),
    ("100,000 blocks", small(bad_specs.cut(blocks=[1] * 100_000), shape=[100_000])),
    ("a pattern that backtracks", bad_specs.changed(
        bad_specs.changed(small(), "tensors", 0, "name", "a" * 5000),
        "source", "rules", [{"match": "*a" * 500 + "b"}, {"match": "*"}])),
    ("a stage that backtracks", bad_specs.changed(
        bad_specs.changed(small(), "tensors", 0, "name", "1" * 400),
        "source", "stages", [{"match": "*{}*1*1*1*x", "count": 4, "axis": "pp"}])),
    ("a name of 1 MB", bad_specs.changed(small(), "tensors", 0, "name", "n" * 10**6)),
]


class Table:
    """Runs rows and remembers which of them failed."""

    def __init__(self, ferry, only, limited):
        self.ferry = ferry
        self.only = only
        self.limited = limited
        self.done = 0
        self.failed = 0

    def check(self, name, arguments, judge):
        """`judge` yields what is wrong with the Result of the command."""
        if self.only not in name:
            return
        self.done += 1
        with tempfile.TemporaryDirectory() as folder:
            result = run([self.ferry] + [str(a) for a in arguments(Path(folder))], self.limited)
        problems = list(judge(result))
        if problems:
            self.failed += 1
            print("FAILED %s: %s\n    stderr: %s" % (name, "; ".join(problems),
                                                    result.stderr[:300].strip()), flush=True)

    def refuse(self, row):
        self.check(row.name, lambda folder: ["plan", place(row.content, folder), "--json"],
                   lambda result: complaints(result, self.limited, (1,), row.needles))

    def accept(self, name, content):
        self.check("good: " + name, lambda folder: ["plan", place(content, folder), "--json"],
                   lambda result: () if result.status == 0 else ["exit status %d" % result.status])

    def misuse(self, name, arguments):
        def written(folder):
            spec = place(small(), folder)
            return [spec if argument == "SPEC" else argument for argument in arguments]
        self.check("usage: " + name, written, lambda result: complaints(result, self.limited, (2,)))

    def fail(self, name, arguments, needles):
        def written(folder):
            spec = place(small(), folder)
            return ["plan", spec, *[a.replace("FOLDER", str(folder)) for a in arguments]]

        def judge(result):
            return complaints(result, self.limited, (1,), needles)
        self.check("failing: " + name, written, judge)

    def endure(self, name, content):
        self.check("costly: " + name,
                   lambda folder: ["plan", place(content, folder), "--summary", "--json"],
                   lambda result: complaints(result, self.limited, (0, 1)))


def run_table(table):
    for name, content in [*bad_specs.good_specs(), *bad_models.good_models(),
                          *bad_boxes.good_specs()]:
        table.accept(name, content)
    for row in [*path_rows(), *bad_specs.all_rows(), *bad_models.all_rows(),
                *bad_boxes.all_rows()]:
        table.refuse(row)
    for name, arguments in USAGE:
        table.misuse(name, arguments)
    for name, arguments, needles in FAILING:
        table.fail(name, arguments, needles)
    for name, content in COSTLY:
        table.endure(name, content)
    print("%d of %d rows failed" % (table.failed, table.done))
    return 1 if table.failed else 0


def refused_by_oracle(spec):
    try:
        model_of(spec).validate()
    except SpecError:
        return True
    return False


def check_table():
    """Names rows that the reference reading takes the other way, and names used twice."""
    rows = [*bad_specs.all_rows(), *bad_boxes.all_rows()]
    wrong = [row.name for row in rows if row.oracle and not refused_by_oracle(row.content)]
    wrong += ["good: " + name for name, spec in [*bad_specs.good_specs(), *bad_boxes.good_specs()]
              if refused_by_oracle(spec)]
    names = [row.name for row in [*rows, *bad_models.all_rows(), *path_rows()]]
    wrong += sorted({name for name in names if names.count(name) > 1})
    for name in wrong:
        print("FAILED " + name)
    print("%d of %d rows failed" % (len(wrong), len(names)))
    return 1 if wrong else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", help="the command")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--no-limits", action="store_true",
                        help="no address space limit and more time, for builds with sanitizers")
    parser.add_argument(
        "--check-table", action="store_true", help="check the table, run no command"
    )
    arguments = parser.parse_args()
    if arguments.check_table:
        return check_table()
    if not arguments.ferry:
        parser.error("--ferry is required")
    return run_table(Table(arguments.ferry, arguments.only, not arguments.no_limits))


if __name__ == "__main__":
    sys.exit(main())
