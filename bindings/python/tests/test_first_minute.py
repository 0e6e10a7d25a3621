# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What people meet first: help, signatures, reprs, sentences, and what wrong first steps are told."""

import array
import enum
import importlib
import inspect
import io
import os
import pathlib
import pydoc
import re
import subprocess
import sys
import threading
import unittest

import ferry
from ferry import _errors, _ferry
from support import HANG_SECONDS, is_in_use, until

ROOT = pathlib.Path(__file__).resolve().parents[3]
SIDE = {"mesh": [], "rules": [{"match": "*"}]}
SPEC = {"format": "ferry.spec/1", "source": SIDE, "destination": SIDE,
        "tensors": [{"name": "w", "shape": [4], "dtype": "f32"}]}
MODULES = ("ferry", "ferry.adapters", "ferry.adapters.megatron", "ferry.adapters.torch",
           "ferry.adapters.vllm", "ferry.comm", "ferry.comm.mixed_comm", "ferry.resharding",
           "ferry.resharding.planner", "ferry.resharding.utils",
           "ferry.resharding.nvshmem_copy_service",
           "ferry.resharding.nvshmem_copy_service.nvshmem_types",
           "ferry.resharding.nvshmem_copy_service.planning.communication_scheduler",
           "ferry.resharding.nvshmem_copy_service.service")


def public():
    """(dotted name, value) of all that is public: what modules say, or what they define."""
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        yield module_name, module
        listed = getattr(module, "__all__", None)
        for name in dir(module) if listed is None else listed:
            value = getattr(module, name)
            own = getattr(value, "__module__", None) == module_name
            if not name.startswith("_") and (listed is not None or own):
                yield "%s.%s" % (module_name, name), value


def things():
    """The same with methods and properties of classes, those of their C base classes included."""
    for name, value in public():
        yield name, value
        if not inspect.isclass(value):
            continue
        for attribute, kind, home, inner in inspect.classify_class_attrs(value):
            is_field = kind == "data" and not (callable(inner) or inspect.isdatadescriptor(inner))
            if not attribute.startswith("_") and home.__module__.startswith("ferry") and not is_field:
                yield "%s.%s" % (name, attribute), inner


def is_called(value):
    return inspect.isclass(value) or inspect.isroutine(value)


class Help(unittest.TestCase):
    def test_signatures(self):
        n = 0
        for name, value in things():
            value = getattr(value, "__func__", value)  # of a class method
            if is_called(value) and not (inspect.isclass(value) and issubclass(value, enum.Enum)):
                with self.subTest(name):
                    text = str(inspect.signature(value))
                    self.assertNotEqual(text, "(...)")
                    # *args and **kwargs tell nothing; options are those of another class.
                    self.assertNotRegex(text, r"\*args|\*\*kwargs")
                    n += 1
        self.assertGreater(n, 150)

    def test_sentences(self):
        n = 0
        for name, value in things():
            if not (is_called(value) or inspect.isdatadescriptor(value) or
                    inspect.ismodule(value) or isinstance(value, classmethod)):
                continue
            with self.subTest(name):
                text = inspect.getdoc(getattr(value, "__func__", value))
                self.assertTrue(text, "nothing is said")
                first = re.split(r"\n\s*\n", text.strip())[0]
                self.assertRegex(first, r"(?s)^([A-Z`'\"(0-9]|ferry ).*[.:]$")
                self.assertNotRegex(text, r"\bferry_[a-z]|\bfy_|\bfp_|METH_|Alias for field")
                n += 1
        self.assertGreater(n, 200)

    def test_names_are_where_they_are_found(self):
        for name in ferry.__all__:
            value = getattr(ferry, name)
            if is_called(value):
                self.assertEqual((value.__module__, value.__qualname__), ("ferry", name))

    def test_older_names_are_found_and_not_shown(self):
        for older, name in (("convert", "reshard"), ("ConversionResult", "ReshardResult"),
                            ("compare", "verify"), ("Comparison", "VerifyResult")):
            self.assertIs(getattr(ferry, older), getattr(ferry, name))
            self.assertNotIn(older, dir(ferry))

    def test_help_shows_no_dots_for_parameters(self):
        for name in ferry.__all__:
            value = getattr(ferry, name)
            if is_called(value) and not (inspect.isclass(value) and issubclass(value, enum.Enum)):
                text = pydoc.render_doc(value, renderer=pydoc.plaintext)
                self.assertNotRegex(text, r"(?m)^[ |]*(?!__|add_note|with_traceback)\w+\(\.\.\.\)",
                                    name)


