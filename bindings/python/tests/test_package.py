# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The package as a whole: importing, names, exceptions, worlds, processes, threads, interpreters."""

import os
import subprocess
import sys
import tempfile
import threading
import unittest

import ferry
from support import HANG_SECONDS, free_port, is_in_use, run_ranks, until


def in_python(code, **variables):
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANG_SECONDS,
                          env=dict(os.environ, **variables))
    if done.returncode != 0:
        raise AssertionError("ended with %d:\n%s" % (done.returncode, done.stdout))
    return done.stdout


class Importing(unittest.TestCase):
    def test_needs_the_standard_library_only(self):
        code = """
import sys, sysconfig
import ferry
for name in ferry.__all__:
    if name not in ("adapters",):
        getattr(ferry, name)
standard = set(sys.stdlib_module_names) if hasattr(sys, "stdlib_module_names") else None
found = {name.partition(".")[0] for name in sys.modules}
print(sorted(found & {"torch", "numpy", "megatron"}))
if standard is not None:
    own = {n for n in found if not n.startswith("_") and n not in standard}
    print(sorted(own - {"ferry", "sitecustomize", "usercustomize"}))
"""
        lines = in_python(code).split("\n")
        self.assertEqual(lines[0], "[]")
        self.assertNotIn("torch", "".join(lines))

    def test_takes_few_modules(self):
        """Importing costs what is loaded: of ferry the package alone, of others next to nothing."""
        code = """
import sys
import tempfile
before = set(sys.modules)
import ferry
loaded = set(sys.modules) - before
print(sorted(name for name in loaded if name.split(".")[0] == "ferry"), len(loaded) <= 12)
"""
        self.assertEqual(in_python(code), "['ferry'] True\n")

    def test_all_names_are_there(self):
        for name in ferry.__all__:
            self.assertTrue(hasattr(ferry, name), name)
            self.assertIn(name, dir(ferry))
        with self.assertRaises(AttributeError):
            ferry.no_such_name

    def test_version(self):
        self.assertRegex(ferry.__version__, r"^\d+\.\d+\.\d+$")


class Errors(unittest.TestCase):
    def test_every_status_has_a_class(self):
        from ferry import _errors, _ferry
        names = _ferry.status_names()
        self.assertEqual(names.pop(0), "OK")
        for number, name in names.items():
            error = _errors.of_status(number, "a sentence")
            self.assertEqual(error.status, name)
            self.assertIsNot(type(error), ferry.Error)
            self.assertIsInstance(error, ferry.Error)

    def test_builtin_kin(self):
        for cls, kin in ((ferry.InvalidInput, ValueError), (ferry.Timeout, TimeoutError),
                         (ferry.NoMemory, MemoryError), (ferry.FileError, OSError),
                         (ferry.Error, RuntimeError)):
            self.assertTrue(issubclass(cls, kin))

    def test_what_the_sentence_speaks_of(self):
        error = ferry.PeerLost('rank 3 was lost while it sent tensor "a.weight" [0:4, 8:16] to '
                               "ranks 5 and 7: its control connection ended")
        self.assertEqual(error.tensor, "a.weight")
        self.assertEqual(error.ranks, (3, 5, 7))
        self.assertEqual(error.slice, "0:4, 8:16")
        error = ferry.InvalidPlan('"w": rank 4 needs [0:2] of source tensor "w", which only lost '
                                  "ranks held: 1, 2; give another source")
        self.assertEqual((error.ranks, error.slice), ((4, 1, 2), "0:2"))
        plain = ferry.Error("nothing of the kind")
        self.assertEqual((plain.tensor, plain.ranks, plain.slice), (None, (), None))
        given = ferry.Error("rank 1", tensor="b", ranks=(2,), slice="0:1")
        self.assertEqual((given.tensor, given.ranks, given.slice), ("b", (2,), "0:1"))

    def test_sentences_that_are_no_utf8(self):
        from ferry import _ferry
        with self.assertRaisesRegex(ferry.FileError, "nope"):
            _ferry.world_from_file(b"/nope/\xff".decode("utf-8", "surrogateescape"), 0, 2)

    def test_survive_pickling(self):
        import pickle

        error = pickle.loads(pickle.dumps(ferry.InvalidInput('tensor "x" of rank 4 is bad')))
        self.assertEqual((type(error), error.tensor, error.ranks),
                         (ferry.InvalidInput, "x", (4,)))


