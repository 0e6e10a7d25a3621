#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""list_skips.py LOG...: what was skipped by the tests whose logs ctest has written, and how much.

A log is build/PRESET/Testing/Temporary/LastTest.log. Skips are no failures: which of them are not
allowed stands in MUST_NOT_SKIP, and the tests themselves fail then.
"""

import re
import sys

TEST = re.compile(r"^\d+/\d+ Test(?:ing)?: (\S+)$")
SKIP = re.compile(r"^(?:SKIPPED:?|\[  SKIPPED \]) (.*)$")  # ours, and those of cmocka


def read(path):
    """[(row of ctest, what was skipped and why)]"""
    found, row = [], "?"
    with open(path, encoding="utf-8", errors="replace") as log:
        for text in log:
            started = TEST.match(text.rstrip("\n"))
            if started:
                row = started.group(1)
            elif SKIP.match(text):
                found.append((row, SKIP.match(text).group(1).strip()))
    return found


def main(paths):
    found = [skip for path in paths for skip in read(path)]
    for row, what in found:
        print("skipped in %s: %s" % (row, what))
    print("%d skipped in %d tests" % (len(found), len({row for row, _ in found})))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
