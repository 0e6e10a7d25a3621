# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What a demanding program does with the extension: signatures, threads, forks, dropped requests in
any order, and thousands of rounds after which nothing is left behind."""

import array
import ast
import gc
import inspect
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import ferry
from ferry import _ferry
from support import HANG_SECONDS, free_port, run_ranks

SIDE = {"mesh": [], "rules": [{"match": "*"}]}
SPEC = {"format": "ferry.spec/1", "source": SIDE, "destination": SIDE,
        "tensors": [{"name": "w", "shape": [64], "dtype": "u8"}]}


def c_functions():
    """(name, function) of all that is written in C and has a docstring of its own."""
    for name, value in vars(_ferry).items():
        if inspect.isbuiltin(value):
            yield name, value
        elif isinstance(value, type) and not issubclass(value, BaseException):
            yield name, value
            for method, function in vars(value).items():
                if not method.startswith("__") and callable(function):
                    yield "%s.%s" % (name, method), function


def stubs():
    """The parameters of each function of the stub file: name to (names, defaults)."""
    path = os.path.join(os.path.dirname(os.path.abspath(ferry.__file__)), "_ferry.pyi")
    with open(path) as file:
        tree = ast.parse(file.read())
    found = {}

    def note(prefix, node):
        given = node.args
        names = [one.arg for one in given.posonlyargs + given.args + given.kwonlyargs]
        defaults = len(given.defaults) + sum(one is not None for one in given.kw_defaults)
        found[prefix + node.name] = ([one for one in names if one != "self"], defaults)

    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            note("", node)
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef) and not inner.decorator_list:
                note(node.name + ".", inner)
    return found


class Signatures(unittest.TestCase):
    def test_all_have_one_and_the_stubs_agree(self):
        known, n = stubs(), 0
        for name, function in c_functions():
            with self.subTest(name):
                signature = inspect.signature(function)
                self.assertNotIn("--", inspect.getdoc(function))
                if isinstance(function, type):
                    continue
                names, defaults = known[name]
                own = [one for one in signature.parameters.values() if one.name != "self"]
                n += 1
                self.assertEqual([one.name for one in own], names)
                self.assertEqual(sum(one.default is not one.empty for one in own), defaults)
        self.assertGreater(n, 80)

    def test_defaults_are_what_is_taken(self):
        world = _ferry.world_of_threads(1)[0]
        self.assertEqual(inspect.signature(world.broadcast).parameters["root"].default, 0)
        self.assertEqual(world.broadcast(b"x"), world.broadcast(data=b"x", root=0))
        self.assertEqual(world.all_gather(data=b"y"), [b"y"])
        reason = inspect.signature(world.abort).parameters["reason"].default
        world.abort()
        with self.assertRaisesRegex(ferry.Aborted, reason):
            world.check()

    def test_public_names_are_of_ferry(self):
        for name in ferry.__all__:
            value = getattr(ferry, name)
            if not inspect.ismodule(value) and name != "__version__":
                self.assertEqual(value.__module__, "ferry", name)
                if inspect.isclass(value) and value is not ferry.World:
                    self.assertIs(pickle.loads(pickle.dumps(value)), value)
        self.assertIn("class World", "".join(subprocess_help("World")))

    def test_errors_survive_pickling(self):
        with self.assertRaises(FileNotFoundError) as caught:
            ferry.inspect("/nowhere/at/all")
        again = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual((type(again), str(again), again.errno, again.filename),
                         (type(caught.exception), str(caught.exception), 2, "/nowhere/at/all"))


def subprocess_help(name):
    return subprocess.run([sys.executable, "-c", "import ferry; help(ferry.%s)" % name],
                          stdout=subprocess.PIPE, text=True, timeout=HANG_SECONDS).stdout


class Sentences(unittest.TestCase):
    def test_a_launcher_that_tells_no_way_to_meet(self):
        """As srun without PMIx: an error, and no world of one; and what it advises works."""
        code = "import ferry\ntry:\n    print(ferry.world().size)\n" \
               "except ferry.InvalidInput as error:\n    print(error)"
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(("RANK", "WORLD_SIZE", "MASTER_", "PMI", "SLURM", "FERRY_REN"))}

        def said(**variables):
            return subprocess.run([sys.executable, "-c", code], env=dict(clean, **variables),
                                  stdout=subprocess.PIPE, text=True, timeout=HANG_SECONDS).stdout

        for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"):
            self.assertRegex(said(**{name: "2"}), name + ' is "2".*srun --mpi=pmix')
            self.assertEqual(said(**{name: "1"}), "1\n")
        self.assertEqual(said(SLURM_NTASKS="2", RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                              MASTER_PORT=str(free_port())), "1\n")

    def test_a_layout_as_a_dict_is_no_file(self):
        header = b'{"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}'
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.safetensors")
            with open(path, "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header + bytes(4))
            for wrong in ({"mesh": [["tp", 2]]}, {"format": "ferry.layout/1", "mesh": []},
                          {"format": "ferry.layout/1", "mesh": [["tp", 2]], "rules": [{"match": "v"}]}):
                with self.assertRaises(ferry.Error) as caught:
                    ferry.reshard(path, wrong, os.path.join(folder, "out"))
                self.assertNotIn("layout.json", str(caught.exception))
                self.assertNotIn("ferry-", str(caught.exception))


# Two ranks that are threads of this process: whoever keeps the interpreter's lock while it waits
# keeps the other one from coming.


def service_of(world, source, target, peer, **options):
    service = ferry.RemoteCopyService(world, **options)
    service.init("OFF")
    service.register_send(1, source, 0, None, peer)
    service.register_receive(1, target, 0, None, peer)
    return service


def all_waits(world, rank):
    """Every call that waits for another rank."""
    spec = dict(SPEC, destination={"mesh": [["dp", 2]], "rules": [{"match": "*"}]})
    source, target = bytes([rank + 1] * 64), bytearray(64)
    world.barrier()
    world.all_gather(b"x")
    world.broadcast(b"y" if rank == 1 else None, root=1)
    service = service_of(world, source, target, 1 - rank)
    service.schedule()
    service.run()
    assert target == bytes([2 - rank] * 64)
    request = service.start()
    request.wait()
    request = service.start()
    while not request.test():
        pass
    service.clear_requests()
    service.bind(ferry.plan(spec), {"w": source} if rank == 0 else {}, {"w": target})
    service.schedule()
    service.run()
    assert target == bytes([1] * 64)
    service.rebind({}, {"w": bytearray(64)})
    service.run()
    service.recover_onto(spec)
    service.run()
    service.finalize()
    ferry.refit({"w": source} if rank == 0 else None, {"w": target}, spec, world=world)
    with ferry.MixedCommHandler(rank, 2, rank, 2, 0, 1, None, None, None, None, "f32", "cpu",
                                world=world, use_autotune=False) as handler:
        x, y = array.array("f", [rank + 1.0] * 4), array.array("f", [0.0] * 4)
        handler.run(ferry.MixedCommOp.ALLREDUCE, x, y)
        assert list(y) == [3.0] * 4
    world.barrier()
    if rank == 0:
        world.abort("to see it shrink")
    else:
        try:
            world.barrier()  # until the world has failed
        except ferry.Aborted:
            pass
    world.shrink().close()
    world.close()


class Threads(unittest.TestCase):
    def test_nobody_keeps_the_lock_while_it_waits(self):
        """Rank 1 comes to each call when rank 0 is in it, or the other way round, and a third
        thread counts all the while."""
        code = """
