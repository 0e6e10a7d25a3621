# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A copy of the sources in which faults are planted, and the tests that should notice them.

A table of mutants is text; each is a fault in one file, as a hunk without line numbers:

    @ src/layout/box.c unit/geometry
     uint64_t volume = 1;
    -for (uint32_t d = 0; d < n_dims; d++) {
    +for (uint32_t d = 1; d < n_dims; d++) {

The lines that begin with a blank or a minus must stand in the file exactly once, one after the other.
Behind the file stands the test that must fail, or `equivalent` for a fault that no test can see;
lines with # say why. Blanks at the ends of lines do not count, those at their beginning do.
"""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = "equivalent"
MARK = "MUTANTS_OF"  # in the environment of what a test starts


class Stale(Exception):
    """The table does not fit the sources any more; the text says where."""


class Mutant:
    """A fault: what stands in the file, what would stand there instead, and who must notice."""

    def __init__(self, path, test, lines, comment, place):
        self.path, self.test, self.lines, self.comment, self.place = path, test, lines, comment, place

    @property
    def before(self):
        return [line[1:] for line in self.lines if line[0] in " -"]

    @property
    def after(self):
        return [line[1:] for line in self.lines if line[0] in " +"]

    def __str__(self):
        head = "@ %s %s" % (self.path, self.test)
        return "\n".join([head, *self.comment, *(line.rstrip() for line in self.lines)]) + "\n"

    def planted_in(self, text):
        """The text of the file with the fault."""
        lines = text.split("\n")
        old = [line.rstrip() for line in self.before]
        found = [i for i in range(len(lines) - len(old) + 1)
                 if [line.rstrip() for line in lines[i:i + len(old)]] == old]
        if len(found) != 1:
            raise Stale("%s: the lines of this mutant stand %d times in %s" % (
                self.place, len(found), self.path))
        lines[found[0]:found[0] + len(old)] = self.after
        return "\n".join(lines)


def read_table(path):
    """The mutants of a table."""
    mutants = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), 1):
        place = "%s:%d" % (Path(path).name, number)
        if line.startswith("@ "):
            words = line.split()
            if len(words) != 3:
                raise Stale("%s: a mutant begins with @ FILE TEST" % place)
            mutants.append(Mutant(words[1], words[2], [], [], place))
        elif mutants and line[:1] == "#":
            mutants[-1].comment.append(line)
        elif mutants and line[:1] in (" ", "-", "+") and line:
            mutants[-1].lines.append(line)
        elif line.strip() and line[:1] != "#":
            raise Stale("%s: a line begins with @, #, a blank, - or +" % place)
    for mutant in mutants:
        if mutant.before == mutant.after or not mutant.before:
            raise Stale("%s: this mutant changes nothing" % mutant.place)
        if mutant.test == EQUIVALENT and not mutant.comment:
            raise Stale("%s: say why no test can see it" % mutant.place)
    return mutants


class Tree:
    """A copy of the sources with a build of its own, which takes up where the last one ended."""

    def __init__(self, folder, jobs):
        self.source = Path(folder).resolve() / "source"
        self.build = Path(folder).resolve() / "build"
        self.jobs = jobs
        self.copy()
        subprocess.run(
            ["cmake", "-G", "Ninja", "-S", self.source, "-B", self.build, "-DCMAKE_BUILD_TYPE=Release",
             "-DCMAKE_C_FLAGS_RELEASE=-O1 -g0 -Werror=implicit-function-declaration -Werror=int-conversion -Werror=incompatible-pointer-types", "-DFERRY_PYTHON=ON"],
            check=True, stdout=subprocess.DEVNULL)
        self.tests = {}
        for listed in self.build.rglob("CTestTestfile.cmake"):
            self.read_tests(listed.read_text(encoding="utf-8"))
        ninja = subprocess.run(["ninja", "-C", self.build, "-t", "targets", "all"], check=True,
                               stdout=subprocess.PIPE, text=True).stdout
        self.targets = {line.rsplit(":", 1)[0] for line in ninja.split("\n") if ": " in line}

    def read_tests(self, text):
        """What ctest would list, also of programs that are not built yet."""
        for name, words in re.findall(r'add_test\(\[=\[(.*?)\]=\] (.*)\)', text):
            self.tests[name] = {"words": re.findall(r'"([^"]*)"', words), "labels": []}
        for name, words in re.findall(r'set_tests_properties\(\[=\[(.*?)\]=\] PROPERTIES (.*)\)', text):
            given = dict(re.findall(r'(\w+) "([^"]*)"', words))
            self.tests[name]["words"] += given.get("ENVIRONMENT", "").split(";")
            self.tests[name]["labels"] = given.get("LABELS", "").split(";")

    def copy(self):
        """Brings in what changed, and leaves the times of what did not."""
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        names = {name.decode() for name in listed.split(b"\0") if name}
        for name in names:
            here, there = ROOT / name, self.source / name
            if here.is_symlink() or not here.is_file():
                continue
            if there.is_file() and there.read_bytes() == here.read_bytes():
                continue
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, there)
        for there in self.source.rglob("*"):
            if there.is_file() and str(there.relative_to(self.source)) not in names:
                there.unlink()

    def needs(self, name):
        """What must be built for a test: the programs on its command line, plug-ins, the extension."""
        if name not in self.tests:
            raise Stale("there is no test %s" % name)
        needed = set()
        for word in self.tests[name]["words"]:
            for part in word.replace("=", ":").split(":"):
                if part.startswith(str(self.build) + "/"):
                    inside = str(Path(part).relative_to(self.build))
                    needed.update(t for t in self.targets if t == inside)
                if part in (str(self.build), str(self.build / "bindings/python")):
                    needed.update(t for t in self.targets
                                  if t.endswith(".so") and "/" not in t or t == "bindings/python/all")
        return sorted(needed) or ["all"]

    def make(self, targets):
        """True if they could be built."""
        done = subprocess.run(["ninja", "-C", self.build, "-j", str(self.jobs), *targets],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self.said = done.stdout.decode(errors="replace")
        return done.returncode == 0

    def passes(self, name, limit_s):
        """True if the test passes within the limit; what it started ends with it."""
        with tempfile.TemporaryFile() as said, subprocess.Popen(
                ["ctest", "--output-on-failure", "-R", "^%s$" % name], cwd=self.build, stdout=said,
                stderr=said, env=dict(os.environ, **{MARK: str(self.build)})) as run:
            try:
                run.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                pass
            end_marked(str(self.build))
            said.seek(0)
            self.said = said.read().decode(errors="replace")
        if "(Skipped)" in self.said or "***Skipped" in self.said:
            raise Stale("%s is skipped here, so that it can tell nothing" % name)
        return run.returncode == 0

    def plant(self, mutant):
        path = self.source / mutant.path
        path.write_text(mutant.planted_in(path.read_text(encoding="utf-8")), encoding="utf-8")

    def mend(self, mutant):
        shutil.copy(ROOT / mutant.path, self.source / mutant.path)


def end_marked(build):
    """Mutants leave ranks behind that wait for ever, in sessions of their own."""
    mark = ("%s=%s" % (MARK, build)).encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass
