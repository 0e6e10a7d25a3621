# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Runs the cases of a script: its functions whose names begin with case_, in their order."""

import argparse
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
import skips  # noqa: E402
import terminal  # noqa: E402


FERRY = None  # the command that --ferry names
LIMIT_S = 600  # only a hang takes as much


def ask(*words, env=None, cwd=None):
    """(status, output, errors) of the command with these words."""
    done = subprocess.run([FERRY, *map(str, words)], env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=LIMIT_S, check=False)
    return done.returncode, done.stdout, done.stderr


def good(*words, env=None, cwd=None):
    """The output of the command, which succeeds and has nothing to complain about."""
    status, out, err = ask(*words, env=env, cwd=cwd)
    assert (status, err) == (0, ""), (words, status, err)
    return out


class Skip(Exception):
    """A case that cannot run here, with the reason."""


def chosen(functions, only=""):
    """{name: function} of the cases in globals() that have `only` in their names."""
    return {name[5:]: function for name, function in functions.items()
            if name.startswith("case_") and only in name}


def run(cases, around=lambda function: function()):
    """Prints what fails and why; the script's exit status. around(function) calls a case."""
    failed = skipped = 0
    terminal.hear_signals()
    for name, function in cases.items():
        try:
            around(function)
        except Skip as reason:
            forbidden = skips.must_not(reason) is not None
            print(skips.forbidden(name, reason) if forbidden else skips.line(name, reason))
            failed += forbidden
            skipped += not forbidden
        except Exception as error:
            failed += 1
            frames = [frame for frame in traceback.extract_tb(error.__traceback__)
                      if frame.filename != __file__]
            line = frames[0].lineno if frames else 0
            print("%s: line %d: %s: %s" % (name, line, type(error).__name__, error))
    print("%d cases, %d failed, %d skipped" % (len(cases), failed, skipped))
    return skips.status(len(cases), failed, skipped)


def in_folders(module):
    """Calls cases, each with an empty folder of its own in the module's FOLDER."""
    def call(function):
        with tempfile.TemporaryDirectory() as folder:
            module["FOLDER"] = Path(folder)
            function()
    return call


def main(module, options=None, begin=None):
    """The main of a script with these globals(), for what is alike in all: --ferry PATH becomes its
    FERRY, --only TEXT chooses cases, and where it has a FOLDER, each case finds an empty one there.
    options are flags of its own, {"--seed": what add_argument takes}; begin(arguments) is called
    before the first case."""
    parser = argparse.ArgumentParser(description=module["__doc__"])
    parser.add_argument("--ferry", required=True)
    parser.add_argument("--only", default="")
    for flag, more in (options or {}).items():
        parser.add_argument(flag, **more)
    arguments = parser.parse_args()
    global FERRY
    module["FERRY"] = FERRY = os.path.realpath(arguments.ferry)
    if begin is not None:
        begin(arguments)
    cases = chosen(module, arguments.only)
    return run(cases, in_folders(module)) if "FOLDER" in module else run(cases)
