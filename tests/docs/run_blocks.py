#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs what the pages show, and holds it against what they show of it.

    run_blocks.py [--build FOLDER] [--needs WORD] [--patience N] [PAGE...]

All pages, or those that are given. Each page gets a folder of its own in which the project's folders
lie as in a clone, and `ferry`, built in FOLDER, is found. Its blocks run there one after the other:

    sh        as a script, of which every command must succeed
    console   the lines behind "$ "; the lines between them are what is printed. A line "..." stands
              for any lines, " ..." at an end for the rest of a line
    python    in one interpreter for the page
    c         an excerpt of a program, or the middle of one in tests/docs/inside/
    json      a file that ferry reads, or a part of what it prints
    text      not at all

pages.py says how a block tells that it is another case. --needs WORD runs only the pages with
blocks that say that they need WORD, those included; blocks that need anything else are left out.
Whatever was not run is printed and counted; a block that is not run and does not say why is a
failure.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from pages import SHELL, PageError, all_pages, split_page, words_of

ROOT = Path(__file__).resolve().parent.parent.parent
INSIDE = ROOT / "tests" / "docs" / "inside"
sys.path.insert(0, str(ROOT / "tests" / "support"))
import skips  # noqa: E402

MOST_NOT_RUN = 40  # more of them want a reason that is better than a comment
BLOCK_SECONDS = 300
NUMBER = re.compile(r"\d[\d.,]*(?: ?(?:[num]?s|min|[KMGT]?i?B/s|%)(?![A-Za-z]))?")
CC = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]


class Problem(Exception):
    """What is wrong with a block: the line and the text."""

    def __init__(self, line, text):
        super().__init__(text)
        self.line = line


# ---- where blocks run ----------------------------------------------------------------------------


