# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Who holds what, and until when: requests that are dropped, signals, cycles, callbacks."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import weakref

import ferry
from support import HANG_SECONDS, await_mark, is_in_use, mark, meet, run_ranks, until


class Late(Exception):
    pass


def raise_late(number, frame):
    raise Late


def exchange(rank, **options):
    """A service of two ranks that is ready to run, and what it moves."""
    service = ferry.RemoteCopyService(**options)
    service.init("OFF")
    mine, other = bytearray([rank + 1]) * 4096, bytearray(4096)
    service.register_send(1, mine, 0, None, 1 - rank)
    service.register_receive(1, other, 0, None, 1 - rank)
    service.schedule()
    return service, mine, other


class Unraisable:
    """What was reported because nobody could catch it."""

    def __enter__(self):
        self.seen, self.before = [], sys.unraisablehook
        sys.unraisablehook = lambda report: self.seen.append((report.exc_type, str(report.exc_value)))
        return self

    def __exit__(self, *raised):
        sys.unraisablehook = self.before


def dropped_beside_a_death(rank, size):
    service, _, _ = exchange(rank)
    service.run()
    if rank == 1:
        await_mark("begun")
        os.kill(os.getpid(), signal.SIGKILL)
    with Unraisable() as reports:
        request = service.start()
        mark("begun")
        del request
    kinds = [kind.__name__ for kind, _ in reports.seen]
    del service
    return kinds


def dropped_beside_a_barrier(rank, size):
    """The others are elsewhere: the end is bounded, and they are told."""
    service, _, _ = exchange(rank)
    service.run()
    meet(rank, size)  # or the world would end in the run before
    service._handle.patience = 0.5  # for half a deadline of this test would be a minute
    try:
        with Unraisable() as reports:
            if rank == 0:
                service.start()
                return [kind.__name__ for kind, _ in reports.seen]
            ferry.world().barrier()
    except ferry.Error as error:
        return type(error).__name__
    return "passed"


def dropped_by_an_exception(rank, size):
    """The traceback holds the request; the other rank waits in its own run."""
    service, _, other = exchange(rank, engines="delay=50ms", paths="staged")
    with Unraisable():
        try:
            request = service.start()
            if rank == 0:
                raise Late
            request.wait()
            first = "well"
        except Late:
            first = "late"
        except ferry.Aborted as error:
            first = str(error)
        request = None
        service.run()
    assert other == bytes([2 - rank]) * 4096
    service.finalize()
    return first


def signal_in_rebind(rank, size, folder):
    """Rank 1 comes when rank 0 is in the call and has its signal."""
    side = {"mesh": [["dp", 2]], "rules": [{"match": "*"}]}
    spec = {"format": "ferry.spec/1", "source": side, "destination": side,
            "tensors": [{"name": "w", "shape": [64], "dtype": "u8"}]}
    go = os.path.join(folder, "go")
    source, old, new = bytes(range(64)), bytearray(64), bytearray(64)
    service = ferry.RemoteCopyService()
    service.init("OFF")
    service.bind(ferry.plan(spec), {"w": source}, {"w": old})
    service.schedule()
    if rank == 1:
        until(lambda: os.path.exists(go))
        service.rebind({}, {})
        service.run()
        service.finalize()
        return "done"
    signal.signal(signal.SIGALRM, raise_late)

    def strike():
        until(lambda: is_in_use(service))
        os.kill(os.getpid(), signal.SIGALRM)
        with open(go, "w"):
            pass

    thread = threading.Thread(target=strike)
    thread.start()
    came = False
    try:
        service.rebind({}, {"w": new})
        until(lambda: False)
    except Late:
        came = True
    thread.join()
    held = service.destinations()[0].tensor is new
    service.run()
    service.finalize()
    return came, held, bytes(new) == source


def signal_in_a_join(rank, size, folder):
    """The world was joined when the exception came: it is left, and nobody waits for its ghost."""
    meeting = os.path.join(folder, "meeting")
    go = os.path.join(folder, "go")
    # Rank 1 may have to wait for its limit: there is nobody to meet any more.
    os.environ.update(FERRY_RENDEZVOUS=meeting,
                      FERRY_JOIN_LIMIT="2" if rank == 1 else str(HANG_SECONDS))
    if rank == 1:
        until(lambda: os.path.exists(go))
        try:
            ferry.world().barrier()
        except ferry.Error as error:
            return isinstance(error, ferry.Error)
        return "passed"
    signal.signal(signal.SIGALRM, raise_late)

    def strike():
        until(lambda: os.path.exists(meeting))
        os.kill(os.getpid(), signal.SIGALRM)
        with open(go, "w"):
            pass

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        try:
            ferry.world()
        except ferry.Error:
            pass  # rank 1 came and gave up before this thread has heard its signal
        until(lambda: False)
    except Late:
        pass
    thread.join()
    until(lambda: os.path.exists(os.path.join(folder, "seen")))  # this process lives on
    return "late"


