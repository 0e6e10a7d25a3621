# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""MixedCommHandler with nothing but the standard library: its names, its life, its interrupts."""

from __future__ import annotations

import array
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import ferry
from ferry import MixedCommHandler, MixedCommMode, MixedCommOp
from mixed_oracle import ALLREDUCE, Topology
from support import await_mark, mark, meet, run_ranks, until

ALONE = (0, 1, 0, 1, 0, 1, None, None, None, None, "f32", "cpu")


def handler_of(rank, size, dtype="f32", **options):
    options.setdefault("use_autotune", False)
    return MixedCommHandler(rank, size, rank, size, 0, 1, None, None, None, None, dtype, "cpu",
                            **options)


def floats(values):
    return array.array("f", values)


class Names(unittest.TestCase):
    def test_numbers_are_those_of_the_page(self):
        self.assertEqual({m.name: m.value for m in MixedCommOp}, {
            "ALLREDUCE": 0, "ALLGATHER": 1, "REDUCESCATTER": 2, "ALLREDUCE_ALLGATHER": 3,
            "REDUCESCATTER_ALLREDUCE": 4})
        self.assertEqual({m.name: m.value for m in MixedCommMode}, {
            "FUSED_OPT_WAITS_MC": 0, "FUSED_OPT_WAITS_UC": 1, "FUSED_OPT_BYTES1_MC": 2,
            "FUSED_OPT_BYTES1_UC": 3, "FUSED_OPT_BYTES2_MC": 4, "FUSED_OPT_BYTES2_UC": 5,
            "NCCL_ONE": 6, "NCCL_TP_DP": 7, "AUTOTUNE": 8})

    def test_names_of_the_library_are_aliases(self):
        self.assertIs(MixedCommMode.BASE_ONE, MixedCommMode.NCCL_ONE)
        self.assertIs(MixedCommMode.BASE_TP_DP, MixedCommMode.NCCL_TP_DP)
        self.assertIs(MixedCommMode.FUSED_BYTES2_UNICAST, MixedCommMode.FUSED_OPT_BYTES2_UC)
        self.assertIs(MixedCommOp.ALL_REDUCE_ALL_GATHER, MixedCommOp.ALLREDUCE_ALLGATHER)

    def test_where_the_page_has_them(self):
        from ferry.comm import mixed_comm

        self.assertIs(mixed_comm.MixedCommHandler, MixedCommHandler)
        self.assertIs(mixed_comm.run_mixed_comm, ferry.run_mixed_comm)
        self.assertIs(ferry.comm.MixedCommOp, MixedCommOp)


