# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How ranks part: by an exception in a block, or by the end of the program."""

import array
import concurrent.futures
import os
import signal
import time
import unittest

import ferry
from support import await_mark, mark, run_ranks

ROW = 64 << 10


class Late(Exception):
    pass


def say_done(rank):
    mark("done.%d" % rank)


def await_done(*ranks):
    for rank in ranks:
        await_mark("done.%d" % rank)


def spec_of(n):
    """A matrix of rank 0 becomes columns on all ranks."""
    cut = [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]
    return {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [n, ROW], "dtype": "u8"}],
            "source": {"mesh": [], "rules": [{"match": "*"}]},
            "destination": {"mesh": [["tp", n]], "rules": cut}}


def truth(version, n):
    return b"".join(bytes((row * 7 + version * 31 + i) % 251 for i in range(ROW)) for row in range(n))


def columns(version, n, rank):
    whole, each = truth(version, n), ROW // n
    return b"".join(whole[row * ROW + rank * each:row * ROW + (rank + 1) * each] for row in range(n))


def block(kind, rank):
    """Something that is used in a block, and a call of it that all ranks make."""
    if kind == "refit":
        refit = ferry.Refit({"w": truth(1, 4)} if rank == 0 else None, {"w": bytearray(ROW)},
                            spec_of(4))
        return refit, refit.run
    if kind == "handler":
        handler = ferry.MixedCommHandler(rank, 4, rank, 4, 0, 1, None, None, None, None, "f32",
                                         "cpu", use_autotune=False)
        x, y = array.array("f", [1.0] * 16), array.array("f", [0.0] * 16)
        return handler, lambda: handler.run(ferry.MixedCommOp.ALLREDUCE, x, y)
    service = ferry.RemoteCopyService()
    service.init("OFF")
    mine, other = bytearray(4096), bytearray(4096)
    service.register_send(1, mine, 0, None, (rank + 1) % 4)
    service.register_receive(1, other, 0, None, (rank + 3) % 4)
    service.schedule()
    return service, service.run


def raised_in_a_block(rank, size, kind, error):
    """Rank 1 raises and lives on; the others are in the next call meanwhile."""
    made, call = block(kind, rank)
    try:
        with made:
            call()
            ferry.world().barrier()
            if rank == 1:
                raise {"error": Late("of its own"), "interrupt": KeyboardInterrupt(),
                       "exit": SystemExit(0)}[error]
            call()
    except (Late, KeyboardInterrupt):
        await_done(0, 2, 3)
        ferry.shutdown()
        return "raised"
    except ferry.Error as caught:
        said = type(caught).__name__, caught.ranks, "Late: of its own" in str(caught)
        smaller = ferry.world().shrink()
        smaller.barrier()
        say_done(rank)
        return said, smaller.members
    return "passed"


def recovers_from_a_block(rank, size):
    """The others go on with their refit as after any loss."""
    source, target = bytearray(truth(1, 4)), bytearray(ROW)
    try:
        with ferry.Refit({"w": source} if rank == 0 else None, {"w": target}, spec_of(4)) as refit:
            refit.run()
            try:
                ferry.world().barrier()
            except ferry.PeerLost:
                pass  # one had met all, and was gone while others were still about to hear of it
            if rank == 2:
                raise Late("of its own")
            source[:] = truth(2, 4)
            try:
                refit.run()
            except ferry.PeerLost as error:
                found = refit.recover()
                assert (error.ranks, found.n_lost) == ((2,), 1), (error, found)
            source[:] = truth(found.next, 4)
            result = refit.run()
            assert result.version == found.next
            assert target == columns(found.next, 4, rank)
            say_done(rank)
            return result.version
    except Late:
        await_done(0, 1, 3)
        return "raised"


