# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The engine for vLLM and traces of its model classes, in vLLM's own processes on a CPU.

They run with the Python of build/vllm, which scripts/vllm_packages.sh makes.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PYTHON = str(ROOT / "build" / "vllm" / "bin" / "python")
HANG_SECONDS = 1500


def has_vllm():
    if not os.path.exists(PYTHON):
        return False
    find = "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"
    return subprocess.run([PYTHON, "-c", find]).returncode == 0


def with_entry_point(folder):
    """What an installed ferry would tell vLLM."""
    info = os.path.join(folder, "ferry-0.1.0.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: ferry\nVersion: 0.1.0\n")
    with open(os.path.join(info, "entry_points.txt"), "w") as file:
        file.write("[vllm.general_plugins]\nferry = ferry.adapters.vllm:register\n")
    return os.pathsep.join((os.environ.get("PYTHONPATH", ""), folder))


def run(*words):
    """In a folder of its own, as what is killed leaves files of vLLM."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = dict(
            os.environ, PYTHONPATH=with_entry_point(folder), TMPDIR=folder, VLLM_TARGET_DEVICE="cpu",
            HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_LOGGING_LEVEL="ERROR",
            PYTHONMALLOC="default")
        process = subprocess.Popen([PYTHON, *map(str, words)], env=variables, text=True, cwd=folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            said = process.communicate(timeout=HANG_SECONDS)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)  # the loop's ranks end their servers then
            raise
    return process.returncode, said


@unittest.skipUnless(has_vllm(), "vllm is not installed: scripts/vllm_packages.sh makes build/vllm")
class Vllm(unittest.TestCase):
    def test_model_classes(self):
        """Ranks of real classes, tensor and expert parallel: a refit as traced, what the names of the family
        make, and load_weights, bit for bit."""
        code, said = run(HERE / "vllm_models.py")
        self.assertEqual(code, 0, said[-6000:])
        found = re.findall(r"(?m)^([\w/]+) rank (\d) of (\d): wrong (.*)$", said)
        self.assertEqual(len(found), 17 * 3 + 4 * 2 + 2 * 4, said[-6000:])
        self.assertEqual({one[3] for one in found}, {"none"}, said[-6000:])
        for kind in ("mamba2", "one_group", "falcon_h1"):
            self.assertRegex(said, r'(?m)^%s: refused: parameter "\S+\.A" gets neg of "\S+\.A_log"' % kind)

    def test_models_that_vllm_has_loaded(self):
        """A worker's model, of each of two ranks, refit to another checkpoint: tensors and kernels are those
        of vLLM's own load of it; also where the server began otherwise."""
        code, said = run(HERE / "vllm_servers.py")
        self.assertEqual(code, 0, said[-6000:])
        found = re.findall(r"(?m)^(\w+) rank \d of \d: wrong (.*)$", said)
        self.assertEqual(len(found), 15 * 3, said[-6000:])
        self.assertEqual({one[1] for one in found}, {"none"}, said[-6000:])
        for what in ("no checkpoint", "a head, too", "found equal", "found different"):
            self.assertIn("\n%s: wrong none\n" % what, said)
        refused = "(?m)^%s: refused, nothing changed: "
        self.assertRegex(said, refused % "no bias yet" + '.*"lm_head.bias".*start it with one')
        self.assertRegex(said, refused % "found equal, both given" + '.*leave "lm_head.weight" out')
        self.assertIn("\ncomputed: refused: LlamaForCausalLM of the server computes other tensors of its weights "
                      "once they are loaded", said)
        for what, name in (("tensor", "model.layers.1.mlp.none.weight"), ("shape", "model.norm.weight")):
            self.assertRegex(said, refused % ("a foreign " + what) + "the server's loader fails at tensor "
                                   r'"%s" of shape \[3\] .*: the trainer has another model' % name)

    def test_the_engine(self):
        """Generate, update, generate: tokens are those of transformers with the new weights."""
        for kind in ("llama", "tied", "two", "experts"):
            with self.subTest(kind):
                code, said = run(HERE / "vllm_round.py", kind)
                self.assertEqual(code, 0, said[-6000:])
                said = re.sub(r"(?m)^\(Worker.*\n", "", said)  # its workers say it at any time
                self.assertIn("version 1: tokens before, after: equal, equal\n", said)
                self.assertIn("version 2: tokens before, after: equal, equal\n", said)
                self.assertIn("bytes staged: 0\n", said)
                self.assertIn("refused: an update to version 2 after version 2", said)
                self.assertRegex(said, "refused: .*the server refused version 3: .*update is already active")
                self.assertIn("version 3 after another meeting: equal\n", said)
                self.assertRegex(said, 'next: wide\nrefused: .*no worker of the server takes all of tensor '
                                       '"model.layers.1.self_attn.q_proj.weight", of which it loads a part')
                self.assertEqual(bool(re.search(
                    'next: no head\nrefused: .*"lm_head.weight" of the server is given by no', said)),
                    kind != "tied", said[-6000:])
                self.assertEqual(bool(re.search(
                    'next: no expert\nrefused: .*"model.layers.1.mlp.experts[^"]*w2_weight" of the server is '
                    "given only in part", said)), kind == "experts", said[-6000:])

    def loop(self, *options):
        """The example: a trainer of two ranks, and a server of two workers in processes of its own."""
        code, said = run(ROOT / "examples" / "rl" / "loop.py", "--steps", 4, *options)
        self.assertEqual(code, 0, said[-6000:])
        self.assertRegex(said, r"the server has version 4; (\d+) of \1 tokens equal", said[-6000:])
        versions = re.findall(r"(?m)^ +(\d) +[01]\.\d+ +(\d) +", said)
        self.assertEqual(versions, [(str(n), str(n)) for n in range(1, 5)], said[-6000:])
        return said

    def test_a_loop_of_fsdp(self):
        """Reward, versions and tokens are checked by the loop itself, which ends with what is wrong."""
        self.assertNotIn("lost", self.loop("--share", "fsdp"))

    def test_a_loop_of_tp_whose_server_loses_a_worker(self):
        """All is said of who was lost, and another server joins."""
        said = self.loop("--share", "tp", "--kill-worker")
        self.assertRegex(said, r"lost: rank 3 was lost: .*; rank 3 is worker 1 of the server, process "
                               r"\d+ on \S+; start the server again and call join", said)
        self.assertIn("another server has joined", said)


class WithoutThePackage(unittest.TestCase):
    def test_the_module_can_be_imported(self):
        code = ("import sys; sys.modules['vllm'] = None\n"
                "from ferry.adapters.vllm_engine import FerryWeightTransferEngine as engine\n"
                "assert engine.__bases__ == (object,) and 'torch' not in sys.modules")
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
