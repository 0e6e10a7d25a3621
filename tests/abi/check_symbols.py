#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The exported symbols of libferry.so are those of symbols.txt, no more and no less.

    check_symbols.py --library PATH [--nm NM] [--update]

A symbol that vanishes breaks programs that are installed; one that appears is a promise. `--update`
writes the list anew: commit it with the change that makes it necessary.
"""

import argparse
import pathlib
import subprocess
import sys

LIST = pathlib.Path(__file__).resolve().parent / "symbols.txt"


def exported(nm, library):
    """Name and version of every defined dynamic symbol; the version nodes themselves left out."""
    done = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True,
                          check=True)
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    return sorted(name for name in names if "@" in name and not name.startswith("FERRY_"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--update", action="store_true", help="write symbols.txt")
    arguments = parser.parse_args()
    have = exported(arguments.nm, arguments.library)
    if arguments.update:
        LIST.write_text("".join(name + "\n" for name in have))
        return 0
    wanted = LIST.read_text().split()
    missing = sorted(set(wanted) - set(have))
    added = sorted(set(have) - set(wanted))
    for name in missing:
        print("missing: %s is in tests/abi/symbols.txt, but the library does not export it" % name)
    for name in added:
        print("new: the library exports %s, which is not in tests/abi/symbols.txt" % name)
    if missing or added:
        print("If that is meant, run: %s --library %s --update" % (__file__, arguments.library))
        return 1
    print("%d symbols, as listed" % len(have))
    return 0


if __name__ == "__main__":
    sys.exit(main())
