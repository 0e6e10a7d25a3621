# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The package under mypy --strict, and the sources of the extension against its stub."""

import os
import subprocess
import sys
import tempfile
import unittest

try:
    import mypy  # noqa: F401
except ImportError:
    mypy = None

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@unittest.skipIf(mypy is None, "mypy is not installed")
class Typing(unittest.TestCase):
    def run_module(self, *arguments, cwd):
        variables = dict(os.environ, MYPYPATH=PACKAGE)
        return subprocess.run([sys.executable, "-m", *arguments], cwd=cwd, text=True, env=variables,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_strict(self):
        done = self.run_module("mypy", "--strict", "--cache-dir=/dev/null", "ferry", cwd=PACKAGE)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_stub_says_what_the_extension_has(self):
        """In an empty folder: beside its sources the package is found without the extension."""
        with tempfile.TemporaryDirectory() as empty:  # older checkers have no @disjoint_base
            done = self.run_module("mypy.stubtest", "--ignore-disjoint-bases", "ferry._ferry",
                                   cwd=empty)
        self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
