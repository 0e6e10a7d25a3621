# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""`pip install .` in a fresh virtual environment, and then five lines. Minutes: label "long"."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

FIVE_LINES = """
import ferry
rows, columns = [{"match": "*", "shard": [{"dim": d, "axis": "tp"}]} for d in (0, 1)]
spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4, 4], "dtype": "u8"}],
        "source": {"mesh": [["tp", 2]], "rules": [rows]},
        "destination": {"mesh": [["tp", 2]], "rules": [columns]}}
rank, mine = ferry.world().rank, bytearray(8)
ferry.refit({"w": bytes(range(8 * rank, 8 * rank + 8))}, {"w": mine}, spec)
assert list(mine) == [4 * i + 2 * rank + j for i in range(4) for j in range(2)], list(mine)
print("rank", rank, "has its columns")
"""


def run(*command, **variables):
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith(("FERRY_", "PYTHON", "LD_PRELOAD"))}
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env=dict(plain, **variables), cwd=tempfile.gettempdir(), timeout=800)
    if done.returncode != 0:
        raise AssertionError("%s ended with %d:\n%s" % (command[0], done.returncode,
                                                        done.stdout[-4000:]))
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.bin = os.path.join(cls.folder.name, "venv", "bin")
        run(sys.executable, "-m", "venv", os.path.join(cls.folder.name, "venv"))
        try:
            run(os.path.join(cls.bin, "pip"), "download", "-q", "--no-deps", "-d", cls.folder.name,
                "scikit-build-core")
        except AssertionError:
            raise unittest.SkipTest("the package index is out of reach")
        # As on a machine without the libraries that ferry is built with.
        cls.log = run(os.path.join(cls.bin, "pip"), "install", "-v", ROOT,
                      PKG_CONFIG_LIBDIR="/nonexistent")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_one_wheel_for_all_versions(self):
        self.assertIn("-cp39-abi3-linux_", self.log)
        self.assertNotIn("warning:", self.log)

    def test_five_lines(self):
        out = run(os.path.join(self.bin, "ferry"), "launch", "-n", "2", "--",
                  os.path.join(self.bin, "python"), "-c", FIVE_LINES)
        self.assertIn("rank 0 has its columns", out)
        self.assertIn("rank 1 has its columns", out)

    def test_it_needs_nothing_of_the_machine(self):
        code = ("import ferry\nferry.world()\n"
                "print([line.split()[-1] for line in open('/proc/self/maps')"
                " if 'libjansson' in line or 'libsodium' in line or 'libferry' in line])")
        for path in eval(run(os.path.join(self.bin, "python"), "-c", code)):
            self.assertTrue(path.startswith(os.path.realpath(self.folder.name)), path)

    def test_the_command(self):
        self.assertIn("ferry ", run(os.path.join(self.bin, "ferry"), "--version"))
        self.assertIn("ferry ", run(os.path.join(self.bin, "python"), "-m", "ferry", "--version"))


if __name__ == "__main__":
    unittest.main()