import faulthandler, sys, threading
faulthandler.dump_traceback_later(%r, exit=True)
sys.path.insert(0, %r)
import test_use
from ferry import _ferry
failed, worlds = [], _ferry.world_of_threads(2)
def be(rank):
    try:
        test_use.all_waits(worlds[rank], rank)
    except BaseException as error:
        failed.append(repr(error))
        worlds[rank].abort("a test failed")
threads = [threading.Thread(target=be, args=(rank,)) for rank in range(2)]
[one.start() for one in threads]
[one.join() for one in threads]
print(failed)
""" % (HANG_SECONDS, os.path.dirname(os.path.abspath(__file__)))
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=2 * HANG_SECONDS)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1:]), (0, ["[]"]), done.stdout)

    def test_a_second_thread_is_told(self):
        """While one waits in a call, each other call of the object is Misuse, and harms nothing."""
        one, other = _ferry.world_of_threads(2)
        made = []

        def make():
            made.append(service_of(other, bytes([2] * 64), bytearray(64), 0))
            made[0].schedule()

        thread = threading.Thread(target=make)
        thread.start()
        target = bytearray(64)
        service = service_of(one, bytes([1] * 64), target, 1)
        service.schedule()
        thread.join()
        inside, go = threading.Event(), threading.Event()
        failed = []

        def wait(progress):
            inside.set()
            go.wait(HANG_SECONDS)

        def run():
            try:
                service.set_progress(wait)
                service.run()
            except BaseException as error:
                failed.append(error)

        runner = threading.Thread(target=run)
        runner.start()
        inside.wait(HANG_SECONDS)
        calls = (service.run, service.start, service.schedule, service.clear_requests,
                 service.finalize, one.barrier, lambda: one.all_gather(b""), one.close, one.shrink,
                 lambda: service.alloc(64), service.statistics, service.destinations,
                 lambda: service.register_send(2, bytes(4), 0, None, 1), lambda: service.rebind({}, {}))
        for call in calls:
            with self.assertRaisesRegex(ferry.Misuse, "in use"):
                call()
        self.assertEqual((service.my_pe, service.n_pes, service.version, one.rank), (0, 2, 0, 0))
        go.set()
        made[0].run()
        runner.join(HANG_SECONDS)
        self.assertEqual((failed, target), ([], bytes([2] * 64)))
        ends = [threading.Thread(target=end) for end in (service.finalize, made[0].finalize)]
        for end in ends:
            end.start()
        for end in ends:
            end.join()


# Requests.


def drops(rank, size, seed):
    """Several runs at once; rank 0 drops their requests in any order, and rank 1 waits in another.
    Every service runs again afterwards, and right."""
    rng, services = random.Random(seed * 2 + rank), []
    for number in range(4):
        source, target = bytearray([rank * 16 + number] * 512), bytearray(512)
        service = ferry.RemoteCopyService()
        service.init("OFF")
        service.register_send(1, source, 0, None, 1 - rank)
        service.register_receive(1, target, 0, None, 1 - rank)
        service.schedule()
        services.append((service, source, target))
    sys.unraisablehook = lambda report: None
    heard = set()
    for version in range(8):
        for number, (_, source, _) in enumerate(services):
            source[:] = bytes([rank * 16 + number + 32 * version & 255] * 512)
        requests = [service.start() for service, _, _ in services]
        order = list(range(len(services)))
        rng.shuffle(order)
        for at in order:
            if rank == 0:
                requests[at] = None
                continue
            try:
                requests[at].wait()
                heard.add("whole")
            except ferry.Aborted:
                heard.add("aborted")
        del requests
        gc.collect()
        for number, (service, _, target) in enumerate(services):
            service.run()
            wanted = (1 - rank) * 16 + number + 32 * version & 255
            assert target == bytes([wanted] * 512), (version, number)
    for service, _, _ in services:
        service.finalize()
    return sorted(heard)


class Requests(unittest.TestCase):
    def test_dropped_in_any_order(self):
        first, second = run_ranks(drops, 2, 5)
        self.assertEqual(first, [])
        self.assertTrue(second)


# Forks.


def in_a_child(what):
    if what == "nothing":
        return os.getpid()
    if what == "error":
        raise ferry.PeerLost("rank 3 was lost")
    if what == "file":
        ferry.inspect("/nowhere/at/all")
    if what == "own":
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            return service.n_pes
    return SHARED[what]()


SHARED = {}


class Forks(unittest.TestCase):
    def test_a_pool_of_forked_processes(self):
        """They may not use what the parent made, are told so, and their end harms nothing."""
        source, target = bytes(range(64)), bytearray(64)
        with ferry.Refit({"w": source}, {"w": target}, SPEC) as refit:
            refit.run()
            SHARED.update(run=refit.run, barrier=ferry.world().barrier,
                          start=refit.service.start, close=refit.close)
            with multiprocessing.get_context("fork").Pool(2) as pool:
                self.assertNotEqual(pool.apply(in_a_child, ("nothing",)), os.getpid())
                for what in ("run", "barrier", "start"):
                    with self.assertRaisesRegex(ferry.Misuse, "fork"):
                        pool.apply(in_a_child, (what,))
                with self.assertRaises(ferry.PeerLost) as caught:
                    pool.apply(in_a_child, ("error",))
                self.assertEqual(caught.exception.ranks, (3,))
                with self.assertRaises(FileNotFoundError):
                    pool.apply(in_a_child, ("file",))
                self.assertEqual(pool.apply(in_a_child, ("own",)), 1)
                pool.close()
                pool.join()
            SHARED.clear()
            target[:] = bytes(64)
            refit.run()
            self.assertEqual(target, source)


# Leaks.


class Leaks(unittest.TestCase):
    N = 1000
    SPARE = 450  # blocks that the interpreter's own lists of free ones come to

    def check(self, once, n=N):
        """Blocks of memory and objects after n rounds, beside those after a few."""
        def count():
            gc.collect()
            return len(gc.get_objects()), sys.getallocatedblocks()

        for _ in range(20):
            once()
        grown = []
        for _ in range(3):  # what leaks grows each time, the lists of free ones do not
            before = count()
            for _ in range(n):
                once()
            after = count()
            grown.append((after[0] - before[0], after[1] - before[1]))
            if grown[-1][0] < n // 10 and grown[-1][1] < self.SPARE:
                return
        self.fail("objects and blocks of memory stay: %s" % grown)

    def fails(self, kind, call, *args, **how):
        try:
            call(*args, **how)
        except kind:
            return
        raise AssertionError("nothing was raised")

    def test_specs_plans_and_sentences(self):
        plan = ferry.plan(SPEC)

        def once():
            made = ferry.plan(ferry.Spec(SPEC))
            list(made.moves()), made.shards("source", 0), made.traffic(), made.json(), made.bound
            next(plan.moves())
            self.fails(ferry.InvalidInput, ferry.Spec, {"format": "no"})
            self.fails(ferry.InvalidInput, ferry.plan, SPEC, replica="no")
            self.fails(ferry.InvalidInput, plan.shards, "no", 0)
            self.fails(ferry.InvalidInput, plan.rank_bytes, 7)

        self.check(once)

    def test_runs(self):
        source, target = bytearray(64), bytearray(64)
        service = ferry.RemoteCopyService()
        service.init("OFF")

        def fail(progress):
            raise ValueError

        def once():
            service.clear_requests()
            service.bind(ferry.plan(SPEC), {"w": source}, {"w": target})
            self.fails(ferry.InvalidInput, service.register_send, 1, source, 99, None, 0)
            self.fails(ferry.InvalidInput, service.register_sends, [(1, "text", 0, None, 0)])
            service.schedule()
            service.run()
            service.set_progress(fail)
            self.fails(ValueError, service.run)
            self.fails(ValueError, service.start().wait)
            service.set_progress(lambda progress: False)
            self.fails(ferry.Aborted, service.run)
            service.set_progress(None)
            request = service.start()
            while not request.test():
                pass
            service.rebind({"w": source}, {"w": bytearray(64)})
            self.fails(ferry.InvalidInput, service.rebind, {"w": "text"})
            self.fails(ferry.InvalidInput, service.rebind, {"w": (source, source)})
            service.destinations(), service.statistics(), service.peers(), service.spans()
            service.recover_onto(SPEC)

        self.check(once)
        service.finalize()

    def test_services_and_refits(self):
        source, target = array.array("B", bytes(64)), array.array("B", bytes(64))

        def once():
            with ferry.Refit({"w": source}, {"w": target}, SPEC, progress=repr) as refit:
                refit.run()
                refit.progress = refit  # a cycle
            with ferry.RemoteCopyService() as service:
                service.init("OFF")
                memory = service.alloc(64)
                service.register_send(1, memory, 0, None, 0)
                service.register_receive(1, target, 0, None, 0)
                service.schedule()
                service.start()  # dropped
            self.fails(ferry.InvalidInput, ferry.refit, {}, {"w": target}, SPEC)
            self.fails(ferry.InvalidInput, ferry.refit, {"w": source}, {"w": bytes(64)}, SPEC)

        hook, sys.unraisablehook = sys.unraisablehook, lambda report: None
        try:
            self.check(once, self.N // 2)
        finally:
            sys.unraisablehook = hook

    def test_worlds_and_collectives(self):
        x, y = array.array("f", [1.0] * 4), array.array("f", [0.0] * 4)

        def once():
            world = _ferry.world_of_threads(1)[0]
            world.all_gather(b"x"), world.broadcast(b"x"), world.members, repr(world)
            self.fails(TypeError, world.all_gather, "text")
            with ferry.MixedCommHandler(0, 1, 0, 1, 0, 1, None, None, None, None, "f32", "cpu",
                                        world=world, use_autotune=False) as handler:
                handler.run("all-reduce", x, y)
                handler.describe(), handler.counts(), handler.timings(), handler.get_valid_mode_list()
                self.fails(ferry.InvalidInput, handler.run, "no", x, y)
                self.fails(ferry.InvalidInput, handler.run, 0, x, array.array("f", [0.0] * 3))
            world.close()

        self.check(once, self.N // 2)


if __name__ == "__main__":
    unittest.main()