class Alone(unittest.TestCase):
    def test_a_process_without_an_environment_is_a_world_of_one(self):
        code = "import ferry; w = ferry.world(); print(w.rank, w.size, w is ferry.world())"
        plain = {name: value for name, value in os.environ.items()
                 if name not in ("RANK", "WORLD_SIZE")}
        done = subprocess.run([sys.executable, "-c", code], env=plain, text=True,
                              stdout=subprocess.PIPE, timeout=HANG_SECONDS)
        self.assertEqual(done.stdout, "0 1 True\n")

    def test_after_the_end(self):
        from ferry import _ferry
        world = _ferry.world_of_threads(1)[0]
        world.close()
        world.close()
        self.assertTrue(world.closed)
        with self.assertRaisesRegex(ferry.Misuse, "closed"):
            world.barrier()
        with self.assertRaisesRegex(ferry.Misuse, "closed"):
            world.rank

    def test_bad_numbers(self):
        from ferry import _ferry
        with self.assertRaises(ferry.InvalidInput):
            _ferry.world_of_threads(0)
        with self.assertRaises(ferry.Error):
            _ferry.world_of_threads(1, deadline=-1.0)
        with self.assertRaises(ferry.FileError):
            _ferry.world_from_file("/nonexistent/folder/file", 0, 2)

    def test_a_child_of_fork_is_told(self):
        code = """
import os, ferry
world = ferry.world()
child = os.fork()
if child == 0:
    try:
        world.barrier()
    except ferry.Misuse as error:
        assert "fork" in str(error), error
        assert ferry.world().size == 1  # one of its own
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
world.barrier()
print("fine")
"""
        self.assertEqual(in_python(code), "fine\n")

    def test_another_interpreter_is_refused(self):
        code = """
import ferry
ferry.world()
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
own = interpreters.create()
try:
    interpreters.run_string(own, '''
try:
    from ferry import _ferry
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    raise SystemError("a second interpreter got the module")
''')
except interpreters.RunFailedError as error:
    raise SystemExit(str(error))
interpreters.destroy(own)
print("fine")
"""
        self.assertEqual(in_python(code), "fine\n")

    def test_interrupting_a_wait(self):
        """Ctrl-C while a rank waits for one that never comes."""
        code = """
import os, signal, threading, time
import ferry
from ferry import _ferry
a, b = _ferry.world_of_threads(2)
def is_in_use():
    try:
        _ferry.service(a, None, 0, 0, 0, 0, 0, 0, True, False, 0, False)
    except ferry.Misuse as error:
        return "in use" in str(error)
def strike():
    while not is_in_use():
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=strike).start()
try:
    a.barrier()
except KeyboardInterrupt:
    print("interrupted")
try:
    b.check()
except Exception as error:
    print(type(error).__name__)
"""
        self.assertEqual(in_python(code), "interrupted\nAborted\n")


class Types(unittest.TestCase):
    """What the extension has: nobody gets an object of it that was never filled."""

    def types(self):
        from ferry import _ferry
        found = [value for value in vars(_ferry).values()
                 if isinstance(value, type) and not issubclass(value, BaseException)]
        self.assertGreater(len(found), 10)
        return found

    def test_calling_one_without_arguments(self):
        for cls in self.types():
            with self.subTest(cls.__name__):
                try:
                    made = cls()
                except TypeError as error:
                    self.assertRegex(str(error), "%s is not made by calling it: .*[a-z]|"
                                     "missing required argument '[a-z]" % cls.__name__)
                    continue
                self.use_all(made)

    def use_all(self, made):
        """Whatever it has may refuse, and says so; nothing ends the interpreter."""
        for name in dir(type(made)):
            if name.startswith("__"):
                continue
            try:
                value = getattr(made, name)
                if callable(value):
                    value()
            except (ferry.Error, TypeError):
                pass

    def test_no_way_around(self):
        """Copies and pickles make objects without a call."""
        for cls in self.types():
            with self.subTest(cls.__name__), self.assertRaises(TypeError):
                object.__new__(cls)


