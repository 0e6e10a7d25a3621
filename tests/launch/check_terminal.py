#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Tests of what comes to stderr: colours and bars on terminals only, --quiet and --verbose.

    check_terminal.py --ferry PATH [--only TEXT]

Terminals are pseudo terminals. Prints the name of every failing case with its reason and exits 1.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import cases

LIMIT_S = 120
FERRY = ""
FOLDER = Path()
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]+m")


def environment(term="xterm", **more):
    env = {name: value for name, value in os.environ.items()
           if not name.startswith("FERRY_") and name not in ("NO_COLOR", "RANK", "WORLD_SIZE")}
    env["TERM"] = term
    env.update(more)
    return {name: value for name, value in env.items() if value is not None}


def on_terminal(*words, env=None, columns=80):
    """Status, stdout, and what came to stderr, which is a terminal."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([FERRY, *map(str, words)], stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=slave, env=env or environment())
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while chunk := os.read(master, 65536):
                seen += chunk
        os.close(master)
        status = process.wait(timeout=LIMIT_S)
        out.seek(0)
        return status, out.read(), seen.decode()


def beside(*words, env=None):
    """The same where stderr is a pipe."""
    done = subprocess.run([FERRY, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, env=env or environment(), timeout=LIMIT_S)
    return done.returncode, done.stdout, done.stderr


def checkpoint(name="model"):
    """Twenty files with an index: opening shows how far it is."""
    folder = FOLDER / name
    folder.mkdir()
    places = {}
    for i in range(20):
        file = "model-%05d-of-00020.safetensors" % (i + 1)
        header = json.dumps({"w%d" % i: {"dtype": "F32", "shape": [16],
                                         "data_offsets": [0, 64]}}).encode()
        header += b" " * (-len(header) % 8)
        (folder / file).write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))
        places["w%d" % i] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def spec():
    path = FOLDER / "spec.json"
    path.write_text(json.dumps({
        "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [64, 64], "dtype": "f32"}],
        "source": {"mesh": [["tp", 4]],
                   "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
        "destination": {"mesh": [["tp", 4]],
                        "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}}))
    return path


def last_line(seen):
    """What a reader of the terminal sees in its last line at the end."""
    line = ""
    for part in re.split(r"(\r|\n|\x1b\[K)", COLOUR.sub("", seen)):
        line = "" if part in ("\r", "\n", "\x1b[K") else line + part
    return line


def case_bar():
    """Phases with a bar that never wraps, and nothing that stays."""
    src = checkpoint()
    for columns in (80, 60, 200):
        status, out, seen = on_terminal("verify", src, src, columns=columns)
        assert status == 0 and out.startswith("equal: 20 tensors, 1.25 KiB"), (status, out, seen)
        plain = COLOUR.sub("", seen)
        assert re.search(r"opening \[=*>? *\] \d+ of 20 files", plain), plain
        assert re.search(r"verifying \[=*>? *\] \d+% of 1\.25 KiB", plain), plain
        lines = re.split(r"\r\x1b\[K", plain)
        assert max(map(len, lines)) < columns, lines
        assert last_line(seen) == "" and "\n" not in seen, seen
    # Too narrow for a bar: the numbers alone.
    status, _, seen = on_terminal("verify", src, src, columns=30)
    assert status == 0 and "opening: " in seen and "[=" not in COLOUR.sub("", seen), seen


def case_colours():
    src = checkpoint()
    status, _, seen = on_terminal("verify", src, src)
    assert status == 0 and COLOUR.search(seen), seen
    status, _, seen = on_terminal("verify", src, FOLDER / "no-such")
    assert status == 2 and "\x1b[1;31mferry verify:\x1b[0m " in seen, seen
    status, _, seen = on_terminal("plan", "--no-such", spec())
    assert status == 2 and "\x1b[1;31mferry plan:\x1b[0m " in seen, seen
    # NO_COLOR leaves the bar, and an empty one is none.
    status, _, seen = on_terminal("verify", src, src, env=environment(NO_COLOR="1"))
    assert status == 0 and not COLOUR.search(seen) and "opening [" in seen, seen
    status, _, seen = on_terminal("verify", src, src, env=environment(NO_COLOR=""))
    assert status == 0 and COLOUR.search(seen), seen


def case_no_terminal():
    """In a pipe, on a dumb terminal and on one without a name nothing but sentences."""
    src = checkpoint()
    assert beside("verify", src, src)[2] == ""
    status, _, err = beside("verify", src, FOLDER / "no-such")
    assert status == 2 and err.startswith("ferry verify: ") and not ESCAPE.search(err), err
    for env in (environment("dumb"), environment(""), environment(None)):
        status, out, seen = on_terminal("verify", src, src, env=env)
        assert (status, seen) == (0, "") and out.startswith("equal: "), (status, seen)
        status, _, seen = on_terminal("verify", src, FOLDER / "no-such", env=env)
        assert status == 2 and seen.startswith("ferry verify: ") and not ESCAPE.search(seen), seen


def case_quiet():
    src = checkpoint()
    rows = [("verify", src, src), ("inspect", src), ("plan", spec(), "--schedule"),
            ("reshard", src, "--to", "hf", "--out", FOLDER / "new")]
    for words in rows:
        for option in ("--quiet", "-q"):
            assert on_terminal(*words, option) == (0, "", ""), words
            if words[0] == "reshard":
                subprocess.run(["rm", "-rf", FOLDER / "new"], check=True)
    # Errors are said, and so is what other options ask for.
    status, out, err = beside("verify", "-q", src, FOLDER / "no-such")
    assert (status, out) == (2, "") and err.count("\n") == 1, (status, err)
    assert json.loads(beside("verify", src, src, "--json", "-q")[1])["equal"]
    assert json.loads(beside("plan", spec(), "--json", "--summary", "-q")[1])["world"] == 4
    assert len(beside("verify", src, src, "--digests", "-q")[1].splitlines()) == 20


def case_verbose():
    src = checkpoint()
    for option in ("--verbose", "-v"):
        status, out, err = beside("verify", src, src, option)
        assert status == 0 and out.startswith("equal: "), (status, err)
        lines = err.splitlines()
        assert len(lines) == 3 and all(re.match(r"ferry verify: opening: \d", line)
                                       for line in lines[:2]), err
        assert lines[2].startswith("ferry verify: verifying: "), err
    status, out, err = beside("plan", spec(), "--schedule", "-v")
    assert status == 0 and "ferry plan: listing what travels\n" in err, err
    assert re.search(r"ferry plan: scheduling [a-z ]+\n", err), err
    # The last one counts.
    assert beside("verify", src, src, "-v", "-q")[1:] == ("", "")


if __name__ == "__main__":
    sys.exit(cases.main(globals()))
