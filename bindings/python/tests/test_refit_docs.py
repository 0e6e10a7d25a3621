# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The page docs/python.md runs, and its programs are those of examples/python, which run too."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import ferry
from support import HANG_SECONDS, LIMITS

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "python"
PAGE = ROOT / "docs" / "python.md"


def has(name):
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def run(*words):
    done = subprocess.run([sys.executable, *map(str, words)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=HANG_SECONDS, cwd=str(ROOT),
                          env=dict(os.environ, OMP_NUM_THREADS="1", **LIMITS))
    return done.returncode, done.stdout


def start_ranks(n, folder, name, *words):
    """Of a world that meets in a file."""
    at = {"FERRY_RENDEZVOUS": os.path.join(folder, "world"), "WORLD_SIZE": str(n)}
    return [subprocess.Popen([sys.executable, str(EXAMPLES / name), *map(str, words)],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env=dict(os.environ, RANK=str(rank), **at, **LIMITS)) for rank in range(n)]


def torchrun(n, name):
    return run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", n,
               EXAMPLES / name)


class Page(unittest.TestCase):
    def test_each_block_runs_alone(self):
        """Who copies one needs no other: but for the import at the top of its page."""
        blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(blocks), 8)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)
        for path in ROOT.iterdir():  # a copy of where readers of the page are: blocks write files
            os.symlink(path, path.name)
        for block in blocks:
            names = {"ferry": ferry, "vllm": ferry.adapters.vllm, "__name__": "page"}
            with self.subTest(block.splitlines()[0]):
                if "import torch" in block and not has("torch"):
                    self.skipTest("torch is not installed")
                exec(compile(block, str(PAGE), "exec"), names)

    def test_programs_are_those_of_the_examples(self):
        texts = [path.read_text() for path in EXAMPLES.glob("*.py")]
        blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.assertGreaterEqual(len(blocks), 3)
        for block in blocks:
            self.assertTrue(any(block in text for text in texts), block)

    def test_every_example_is_tried_and_short(self):
        here = pathlib.Path(__file__)
        tried = set(re.findall(r'"(\w+\.py)"', here.read_text()))
        elsewhere = set(re.findall(r'"(\w+\.py)"', here.with_name("test_boxes_numpy.py").read_text()))
        for path in EXAMPLES.glob("*.py"):
            self.assertIn(path.name, tried | elsewhere)
            if path.name in tried:  # the other makes the sides of two families of models
                self.assertLess(len(path.read_text().splitlines()), 60, path.name)


class Examples(unittest.TestCase):
    def test_recover(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks = start_ranks(4, folder, "recover.py", 2)
            said = [(one.communicate(timeout=HANG_SECONDS)[0], one.returncode) for one in ranks]
        whole = "rank %d: version 3 is whole, on 3 ranks\n"
        self.assertEqual(said, [("" if rank == 2 else whole % rank, 0) for rank in range(4)])

    def test_reshard_checkpoint(self):
        code, said = run(EXAMPLES / "reshard_checkpoint.py")
        self.assertEqual((code, said), (0, "9 tensors to 4 files and back, every bit the same\n"))

    def test_compose_maps(self):
        code, said = run(EXAMPLES / "compose_maps.py")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"\n[1-9]\d* moves from the trainer's tensors to the server's\n$")

    @unittest.skipUnless(has("torch"), "torch is not installed")
    def test_refit(self):
        for n, moved in ((2, 4194304), (4, 6291456)):
            code, said = torchrun(n, "refit.py")
            self.assertEqual(code, 0, said)
            self.assertIn(f"version 3: {moved} bytes between {n} ranks, ", said)
            self.assertIn(f" {8388608 - moved} stayed", said)

    @unittest.skipUnless(has("torch"), "torch is not installed")
    def test_trace_loader(self):
        code, said = run(EXAMPLES / "trace_loader.py")
        self.assertEqual(code, 0, said)
        self.assertIn("q_proj[16:32, 0:32], k_proj[4:8, 0:32], v_proj[4:8, 0:32]\n", said)
        self.assertTrue(said.endswith("every element is where the loader puts it\n"), said)

    @unittest.skipUnless(has("torch"), "torch is not installed")
    def test_dtensor_refit(self):
        code, said = torchrun(4, "dtensor_refit.py")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"3 tensors, \d+ bytes between 4 ranks")

    @unittest.skipUnless(has("torch"), "torch is not installed")
    def test_mixed_collective(self):
        code, said = torchrun(4, "mixed_collective.py")
        self.assertEqual(code, 0, said)
        self.assertIn("(3, 64) of 4 ranks to (6, 64)", said)


if __name__ == "__main__":
    unittest.main()
