# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Updates of SGLang: its model classes and its updater, in processes of their own on a CPU; and what
its requests are, without it.

The first run with the Python of build/sglang, which scripts/sglang_packages.sh makes.
"""

import base64
import http.server
import importlib.util
import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from ferry import Error, Misuse, Unsupported, _ferry
from ferry.adapters import sglang
from ferry.adapters._updates import Member

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = str(HERE.parents[2] / "build" / "sglang" / "bin" / "python")
HANG_SECONDS = 600


def has_sglang():
    return os.path.exists(PYTHON) and subprocess.run(
        [PYTHON, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('sglang') is None)"]
    ).returncode == 0


def with_entry_point(folder):
    """What an installed ferry would tell SGLang."""
    info = os.path.join(folder, "ferry-0.1.0.dist-info")
    os.mkdir(info)
    with open(os.path.join(info, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: ferry\nVersion: 0.1.0\n")
    with open(os.path.join(info, "entry_points.txt"), "w") as file:
        file.write("[sglang.srt.plugins]\nferry = ferry.adapters.sglang:register\n")
    return os.pathsep.join((os.environ.get("PYTHONPATH", ""), folder))


def run(*words):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = dict(
            os.environ, PYTHONPATH=with_entry_point(folder), TMPDIR=folder, HF_HUB_OFFLINE="1",
            SGLANG_USE_CPU_ENGINE="1", OMP_NUM_THREADS="1", PYTHONMALLOC="default")
        process = subprocess.Popen([PYTHON, *map(str, words)], env=variables, text=True, cwd=folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            said = process.communicate(timeout=HANG_SECONDS)[0]
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said


@unittest.skipUnless(has_sglang(), "sglang is not installed: scripts/sglang_packages.sh makes build/sglang")
class SGLang(unittest.TestCase):
    def run_with(self, *words):
        code, said = run(*words)
        self.assertEqual(code, 0, said[-6000:])
        return said

    def models(self, n, *families):
        said = self.run_with(HERE / "sglang_models.py", n, *families)
        found = re.findall(r"(?m)^([\w/]+) rank (\d) of (\d): wrong (.*)$", said)
        self.assertEqual(len(found), n * len(families), said[-6000:])
        self.assertEqual({one[3] for one in found}, {"none"}, said[-6000:])

    def test_model_classes(self):
        """A refit as traced, and load_weights of full tensors, bit for bit, on each rank."""
        self.models(1, "mixtral")
        self.models(2, "llama", "llama/pp", "tied", "qwen2", "qwen3_moe", "qwen3_moe/ep", "mixtral",
                    "deepseek_v3")

    def test_updates(self):
        """SGLang's updater takes two versions from a trainer whose ranks have halves."""
        for family in ("llama", "llama/pp", "tied", "tied/kept", "qwen3_moe", "deepseek_v3"):
            with self.subTest(family):
                said = self.run_with(HERE / "sglang_round.py", family)
                for version in (1, 2):
                    for worker in (0, 1):
                        self.assertIn("%s version %d on worker %d: version %d, wrong none\n" % (
                            family, version, worker, version), said)
                staged = ["lm_head.weight", "model.embed_tokens.weight"] if "kept" in family else []
                self.assertEqual(re.findall(r"(?m)^in other memory: (.*)$", said), [str(staged)] * 4)
                self.assertEqual(set(re.findall(r"(?m)^bytes staged: (0?)", said)),
                                 {"" if staged else "0"})

    def test_refusals(self):
        """One sentence each, after which the same server takes what is right."""
        said = self.run_with(HERE / "sglang_round.py", "refusals")
        for what, sentence in (
            ("other model", r'InvalidInput: .*"model.embed_tokens.weight" of shape \[128, 64\]'),
            ("no norm", 'InvalidInput: .*parameter "model.norm.weight" of the server is given by no'),
            ("no expert", r'InvalidInput: .*experts\.w\w+" of the server is given only in part'),
            ("never comes", "ExchangeFailed: rank 3 of 4 has not come within 3 s"),
            ("stray", r"False, .*no letter of a ferry.adapters.sglang.FerryTrainer"),
            ("by itself", "True, "),
            ("too few", "InvalidInput: .*worker 1 of a server of which the trainer says that it has 1 "),
            ("wrong secret", "Timeout: ranks 1, 2 of 3 never came: .*did not prove the secret"),
            ("unused", r"\['model.layers.0.self_attn.extra.weight'\]$"),
            ("version 1, wrong", r" \[\[\], \[\]\]"),
            ("in an update", "Aborted: .*refused version 2: .*session is already open"),
            ("not ended", "Error|ExchangeFailed: .*of no trainer that this worker knows"),
            ("again", "version 2$"),
            ("back", "InvalidInput: an update to version 1 after version 2"),
            ("wide heads", 'InvalidInput: .*all of tensor "model.layers.0.self_attn.._proj.weight", of '
                           "which it loads a part"),
        ):
            with self.subTest(what):
                self.assertRegex(said, "(?m)^%s:? ?%s" % (what, sentence))


    def test_lost_trainers(self):
        """Each is killed at another point, and the next one meets and updates the same server, soon."""
        said = self.run_with(HERE / "sglang_round.py", "lost")
        found = re.findall(r"(?m)^lost in (\w+): version (\d+), of the server \[\['(\d+)'\], \['(\d+)'\]\], "
                           r"wrong \[\[\], \[\]\], in time: True$", said)
        self.assertRegex(said, "(?m)^not ended in begin: .*of no trainer that this worker knows")
        self.assertEqual([one[0] for one in found], [
            "begin", "address", "meeting", "plan", "update", "bytes", "end"], said[-6000:])
        self.assertEqual([one[1:] for one in found], [(one[1],) * 3 for one in found])
        versions = [int(one[1]) for one in found]
        self.assertEqual(versions, sorted(set(versions)))
        self.assertEqual(versions[:5] + [versions[6] - versions[5]], [1, 2, 3, 4, 5, 2])


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as SGLang does, and keeps what it was asked."""

    asked = []
    answers = {}
    is_open = None  # whether there is a session; None: not looked at

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path[1:]
        self.asked.append((path, said, self.headers["Authorization"]))
        status, text = self.answers.get(path, (200, '{"success": true, "message": "Success"}'))
        if self.is_open is not None and path in ("begin_weight_update", "end_weight_update"):
            begins = path == "begin_weight_update"
            if begins == self.is_open:
                status, text = 400, '{"success": false, "message": "a session is, or is not, open"}'
            Handler.is_open = begins
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *about):
        pass


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Requests(unittest.TestCase):
    def setUp(self):
        self.http = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()
        self.addCleanup(self.end)
        Handler.asked, Handler.answers, Handler.is_open = [], {}, None
        url = "http://127.0.0.1:%d/" % self.http.server_port
        self.server = sglang.Server(url, key="of the test", seconds=60.0)

    def end(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def test_what_a_server_is_asked(self):
        self.server.init_weight_transfer_engine({"n_workers": 2, "host": "h", "port": 1})
        self.server.update_weights({"version": 3})
        paths = [path for path, _, _ in Handler.asked]
        load = "update_weights_from_tensor"
        self.assertEqual(paths, ["begin_weight_update", load, "end_weight_update", load])
        self.assertEqual({key for _, _, key in Handler.asked}, {"Bearer of the test"})
        meet, update = (said for path, said, _ in Handler.asked if path == load)
        self.assertEqual((meet["flush_cache"], update["flush_cache"]), (False, True))
        self.assertEqual((meet.get("weight_version"), update["weight_version"]), (None, "3"))
        self.assertEqual({one["selector"] for one in (meet, update)}, {"target"})
        ((name, letter),) = pickle.loads(base64.b64decode(update["serialized_named_tensors"][1]))
        self.assertEqual((name, json.loads(bytes(letter.tolist()))), ("ferry", {"version": 3}))

    def test_what_a_server_refuses(self):
        for status, text, said in (
            (400, '{"success": false, "message": "no room"}', "no room"),
            (404, "Not Found", "Not Found"),
            (200, '{"success": false, "message": "not now"}', "not now"),
        ):
            Handler.answers["begin_weight_update"] = status, text
            with self.assertRaisesRegex(Error, "/begin_weight_update: " + said):
                self.server.start_weight_update()

    def test_a_meeting_that_fails_leaves_no_session(self):
        Handler.answers["update_weights_from_tensor"] = 400, '{"success": false, "message": "alone"}'
        with self.assertRaisesRegex(Error, "alone"):
            self.server.init_weight_transfer_engine({"n_workers": 1})
        self.assertEqual(Handler.asked[-1][0], "end_weight_update")

    def test_a_session_that_a_lost_trainer_left_is_ended(self):
        Handler.is_open = True
        self.server.init_weight_transfer_engine({"n_workers": 1})
        paths = [path.partition("_")[0] for path, _, _ in Handler.asked]
        self.assertEqual(paths, ["begin", "update", "end", "begin", "update", "end"])
        self.assertEqual([self.letter_in(said) for _, said, _ in (Handler.asked[1], Handler.asked[4])],
                         [{"look": True}, {"meet": {"n_workers": 1}}])
        self.server.start_weight_update()
        with self.assertRaisesRegex(Error, "open"):  # an update within one is none of a lost trainer
            self.server.start_weight_update()
        Handler.is_open, Handler.asked = None, []
        Handler.answers["begin_weight_update"] = 400, '{"success": false, "message": "no room"}'
        with self.assertRaisesRegex(Error, "no room"):
            self.server.init_weight_transfer_engine({"n_workers": 1})
        self.assertNotIn("meet", [key for path, said, _ in Handler.asked if path == "update_weights_from_tensor"
                                  for key in self.letter_in(said)])

    def test_a_session_of_others_is_not_ended(self):
        """Workers that do not know it for one of a lost trainer say so, and the trainer does, too."""
        Handler.is_open = True
        Handler.answers["update_weights_from_tensor"] = 400, '{"success": false, "message": "of process 7"}'
        with self.assertRaisesRegex(Error, "is, or is not, open; the workers say: .*of process 7"):
            self.server.init_weight_transfer_engine({"n_workers": 1})
        self.assertEqual([path.partition("_")[0] for path, _, _ in Handler.asked], ["begin", "update"])
        self.assertTrue(Handler.is_open)

    def test_whose_session_a_worker_takes_it_for(self):
        class Met:
            def __init__(self, trainer, lost):
                self.trainer, self.was_lost = lambda: trainer, lambda: lost

        worker, there = sglang._Worker(None), Member(0, "rank 0 of the trainer", "host", 7)
        for link, missed, says in (
            (None, False, "of no trainer that this worker knows: .* POST /end_weight_update"),
            (Met(there, False), False, "whose first rank is process 7 on host: wait until"),
            (Met(there, False), True, "process 7 on host"),
            (Met(None, False), True, "of no trainer that this worker knows"),  # it has left in order
            (Met(None, True), False, None),
            (None, True, None),
        ):
            worker._link, worker._has_missed = link, missed
            with self.subTest(says, missed=missed):
                if says is None:
                    worker.look()
                else:
                    with self.assertRaisesRegex(Misuse, says):
                        worker.look()

    def letter_in(self, said):
        ((_, letter),) = pickle.loads(base64.b64decode(said["serialized_named_tensors"][0]))
        return json.loads(bytes(letter.tolist()))

    def test_who_is_not_there(self):
        with self.assertRaisesRegex(Error, "begin_weight_update: "):
            sglang.Server("http://127.0.0.1:9").start_weight_update()

    def test_quantized_layers_are_refused(self):
        import torch

        class Fp8LinearMethod:
            pass

        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        sglang._check_methods(model)
        model[0].quant_method = Fp8LinearMethod()
        with self.assertRaisesRegex(Unsupported, 'layer "0" .* as Fp8LinearMethod makes them'):
            sglang._check_methods(model)
        model[0].quant_method, model[0].use_intel_amx_backend = None, False
        sglang._check_methods(model)
        model[0].use_intel_amx_backend = True  # which SGLang's layers without quantization may have
        with self.assertRaisesRegex(Unsupported, 'layer "0" .* packed for Intel AMX'):
            sglang._check_methods(model)

    def test_where_a_worker_keeps_what_it_gets(self):
        """What trainers write to is memory of the model, also of what else looks into it; what others
        would be left behind in stays, as does what no tensor is for."""
        import torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.table, self.norm, self.scale = (
                    torch.nn.Parameter(torch.rand(*shape)) for shape in ((6, 4), (5,), (3,)))
                self.head = self.table
                self.register_buffer("rope", torch.rand(7), persistent=False)

            def load_weights(self, pairs):
                for name, tensor in pairs:
                    getattr(self, name).data.copy_(tensor)

        model = Model()
        objects, kept, rope = list(model.parameters()), model.norm.detach()[1:], model.rope.data_ptr()
        again = torch.nn.Parameter(model.scale.data)
        model.again = again  # another object in the same memory
        tensors = [{"name": name, "shape": list(one.shape), "dtype": "f32"}
                   for name, one in model.named_parameters() if name != "again"]
        values = {name: one.tolist() for name, one in model.named_parameters()}
        half = sglang._Worker(model)._half(tensors)
        self.assertEqual({name: one.tolist() for name, one in model.named_parameters()}, values)
        self.assertEqual([id(one) for one in model.parameters()], [id(one) for one in (*objects, again)])
        self.assertEqual((model.rope.data_ptr(), kept.data_ptr()),
                         (rope, model.norm.data_ptr() + 4))
        for row in half.memory.values():
            row.fill_(9)
        for name, one in (*model.named_parameters(remove_duplicate=False), ("norm", kept)):
            self.assertEqual(set(one.flatten().tolist()), {9}, name)
            self.assertEqual(_ferry.has_memory(one.data_ptr(), one.nbytes), name != "norm", name)
        places = {name: one.data_ptr() for name, one in model.named_parameters()}
        sglang._Worker(model)._half(tensors)  # of the next trainer
        self.assertEqual({name: one.data_ptr() for name, one in model.named_parameters()}, places)


class WithoutThePackage(unittest.TestCase):
    def test_the_module_can_be_imported(self):
        code = ("import sys; sys.modules['sglang'] = None\n"
                "from ferry.adapters.sglang import FerryTrainer, load, register\n"
                "assert 'torch' not in sys.modules")
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