class Reprs(unittest.TestCase):
    """Each helps, is short, and never raises: of what lives, has ended, is busy, or half made."""

    def check(self, thing, pattern):
        text = repr(thing)
        self.assertRegex(text, pattern)
        self.assertLess(len(text), 400)
        self.assertNotIn(" object at 0x", text)

    def test_a_life(self):
        source, target = bytearray(1 << 20), bytearray(1 << 20)
        service = ferry.RemoteCopyService()
        self.check(service, "^<ferry.RemoteCopyService, not initialized>$")
        service.init("OFF")
        service.register_send(1, source, 0, None, 0)
        service.register_receive(1, target, 0, None, 0)
        service.schedule()
        request = service.start()
        self.check(request, "^<ferry.Request, under way>$")
        request.wait()
        self.check(request, "^<ferry.Request, ended>$")
        self.check(service, "^<ferry.RemoteCopyService, PE 0 of 1, version 1>$")
        self.check(service.destinations()[0], r"tensor=<bytearray>\)$")
        self.check(service._handle.alloc(64), "^<memory of ferry, 64 bytes at 0x")
        for one in (service.statistics(), service.peers(), service.spans()):
            repr(one)
        service.finalize()
        self.check(service, "^<ferry.RemoteCopyService, finalized>$")
        self.check(request, "^<ferry.Request, ended>$")

    def test_worlds(self):
        one, other = _ferry.world_of_threads(2)
        self.check(one, "^<ferry.World, rank 0 of 2>$")
        one.abort()
        self.check(one, "^<ferry.World, rank 0 of 2>$")
        for world in (one, other):
            world.close()
        self.check(one, "^<ferry.World, closed>$")

    def test_refits_and_plans(self):
        spec, plan = ferry.Spec(SPEC), ferry.plan(SPEC)
        self.check(spec, "^<ferry.Spec of 1 tensor>$")
        self.check(plan, "^<ferry.Plan [0-9a-f]{8}: 1 rank, 1 move, ")
        self.check(next(plan.moves()), r"^Move\(task_id=0, tensor='w'")
        old, new = array.array("f", [1] * 4), array.array("f", [0] * 4)
        refit = ferry.Refit({"w": old}, {"w": new}, spec)
        self.check(refit, "^<ferry.Refit [0-9a-f]{8}: 0 bytes between ranks, 16 stay; <ferry.Remote")
        self.check(refit.run(), r"^RefitResult\(")
        ledger = refit.service.take_ledger()
        self.check(ledger, r"^<ferry.Ledger, \d+ bytes in place>$")
        refit.close()
        self.check(refit, "^<ferry.Refit [0-9a-f]{8}, closed>$")

    def test_handlers(self):
        handler = ferry.MixedCommHandler(*[None] * 10, "f32", "cpu", use_autotune=False)
        alive = "^<ferry.MixedCommHandler of f32: rank 0 of 1, tp 0 of 1, dp 0 of 1>$"
        self.check(handler, alive)
        self.in_a_child(handler, "of another process")
        handler.shutdown()
        self.check(handler, "^<ferry.MixedCommHandler, shut down>$")

    def test_what_is_half_made(self):
        for cls in (ferry.Spec, ferry.Plan, ferry.Refit, ferry.RemoteCopyService, ferry.Checkpoint,
                    ferry.MixedCommHandler, ferry.resharding.RosterPlan,
                    ferry.resharding.CommunicationScheduler):
            self.check(cls.__new__(cls), "^<ferry.%s, not made yet>$" % cls.__name__)
        self.check(ferry.resharding.CommunicationScheduler(rule="first-fit"),
                   "^<ferry.CommunicationScheduler, rule='first-fit', duplex='full'>$")

    def test_while_another_thread_is_in_a_call(self):
        one, other = _ferry.world_of_threads(2)
        services = [ferry.RemoteCopyService(world) for world in (one, other)]
        inits = [threading.Thread(target=each.init, args=("OFF",)) for each in services]
        for each in inits:
            each.start()
        for each in inits:
            each.join()
        waiter = threading.Thread(target=services[0].schedule)
        waiter.start()
        until(lambda: is_in_use(services[0]))
        self.check(services[0], "^<ferry.RemoteCopyService, PE 0 of 2, version 0>$")
        self.check(one, "rank 0 of 2")
        services[1].schedule()
        waiter.join(HANG_SECONDS)
        ends = [threading.Thread(target=each.finalize) for each in services]
        for each in ends:
            each.start()
        for each in ends:
            each.join()

    def in_a_child(self, thing, pattern):
        inlet, outlet = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(outlet, repr(thing).encode())
            os._exit(0)
        os.close(outlet)
        with os.fdopen(inlet) as file:
            self.assertIn(pattern, file.read())
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_in_a_child_of_fork(self):
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            self.in_a_child(service, "of another process")
            self.in_a_child(ferry.world(), "of another process")

    def test_long_lists(self):
        """A plan's own lists are shown as far as anybody reads them."""
        meta = [ferry.resharding.ParameterMetadata(
            name="w%d" % i, shape=(4, 4), dtype="f32", element_size=4, owner_rank=0,
            data_parallel_group_ranks=[0], tensor_parallel_group_ranks=[0]) for i in range(1000)]
        plan = ferry.resharding.plan_roster([meta], [meta])
        self.check(plan, "^<ferry.RosterPlan [0-9a-f]{8} of 1 ranks>$")
        ops = plan.for_rank(0).send_ops
        self.assertEqual(len(ops), 1000)
        self.assertRegex(repr(ops), r"^\[TransferOp\(.*, \.\.\. 968 more\]$")


