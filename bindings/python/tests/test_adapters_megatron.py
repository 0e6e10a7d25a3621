# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""FerryCopyService in Megatron-Core's own execution, beside its GlooCopyService, under torchrun."""

import importlib.util
import os
import re
import subprocess
import sys
import unittest

from support import HANG_SECONDS

HERE = os.path.dirname(os.path.abspath(__file__))


def is_there():
    try:
        return all(importlib.util.find_spec(name) for name in ("torch", "megatron.core"))
    except ImportError:
        return False


@unittest.skipUnless(is_there(), "megatron-core is not installed")
class Torchrun(unittest.TestCase):
    def run_with(self, n, program="megatron_refit.py"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", str(n), os.path.join(HERE, program)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=HANG_SECONDS, env=dict(os.environ, OMP_NUM_THREADS="1"))
        said = re.findall(r"rank (\d): (\d+) (?:checks|tensors), (?:failed|wrong): (.*)", done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:])
        self.assertEqual(sorted(one[0] for one in said), [str(rank) for rank in range(n)])
        for rank, n_checks, failed in said:
            self.assertEqual(failed, "none", f"rank {rank}")
            self.assertGreater(int(n_checks), 20)

    def test_two_processes(self):
        self.run_with(2)

    def test_four_processes(self):
        self.run_with(4)

    def test_experts_that_are_modules(self):
        self.run_with(4, "megatron_experts.py")


class WithoutThePackage(unittest.TestCase):
    def test_the_module_can_be_imported(self):
        code = ("import sys; sys.modules['megatron'] = None\n"
                "from ferry.adapters.megatron import FerryCopyService as service\n"
                "assert service.__bases__ == (object,) and 'torch' not in sys.modules")
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