class Alone(unittest.TestCase):
    def test_every_argument_by_name_and_by_place(self):
        names = ("world_rank", "world_size", "local_rank", "local_size", "inter_rank",
                 "inter_size", "local_tp_size", "local_dp_size", "inter_tp_size", "inter_dp_size",
                 "dtype", "device", "grid_size", "max_block_size", "min_block_size",
                 "min_num_steps", "ib_enable_ibgda", "should_init_nvshmem", "use_autotune")
        values = (*ALONE, 1, 512, 32, 2, False, True, False)
        for handler in (MixedCommHandler(*values), MixedCommHandler(**dict(zip(names, values)))):
            with handler:
                self.assertEqual(handler.get_valid_op_list(), [MixedCommOp.ALLREDUCE])
                self.assertEqual(handler.get_valid_mode_list(),
                                 [MixedCommMode.FUSED_OPT_WAITS_MC,
                                  MixedCommMode.FUSED_OPT_WAITS_UC, MixedCommMode.NCCL_ONE])
                self.assertEqual(handler.describe().grid_size, 1)

    def test_names_and_numbers_of_operations_and_modes(self):
        x = floats([1, 2, 3])
        with MixedCommHandler(*ALONE, use_autotune=False) as handler:
            for op in (MixedCommOp.ALLREDUCE, 0, "ALLREDUCE", "all-reduce", "all_reduce"):
                for mode in (None, MixedCommMode.NCCL_ONE, 6, "NCCL_ONE", "base-one",
                             "fused-waits-multicast", "FUSED_OPT_WAITS_UC"):
                    y = floats([0, 0, 0])
                    self.assertIs(handler.run(op, x_in=x, x_out=y, mode=mode), y)
                    self.assertEqual(y, x)
            self.assertEqual(handler.counts().calls, 5 * 7)
            handler.reset_counts()
            self.assertEqual(handler.counts().calls, 0)

    def test_bad_arguments_of_the_constructor(self):
        for place, value, kind in (
            (1, -1, ferry.InvalidInput), (1, "2", ferry.InvalidInput), (1, 0, ferry.InvalidInput),
            (0, 1 << 32, ferry.InvalidInput), (0, 1, ferry.InvalidInput),
            (1, 2, ferry.InvalidInput), (6, 2, ferry.InvalidInput), (7, 0, ferry.InvalidInput),
            (10, "i32", ferry.Unsupported), (10, "what", ferry.Unsupported),
            (11, "xpu:0", ferry.Unsupported), (11, 0, ferry.Unsupported),
        ):
            arguments = list(ALONE)
            arguments[place] = value
            with self.subTest(place=place, value=value), self.assertRaises(kind):
                MixedCommHandler(*arguments, use_autotune=False)
        for options in ({"grid_size": 0}, {"max_block_size": -1}, {"min_num_steps": 0},
                        {"min_block_size": 1.5}, {"world": ferry.world(), "group": object()}):
            with self.subTest(options), self.assertRaises(ferry.InvalidInput):
                MixedCommHandler(*ALONE, use_autotune=False, **options)

    def test_bad_calls_leave_the_handler_in_order(self):
        x, y = floats([1, 2]), floats([0, 0])
        bad = (
            ("an operation beyond", (9, x, y)), ("a bool", (True, x, y)), ("no name", ("x", x, y)),
            ("no operation", (None, x, y)), ("not offered", (1, x, y)),
            ("a mode beyond", (0, x, y, 9)), ("no mode", (0, x, y, "fast")),
            ("a mode that is not offered", (0, x, y, MixedCommMode.NCCL_TP_DP)),
            ("autotune without a table", (0, x, y, "autotune")),
            ("dtype", (0, array.array("d", [1, 2]), y)), ("a pointer", (0, x.buffer_info()[0], y)),
            ("nothing", (0, None, y)), ("a list", (0, [1.0, 2.0], y)),
            ("no output of this type", (0, x)), ("length", (0, x, floats([0]))),
            ("empty", (0, floats([]), floats([]))),
            ("read-only", (0, x, memoryview(y).toreadonly())),
            ("strides", (0, memoryview(floats([1, 2, 3, 4]))[::2], y)),
        )
        with MixedCommHandler(*ALONE, use_autotune=False) as handler:
            for name, arguments in bad:
                with self.subTest(name):
                    with self.assertRaises(ferry.InvalidInput):
                        handler.run(*arguments)
                    y = floats([0, 0])
                    self.assertEqual(handler.run(0, x, y), x)
            with self.assertRaises(TypeError):
                handler.run(0)

    def test_errors_name_the_tensor(self):
        with MixedCommHandler(*ALONE, use_autotune=False) as handler:
            with self.assertRaises(ferry.InvalidInput) as caught:
                handler.run(0, floats([1]), array.array("d", [1]))
            self.assertEqual(caught.exception.tensor, "x_out")
            self.assertIsInstance(caught.exception, RuntimeError)

    def test_after_shutdown(self):
        handler = MixedCommHandler(*ALONE, use_autotune=False)
        self.assertFalse(handler.closed)
        handler.shutdown()
        handler.shutdown()
        self.assertTrue(handler.closed)
        self.assertEqual(repr(handler), "<ferry.MixedCommHandler, shut down>")
        for call in (lambda: handler.run(0, floats([1]), floats([1])), handler.get_valid_op_list,
                     handler.run_autotune, handler.describe, handler.counts, handler.timings,
                     lambda: handler.save_tuning("x"), handler.init_nvshmem,
                     lambda: handler.select_autotune_mode(0, floats([1]))):
            with self.assertRaises(ferry.Misuse):
                call()

    def test_without_a_constructor(self):
        handler = MixedCommHandler.__new__(MixedCommHandler)
        with self.assertRaises(ferry.Misuse):
            handler.run(0, floats([1]), floats([1]))

    def test_made_twice(self):
        handler = MixedCommHandler(*ALONE, use_autotune=False)
        with self.assertRaises(ferry.Misuse):
            handler.__init__(*ALONE, use_autotune=False)
        handler.shutdown()

    def test_parts_one_by_one(self):
        x, y = floats([5]), floats([0])
        with MixedCommHandler(*ALONE, use_autotune=False, only_construct=True) as handler:
            with self.assertRaises(ferry.Misuse):
                handler.run(0, x, y)
            handler.init_virtual_memory()
            handler.init_nvshmem()
            handler.init_nvshmem()
            self.assertEqual(handler.run(0, x, y), x)

    def test_autotune_and_its_table(self):
        x = floats(range(4096))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table")
            with MixedCommHandler(*ALONE, autotune_bytes=16384) as handler:
                self.assertIn(MixedCommMode.AUTOTUNE, handler.get_valid_mode_list())
                chosen = handler.select_autotune_mode(MixedCommOp.ALLREDUCE, x)
                self.assertIn(chosen, handler.get_valid_mode_list())
                self.assertIsNot(chosen, MixedCommMode.AUTOTUNE)
                timings = handler.timings()
                self.assertEqual({t.bytes for t in timings}, {8192, 16384})
                self.assertEqual({t.mode for t in timings if t.chosen and t.bytes == 16384},
                                 {chosen})
                handler.save_tuning(path)
            with MixedCommHandler(*ALONE, tune_file=path) as handler:
                self.assertEqual([t[:3] for t in handler.timings()], [t[:3] for t in timings])
                self.assertIs(handler.select_autotune_mode(0, x), chosen)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_child_of_fork_is_refused(self):
        x, y = floats([1]), floats([0])
        with MixedCommHandler(*ALONE, use_autotune=False) as handler:
            child = os.fork()
            if child == 0:
                try:
                    handler.run(0, x, y)
                    os._exit(1)
                except ferry.Misuse as error:
                    os._exit(0 if "fork" in str(error) else 2)
                finally:
                    os._exit(3)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(handler.run(0, x, y), x)

    def test_no_reference_is_lost(self):
        x, y, z = floats([1]), floats([0]), array.array("d", [0])
        before = [sys.getrefcount(one) for one in (x, y, z)]
        with MixedCommHandler(*ALONE, use_autotune=False) as handler:
            for _ in range(100):
                handler.run(0, x, y)
                handler.start(0, x, y).wait()
                handler.start(0, x, y)
                for arguments in ((0, x, z), (0, z, y), (0, y, x, "fast"), (9, x, y)):
                    for call in (handler.run, handler.start):
                        try:
                            call(*arguments)
                        except ferry.InvalidInput:
                            pass
        del handler, arguments, call
        self.assertEqual([sys.getrefcount(one) for one in (x, y, z)], before)
        x.append(2)  # no buffer of it is held any more


    def test_the_end_of_the_program_shuts_down(self):
        code = """
import atexit, ferry
kept = []
atexit.register(lambda: print(kept[0].closed))  # runs after what ferry registers later
kept.append(ferry.MixedCommHandler(%s, use_autotune=False))
""" % ", ".join(map(repr, ALONE))
        said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
        self.assertEqual(said.stdout.split(), [b"True"])