class TwoThreads(unittest.TestCase):
    def test_numbers_while_a_call_is_on(self):
        from ferry import _ferry
        one, other = _ferry.world_of_threads(2)
        waiter = threading.Thread(target=one.barrier)
        waiter.start()
        try:
            until(lambda: is_in_use(one))
            self.assertEqual((one.rank, one.size, one.epoch, one.members, one.closed),
                             (0, 2, 0, (0, 1), False))
            self.assertEqual((one.node, one.n_nodes, one.local_rank, one.local_size), (0, 1, 0, 2))
            one.check()
            self.assertTrue(waiter.is_alive())
        finally:
            other.barrier()
            waiter.join(HANG_SECONDS)
        self.assertFalse(waiter.is_alive())

    def test_one_uses_a_world_at_a_time(self):
        from ferry import _ferry
        one, other = _ferry.world_of_threads(2)
        waiter = threading.Thread(target=one.barrier)
        waiter.start()
        until(lambda: is_in_use(one))
        with self.assertRaisesRegex(ferry.Misuse, "in use"):
            one.barrier()
        other.barrier()
        waiter.join(HANG_SECONDS)
        self.assertFalse(waiter.is_alive())

    def test_worlds_that_are_let_go_do_not_wait_for_each_other(self):
        """For each other they would wait a deadline, so here for ever."""
        code = """
from ferry import _ferry
worlds = _ferry.world_of_threads(4, deadline=100000.0)
del worlds
print("gone")
"""
        self.assertEqual(in_python(code), "gone\n")


def talk(rank, size):
    world = ferry.world()
    parts = world.all_gather(b"x" * rank)
    told = world.broadcast(b"from %d" % rank if rank == 1 else None, root=1)
    world.barrier()
    return world.rank, world.size, [len(part) for part in parts], told


def die(rank, size):
    world = ferry.init(deadline=100.0)
    try:
        world.barrier()
        if rank == size - 1:
            os._exit(3)
        while True:
            world.barrier()
    except ferry.PeerLost as error:
        smaller = world.shrink()
        smaller.barrier()
        return error.ranks, smaller.rank, smaller.size, smaller.members, smaller.epoch


def grow(rank, size, path):
    """Two ranks, and a third that joins them; then a fourth that does not come."""
    if rank == 2:
        world = ferry.init(join=path, deadline=100.0)
        world.barrier()
        return world.rank, world.size, world.members, world.epoch
    os.environ.update(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    world = ferry.init(deadline=100.0)
    try:
        world.grow(path=path + ".other", join_limit=0.2)
        return "nobody came, and it grew"
    except ferry.Timeout as error:
        if "rank 2 of 3 never came" not in str(error):
            return str(error)
    world.barrier()
    larger = world.grow(members=[7], path=path)
    larger.barrier()
    world.close()
    return larger.rank, larger.size, larger.members, larger.epoch


class Ranks(unittest.TestCase):
    def test_talking(self):
        for rank, value in enumerate(run_ranks(talk, 3)):
            self.assertEqual(value, (rank, 3, [0, 1, 2], b"from 1"))

    def test_a_lost_rank(self):
        values = run_ranks(die, 3, may_fail=(2,))
        for rank, value in enumerate(values[:2]):
            self.assertEqual(value, ((2,), rank, 2, (0, 1), 1))

    def test_growing(self):
        with tempfile.TemporaryDirectory() as folder:
            values = run_ranks(grow, 3, os.path.join(folder, "meet"))
        for rank, value in enumerate(values):
            self.assertEqual(value, (rank, 3, (0, 1, 7), 1))

    def test_growing_refused(self):
        (world,) = ferry._ferry.world_of_threads(1)
        with self.assertRaisesRegex(ferry.InvalidInput, "members has 1 numbers for 2 newcomers"):
            world.grow(2, members=[1])
        for number in (0, -1):
            with self.assertRaisesRegex(ferry.InvalidInput, f"newcomers is {number}; .* one rank"):
                world.grow(number)
        with self.assertRaisesRegex(ferry.LimitExceeded, "a world has at most"):
            world.grow(2**40)
        with self.assertRaisesRegex(ferry.InvalidInput, "nothing says where members"):
            world.grow()
        with self.assertRaisesRegex(ferry.InvalidInput, "a member is not a whole number"):
            world.grow(1, members=["one"])
        with self.assertRaisesRegex(ferry.InvalidInput, "give join alone"):
            ferry.init(object(), join=True)
        world.close()

    def test_a_rank_that_never_comes(self):
        code = "import ferry\ntry:\n    ferry.init(join_limit=0.5)\nexcept ferry.Timeout as e:\n" \
               "    print(e.ranks)"
        out = in_python(code, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                        MASTER_PORT=str(free_port()))
        self.assertEqual(out, "(1,)\n")


if __name__ == "__main__":
    unittest.main()