def watches(rank, size, folder):
    """signal_in_a_join, whose rank 0 lives until rank 1 has its answer."""
    value = signal_in_a_join(rank, size, folder)
    if rank == 1:
        with open(os.path.join(folder, "seen"), "w"):
            pass
    return value


def interrupted_in_a_join(rank, size, folder):
    """The other rank never comes, and the limit of the join is far away."""
    meeting = os.path.join(folder, "meeting")
    os.environ.update(FERRY_RENDEZVOUS=meeting, WORLD_SIZE="2")

    def strike():
        until(lambda: os.path.exists(meeting))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        ferry.world()
    except KeyboardInterrupt:
        thread.join()
        return "interrupted", os.path.exists(meeting)
    return "joined"


class Interrupting(dict):
    """Shards that are looked up when Ctrl-C comes."""

    def get(self, name, default=None):
        raise KeyboardInterrupt


def interrupted_in_planning(rank, size):
    """No call of the library is on, so the others hear it from the rank that is still to talk."""
    side = {"mesh": [["dp", 2]], "rules": [{"match": "*"}]}
    spec = {"format": "ferry.spec/1", "source": side, "destination": side,
            "tensors": [{"name": "w", "shape": [64], "dtype": "u8"}]}
    old, new = {"w": bytes([7] * 64)}, {"w": bytearray(64)}
    try:
        ferry.refit(Interrupting(old) if rank == 0 else old, new, spec)
        said = "moved"
    except KeyboardInterrupt:
        said = "interrupted"
    except ferry.Aborted as error:
        said = str(error), error.ranks
    ferry.refit(old, new, spec)
    return said, new["w"] == old["w"]


def interrupted_refits(rank, size, folder):
    """A signal's handler that raises at any moment of a refit's run: its agreement and its bytes are
    one to the other rank, which is not left in the second without this one."""
    import random

    class Late(Exception):
        pass

    def raise_late(number, frame):
        raise Late

    signal.signal(signal.SIGALRM, raise_late)
    world, rng = ferry.init(), random.Random(3)

    def side(dim):
        return {"mesh": [["tp", 2]], "rules": [{"match": "*", "shard": [{"dim": dim, "axis": "tp"}]}]}

    spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4, 4], "dtype": "u8"}],
            "source": side(0), "destination": side(1)}
    refit = ferry.Refit({"w": bytearray(8)}, {"w": bytearray(8)}, spec)
    if rank == 0:
        say = ferry._refit._say

        def late(*given):
            say(*given)
            raise Late  # as a handler might, before the others have heard of this rank

        ferry._refit._say = late
    try:
        refit.run()
        return "ran", 0
    except Late:
        ferry._refit._say = say
    except ferry.Error as error:
        if "rank 0 says: Late" not in str(error):
            return str(error), 0
    refit.run()
    n_late, said = 0, "whole"
    for step in range(100):
        before = refit.service._own().agreed
        try:
            try:
                if rank == 0:
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + rng.random() * 3e-4)
                refit.run()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            n_late += 1
            if refit.service._own().agreed == before:
                refit.run()  # the call had not begun
        except ferry.Aborted:
            pass
        except ferry.Error:
            said = "ended"  # it came while a message was waited for
        with open(os.path.join(folder, f"{rank}-{step}"), "w"):
            pass
        until(lambda: os.path.exists(os.path.join(folder, f"{1 - rank}-{step}")))
        try:
            world.check()
        except ferry.Error:
            break
    return said, n_late


def transport_of_the_caller(rank, size):
    """Two nodes, as the world is told, and what carries bytes between them is the caller's."""
    import array

    with ferry.RemoteCopyService() as service:
        service.init("OFF")
        said = []
        for given in (None, service):
            try:
                with ferry.MixedCommHandler(
                    rank, 2, 0, 1, rank, 2, None, None, None, None, "f32", "cpu",
                    should_init_nvshmem=False, use_autotune=False, transport=given,
                ) as handler:
                    x, y = array.array("f", [rank + 1.0] * 4), array.array("f", [0.0] * 4)
                    handler.run(ferry.MixedCommOp.ALLREDUCE, x, y)
                    said.append(list(y))
            except ferry.InvalidInput as error:
                said.append("transport=" in str(error))
        return said