class Place:
    """The folder of a page, and the environment of what runs there."""

    def __init__(self, folder, build, patience):
        self.folder, self.build, self.seconds = Path(folder), Path(build), BLOCK_SECONDS * patience
        for name in os.listdir(str(ROOT)):
            if name not in (".git", "build"):
                (self.folder / name).symlink_to(ROOT / name)
        (self.folder / "build").mkdir()
        (self.folder / "build" / "release").symlink_to(self.build)
        tools = self.folder / ".bin"
        tools.mkdir()
        (tools / "ferry").symlink_to(self.build / "ferry")
        # No link: an interpreter looks beside itself for the packages of its environment.
        (tools / "python3").write_text("#!/bin/sh\nexec %s \"$@\"\n" % sys.executable)
        (tools / "python3").chmod(0o755)
        self.environment = dict(os.environ, PATH="%s:%s:%s" % (
            tools, Path(sys.executable).parent, os.environ["PATH"]))
        # Ranks that are kept off the cores for seconds are not lost for that; those that end are, at once.
        self.environment.update(FERRY_DEADLINE="%d" % (60 * patience), FERRY_JOIN_LIMIT="300")
        self.environment.update(
            PYTHONPATH=str(self.build / "bindings" / "python"), FERRY_PLUGINS=str(self.build),
            PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1", LC_ALL="C.UTF-8", COLUMNS="100")

    def install(self):
        """What `cmake --install` brings, for programs that are compiled as users compile theirs."""
        prefix = self.folder / ".installed"
        if not prefix.exists():
            self.must_run(0, ["cmake", "--install", str(self.build), "--prefix", str(prefix)])
            library = next(prefix.glob("lib*/**/pkgconfig")).parent
            self.environment.update(PKG_CONFIG_PATH=str(library / "pkgconfig"),
                                    LD_LIBRARY_PATH=str(library))

    def run(self, command):
        """(status, what it printed); of an error of the tests' own, no more than that."""
        done = subprocess.run(command, cwd=str(self.folder), env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=self.seconds, check=False)
        return done.returncode, done.stdout.decode("utf-8", "replace")

    def must_run(self, line, command):
        status, printed = self.run(command)
        if status != 0:
            raise Problem(line, "`%s` ends with %d:\n%s" % (" ".join(command), status, printed))
        return printed


# ---- shell ---------------------------------------------------------------------------------------


def shell_commands(block):
    """[(line, command, lines shown or None)]"""
    if block.language == "sh":
        return [(block.line, block.text, None)]
    commands, pending = [], False
    for offset, line in enumerate(block.text.splitlines()):
        if pending:
            number, text, shown = commands[-1]
            commands[-1] = (number, text + "\n" + line, shown)
        elif line.startswith("$ "):
            commands.append((block.line + offset, line[2:], []))
        elif not commands:
            raise Problem(block.line, "a block of console begins with \"$ \" and a command")
        else:
            commands[-1][2].append(line)
        pending = line.endswith("\\") and (pending or line.startswith("$ "))
    return commands


def run_script(place, commands, line):
    """Runs the commands in one shell; [(status, what it printed)] of each that was reached."""
    mark = "=== the end of command"
    script = ["exec 2>&1"]
    for _, text, _ in commands:
        script += ["set -e" if len(commands) == 1 else ":", text,
                   "status=$?; set +e; printf '\\n%s %%d\\n' $status" % mark]
    try:
        status, printed = place.run(["bash", "-c", "\n".join(script)])
    except subprocess.TimeoutExpired:
        raise Problem(line, "the block does not end") from None
    parts = re.split(r"\n%s (\d+)\n" % mark, printed)
    found = [(int(ended), text) for text, ended in zip(parts[0::2], parts[1::2])]
    if len(found) < len(commands):
        found.append((status or 1, parts[-1]))
    return found


def same_line(shown, printed, words):
    if any(word in shown for word in words):
        shown, printed = (" ".join(NUMBER.sub("#", text).split()) for text in (shown, printed))
    if shown.endswith(" ..."):
        return printed.startswith(shown[:-4])
    return shown.rstrip() == printed.rstrip()


def differs(shown, printed, words):
    """None, or the first shown line that is not printed where it should be, by its place."""
    reached = [{0}]  # for each shown line, the printed lines that may come next
    for at, text in enumerate(shown):
        last = reached[-1]
        if text.strip() == "...":
            now = set(range(min(last), len(printed) + 1))
        else:
            now = {i + 1 for i in last if i < len(printed) and same_line(text, printed[i], words)}
        if not now:
            return at
        reached.append(now)
    return None if len(printed) in reached[-1] else len(shown)


def run_shell(place, block):
    if "pkg-config" in block.text:
        place.install()
    commands = shell_commands(block)
    words = [word.strip() for text in words_of(block, "numbers vary") for word in text.split(",")]
    for word in words:
        if not any(word in line for _, _, shown in commands for line in shown or ()):
            raise Problem(block.line, "numbers vary beside \"%s\", which no line shows" % word)
    wanted = [0] * (len(commands) - 1) + [int((words_of(block, "exit status") or ["0"])[0])]
    found = run_script(place, commands, block.line)
    for (line, text, shown), (status, printed), right in zip(commands, found, wanted):
        if status != right:
            raise Problem(line, "`%s` ends with %d:\n%s" % (text, status, printed))
        lines = printed.rstrip("\n").split("\n") if printed.strip() else []
        at = differs(shown, lines, words) if shown is not None else None
        if at is not None:
            what = "`%s`" % shown[at] if at < len(shown) else "no more"
            raise Problem(line + 1 + at, "%s is shown; printed is\n%s" % (what, printed))


# ---- other languages -----------------------------------------------------------------------------


def describe(error, path, line):
    """An assertion says nothing of itself: the line that failed does."""
    source = path.read_text(encoding="utf-8").splitlines()[line - 1].strip()
    said = type(error).__name__ + (": %s" % error if str(error) else "")
    return "%s, at `%s`" % (said, source)


def failing_line(error, page, block):
    """The last line of the page that the error went through."""
    if isinstance(error, SyntaxError) and error.filename == page:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == page]
    return lines[-1] if lines else block.line


def run_python(page, block, names):
    # Leading newlines make line numbers of the page's own.
    source = "\n" * (block.line - 1) + block.text + "\n"
    try:
        exec(compile(source, str(page), "exec"), names)
    except Exception as error:  # whatever a block raises is its failure
        line = failing_line(error, str(page), block)
        raise Problem(line, describe(error, page, line)) from None


