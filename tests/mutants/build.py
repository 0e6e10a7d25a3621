# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A build of whole sources, and beside it the few files of it that a mutant changes.

Nothing is built twice, and neither the sources nor the build are touched: of what ninja would do after
the fault was written, only what the test needs is done, in a folder of its own, and the test is run
with the paths of what lies there. Shared libraries are found there first, by LD_LIBRARY_PATH.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from table import ROOT, Stale

MARK = "MUTANTS_OF"  # in the environment of what a test starts
MOST_MEMORY = 12 << 30  # of addresses: mutants ask for anything
MOST_FILE = 1 << 36  # tests make files with holes
PASSED, FAILED, HANGS = "passed", "failed", "hangs"
# What is only a warning by the standard, but would make other programs of the mutants.
STRICT = ["-g0", "-Wno-error", "-Werror=implicit-function-declaration", "-Werror=int-conversion",
          "-Werror=incompatible-pointer-types"]


class Build:
    """Reads what a folder of CMake and ninja holds; build first what the tests need."""

    def __init__(self, folder, over, flags=STRICT):
        self.folder, self.over, self.flags = Path(folder).resolve(), Path(over).resolve(), flags
        if not (self.folder / "build.ninja").is_file():
            raise Stale("%s is no build: cmake --preset release" % folder)
        self.inputs, self.rules, self.users = {}, {}, {}
        self.read_graph((self.folder / "build.ninja").read_text(encoding="utf-8"))
        self.commands = {entry["output"]: entry["command"]
                         for entry in json.loads(self.output_of("ninja", "-t", "compdb"))}
        self.tests = {test["name"]: self.read_test(test)
                      for test in json.loads(self.output_of("ctest", "--show-only=json-v1"))["tests"]}
        self.said = ""
        self.clear()

    def output_of(self, *command):
        return subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL).stdout

    def read_graph(self, text):
        for line in text.replace("$\n", "").split("\n"):
            if not line.startswith("build "):
                continue
            outputs, rest = line[len("build "):].split(": ", 1)
            rule, *inputs = rest.split(" || ")[0].replace("|", " ").split()
            if rule == "phony":
                continue
            for output in outputs.replace("|", " ").split():
                self.inputs[output], self.rules[output] = inputs, rule
                for name in inputs:
                    self.users.setdefault(name, []).append(output)

    @staticmethod
    def read_test(test):
        given = {p["name"]: p["value"] for p in test["properties"]}
        return {"words": test.get("command", []), "cwd": given["WORKING_DIRECTORY"],
                "environment": dict(v.split("=", 1) for v in given.get("ENVIRONMENT", [])),
                "labels": given.get("LABELS", [])}

    def test(self, name):
        if name not in self.tests:
            raise Stale("there is no test %s in %s" % (name, self.folder))
        return self.tests[name]

    def inside(self, word):
        """What of the build a word of a command names."""
        return [part for part in re.findall(re.escape(str(self.folder)) + r"(?:/([\w./+-]+))?(?![\w-])",
                                            word)]

    def needs(self, name):
        """The files of the build that a test runs or loads."""
        test, needed = self.test(name), set()
        for word in [*test["words"], *test["environment"].values()]:
            for path in self.inside(word):
                if path in self.inputs:
                    needed.add(path)
                elif word in test["environment"].values():  # a folder of plug-ins, or of the package
                    needed.update(o for o in self.inputs if is_library(o) and (
                        os.path.dirname(o) == path or path and o.startswith(path + "/ferry/")))
        return sorted(needed)

    def make_whole(self, names, jobs):
        """What tests need, of whole sources; False if it does not build."""
        needed = sorted({path for name in names for path in self.needs(name)})
        if any("bindings/python" in path for path in needed):
            needed.append("ferry_python_files")
        done = subprocess.run(["ninja", "-C", self.folder, "-j", str(jobs), *needed], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = done.stdout.decode(errors="replace")
        return done.returncode == 0

    def clear(self):
        """No mutant."""
        shutil.rmtree(self.over, ignore_errors=True)
        self.over.mkdir(parents=True)
        self.changed, self.made = {}, {}

    def plant(self, path, text):
        """Takes another text for a file."""
        self.clear()
        self.source, self.text = ROOT / path, text
        mutated = self.over / "source" / path
        mutated.parent.mkdir(parents=True)
        mutated.write_text(text, encoding="utf-8")
        pending = self.objects_with(path) if path.endswith(".h") else [
            o for o in self.users.get(str(self.source), []) if o.endswith(".o")]
        while pending:
            output = pending.pop()
            if output not in self.changed:
                self.changed[output] = self.over / output
                if not re.match("C_(SHARED|MODULE)", self.rules[output]):
                    pending += self.users.get(output, [])  # what loads a library stays as it is

    def objects_with(self, path):
        """Those that include a header, as the compiler has told."""
        found, output = [], ""
        wanted = {str(ROOT / path), os.path.relpath(ROOT / path, self.folder)}
        for line in self.output_of("ninja", "-t", "deps").decode().split("\n"):
            if line.endswith("(VALID)"):
                output = line.partition(":")[0]
            elif line.strip() in wanted and output.endswith(".o"):
                found.append(output)
        return found

    def objects(self):
        """Those that are made of the file."""
        return [o for o in self.changed if str(self.source) in self.inputs[o]]

    def make(self, output):
        """True if what changed of an output could be made."""
        if output in self.made:
            return self.made[output]
        # What is loaded at run time is no changed output of its users, but must be made for them.
        done = all([self.make(name) for name in self.inputs.get(output, [])
                    if name in self.inputs and name.rsplit(".", 1)[-1] not in ("h", "c")])
        if done and output in self.changed:
            self.changed[output].parent.mkdir(parents=True, exist_ok=True)
            done = self.run_rule(output)
            for name in self.users.get(output, []):  # it is found by its other names
                if done and "SYMLINK" in self.rules[name]:
                    (self.over / name).symlink_to(self.changed[output])
        self.made[output] = done
        return done

    def run_rule(self, output):
        words = [str(self.changed.get(word, word)) for word in self.commands[output].split(" ")]
        if output.endswith(".o"):
            cut = words.index("-MD")
            place = self.over / "source" / self.source.relative_to(ROOT)
            is_header = place.suffix == ".h"  # which comes before the one of the sources
            first = self.over / "source" / "src" if is_header else self.source.parent
            words[cut:words.index("-MF") + 2] = [*self.flags, "-iquote", str(first)]
            words[-1] = words[-1] if is_header else str(place)
        elif "STATIC" not in self.rules[output]:
            words.insert(words.index("-o"), "-Wl,--strip-debug")
        done = subprocess.run(" ".join(words), shell=True, cwd=self.folder, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = done.stdout.decode(errors="replace")
        return done.returncode == 0

    def make_for(self, name):
        """True if all that changed for a test could be made."""
        return all([self.make(path) for path in self.needs(name)])

    def laid_over(self, word, is_folder):
        """A word of a command or of the environment, with the paths of what changed."""
        def path_of(match):
            path = match.group(1) or ""
            if path in self.changed:
                return str(self.changed[path])
            if is_folder and any(o.startswith(path) and is_library(o) for o in self.changed):
                self.fill(path)
                return str(self.over / path)
            return match.group(0)
        return re.sub(re.escape(str(self.folder)) + r"(?:/([\w./+-]+))?(?![\w-])", path_of, word)

    def fill(self, path):
        """Puts what did not change beside what did, for who is told a folder."""
        package = self.folder / path / "ferry"
        kept = list((self.folder / path).glob("*.so"))
        if package.is_dir():
            kept += [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        for file in kept:
            there = self.over / file.relative_to(self.folder)
            there.parent.mkdir(parents=True, exist_ok=True)
            if not there.exists():
                there.symlink_to(file)

    def run(self, name, arguments, limit_s):
        """PASSED, FAILED or HANGS; what the test started ends with it."""
        test = self.test(name)
        words = [self.laid_over(word, False) for word in [*test["words"], *arguments]]
        given = {k: self.laid_over(v, True) for k, v in test["environment"].items()}
        given[MARK] = str(self.over)
        given["LD_LIBRARY_PATH"] = ":".join(
            [str(self.over)] + [v for v in [given.get("LD_LIBRARY_PATH"),
                                            os.environ.get("LD_LIBRARY_PATH")] if v])
        # What a mutant leaves behind goes with its folder; its name is short, for sockets.
        with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder, \
                tempfile.TemporaryFile() as said:
            given["TMPDIR"] = folder
            with subprocess.Popen(words, cwd=test["cwd"], stdout=said, stderr=said,
                                  stdin=subprocess.DEVNULL, env=dict(os.environ, **given),
                                  start_new_session=True, preexec_fn=limit) as run:
                try:
                    run.wait(timeout=limit_s)
                    ended = True
                except subprocess.TimeoutExpired:
                    ended = False
                end_marked(str(self.over))
            said.seek(0)
            self.said = said.read(1 << 20).decode(errors="replace")
        if not ended:
            return HANGS
        if run.returncode == 77:
            raise Stale("%s is skipped here, so that it can tell nothing" % name)
        return PASSED if run.returncode == 0 else FAILED

    def timed(self, name, arguments, limit_s):
        """The same, and how many seconds it took."""
        began = time.monotonic()
        return self.run(name, arguments, limit_s), time.monotonic() - began


def is_library(output):
    """One that is loaded: a plug-in, or what stands in for a library with a number."""
    return re.search(r"\.so(\.\d+)?$", output) is not None


def limit():
    """Of a test, so that a mutant hurts nothing else."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE, MOST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def end_marked(over):
    """Mutants leave ranks behind that wait for ever, in sessions of their own."""
    mark = ("%s=%s" % (MARK, over)).encode()
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if mark in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError, OSError):
                pass