class Table(unittest.TestCase):
    def test_errors_are_those_of_the_page(self):
        text = (ROOT / "docs" / "python.md").read_text().split("\n## Errors\n")[1].split("\n## ")[0]
        rows = {}
        for line in text.splitlines():
            found = re.match(r"\| `(\w+)` \|(.*)\|(.*)\|(.*)\|$", line)
            if found is not None:
                self.assertNotIn(found.group(1), rows)
                rows[found.group(1)] = [one.strip() for one in found.groups()[1:]]
        classes = {name: getattr(ferry, name) for name in ferry.__all__
                   if inspect.isclass(getattr(ferry, name)) and
                   issubclass(getattr(ferry, name), ferry.Error) and name != "Error"}
        self.assertEqual(sorted(rows), sorted(classes))
        for name, (kin, when, remedy) in rows.items():
            bases = [base.__name__ for base in classes[name].__bases__ if base is not ferry.Error]
            self.assertEqual(re.findall(r"`(\w+)`", kin)[:1], bases, name)
            self.assertTrue(len(when) > 10 and len(remedy) > 10, name)
            self.assertTrue(inspect.getdoc(classes[name]), name)


class Sentences(unittest.TestCase):
    """No sentence speaks of the C library: neither its functions nor fields of its structs."""

    OF_C = re.compile(r"\b(ferry|fy|fp)_[a-z]|FERRY_ERR|FERRY_\w+_INIT|options\.|->|\bNULL\b|_out\b|"
                      r"deadline_seconds|entry_seconds|join_seconds|n_threads|ferry\._ferry")

    def setUp(self):
        self.n = 0

    def try_call(self, call):
        try:
            call()
        except Exception as error:
            self.n += 1
            self.assertTrue(isinstance(error, (ferry.Error, TypeError, OverflowError)), repr(error))
            self.assertNotRegex(str(error), self.OF_C)
            if isinstance(error, ferry.Error):
                self.assertRegex(str(error), r"\w \w")  # and it is a sentence

    def test_all_that_the_library_can_say(self):
        """Of its texts that name a function, in Python's words; what only C can do wrong is left."""
        only_c = re.compile(r"needs? (a|an|two|at least|ranks|options|metadata|sources|paths|the)\b"
                            r".*(place|writer|function|visitor|names?|_INIT|NULL)|^ferry_\w+$")
        n = 0
        for path in sorted((ROOT / "src").rglob("*.c")):
            code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
            for found in re.finditer(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', code):
                text = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', found.group()))
                if path.name == "activity.c":
                    text += " of service 2"
                said = re.search(r"\bferry_(service|world|mixed_comm|request|region|transport_open|spec)",
                                 text)
                if said is None or only_c.search(text) or "schedule_for" in text:
                    continue
                n += 1
                with self.subTest(path=path.name, text=text):
                    self.assertNotRegex(_errors._in_python(text), r"\bferry_[a-z]|options\.")
        self.assertGreater(n, 50)

    def test_what_is_the_callers_stays(self):
        for text in ('tensor "ferry_service_run" is missing', "/data/ferry_world_run/x: cannot be read",
                     "ferry_plan_run/model.safetensors: cannot be read", "ferry_model: is no folder",
                     "ferry_world_x.json: is no spec", 'destination "a.ferry_plan_save" on rank 0'):
            self.assertEqual(_errors._in_python(text), text)
        self.assertEqual(_errors._in_python("rank 1 is in ferry_service_run of service 2 where rank 0 "
                                            "is in ferry_world_all_gather_v: all"),
                         "rank 1 is in run() of service 2 where rank 0 is in all_gather(): all")

    def test_calls_out_of_order(self):
        new = ferry.RemoteCopyService()
        closed = ferry.RemoteCopyService()
        closed.init("OFF")
        closed.finalize()
        idle = ferry.RemoteCopyService()
        idle.init("OFF")
        self.addCleanup(idle.finalize)
        data = bytearray(8)
        odd = (None, -1, 1 << 70, "text", b"", data, 1.5, [], {}, object(), [1, 2], (data, data))
        for service in (new, closed, idle):
            for name in dir(service):
                value = getattr(type(service), name, None)
                if name.startswith("_") or name == "finalize":
                    continue
                if not callable(value):
                    self.try_call(lambda: getattr(service, name))
                    continue
                n_parameters = len(inspect.signature(getattr(service, name)).parameters)
                for one in odd:
                    for n in range(min(n_parameters, 5) + 1):
                        self.try_call(lambda: getattr(service, name)(*[one] * n))
        self.assertGreater(self.n, 300)

    def test_absurd_arguments(self):
        world = _ferry.world_of_threads(1)[0]
        self.addCleanup(world.close)
        odd = (None, -1, 1 << 70, "text", b"", bytearray(8), 1.5, [], {}, object(), SPEC, "a/b",
               float("nan"), [object()], {"w": 1}, "\0", "tp=4")
        for name in sorted(ferry.__all__):
            value = getattr(ferry, name)
            if not is_called(value) or name in ("init", "shutdown", "world", "show_config"):
                continue
            if inspect.isclass(value) and (issubclass(value, (BaseException, tuple, enum.Enum)) or
                                           name.endswith("Result")):
                continue
            try:
                n_parameters = len(inspect.signature(value).parameters)
            except ValueError:
                n_parameters = 2
            for one in odd:
                for n in range(min(n_parameters, 4) + 1):
                    self.try_call(lambda: value(*[one] * n))
        for options in ({"deadline": -1.0}, {"join_limit": -2.0}, {"entry_limit": float("nan")},
                        {"nodes": "7,7"}, {"deadline": 1e300}):
            self.try_call(lambda: _ferry.world_of_threads(1, **options))
        self.try_call(world.shrink)
        self.try_call(lambda: world.broadcast(b"", root=9))
        self.try_call(lambda: world.shrink(min_size=9))
        self.assertGreater(self.n, 300)


def waits(world, rank):
    """Calls that wait for the other rank, by name; what stands on the world is made before."""
    service = ferry.RemoteCopyService(world)
    service.init("OFF")
    source, target = array.array("f", [1] * 4), array.array("f", [0] * 4)
    service.bind(ferry.plan(dict(SPEC, destination={"mesh": [["dp", 2]],
                                                    "rules": [{"match": "*"}]})),
                 {"w": source} if rank == 0 else {}, {"w": target})
    service.schedule()
    handler = ferry.MixedCommHandler(rank, 2, rank, 2, 0, 1, None, None, None, None, "f32", "cpu",
                                     world=world, use_autotune=False)
    other, fresh = ferry.RemoteCopyService(world), ferry.RemoteCopyService(world)
    fresh.init("OFF")
    return {
        "barrier": world.barrier, "all_gather": lambda: world.all_gather(b""),
        "broadcast": lambda: world.broadcast(b"", root=0), "run": service.run,
        "schedule": fresh.schedule, "rebind": lambda: service.rebind({}, {"w": target}),
        "init": lambda: other.init("OFF"),
        "MixedCommHandler": lambda: ferry.MixedCommHandler(
            rank, 2, rank, 2, 0, 1, None, None, None, None, "f32", "cpu", world=world,
            use_autotune=False),
    }, (service, handler, other, fresh)


class Diverging(unittest.TestCase):
    """Two ranks in different calls: each sentence names both as Python knows them."""

    def differ(self, first, second):
        worlds, said = _ferry.world_of_threads(2), ["", ""]

        def be(rank):
            try:
                calls, kept = waits(worlds[rank], rank)
                try:
                    calls[(first, second)[rank]]()
                except ferry.Error as error:
                    said[rank] = str(error)
                worlds[rank]._leave("the test has seen it")
                kept[1].shutdown() if not kept[1].closed else None
            except ferry.Error:
                pass
            except BaseException as error:
                said[rank] = repr(error)

        ranks = [threading.Thread(target=be, args=(rank,)) for rank in range(2)]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join()
        return said

    def test_names(self):
        for call in ("all_gather", "broadcast", "run", "schedule", "rebind", "init",
                     "MixedCommHandler"):
            with self.subTest(call):
                said = self.differ(call, "barrier")
                for text in said:
                    self.assertNotRegex(text, Sentences.OF_C)
                    self.assertIn(call, text)
                    self.assertIn("barrier()", text)


class FirstSteps(unittest.TestCase):
    """What goes wrong in the first minute is told in a sentence that says what to do."""

    def refused(self, kind, words, call):
        with self.assertRaisesRegex(kind, words):
            call()

    def test_tensors(self):
        class OfCuda:
            __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (1, False)}

        new = array.array("f", [0] * 4)
        if os.path.exists("/dev/nvidiactl"):
            self.refused(ferry.InvalidInput, "the CUDA driver knows none there",
                         lambda: ferry.refit({"w": OfCuda()}, {"w": new}, SPEC))
        else:
            self.refused(ferry.Unsupported, '"w" is in the memory of a GPU, which cannot be used here '
                         r"\(.*kind cuda: .*\): copy it to the host",
                         lambda: ferry.refit({"w": OfCuda()}, {"w": new}, SPEC))
            self.refused(ferry.Unsupported, "GPUs cannot be used here",
                         lambda: ferry.MixedCommHandler(*[None] * 10, "f32", "cuda:0"))
        self.refused(ferry.InvalidInput, '"w" on rank 0 is of f64: the plan expects .* of f32',
                     lambda: ferry.refit({"w": array.array("d", [0] * 4)}, {"w": new}, SPEC))
        self.refused(ferry.InvalidInput, '"w" on rank 0 has the shape .5.: the plan expects .4.',
                     lambda: ferry.refit({"w": array.array("f", [0] * 5)}, {"w": new}, SPEC))
        self.refused(ferry.InvalidInput, '"w" on rank 0 is missing: .*; given are "module.w", "b"$',
                     lambda: ferry.refit({"module.w": new, "b": new}, {"w": new}, SPEC))
        self.refused(ferry.InvalidInput, '"w" on rank 0 is missing: .*; nothing is given$',
                     lambda: ferry.refit(None, {"w": new}, SPEC))
        self.refused(ferry.InvalidInput, r"as refit\(source, destination, spec\)",
                     lambda: ferry.refit(SPEC, {"w": new}, {"w": new}))
        self.refused(ferry.InvalidInput, "give the spec that the plan was made of",
                     lambda: ferry.refit({"w": new}, {"w": new}, ferry.plan(SPEC)))
        self.refused(ferry.Unsupported, "device xpu is asked for",
                     lambda: ferry.MixedCommHandler(*[None] * 10, "f32", "xpu"))
        self.refused(ferry.InvalidInput, "give a dict of names",
                     lambda: ferry.refit([new], {"w": new}, SPEC))
        self.refused(ferry.InvalidInput, "'chekcsum' is not an option of a refit: there are checksum",
                     lambda: ferry.refit({"w": new}, {"w": new}, SPEC, chekcsum="end"))

    def test_ranks(self):
        wide = dict(SPEC, destination={"mesh": [["dp", 4]], "rules": [{"match": "*"}]})
        self.refused(ferry.InvalidInput, "is for 4 ranks, and the world has 1: start as many, as "
                     "`ferry launch -n 4` or `torchrun --nproc-per-node 4` do",
                     lambda: ferry.refit({}, {}, wide))

    def test_order(self):
        service = ferry.RemoteCopyService()
        self.refused(ferry.Misuse, r"was not initialized: call init\(\)", service.run)
        service.init("OFF")
        self.refused(ferry.Misuse, r"a run needs a schedule: call schedule\(\) before", service.run)
        service.finalize()
        self.refused(ferry.Misuse, "was finalized: make another one", service.run)
        refit = ferry.Refit({"w": bytes(16)}, {"w": bytearray(16)}, SPEC)
        refit.close()
        self.refused(ferry.Misuse, "the refit is closed: make another one", refit.run)

    def python(self, code, **variables):
        clean = {name: value for name, value in os.environ.items() if not name.startswith(
            ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PMI", "SLURM", "FERRY_REN"))}
        done = subprocess.run([sys.executable, "-c", "import ferry\n" + code], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(clean, **variables), timeout=HANG_SECONDS)
        return done.returncode, done.stdout

    def test_forgetting_the_end(self):
        """Nothing is closed, and the program ends well and without a word."""
        code = ("s = ferry.RemoteCopyService(); s.init('OFF'); a, b = bytearray(8), bytearray(8)\n"
                "s.register_send(1, a, 0, None, 0); s.register_receive(1, b, 0, None, 0)\n"
                "s.schedule(); s.run(); r = ferry.Refit({'w': a}, {'w': b}, %r)\nprint('done')"
                % dict(SPEC, tensors=[{"name": "w", "shape": [8], "dtype": "u8"}]))
        self.assertEqual(self.python(code), (0, "done\n"))

    def test_half_of_an_environment(self):
        code = "try:\n    ferry.init(join_limit=0.2)\nexcept ferry.Error as error:\n    print(error)"
        for variables, words in (({"RANK": "0"}, "WORLD_SIZE"), ({"RANK": "4", "WORLD_SIZE": "4"}, "4"),
                                 ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK"),
                                 ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR")):
            status, said = self.python(code, **variables)
            self.assertEqual(status, 0, said)
            self.assertIn(words, said)
            self.assertNotRegex(said, Sentences.OF_C)

    def test_show_config(self):
        file = io.StringIO()
        ferry.show_config(file)
        self.assertRegex(file.getvalue(), r"(?s)^ferry +%s, in .*Python +\d.*shm.*GPUs +(\d|none "
                         r"can be used: ).*refit +works\n$" % re.escape(ferry.__version__))
        status, said = self.python("import sys; ferry.show_config(); print('torch' in sys.modules)",
                                   RANK="3", WORLD_SIZE="4")
        self.assertEqual((status, said.splitlines()[-1]), (0, "False"), said)
        self.assertIn("RANK=3, WORLD_SIZE=4", said)
        self.assertIn("refit    works", said)
        self.assertIn("ranks    one, this process", self.python("ferry.show_config()")[1])
        self.assertIn("told them no way", self.python("ferry.show_config()", SLURM_NTASKS="2")[1])


if __name__ == "__main__":
    unittest.main()