def check_excerpt(block, path):
    file = ROOT / path
    if not file.is_file() or block.text.rstrip("\n") not in file.read_text(encoding="utf-8"):
        raise Problem(block.line, "the block does not stand in %s" % path)


def fill(block, name):
    """The file of tests/docs/inside/ with the block in it."""
    text = (INSIDE / name).read_text(encoding="utf-8")
    if text.count("BLOCK\n") != 1:
        raise Problem(block.line, "tests/docs/inside/%s has not one line BLOCK" % name)
    return text.replace("BLOCK\n", block.text + "\n")


def run_c(place, block):
    inside = words_of(block, "inside")
    if not inside:
        raise Problem(block.line, "a block of C is an excerpt of a program, or inside of one")
    text = fill(block, inside[0])
    ranks = re.search(r"^/\* ranks: (\d+) \*/$", text, re.MULTILINE)
    place.install()
    for left in place.folder.glob("ready.*"):
        left.unlink()
    (place.folder / "inside.c").write_text(text, encoding="utf-8")
    flags = place.must_run(block.line, ["pkg-config", "--cflags", "--libs", "ferry"]).split()
    place.must_run(block.line, [*CC, "-I", str(INSIDE), "-o", "inside", "inside.c", *flags])
    launch = ["ferry", "launch", "-n", ranks.group(1), "--"] if ranks else []
    place.must_run(block.line, [*launch, "./inside"])


def missing(shown, printed, where=""):
    """None, or where something that is shown is not printed. Lists may leave things out."""
    if isinstance(shown, dict) and isinstance(printed, dict):
        for key, value in shown.items():
            at = "%s.%s" % (where, key)
            found = missing(value, printed[key], at) if key in printed else at
            if found:
                return found
        return None
    if isinstance(shown, list) and isinstance(printed, list):
        rest = iter(printed)
        for at, value in enumerate(shown):
            if not any(missing(value, other) is None for other in rest):
                return "%s[%d]" % (where, at)
        return None
    if isinstance(shown, float) and isinstance(printed, (int, float)):
        return None if math.isclose(shown, printed, rel_tol=1e-6) else where
    return None if shown == printed else where or "."


def run_json(place, block):
    inside, part = words_of(block, "inside"), words_of(block, "part of")
    text = fill(block, inside[0]) if inside else block.text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Problem(block.line, "this is no JSON: %s" % error) from None
    if part:
        found = missing(value, json.loads(place.must_run(block.line, ["bash", "-c", part[0]])))
        if found:
            raise Problem(block.line, "`%s` does not print %s as shown" % (part[0], found))
        return
    file = place.folder / "block.json"
    file.write_text(text, encoding="utf-8")
    readers = {"ferry.spec/1": ["ferry", "plan", "block.json"],
               "ferry.map/1": ["python3", "-c", "import ferry; ferry.Map.load('block.json')"],
               "ferry.names/1": ["python3", "-c", "import ferry; n = ferry.Names({'num_hidden_layers': 3, "
                                 "'hidden_size': 8}, family='block.json'); n.map('files', 'server')"],
               "ferry.trace/1": ["python3", "-c", "import ferry; ferry.Trace.load('block.json').side()"],
               "ferry.tuning/1": ["ferry", "tune", "--show", "block.json"],
               "ferry.layout/1": ["ferry", "reshard", "MODEL", "--to", "block.json", "--out", "OUT",
                                  "--dry-run"]}
    if value.get("format") not in readers:
        raise Problem(block.line, "nothing reads this JSON: say of what it is a part")
    place.must_run(block.line, readers[value["format"]])


# ---- pages ---------------------------------------------------------------------------------------