class Ranks(unittest.TestCase):
    def test_an_interrupt_in_a_join(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_ranks(interrupted_in_a_join, 1, folder,
                                       env={"FERRY_JOIN_LIMIT": "600"}), [("interrupted", False)])

    def test_an_interrupt_in_planning(self):
        self.assertEqual(run_ranks(interrupted_in_planning, 2),
                         [("interrupted", True), (("rank 0 says: KeyboardInterrupt", (0,)), True)])

    def test_refits_that_signals_interrupt(self):
        n_late = 0
        for _ in range(2):
            with tempfile.TemporaryDirectory() as folder:
                came = run_ranks(interrupted_refits, 2, folder)
                self.assertLessEqual({said for said, _ in came}, {"whole", "ended"})
                n_late += came[0][1]
        self.assertGreater(n_late, 0)

    def test_a_transport_of_the_caller(self):
        if not os.path.exists(os.path.join(os.environ.get("FERRY_PLUGINS", ""), "libferry_ucx.so")):
            self.skipTest("ucx is not installed")
        self.assertEqual(run_ranks(transport_of_the_caller, 2, env={"FERRY_NODES": "1,1"}),
                         [[True, [3.0] * 4]] * 2)

    def test_a_dropped_request_beside_a_death(self):
        self.assertEqual(run_ranks(dropped_beside_a_death, 2, may_fail=(1,)),
                         [["Misuse"], None])

    def test_a_dropped_request_beside_a_barrier(self):
        first, second = run_ranks(dropped_beside_a_barrier, 2)
        self.assertEqual(first, ["Misuse"])
        self.assertIn(second, ("Aborted", "Misuse"))

    def test_a_request_dropped_by_an_exception(self):
        first, second = run_ranks(dropped_by_an_exception, 2)
        self.assertEqual(first, "late")
        self.assertIn("rank 0 cancelled", second)

    def test_a_signal_in_a_call_that_succeeds(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_ranks(signal_in_rebind, 2, folder), [(True, True, True), "done"])

    def test_a_signal_in_a_join(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_ranks(watches, 2, folder, env={"FERRY_DEADLINE": "10"}), ["late", True])


class Trainer:
    """Holds its service and its request, and is what the callback belongs to."""

    def __init__(self):
        self.source, self.target = bytearray(64), bytearray(64)
        self.service = ferry.RemoteCopyService()
        self.service.init("OFF")
        self.service.set_progress(self.on_progress)
        self.service.register_send(1, self.source, 0, None, 0)
        self.service.register_receive(1, self.target, 0, None, 0)
        self.service.schedule()

    def on_progress(self, progress):
        pass


class Tensor(bytearray):
    """A tensor with attributes, as those of torch have."""


