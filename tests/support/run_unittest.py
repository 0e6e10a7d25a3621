#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""run_unittest.py MODULE...: as `python -m unittest`, but skips count (tests/support/skips.py).

The modules are those of the working folder.
"""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import skips  # noqa: E402
import terminal  # noqa: E402


class Result(unittest.TextTestResult):
    """A skip that is not allowed is a failure."""

    n_done = 0

    def addSkip(self, test, reason):
        if skips.must_not(reason):
            self.failures.append((test, skips.forbidden(test, reason)))
        else:
            super().addSkip(test, reason)

    def addSuccess(self, test):
        self.n_done += 1
        super().addSuccess(test)


def main(modules):
    sys.path.insert(0, os.getcwd())
    terminal.hear_signals()
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    result = unittest.TextTestRunner(resultclass=Result).run(suite)
    for test, reason in result.skipped:
        print(skips.line(test, reason))
    n_failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    return skips.status(result.n_done + len(result.skipped) + n_failed, n_failed,
                        len(result.skipped))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