def run_block(place, page, block, names):
    # torchrun's port and the next one are free when it looks, and may be another's a moment later.
    place.environment.pop("FERRY_RENDEZVOUS", None)
    if "torchrun" in block.text and block.language in SHELL:
        place.environment["FERRY_RENDEZVOUS"] = str(place.folder / ".meet")
    for command in words_of(block, "first"):
        place.must_run(block.line, ["bash", "-e", "-c", command])
    for path in words_of(block, "excerpt of"):
        check_excerpt(block, path)
    for name in words_of(block, "file"):
        (place.folder / name).write_text(block.text + "\n", encoding="utf-8")
    if words_of(block, "excerpt of") or (words_of(block, "file") and block.language != "json"):
        return
    if block.language in SHELL:
        run_shell(place, block)
    elif block.language in ("python", "py"):
        run_python(page, block, names)
    elif block.language == "c":
        run_c(place, block)
    elif block.language == "json":
        run_json(place, block)
    else:
        raise Problem(block.line, "blocks of %s are not run" % (block.language or "no language"))


def run_page(page, arguments):
    """The blocks of a page, here and now; prints what there is to say, and returns the status."""
    counts = {"run": 0, "not run": 0, "left out": 0, "failed": 0}
    where = page.relative_to(ROOT) if ROOT in page.parents else page
    names = {"__name__": "page"}
    with tempfile.TemporaryDirectory(prefix="docs-") as folder:
        place = Place(folder, arguments.build, arguments.patience)
        os.environ.update(place.environment)
        sys.path.insert(0, place.environment["PYTHONPATH"])
        os.chdir(folder)
        for block in split_page(page)[0]:
            if block.language == "text":
                continue
            reasons, needs = words_of(block, "not run"), words_of(block, "needs")
            if reasons:
                counts["not run"] += 1
                print("not run: %s:%d: %s" % (where, block.line, reasons[0]))
                continue
            if needs and arguments.needs not in needs:
                counts["left out"] += 1
                print("left for the long tests: %s:%d: %s" % (where, block.line, needs[0]))
                continue
            try:
                counts["run"] += 1
                run_block(place, page, block, names)
            except Problem as problem:
                counts["failed"] += 1
                print("%s:%d: %s" % (where, problem.line, problem))
        os.chdir(str(ROOT))
    print("%s: %d blocks ran, %d left for the long tests, %d not run, %d failed" % (
        where, counts["run"], counts["left out"], counts["not run"], counts["failed"]), flush=True)
    return 1 if counts["failed"] else 0


def run_each(pages, arguments):
    """A process for each page, so that none sees what another has changed or left in memory."""
    failed, not_run, n_run = [], 0, 0
    for page in pages:
        blocks = split_page(page)[0]
        if all(block.language == "text" for block in blocks):
            continue
        if arguments.needs and not any(
                arguments.needs in words_of(block, "needs") for block in blocks):
            continue
        words = [sys.executable, __file__, "--alone", "--build", str(arguments.build),
                 "--patience", str(arguments.patience), "--needs", arguments.needs]
        if subprocess.run([*words, str(page)], check=False).returncode != 0:
            failed.append(str(page))
        not_run += sum(bool(words_of(block, "not run")) for block in blocks)
        n_run += 1
    print("%d pages ran, %d failed; %d blocks say that they cannot be run" % (
        n_run, len(failed), not_run))
    if not_run > MOST_NOT_RUN:
        print("at most %d may be: MOST_NOT_RUN in tests/docs/run_blocks.py" % MOST_NOT_RUN)
    return 1 if failed or n_run == 0 or not_run > MOST_NOT_RUN else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", type=Path, help="default: all")
    parser.add_argument("--build", metavar="FOLDER", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--patience", metavar="N", type=int, default=1)
    parser.add_argument("--needs", metavar="WORD", default="",
                        help="also the blocks that need this, of the pages that have such")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    pages = [page.resolve() for page in arguments.pages] or all_pages(ROOT)
    try:
        if arguments.needs == "torch" and not arguments.alone:
            try:
                __import__("torch")
            except ImportError:
                return skips.whole("docs", "torch is not there")
        if arguments.alone:
            return run_page(pages[0], arguments)
        return run_each(pages, arguments)
    except (PageError, OSError) as problem:
        print(problem)
        return 1


if __name__ == "__main__":
    sys.exit(main())
