# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The checkpoint engine of verl in verl itself: its abstract class and registry, and its manager with
workers on a Ray.

They run with the Python of build/verl, which scripts/verl_packages.sh makes.
"""

import os
import pathlib
import signal
import subprocess
import tempfile
import unittest

from support import HANG_SECONDS

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = str(HERE.parents[2] / "build" / "verl" / "bin" / "python")

CLASS = """
import inspect
from ferry.adapters.verl import FerryCheckpointEngine
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

engine = CheckpointEngineRegistry.new("ferry", bucket_size=64, is_master=True, secret="s")
assert type(engine) is FerryCheckpointEngine and isinstance(engine, CheckpointEngine)
assert engine.wire_format == "named_tensors"
for name in CheckpointEngine.__abstractmethods__ - {"init_process_group"}:  # has what we say
    own, base = (list(inspect.signature(getattr(one, name)).parameters)
                 for one in (FerryCheckpointEngine, CheckpointEngine))
    assert own == base, (name, own, base)
trainers, workers = FerryCheckpointEngine.build_topology(1, 2, [engine.prepare()] * 3)
assert set(inspect.signature(engine.init_process_group).parameters) == set(trainers) == set(workers)
assert [len(of_all) for of_all in (*trainers.values(), *workers.values())] == [1] * 3 + [2] * 3
print("right")
"""


def has_verl():
    return os.path.exists(PYTHON) and subprocess.run(
        [PYTHON, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('verl') is None)"]
    ).returncode == 0


@unittest.skipUnless(has_verl(), "verl is not installed: scripts/verl_packages.sh makes build/verl")
class Verl(unittest.TestCase):
    def run_with(self, *words):
        """Ray has files and processes of its own: all of them in a folder, and in a session."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True, dir="/tmp") as folder:
            variables = dict(os.environ, TMPDIR=folder, RAY_USAGE_STATS_ENABLED="0",
                             RAY_TMPDIR=folder, OMP_NUM_THREADS="1", PYTHONMALLOC="default")
            process = subprocess.Popen([PYTHON, *map(str, words)], env=variables, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       start_new_session=True)
            try:
                said, errors = process.communicate(timeout=HANG_SECONDS)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        self.assertEqual(process.returncode, 0, said + errors[-6000:])
        return said

    def test_the_class(self):
        self.assertEqual(self.run_with("-c", CLASS), "right\n")

    def test_the_manager(self):
        said = self.run_with(HERE / "verl_round.py")
        self.assertIn("abstract class: True\n", said)
        for step in (1, 2):
            self.assertIn("step %d: [True, True], 4869948 bytes\n" % step, said)
        self.assertIn("refused: ferry.InvalidInput: an update to version 1 after version 2", said)
        self.assertIn("one replica: [True, False]\n", said)


if __name__ == "__main__":
    unittest.main()