class Alone(unittest.TestCase):
    def check_gone(self, watched):
        gc.collect()
        self.assertIsNone(watched())

    def test_a_request_that_has_ended_holds_no_callback(self):
        trainer = Trainer()
        trainer.request = trainer.service.start()
        trainer.request.wait()
        self.assertNotIn(trainer.on_progress, gc.get_referents(trainer.request))
        trainer.service.finalize()
        watched = weakref.ref(trainer)
        del trainer
        self.check_gone(watched)

    def test_a_request_within_a_cycle(self):
        trainer = Trainer()
        trainer.request = trainer.service.start()
        watched = weakref.ref(trainer)
        with Unraisable() as reports:
            del trainer
            self.check_gone(watched)
        self.assertTrue(all("dropped" in text for _, text in reports.seen), reports.seen)

    def test_a_service_within_a_cycle(self):
        service = ferry.RemoteCopyService()
        service.init("OFF")
        source, target = Tensor(64), bytearray(64)
        service.register_send(1, source, 0, None, 0)
        service.register_receive(1, target, 0, None, 0)
        service.schedule()
        source.owner = service
        watched = weakref.ref(source)
        del service, source
        self.check_gone(watched)

    def test_a_handler_within_a_cycle(self):
        """Through the service whose transport it uses, and a tensor of that."""
        service = ferry.RemoteCopyService()
        service.init("OFF")
        handler = ferry.MixedCommHandler(*[None] * 10, "f32", "cpu", use_autotune=False,
                                         transport=service)
        source, target = Tensor(64), bytearray(64)
        service.register_send(1, source, 0, None, 0)
        service.register_receive(1, target, 0, None, 0)
        service.schedule()
        service.run()
        source.owner = handler
        watched = weakref.ref(source), weakref.ref(handler)
        del service, source, handler
        for one in watched:
            self.check_gone(one)

    def test_a_transport_that_was_lent_outlives_its_service(self):
        import array

        service = ferry.RemoteCopyService()
        service.init("OFF")
        handler = ferry.MixedCommHandler(*[None] * 10, "f32", "cpu", use_autotune=False,
                                         transport=service)
        service.finalize()
        del service
        gc.collect()
        x, y = array.array("f", [3.0] * 4), array.array("f", [0.0] * 4)
        handler.run(ferry.MixedCommOp.ALLREDUCE, x, y)
        self.assertEqual(x, y)
        handler.shutdown()

    def test_smaller_worlds_that_are_let_go(self):
        """They are threads' as those before, and do not wait for each other."""
        code = """
import threading
from ferry import _ferry
worlds = _ferry.world_of_threads(3, deadline=100000.0)
worlds[2].abort()
smaller = [None] * 3
def shrink(rank):
    smaller[rank] = worlds[rank].shrink()
ranks = [threading.Thread(target=shrink, args=(rank,)) for rank in range(3)]
[one.start() for one in ranks]
[one.join() for one in ranks]
assert [one.size for one in smaller] == [3, 3, 3]
del worlds
del smaller
print("gone")
"""
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=HANG_SECONDS)
        self.assertEqual((done.returncode, done.stdout), (0, "gone\n"))

    def test_patience_is_that_of_the_world(self):
        """An interrupted run has half of what the world grants, whoever said how much that is."""
        world, = ferry._ferry.world_of_threads(1, deadline=8.0)
        with ferry.RemoteCopyService(world) as service:
            service.init("OFF")
            self.assertEqual(service._handle.patience, 4.0)
        world.close()

    def test_a_dropped_request_alone(self):
        trainer = Trainer()
        with Unraisable() as reports:
            for _ in range(3):
                trainer.service.start()
        for kind, text in reports.seen:
            self.assertIs(kind, ferry.Misuse)
            self.assertIn("dropped", text)
        trainer.source[:] = bytes(range(64))
        trainer.service.run()
        self.assertEqual(trainer.target, bytes(range(64)))
        trainer.service.finalize()

    def test_a_request_that_is_dropped_in_its_own_callback(self):
        trainer = Trainer()
        held = []
        trainer.service.set_progress(lambda progress: held.clear())
        held.append(trainer.service.start())
        request = held[0]
        request.wait()
        del request
        self.assertEqual(held, [])
        trainer.service.run()
        trainer.service.finalize()

    def test_a_callback_of_a_refit_goes_with_it(self):
        side = {"mesh": [], "rules": [{"match": "*"}]}
        spec = {"format": "ferry.spec/1", "source": side, "destination": side,
                "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}
        trainer, own, calls = Trainer(), [], []
        trainer.service.clear_requests()
        trainer.service.set_progress(own.append)
        with ferry.Refit({"w": bytes(4)}, {"w": bytearray(4)}, spec, service=trainer.service,
                         progress=calls.append) as planned:
            planned.run()
        n_calls = len(calls)
        self.assertEqual((n_calls > 0, own), (True, []))
        trainer.service.register_send(1, trainer.source, 0, None, 0)
        trainer.service.register_receive(1, trainer.target, 0, None, 0)
        trainer.service.schedule()
        trainer.service.run()
        self.assertEqual((len(calls), len(own) > 0), (n_calls, True))
        trainer.service.finalize()

    def test_sentences_are_of_python(self):
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            with self.assertRaisesRegex(ferry.Misuse, r"call schedule\(\) before"):
                service.run()
        self.assertEqual((ferry.Misuse.__module__, repr(ferry.world())),
                         ("ferry", "<ferry.World, rank 0 of 1>"))
        with self.assertRaises(FileNotFoundError) as caught:
            ferry.inspect("/nowhere/at/all")
        self.assertIsInstance(caught.exception, ferry.FileError)
        self.assertEqual((caught.exception.errno, caught.exception.filename),
                         (2, "/nowhere/at/all"))
        self.assertIn("/nowhere/at/all", str(caught.exception))

    def test_items_that_are_no_pairs(self):
        side = {"mesh": [], "rules": [{"match": "*"}]}
        spec = {"format": "ferry.spec/1", "source": side, "destination": side,
                "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}]}
        with ferry.RemoteCopyService() as service:
            service.init("OFF")

            class NoDict:
                def __init__(self, items):
                    self.pairs = items

                def keys(self):
                    return ["w"]

                def items(self):
                    return self.pairs

            for items in ([("w",)], [()], [("w", bytes(4), 3)], ["w"], [None]):
                with self.assertRaisesRegex(ferry.InvalidInput, "sources are not a dict"):
                    service.bind(ferry.plan(spec), NoDict(items), {})


if __name__ == "__main__":
    unittest.main()
