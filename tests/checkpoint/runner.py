# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How these tests call the command, and how they report what breaks them."""

import argparse
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from store import StoreError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import skips  # noqa: E402
import terminal  # noqa: E402

TIMEOUT_S = 600
# What a layout that was drawn says and no tensor follows: launch/reshard has the notes that tell of it.
NO_EFFECT = re.compile(r"^ferry reshard: note: (?:destination\.(?:rules|stages)\[\d+\] .*|and so (?:is|are) \d+ more)\n",
                       re.MULTILINE)


class Failure(Exception):
    """The command is wrong; the text says how."""


class Skip(Exception):
    """This machine cannot do it; the text says why."""


def must(condition, sentence):
    if not condition:
        raise Failure(sentence)


class Done:
    """A call that has ended."""

    def __init__(self, command, done):
        self.words = command
        self.command = " ".join(map(shlex.quote, command))
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8", errors="replace")
        self.error = NO_EFFECT.sub("", done.stderr.decode("utf-8", errors="replace"))

    def __str__(self):
        return "%s\nexit status %d; stderr: %s" % (self.command, self.code, self.error.strip())


def require_sentence(done, *words):
    """It failed as it should: exit status 1 (of verify 2, where 1 says that two differ), one line on
    stderr, which has all of the words."""
    require_status(done, 2 if done.words[1] == "verify" else 1, words)


def require_status(done, code, words):
    must(done.code == code, "%s\nmust be exit status %d" % (done, code))
    must(done.error.count("\n") == 1 and done.error.endswith("\n") and len(done.error) > 12,
         "%s\nmust be one line" % done)
    for word in words:
        must(word in done.error, "%s\ndoes not name %r" % (done, word))


class Ferry:
    """The command under test."""

    def __init__(self, path, prepare=None):
        self.path = os.path.abspath(path)
        self.prepare = prepare  # called in the child before the command begins

    def is_sanitized(self):
        """Built with a sanitizer, whose memory is another matter?"""
        program = Path(self.path).read_bytes()
        return b"__asan_init" in program or b"__tsan_init" in program

    def call(self, *arguments, timeout=TIMEOUT_S, **more):
        command = [self.path, *map(str, arguments)]
        try:
            return Done(command, subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout,
                check=False, preexec_fn=self.prepare, **more))
        except subprocess.TimeoutExpired:
            raise Failure("%s: no end after %d s" % (" ".join(command), timeout)) from None

    def start(self, *arguments):
        return subprocess.Popen([self.path, *map(str, arguments)], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def reshard(self, source, to, out, *options):
        """A reshard that must succeed and say nothing on stderr."""
        done = self.call("reshard", source, "--to", to, "--out", out, *options)
        must(done.code == 0, str(done))
        must(done.error == "", "%s\nstderr should be empty" % done)
        return done

    def reshard_json(self, source, to, out, *options):
        done = self.reshard(source, to, out, "--json", *options)
        return parse(done)

    def verify(self, a, b, *options):
        return self.call("verify", a, b, *options)

    def require_equal(self, a, b):
        done = self.verify(a, b)
        must(done.code == 0 and done.error == "", "%s\nshould be equal" % done)

    def require_different(self, a, b, *words):
        done = self.verify(a, b)
        require_status(done, 1, words)
        return done.error

    def inspect(self, path):
        done = self.call("inspect", path, "--json")
        must(done.code == 0 and done.error == "", str(done))
        return parse(done)


def parse(done):
    try:
        return json.loads(done.out)
    except ValueError as error:
        raise Failure("%s\nprints no JSON: %s\n%s" % (done, error, done.out[:500])) from None


def scratch(parent=None):
    """A folder for one run, in memory where there is room."""
    memory = "/dev/shm"
    if parent is None and os.path.isdir(memory) and os.access(memory, os.W_OK):
        parent = memory
    return Path(tempfile.mkdtemp(prefix="ferry-test-", dir=parent))


def clean(folder):
    for path in Path(folder).iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def parser_of(description, count):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--only", help="cases whose names contain this text")
    parser.add_argument("--keep-going", action="store_true",
                        help="do not stop at the first failure")
    parser.add_argument("--folder", help="make temporary folders here (default: in memory)")
    parser.add_argument("--keep", action="store_true", help="leave the folder of a failure")
    return parser


def run_cases(arguments, cases):
    """cases: [(name, function(folder, rng), seed)]. Returns the exit status."""
    failures, skipped, n_run = [], [], 0
    terminal.hear_signals()
    for name, function, seed in cases:
        if arguments.only and arguments.only not in name:
            continue
        folder = scratch(arguments.folder)
        wrong = None
        try:
            function(folder, random.Random(seed))
        except Skip as reason:
            if skips.must_not(reason):
                wrong = skips.forbidden(name, reason)
            else:
                skipped.append(skips.line(name, reason))
        except (Failure, StoreError, OSError) as failure:
            wrong = "%s: %s" % (type(failure).__name__, failure)
        except Exception:  # pylint: disable=broad-except  # an oracle that does not fit the result
            wrong = traceback.format_exc()
        n_run += 1
        if wrong is not None:
            failures.append(name)
            report(name, seed, wrong, folder if arguments.keep else None)
        if wrong is None or not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
        if failures and not arguments.keep_going:
            break
    for text in skipped:
        print(text)
    print("%d cases, %d skipped, %d failures%s" % (n_run, len(skipped), len(failures), ": " +
                                                   ", ".join(failures) if failures else ""))
    return skips.status(n_run, len(failures), len(skipped))


def report(name, seed, wrong, folder):
    again = "%s --only %s --seed %d --count 1 --keep" % (sys.argv[0], shlex.quote(name), seed)
    print("FAILED %s (seed %d)\n%s\nagain: %s%s"
          % (name, seed, wrong, again, "\nkept: %s" % folder if folder else ""), flush=True)