def got_by_all(rank, size):
    """What all ranks got is no reason to leave: the world goes on."""
    said = []
    service = ferry.RemoteCopyService()
    service.init("OFF")
    try:
        with service:
            service.register_send(1, bytes(8), 0, None, 1 - rank)
            service.register_receive(1, bytearray(8 if rank == 0 else 4), 0, None, 1 - rank)
            service.schedule()
    except ferry.InvalidInput:
        said.append("sizes")
    try:
        with ferry.RemoteCopyService() as other:
            other.init("OFF")
            ferry.refit({"w": truth(1, 2)} if rank == 0 else None, {}, spec_of(2), service=other)
    except ferry.InvalidInput as error:
        said.append(error.tensor)
    try:
        with ferry.RemoteCopyService() as third:
            third.init("OFF")
            raise GeneratorExit  # as of a generator that nobody asks any more
    except GeneratorExit:
        said.append("closed")
    ferry.world().barrier()
    return said


def cancels_at_once(rank, size):
    """However short a run is, rank 0's callback is asked before it and can end it on all ranks."""
    service = ferry.RemoteCopyService()
    service.init("OFF")
    mine, other = bytes([rank + 1]) * 8, bytearray(8)
    service.register_send(1, mine, 0, None, 1 - rank)
    service.register_receive(1, other, 0, None, 1 - rank)
    service.schedule()
    seen, said = [], []

    def decide(progress):
        seen.append(progress.bytes_done)
        return bool(rank)

    def fail(progress):
        raise Late("in the callback")

    def nest(progress):
        service.run()

    def gather(progress):
        ferry.world().barrier()

    def wait_for_ever(progress):
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0.001)

    for callback in (decide, fail, nest, gather, wait_for_ever):
        service.set_progress(callback if rank == 0 or callback is decide else None)
        try:
            service.run()
            said.append("passed")
        except BaseException as error:
            said.append(type(error).__name__)
        # The other rank may have begun, and have put its bytes here, before it hears of the end.
        assert rank == 0 or other == bytes(8), "bytes came of a rank that had cancelled before it"
    service.set_progress(None)
    service.run()
    assert other == bytes([2 - rank]) * 8
    service.finalize()
    return said, seen[0]


class Endings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Ranks wait most of the time here, so those of three cases run at once."""
        cls.pool = concurrent.futures.ThreadPoolExecutor(3)
        cls.addClassCleanup(cls.pool.shutdown)
        cls.runs = {}
        for kind, error in (("refit", "error"), ("service", "error"), ("service", "interrupt"),
                            ("handler", "error"), ("service", "exit"), ("handler", "exit")):
            cls.submit(raised_in_a_block, 4, kind, error, may_fail=(1,) if error == "exit" else ())
        cls.submit(recovers_from_a_block, 4)

    @classmethod
    def submit(cls, function, size, *args, **how):
        cls.runs[(function, *args)] = cls.pool.submit(run_ranks, function, size, *args, **how)

    def test_an_exception_in_a_block(self):
        for kind, error in (("refit", "error"), ("service", "error"), ("service", "interrupt"),
                            ("handler", "error")):
            with self.subTest(kind + ", " + error):
                first, second, *others = self.runs[raised_in_a_block, kind, error].result()
                self.assertEqual(second, "raised")
                self.assertEqual(first, (("PeerLost", (1,), error == "error"), (0, 2, 3)))
                self.assertEqual(others, [first, first])

    def test_an_exit_in_a_block(self):
        for kind in ("service", "handler"):
            with self.subTest(kind):
                first, second, *others = self.runs[raised_in_a_block, kind, "exit"].result()
                self.assertIsNone(second)
                self.assertEqual(first, (("PeerLost", (1,), False), (0, 2, 3)))
                self.assertEqual(others, [first, first])

    def test_going_on_without(self):
        found = self.runs[(recovers_from_a_block,)].result()
        self.assertEqual(found.pop(2), "raised")
        self.assertTrue(found[0] in (2, 3) and found == [found[0]] * 3, found)

    def test_what_all_got(self):
        self.assertEqual(run_ranks(got_by_all, 2), [["sizes", "w", "closed"]] * 2)

    def test_callbacks_of_short_runs(self):
        (first, begin), (second, _) = run_ranks(cancels_at_once, 2)
        self.assertEqual(begin, 0)
        self.assertEqual(first, ["Aborted", "Late", "Misuse", "Misuse", "KeyboardInterrupt"])
        self.assertEqual(second, ["Aborted"] * 5)


if __name__ == "__main__":
    unittest.main()