class Threads(unittest.TestCase):
    """Two ranks in this process, each a thread."""

    def setUp(self):
        from ferry._ferry import world_of_threads

        self.worlds = world_of_threads(2, deadline=100.0)
        self.handlers = [None, None]
        self.together(self.make)

    def make(self, rank):
        self.handlers[rank] = handler_of(rank, 2, world=self.worlds[rank])

    def together(self, function):
        threads = [threading.Thread(target=function, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_a_second_thread_is_refused_and_the_first_goes_on(self):
        outputs = [floats([0, 0]), floats([0, 0])]
        first = threading.Thread(target=self.handlers[0].run,
                                 args=(0, floats([1, 2]), outputs[0]))
        first.start()

        def is_refused():
            try:
                self.handlers[0].counts()
            except ferry.Misuse as error:
                return "in use" in str(error)

        until(is_refused)
        with self.assertRaises(ferry.Misuse):
            self.handlers[0].shutdown()
        self.handlers[1].run(0, floats([10, 20]), outputs[1])
        first.join()
        self.assertEqual(outputs, [floats([11, 22])] * 2)
        self.together(self.end)

    def test_started_calls(self):
        """One rank polls, the other runs; and both look at the end again."""
        x = [floats([rank + 1.0] * 3001) for rank in range(2)]
        y = [floats([0] * 3001) for _ in range(2)]

        def call(rank):
            for turn in range(20):
                if (turn + rank) % 3 == 0:
                    self.assertIs(self.handlers[rank].run(0, x[rank], y[rank]), y[rank])
                    continue
                request = self.handlers[rank].start("all-reduce", x[rank], x_out=y[rank])
                while (turn + rank) % 3 == 1 and not request.test():
                    self.assertFalse(request.done)
                for _ in range(2):
                    self.assertIs(request.wait(), y[rank])
                self.assertTrue(request.done and request.test())
                self.assertEqual(repr(request), "<ferry.MixedRequest, ended>")

        self.together(call)
        self.assertEqual(y, [floats([3.0] * 3001)] * 2)
        self.assertEqual(self.handlers[0].counts().calls, 20)
        self.together(self.end)

    def test_while_a_call_is_under_way(self):
        y = [floats([0, 0]), floats([0, 0])]
        request = self.handlers[0].start(0, floats([1, 2]), y[0])
        self.assertEqual(repr(request), "<ferry.MixedRequest, under way>")
        for refused in (self.handlers[0].start, self.handlers[0].run):
            with self.assertRaisesRegex(ferry.Misuse, "a request, uses this handle"):
                refused(0, floats([1, 2]), y[0])
            with self.assertRaises(ferry.InvalidInput):  # and says so to nobody
                refused(0, object(), y[0])
        self.assertFalse(request.test())
        second = threading.Thread(target=self.handlers[1].run, args=(0, floats([10, 20]), y[1]))
        second.start()
        self.assertIs(request.wait(), y[0])
        second.join()
        self.assertEqual(y, [floats([11, 22])] * 2)
        self.together(self.end)

    def test_a_request_that_is_let_go_ends_well(self):
        y = [floats([0, 0]), floats([0, 0])]
        second = threading.Thread(target=self.handlers[1].run, args=(0, floats([10, 20]), y[1]))
        second.start()
        self.handlers[0].start(0, floats([1, 2]), y[0])
        second.join()
        self.assertEqual(y, [floats([11, 22])] * 2)
        self.together(self.end)

    def test_a_cancelled_call_ends_on_all_ranks(self):
        found = [[], []]
        request = self.handlers[0].start(0, floats([1, 2]), floats([0, 0]))
        request.cancel()

        def call(rank):
            for _ in range(2):
                try:
                    if rank == 0:
                        request.wait()
                    else:
                        self.handlers[1].start(0, floats([1, 2]), floats([0, 0])).wait()
                except ferry.Error as error:
                    found[rank].append((type(error), str(error)))

        self.together(call)
        for rank in range(2):
            self.assertEqual(len(found[rank]), 2)
            self.assertEqual(*found[rank])
            self.assertIs(found[rank][0][0], ferry.Aborted)
            self.assertIn("rank 0 cancelled call 1", found[rank][0][1])
        self.together(self.end_badly)

    def test_shut_down_under_way(self):
        """It is refused, and the call goes on."""
        y = [floats([0, 0]), floats([0, 0])]
        request = self.handlers[0].start(0, floats([1, 2]), y[0])
        with self.assertRaisesRegex(ferry.Misuse, "wait for its request first"):
            self.handlers[0].shutdown()
        self.assertFalse(self.handlers[0].closed)
        second = threading.Thread(target=self.handlers[1].run, args=(0, floats([10, 20]), y[1]))
        second.start()
        self.assertIs(request.wait(), y[0])
        second.join()
        self.together(self.end)

    def end(self, rank):
        self.handlers[rank].shutdown()
        self.worlds[rank].close()

    def end_badly(self, rank):
        try:
            self.handlers[rank].shutdown()
        except ferry.Error:
            pass
        self.worlds[rank].close()


def all_sums(rank, size):
    topology = Topology(size, 1, 1, 1)
    inputs = [[r + 3.0 * i for i in range(1001)] for r in range(size)]
    with handler_of(rank, size) as handler:
        for mode in handler.get_valid_mode_list():
            x, y = floats(inputs[rank]), floats([0] * 1001)
            handler.run(ALLREDUCE, x, y, mode)
            columns = [sum(column) for column in zip(*inputs)]
            assert list(y) == columns, (mode, y[:4], columns[:4])
            assert handler.run(ALLREDUCE, x, x, mode) is x and x == y  # in place
        return [int(mode) for mode in handler.get_valid_mode_list()] == topology.modes()


def work_of_modes(rank, size):
    """(mode, waits, bytes written) of one all-reduce of 4096 bytes."""
    x, y = floats([1] * 1024), floats([0] * 1024)
    work = []
    with handler_of(rank, size, grid_size=1) as handler:
        for mode in (0, 1, 2, 3, 6):
            handler.reset_counts()
            handler.run(ALLREDUCE, x, y, MixedCommMode(mode))
            work.append((mode, handler.counts().waits, handler.counts().inside_bytes_written))
    return work


def refused_on_one(rank, size):
    """Rank 0 is refused in Python: rank 1 hears of it, and no later call takes its place."""
    handler = handler_of(rank, size)
    y = floats([0])
    handler.run(0, floats([1]), y)
    outcomes = []
    for values in (array.array("d", [1]) if rank == 0 else floats([7]), floats([5])):
        try:
            handler.run(0, values, y)
            outcomes.append(y[0])
        except ferry.Error as error:
            outcomes.append(type(error).__name__)
    try:
        handler.shutdown()
    except ferry.Misuse:  # the handler was broken, and says so once more
        pass
    return outcomes


def refused_on_all(rank, size):
    with handler_of(rank, size) as handler:
        y = floats([0])
        for _ in range(3):
            try:
                handler.run(0, array.array("d", [1]), y)
                return "not refused"
            except ferry.InvalidInput:
                pass
            handler.run(0, floats([rank + 1]), y)
        return y[0]


def interrupt_in_a_call(handler, name=None):
    """Ctrl-C once the handler is in a call; then there is a mark."""
    def is_on():
        try:
            handler.counts()
        except ferry.Misuse as error:
            return "in use" in str(error)

    def send():
        until(is_on)
        os.kill(os.getpid(), signal.SIGINT)
        if name is not None:
            mark(name)

    threading.Thread(target=send).start()


def is_aborted():
    try:
        ferry.world().check()
    except ferry.Aborted:
        return True


def interrupted(rank, size):
    """Rank 0 waits for a call that rank 1 never makes, until Ctrl-C."""
    handler = handler_of(rank, size)
    x, y = floats([1]), floats([0])
    handler.run(0, x, y)
    meet(rank, size)  # or the end of the world would find the other one in the call before
    if rank == 1:
        until(is_aborted)
    caught = None
    if rank == 0:
        interrupt_in_a_call(handler)
        try:
            handler.run(0, x, y)
        except KeyboardInterrupt:
            caught = "KeyboardInterrupt"
    try:
        handler.run(0, x, y)
        after = "done"
    except ferry.Error as error:
        after = type(error).__name__
    try:
        handler.shutdown()
    except ferry.Aborted:
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return caught, after, handler.closed


def interrupted_in_shutdown(rank, size):
    """Rank 0 waits for one that does not come, until Ctrl-C."""
    handler = handler_of(rank, size)
    caught = None
    meet(rank, size)  # nobody is in the constructor any more
    if rank == 0:
        interrupt_in_a_call(handler)
    else:  # before it has heard of the end, it would find that rank 0 has come, and be well
        until(is_aborted)
    try:
        handler.shutdown()
    except KeyboardInterrupt:
        caught = "KeyboardInterrupt"
    except ferry.Error as error:
        caught = type(error).__name__
    return caught, handler.closed


def handled(rank, size):
    """A handler of the program's own does not end the call, and runs after it."""
    seen = []
    handler = handler_of(rank, size)
    x, y = floats([rank + 1]), floats([0])
    if rank == 0:
        signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
        interrupt_in_a_call(handler, "sent")
    else:
        await_mark("sent")
    handler.run(0, x, y)
    handler.shutdown()
    return y[0], len(seen)


def lost(rank, size):
    handler = handler_of(rank, size)
    if rank == 1:
        await_mark("made")  # or rank 0 would still be in the constructor
        os._exit(7)
    mark("made")
    try:
        handler.run(0, floats([1]), floats([0]))
        return "done"
    except ferry.PeerLost as error:
        return error.ranks


def left_open(rank, size):
    """Nobody shuts down: the end of the program does, and nobody is taken for dead."""
    handler = handler_of(rank, size)
    y = floats([0])
    handler.run(0, floats([1]), y)
    globals()["kept"] = handler
    return y[0]


class Ranks(unittest.TestCase):
    def test_sums_of_two_and_three(self):
        for size in (2, 3):
            with self.subTest(size=size):
                self.assertEqual(run_ranks(all_sums, size), [True] * size)

    def test_modes_are_what_they_are_called(self):
        # docs/collectives.md, "What each mode moves", with a = L = W = 4.
        self.assertEqual(run_ranks(work_of_modes, 4),
                         [[(0, 1, 4096), (1, 1, 3 * 4096), (2, 2, 4096), (3, 2, 6 * 1024),
                           (6, 6, 6 * 1024)]] * 4)

    def test_one_rank_is_refused(self):
        self.assertEqual(run_ranks(refused_on_one, 2),
                         [["InvalidInput", "Misuse"], ["Misuse", "Misuse"]])

    def test_all_ranks_are_refused(self):
        self.assertEqual(run_ranks(refused_on_all, 2), [3.0, 3.0])

    def test_an_interrupt_ends_the_call(self):
        self.assertEqual(run_ranks(interrupted, 2),
                         [("KeyboardInterrupt", "Aborted", True), (None, "Aborted", True)])

    def test_an_interrupt_ends_a_shutdown(self):
        self.assertEqual(run_ranks(interrupted_in_shutdown, 2),
                         [("KeyboardInterrupt", True), ("Aborted", True)])

    def test_a_handler_of_the_program_does_not(self):
        self.assertEqual(run_ranks(handled, 2), [(3.0, 1), (3.0, 0)])

    def test_a_lost_rank(self):
        self.assertEqual(run_ranks(lost, 2, may_fail=(1,))[0], (1,))

    def test_what_is_left_open(self):
        self.assertEqual(run_ranks(left_open, 2), [2.0, 2.0])


if __name__ == "__main__":
    unittest.main()
