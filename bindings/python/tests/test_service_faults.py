# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""What becomes of runs when somebody interrupts, raises, is late, is killed or just ends."""

import concurrent.futures
import gc
import os
import signal
import sys
import threading
import unittest
import weakref

import ferry
from support import (await_mark, is_in_use, is_marked, lose_in_a_run, mark, meet, run_ranks,
                     until)

N_BYTES = 1 << 20
SLOW = {"engines": "delay=50ms", "paths": "staged", "slot_bytes": 65536, "memory_cap": 512 << 10}


class Held(bytearray):
    """A bytearray that can be watched."""


def make(rank, size, n_bytes=N_BYTES, **options):
    """Rank 0 and rank 1 exchange; others take part and move nothing."""
    service = ferry.RemoteCopyService(**options)
    service.init("OFF")
    mine, other = Held(bytes([rank + 1]) * n_bytes), bytearray(n_bytes)
    if rank < 2:
        service.register_send(3, mine, 0, None, 1 - rank)
        service.register_receive(3, other, 0, None, 1 - rank)
    service.schedule()
    return service, mine, other


def strike(ready, times=1):
    """Ctrl-C once something is so, and again once it was heard. With the last there is the mark
    "heard". What is waited for must say that the call which is meant has begun: a signal that comes
    before it hits the test's own lines, this function's last one among them. One that comes in the
    handler of the one before would end that, so each waits until the handler is left."""
    main, n_heard = threading.get_ident(), [0]

    def hear(number, frame):
        n_heard[0] += 1
        if n_heard[0] == times:
            mark("heard")
        raise KeyboardInterrupt

    def is_over(n):
        return n_heard[0] == n and sys._current_frames()[main].f_code is not hear.__code__

    def run():
        until(ready)
        for n in range(times):
            until(lambda: is_over(n))
            os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, hear)
    threading.Thread(target=run, daemon=True).start()


def interrupt_in_a_call(service):
    until(lambda: is_in_use(service))
    os.kill(os.getpid(), signal.SIGINT)


def hold_until(service, name):
    """This rank stands still in the middle of its next run until there is a mark, and says so."""
    def stand(progress):
        mark("middle")
        await_mark(name)

    service.set_progress(stand)


def outcome(call):
    try:
        call()
        return "well"
    except BaseException as error:
        return type(error).__name__


def check_whole(rank, service, other):
    service.set_progress(None)
    service.run()
    assert other == bytes([2 - rank]) * len(other)
    service.finalize()


def interrupted_in_the_middle(rank, size):
    """Of both ranks: one stands in its progress callback."""
    service, _, other = make(rank, size, **SLOW)
    if rank == 0:
        strike(lambda: is_marked("middle") and is_in_use(service))
    else:
        hold_until(service, "heard")
    first = outcome(service.run)
    states = [one.state for one in service.destinations()]
    check_whole(rank, service, other)
    return first, states


def interrupted_while_a_peer_is_late(rank, size):
    service, _, other = make(rank, size)
    if rank == 0:
        strike(lambda: is_in_use(service))
    else:
        await_mark("heard")
    first = outcome(service.run)
    check_whole(rank, service, other)
    return first


def interrupted_in_a_request(rank, size):
    service, _, other = make(rank, size, **SLOW)
    if rank == 1:
        hold_until(service, "heard")
    request = service.start()
    if rank == 0:
        strike(lambda: is_marked("middle") and is_in_use(service))
    first = outcome(request.wait)
    again = outcome(request.wait)
    check_whole(rank, service, other)
    return first, again


def has_ended(world):
    try:
        world.check()
    except ferry.Aborted:
        return True
    return False


def interrupted_when_all_is_done_here(rank, size):
    """Rank 2 has nothing to move, and has voted; a rank that never comes keeps it waiting. What comes
    before the world has ended would make it a run that is well."""
    service, _, _ = make(rank, size)
    if rank == 2:
        strike(lambda: is_in_use(service), times=2)
    elif rank == 1:
        until(lambda: has_ended(ferry.world()))
    return outcome(service.run)


def interrupted_in_schedule(rank, size):
    """By what Python does of itself, which ends the world."""
    service = ferry.RemoteCopyService()
    service.init("OFF")
    if rank == 0:
        threading.Thread(target=interrupt_in_a_call, args=(service,), daemon=True).start()
    else:
        await_mark("ended")
    found = outcome(service.schedule)
    mark("ended")
    return found


def a_handler_of_the_program(rank, size):
    """A signal that raises nothing does not end the run."""
    seen = []

    def hear(number, frame):
        seen.append(number)
        mark("heard")

    signal.signal(signal.SIGINT, hear)
    service, _, other = make(rank, size)
    if rank == 0:
        threading.Thread(target=interrupt_in_a_call, args=(service,), daemon=True).start()
    else:
        await_mark("heard")
    service.run()
    assert other == bytes([2 - rank]) * N_BYTES
    service.finalize()
    return len(seen)


class Mistake(Exception):
    pass


