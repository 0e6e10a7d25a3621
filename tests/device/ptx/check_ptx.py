#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs a test program with kernels that are executed from PTX, as the stand-in does with STANDIN_PTX.

    check_ptx.py --ptx FILE [--kernels PATTERN] PROGRAM ...     the program passes, and each kernel ran
    check_ptx.py --ptx FILE --faults TABLE --suite NAME PROGRAM ...
                                  it fails with each fault of the table's that is planted in the PTX

The program's status is passed on; 1 if a kernel never ran, or if a fault was not seen."""

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ENTRY = re.compile(r"^\.visible \.entry (\w+)\(", re.MULTILINE)
ORDERED = re.compile(r"^(?:@!?%\w+ )?((?:ld|st|atom|red)\.(?:relaxed|volatile|acquire|release|acq_rel)[\w.]*)", re.MULTILINE)
ORDERS = {"ld.acquire.sys.global.u64", "st.release.sys.global.u64"}
LIMIT_S = 120  # of a run with a fault; one that hangs is seen, too


@dataclasses.dataclass
class Fault:
    """A line of the PTX of a kernel, as an expression, and what stands there instead."""
    suite: str
    kernel: str
    why: str = ""
    architecture: str = ""
    found: str = ""
    put: str = ""
    everywhere: bool = False

    def planted(self, text):
        """The PTX with it in the first such line of the kernel, or in all; None: there is no such line."""
        begin, end = span_of(text, self.kernel)
        body, n = re.subn("^%s$" % self.found, self.put, text[begin:end], count=0 if self.everywhere else 1,
                          flags=re.MULTILINE)
        return text[:begin] + body + text[end:] if n else None


def read_faults(path):
    faults = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.startswith("@ "):
            suite, kernel, *rest = line[2:].split()
            faults.append(Fault(suite, kernel, architecture=" ".join(rest)))
        elif line.startswith("# ") and faults:
            faults[-1].why += line[1:]
        elif line.startswith(("- ", "* ")):
            faults[-1].found = line[2:]
            faults[-1].everywhere = line[0] == "*"
        elif line == "+" or line.startswith("+ "):
            faults[-1].put = line[2:]
        elif line and not line.startswith("#"):
            sys.exit("%s:%d: what is this?" % (path, number))
    return faults


def read_ptx(path):
    """Without blanks at the ends of lines, and with one between words."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return "\n".join(" ".join(line.split()) for line in lines)


def span_of(text, kernel):
    """Where its text begins and ends."""
    begin = text.index(".visible .entry %s(" % kernel)
    end = text.find(".visible .entry", begin + 1)
    return begin, len(text) if end < 0 else end


def check_orders(text):
    """The kernel that meets others reads words between ranks with acquire and writes them with release, for
    the whole system. Results do not show that: this machine orders more than a device. What is wrong, or
    nothing."""
    begin, end = span_of(text, "fy_cuda_lanes")
    found = set(ORDERED.findall(text[begin:end]))
    return "" if found == ORDERS else "WRONG: words are read and written by %s" % ", ".join(sorted(found))


def run(program, ptx, counts, limit_s=None):
    environment = dict(os.environ, STANDIN_PTX=str(ptx), STANDIN_PTX_COUNTS=str(counts),
                       CMOCKA_TEST_ABORT="1")  # the first failure is enough
    try:
        return subprocess.run(program, env=environment, check=False, timeout=limit_s, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(program, 1, stdout=late.stdout or b"")


def check_counts(ptx, counts, kernels):
    """Of all processes; each kernel whose name matches must have run."""
    performed, launches = collections.Counter(), collections.Counter()
    for line in counts.read_text(encoding="utf-8").split("\n") if counts.exists() else []:
        if line:
            name, n_launches, n_performed = line.split()
            launches[name] += int(n_launches)
            performed[name] += int(n_performed)
    missing = []
    for name in ENTRY.findall(read_ptx(ptx)):
        if re.fullmatch(kernels, name):
            print("%-20s %6d launches, %12d instructions" % (name, launches[name], performed[name]))
            missing += [name] if performed[name] == 0 else []
    for name in missing:
        print("WRONG: %s never ran" % name)
    wrong = check_orders(read_ptx(ptx))
    if wrong:
        print(wrong)
    return 1 if missing or wrong else 0


def see(planted, program, folder):
    """What the program says of such PTX; nothing if it passes."""
    (folder / "planted.ptx").write_text(planted, encoding="utf-8")
    done = run(program, folder / "planted.ptx", folder / "counts", LIMIT_S)
    if done.returncode in (0, 77):
        return ""
    said = re.search(r"stand-in: (?!for libcuda|kernels are|device).*|byte \d+ of .*",
                     done.stdout.decode(errors="replace"))
    return said.group(0) if said else "status %d" % done.returncode


def check_faults(options, program, folder):
    """Each fault of this suite and architecture is seen; without one the program passes."""
    text, n_seen, n_wrong = read_ptx(options.ptx), 0, 0
    said = see(text, program, folder)
    if said:
        print("WRONG: it fails without a fault: %s" % said)
        return 1
    for fault in read_faults(options.faults):
        if fault.suite != options.suite or fault.architecture not in ("", options.architecture):
            continue
        planted = fault.planted(text)
        if planted is None:
            print("WRONG: %s has no line \"%s\":%s" % (fault.kernel, fault.found, fault.why))
            n_wrong += 1
            continue
        said = check_orders(planted) or see(planted, program, folder)
        print("%s %s:%s\n    %s" % ("seen" if said else "NOT SEEN", fault.kernel, fault.why, said))
        n_seen += said != ""
        n_wrong += said == ""
    print("%d faults are seen" % n_seen)
    return 1 if n_wrong or not n_seen else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ptx", type=pathlib.Path, required=True)
    parser.add_argument("--kernels", default=".*", help="which of them the program must run")
    parser.add_argument("--faults", type=pathlib.Path)
    parser.add_argument("--suite")
    parser.add_argument("--architecture", default="")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.faults:
            return check_faults(options, options.program, folder)
        done = run(options.program, options.ptx, folder / "counts")
        sys.stdout.write(done.stdout.decode(errors="replace"))
        return done.returncode or check_counts(options.ptx, folder / "counts", options.kernels)


if __name__ == "__main__":
    sys.exit(main())
