# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The package under mypy --strict, and the sources of the extension against its stub."""

import os
import subprocess
import sys
import unittest

try:
    import mypy  # noqa: F401
except ImportError:
    mypy = None

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@unittest.skipIf(mypy is None, "mypy is not installed")
class Typing(unittest.TestCase):
    def mypy(self, *arguments):
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run([sys.executable, "-m", *arguments], cwd=PACKAGE, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(variables, MYPYPATH=PACKAGE, **({} if arguments[0] == "mypy"
                              else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")})))

    def test_strict(self):
        done = self.mypy("mypy", "--strict", "--cache-dir=/dev/null", "ferry")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_stub_says_what_the_extension_has(self):
        done = self.mypy("mypy.stubtest", "ferry._ferry", "--ignore-missing-stub")
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