def callback_that_raises(rank, size):
    service, _, other = make(rank, size, **SLOW)
    calls = []

    def fail(progress):
        calls.append(progress)
        raise Mistake("here")

    if rank == 0:
        service.set_progress(fail)
    first = outcome(service.run)
    check_whole(rank, service, other)
    return first, len(calls) == (1 if rank == 0 else 0)


def callback_that_cancels(rank, size):
    service, _, other = make(rank, size, **SLOW)
    if rank == 1:
        service.set_progress(lambda progress: progress.bytes_done < 1)
    said = ""
    try:
        service.run()
    except ferry.Aborted as error:
        said = str(error)
        assert error.ranks == (1,), error.ranks
    check_whole(rank, service, other)
    return said


def cancelled_request(rank, size):
    service, _, other = make(rank, size, **SLOW)
    begun = []

    def stand(progress):
        if begun:  # start() may call back, too, and who could cancel comes after it
            mark("middle")
            await_mark("cancelled")

    service.set_progress(stand if rank == 1 else None)
    request = service.start()
    begun.append(request)
    if rank == 1:
        def run():
            await_mark("middle")
            request.cancel()
            mark("cancelled")

        threading.Thread(target=run, daemon=True).start()
    first = outcome(request.wait)
    check_whole(rank, service, other)
    return first


def killed(rank, size):
    service, mine, _ = make(rank, size, **SLOW)
    kept = weakref.ref(mine)
    del mine
    meet(rank, size)  # whom the end of this rank found in schedule() would fail there
    try:
        lose_in_a_run(service, service.run, rank == 1)
        lost = ()
    except ferry.PeerLost as error:
        lost = error.ranks
    assert lost == (1,), lost
    small = ferry.world().shrink()
    version = service.recover(small)
    ledger = service.take_ledger()
    service.clear_requests()
    again = outcome(service.schedule)
    gc.collect()
    assert rank != 0 or kept() is not None  # bytes may still be on their way
    service.finalize()
    gc.collect()
    assert kept() is None
    other = ferry.RemoteCopyService(small)
    other.init("OFF")
    mine, target = bytearray([small.rank + 5]), bytearray(1)
    other.register_send(1, mine, 0, 1, 1 - small.rank)
    other.register_receive(1, target, 0, 1, 1 - small.rank)
    other.schedule()
    other.run()
    assert target[0] == 6 - small.rank
    other.finalize()
    return lost, version, ledger.bytes < N_BYTES, again


def goes_on_after_a_loss(rank, size):
    """What a lost rank leaves behind is moved on, and later runs move everything again."""
    length = N_BYTES // 4
    spec = {"format": "ferry.spec/1",
            "tensors": [{"name": "w", "shape": [3, length], "dtype": "u8"}],
            "source": {"mesh": [["tp", 1]], "rules": [{"match": "*"}]},
            "destination": {"mesh": [["tp", 3]],
                            "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]}}
    whole = bytearray(b"".join(bytes([row + 1]) * length for row in range(3)))
    sources = {"w": whole} if rank == 0 else {}
    mine = bytearray(length)
    service = ferry.RemoteCopyService(**SLOW)
    service.init("OFF")
    service.bind(ferry.plan(spec), sources, {"w": mine})
    service.schedule()
    meet(rank, size)
    assert outcome(lambda: lose_in_a_run(service, service.run, rank == 1)) == "PeerLost"
    small = ferry.world().shrink()
    version = service.recover(small)
    ledger = service.take_ledger()
    in_place = ledger.bytes
    assert (version, in_place) == (1, length) or version == 0, (version, in_place)
    service.finalize()

    again = ferry.RemoteCopyService(small)
    again.init("OFF")
    again.bind(ferry.plan(spec, lost_ranks=[1]), sources, {"w": mine})
    if version == 0:
        again.resume(ledger)
    else:  # who is left had all of it before rank 1 came to its end: nothing is to be resumed
        assert bytes(mine) == bytes([rank + 1]) * length
        in_place = 0
    again.schedule()
    again.run()
    numbers = again.statistics()
    assert bytes(mine) == bytes([rank + 1]) * length
    received = numbers.bytes_received + numbers.bytes_local * (rank == 0)
    assert received == length - in_place, (numbers, in_place)
    whole[:] = bytes(reversed(whole))
    for _ in range(2):
        mine[:] = bytes(length)
        again.run()
        assert bytes(mine) == bytes([3 - rank]) * length
    again.finalize()
    return in_place <= length


KEPT = []


def ends_without_a_word(rank, size, how):
    """A program that ends, by whatever it be, is a lost rank to those in a run with it."""
    service, _, _ = make(rank, size)
    service.run()
    if rank == 1:
        await_mark("ran")  # or the end of this rank would fail the run before
        if how == "exception":
            raise Mistake("nobody catches this")
        if how == "exit":
            sys.exit(3)
        KEPT.append(service)  # the program ends, not the life of the service
        return "gone"
    mark("ran")
    try:
        service.run()
    except ferry.PeerLost as error:
        small = ferry.world().shrink()
        return error.ranks, small.size, service.recover(small) in (0, 1)
    return "ran"


def ends_in_peace(rank, size):
    """Who is done first is no death to those that are not."""
    service, _, other = make(rank, size)
    service.run()
    return bytes(other) == bytes([2 - rank]) * N_BYTES


def leaves_the_block_by_an_exception(rank, size):
    try:
        with ferry.RemoteCopyService() as service:
            service.init("OFF")
            data = bytearray(8)
            if rank == 1:
                raise Mistake()
            service.register_send(1, data, 0, 8, 0)
            service.register_receive(1, bytearray(8), 0, 8, 0)
            service.schedule()
            return "scheduled"
    except Mistake:
        return "mistake"
    except ferry.Error:
        return "told"


def interrupted_before_it_says_anything(rank, size):
    """Of a refit that is being made: the others lose who is interrupted, though it lives on."""
    from ferry import _refit

    def interrupt(*given):
        raise KeyboardInterrupt

    if rank == 0:
        _refit.agree = interrupt
    side = {"mesh": [], "rules": [{"match": "*"}]}
    spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [8], "dtype": "u8"}],
            "source": side, "destination": dict(side, first_rank=1)}
    mine = {"w": bytearray(8)}
    found = outcome(lambda: ferry.Refit(mine if rank == 0 else {}, mine if rank == 1 else {}, spec))
    if rank == 1:
        mark("others have lost it")
    await_mark("others have lost it")
    return found


# How many ranks each has, and which of them dies.
CASES = {
    interrupted_in_the_middle: (2, ()), interrupted_while_a_peer_is_late: (2, ()),
    interrupted_in_a_request: (2, ()), interrupted_when_all_is_done_here: (3, ()),
    interrupted_in_schedule: (2, ()), a_handler_of_the_program: (2, ()),
    callback_that_raises: (2, ()), callback_that_cancels: (2, ()), cancelled_request: (2, ()),
    killed: (3, (1,)), goes_on_after_a_loss: (3, (1,)), ends_in_peace: (2, ()),
    leaves_the_block_by_an_exception: (2, ()), interrupted_before_it_says_anything: (2, ()),
}


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Ranks wait most of the time here, so those of three cases run at once."""
        pool = concurrent.futures.ThreadPoolExecutor(3)
        cls.addClassCleanup(pool.shutdown)
        cls.runs = {function: pool.submit(run_ranks, function, size, may_fail=lost)
                    for function, (size, lost) in CASES.items()}

    def check(self, function, expected):
        self.assertEqual(self.runs[function].result(), expected)

    def test_an_interrupt_in_the_middle(self):
        self.check(interrupted_in_the_middle,
                   [("KeyboardInterrupt", ["torn"]), ("Aborted", ["torn"])])

    def test_an_interrupt_before_a_refit_has_said_anything(self):
        self.check(interrupted_before_it_says_anything, ["KeyboardInterrupt", "PeerLost"])

    def test_an_interrupt_while_a_peer_is_late(self):
        self.check(interrupted_while_a_peer_is_late, ["KeyboardInterrupt", "Aborted"])

    def test_an_interrupt_in_a_request(self):
        self.check(interrupted_in_a_request,
                   [("KeyboardInterrupt", "Aborted"), ("Aborted", "Aborted")])

    def test_an_interrupt_when_all_is_done_here(self):
        self.check(interrupted_when_all_is_done_here,
                   ["Aborted", "Aborted", "KeyboardInterrupt"])

    def test_an_interrupt_in_schedule(self):
        self.check(interrupted_in_schedule, ["KeyboardInterrupt", "Aborted"])

    def test_a_handler_of_the_program(self):
        self.check(a_handler_of_the_program, [1, 0])

    def test_a_callback_that_raises(self):
        self.check(callback_that_raises, [("Mistake", True), ("Aborted", True)])

    def test_a_callback_that_cancels(self):
        first, second = self.runs[callback_that_cancels].result()
        self.assertEqual(first, second)
        self.assertIn("rank 1 cancelled", first)

    def test_a_cancelled_request(self):
        self.check(cancelled_request, ["Aborted", "Aborted"])

    def test_a_killed_rank(self):
        self.check(killed, [((1,), 0, True, "PeerLost"), None, ((1,), 0, True, "PeerLost")])

    def test_going_on_after_a_loss(self):
        self.check(goes_on_after_a_loss, [True, None, True])

    def test_a_rank_that_ends(self):
        for how, value in (("exception", None), ("exit", None), ("end", "gone")):
            with self.subTest(how):
                self.assertEqual(run_ranks(ends_without_a_word, 2, how, may_fail=(1,)),
                                 [((1,), 1, True), value])

    def test_ranks_that_end_in_peace(self):
        self.check(ends_in_peace, [True, True])

    def test_a_block_left_by_an_exception(self):
        self.check(leaves_the_block_by_an_exception, ["told", "mistake"])


if __name__ == "__main__":
    unittest.main()
