# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A trainer of two ranks and a server of one worker, as FerryTrainer and Link know them, without vLLM."""

import os
import signal
import socket
import threading
import time
import unittest

import support
import torch

import ferry
from ferry.adapters._updates import Half, Link, Member, StoreExchange, open_store, reach_store
from ferry.adapters.torch import memory_of, side_of
from ferry.adapters.vllm_engine import (
    FerryInitInfo, FerryTrainer, FerryTrainerInitInfo, FerryWeightTransferEngine)

SECONDS = 100.0


class Client:
    """A server that does its part by itself, and says no where it is told to."""

    def __init__(self, refuses=""):
        self.refuses, self.asked = refuses, []

    def init_weight_transfer_engine(self, info):
        pass

    def start_weight_update(self):
        self.answer("start")

    def update_weights(self, info):
        support.await_mark("has version %d" % info["version"])
        self.answer("flush")

    def finish_weight_update(self):
        self.answer("finish")

    def answer(self, what):
        self.asked.append(what)
        if what == self.refuses:
            raise RuntimeError("no room for " + what)


class Left(Client):
    """A server in which a trainer that is gone has an update under way, and that answers the meeting
    with what its workers said to that one."""

    is_open = True

    def init_weight_transfer_engine(self, info):
        raise RuntimeError("rank 1 was lost")

    def start_weight_update(self):
        self.asked.append("start")
        if self.is_open:
            raise RuntimeError("an update is under way")
        self.is_open = True

    def finish_weight_update(self):
        self.asked.append("finish")
        self.is_open = False


def left(rank, size, port):
    """Two updates, and one while another is under way."""
    if rank == 2:
        link, memory = worker_of(port, has_left=True)
        run(link, 1)
        run(link, 2)
        found = attempt(lambda: run(link, 3))
        for one in (0, 1):
            support.await_mark("tried %d" % one)
        link.close()
        return found[0], memory.tolist()
    info = FerryTrainerInitInfo(rank=rank, n_trainers=2, n_workers=1, port=port, seconds=SECONDS)
    trainer = FerryTrainer(info, Left() if rank == 0 else None, {"w": torch.arange(6.0)})
    versions = [trainer.send_weights().version for _ in range(2)]
    if rank == 0:
        trainer.client.is_open = True
    found = attempt(trainer.send_weights)
    support.mark("tried %d" % rank)
    trainer.shutdown()
    return versions, found[0], trainer.client.asked if rank == 0 else None


def of_others(rank, size, port):
    """An update of somebody else is under way, of which the worker has told nothing."""
    if rank == 2:
        link, _ = worker_of(port)
        found = attempt(lambda: run(link, 1))
        for one in (0, 1):
            support.await_mark("tried %d" % one)
        link.close()
        return found[0]
    info = FerryTrainerInitInfo(rank=rank, n_trainers=2, n_workers=1, port=port, seconds=SECONDS)
    trainer = FerryTrainer(info, Left() if rank == 0 else None, {"w": torch.arange(6.0)})
    found = attempt(trainer.send_weights)
    support.mark("tried %d" % rank)
    trainer.shutdown()
    return (*found, trainer.client.asked, trainer.client.is_open) if rank == 0 else found


def trainer_of(rank, port, refuses=""):
    info = FerryTrainerInitInfo(rank=rank, n_trainers=2, n_workers=1, port=port, seconds=SECONDS)
    return FerryTrainer(info, Client(refuses) if rank == 0 else None, {"w": torch.arange(6.0)})


def worker_of(port, version=0, has_left=False):
    """The worker's link, and the memory that it has."""
    exchange = StoreExchange(open_store("127.0.0.1", port, False, SECONDS), 2, 3, SECONDS)
    link = Link(exchange, SECONDS, None, "worker 0 of the server", version, has_left)
    memory = torch.zeros(6)
    named = {"w": memory}
    link.prepare(None, destination=lambda tensors: Half(side_of(named, 0), memory_of(named)))
    link.check_use(None)
    return link, memory


def run(link, version):
    """The worker's part of an update, as a server answers when its workers have done theirs."""
    link.run(version)
    support.mark("has version %d" % version)


def attempt(function):
    """What it raises, by name."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return None, ""


def lost(rank, size, port):
    if rank == 2:
        link, memory = worker_of(port)
        run(link, 1)
        assert memory.tolist() == list(range(6))
        assert not link.was_lost() and link.trainer().rank == 0
        support.await_mark("settled")
        os.kill(os.getpid(), signal.SIGKILL)
    trainer = trainer_of(rank, port)
    assert trainer.send_weights().version == 1
    if rank == 0:
        support.mark("settled")
    worker = trainer.workers[0]
    found = attempt(trainer.send_weights)
    trainer.shutdown()
    return (*found, worker.rank, worker.who, worker.host, worker.pid)


def refused(rank, size, port, what):
    if rank == 2:
        link, _ = worker_of(port)
        found = attempt(lambda: run(link, 1))
        for one in (0, 1):
            support.await_mark("tried %d" % one)
        until = time.monotonic() + 10  # the news may still be under way
        while what == "flush" and not link.was_lost() and time.monotonic() < until:
            time.sleep(0.01)
        assert link.was_lost() == (what == "flush")  # only then an update may be left behind
        support.mark("judged")
        link.close()
        return found
    trainer = trainer_of(rank, port, what)
    found = attempt(trainer.send_weights)
    support.mark("tried %d" % rank)
    assert trainer.version == 0
    support.await_mark("judged")  # a rank that leaves first would be heard of first
    trainer.shutdown()
    return (*found, trainer.client.asked) if rank == 0 else found


def slow(rank, size, port):
    """The first rank's server answers only when the second rank has waited for longer than it does
    for others."""
    if rank == 2:
        link, _ = worker_of(port)
        run(link, 1)
        support.await_mark("ended")
        return link.close()
    trainer = trainer_of(rank, port)
    if rank == 0:
        trainer.client.finish_weight_update = lambda: support.await_mark("waited")
    else:
        trainer._exchange._seconds, look = 0.05, trainer._look
        trainer._look = lambda link: (look(link), support.mark("waited"))
    try:
        version = trainer.send_weights().version
    finally:
        support.mark("waited" if rank == 1 else "ended")
    trainer.shutdown()
    return version


def alone(rank, size, port):
    """The first rank ends, while the second waits for what the server answers it."""
    if rank == 2:
        link, _ = worker_of(port)
        run(link, 1)
        support.await_mark("ended")
        return link.close()
    trainer = trainer_of(rank, port)
    if rank == 0:
        trainer.client.finish_weight_update = lambda: (
            support.await_mark("waited"), os.kill(os.getpid(), signal.SIGKILL))
    else:
        trainer._exchange._seconds, look = 0.05, trainer._look
        trainer._look = lambda link: (support.mark("waited"), look(link))
    found = attempt(trainer.send_weights)
    support.mark("ended")
    trainer.shutdown()
    return found


def again(rank, size, port, second):
    """The worker knows of version 7, which the trainer does not; and all meet a second time."""
    if rank == 2:
        versions = []
        for where in (port, second):
            link, memory = worker_of(where, 7)
            versions.append(link.version)
            run(link, link.version + 1)
            support.await_mark("ended %d" % where)
            link.close()
        return versions, memory.tolist()
    trainer = trainer_of(rank, port)
    versions = [trainer.send_weights().version]
    if rank == 0:
        support.mark("ended %d" % port)
    trainer.info.port = second
    trainer.join()
    versions.append(trainer.send_weights().version)
    if rank == 0:
        support.mark("ended %d" % second)
    trainer.shutdown()
    return versions


class Updates(unittest.TestCase):
    def test_who_was_lost_is_said(self):
        ranks = support.run_ranks(lost, 3, support.free_port(), may_fail=(2,))
        for name, said, rank, who, host, pid in ranks[:2]:
            self.assertEqual((name, rank, who), ("PeerLost", 2, "worker 0 of the server"))
            self.assertIn("rank 2 is worker 0 of the server, process %d on %s; " % (pid, host), said)
            self.assertTrue(said.endswith("call join on all ranks of the trainer"), said)

    def test_a_refusal_is_heard_by_all(self):
        for name, said, *_ in support.run_ranks(refused, 3, support.free_port(), "start"):
            self.assertEqual(name, "Aborted", said)
            self.assertIn("the server refused version 1: no room for start", said)

    def test_an_update_of_others_is_not_ended(self):
        """Not in the first update, nor when the trainer leaves; all ranks hear what to do."""
        first, second, worker = support.run_ranks(of_others, 3, support.free_port())
        self.assertEqual((first[0], second[0], worker), ("Aborted", "Aborted", "Aborted"))
        self.assertEqual(first[2:], (["start"], True))
        for _, said, *_ in (first, second):
            self.assertIn("an update is under way; if an update is under way there, another client has begun it: wait "
                          "until that has finished it", said)

    def test_a_worker_keeps_the_update_of_a_trainer_that_is_there(self):
        """It is left when that is gone, and the next one may end what it has left."""

        class Met:
            trainer_now, closed = Member(0, "rank 0 of the trainer", "there", 7), False

            def trainer(self):
                return self.trainer_now

            def close(self):
                self.closed = True

        worker = FerryWeightTransferEngine.__new__(FerryWeightTransferEngine)
        worker._link, worker._server, worker._is_open, worker._has_left = Met(), None, True, False
        with self.assertRaisesRegex(ferry.Misuse, "whose first rank is process 7 on there: wait until"):
            worker.init_transfer_engine(FerryInitInfo(host="127.0.0.1", port=1, n_trainers=1, n_workers=1))
        self.assertEqual((worker._link.closed, worker._is_open, worker._has_left), (False, True, False))
        met, Met.trainer_now = worker._link, None
        worker._take_over()
        self.assertEqual((met.closed, worker._link, worker._is_open, worker._has_left), (True, None, False, True))
        worker._link = Met()
        worker.start_weight_update()
        self.assertFalse(worker._has_left)

    def test_what_a_lost_trainer_left_is_ended(self):
        """In the first update after a meeting, and in no other one."""
        first, second, worker = support.run_ranks(left, 3, support.free_port())
        asked = ["start", "finish", "start", "flush", "finish", "start", "flush", "finish", "start"]
        self.assertEqual(first, ([1, 2], "Aborted", asked))
        self.assertEqual(second, ([1, 2], "Aborted", None))
        self.assertEqual(worker, ("Aborted", list(range(6))))

    def test_an_update_that_is_not_finished_is_none(self):
        first, second, worker = support.run_ranks(refused, 3, support.free_port(), "finish")
        again = "finish"  # when the trainer leaves: it is its own update
        self.assertEqual(first, ("RuntimeError", "no room for finish", ["start", "flush", "finish", again]))
        self.assertEqual(second, ("Error", "rank 0 says: RuntimeError: no room for finish"))
        self.assertEqual(worker, (None, ""))

    def test_what_is_refused_after_the_bytes_leaves_no_update_under_way(self):
        first, second, worker = support.run_ranks(refused, 3, support.free_port(), "flush")
        self.assertEqual((first[0], second[0], worker), ("Aborted", "Aborted", (None, "")))
        self.assertIn("no room for flush", first[1])
        self.assertEqual(first[2], ["start", "flush", "finish"])

    def test_all_wait_as_long_as_the_first(self):
        self.assertEqual(support.run_ranks(slow, 3, support.free_port()), [1, 1, None])

    def test_nobody_waits_for_a_first_that_is_lost(self):
        name, said = support.run_ranks(alone, 3, support.free_port(), may_fail=(0,))[1]
        self.assertIn(name, ("PeerLost", "ExchangeFailed"))
        self.assertIn("rank 0", said)

    def test_versions_go_on(self):
        ports = support.free_port(), support.free_port()
        first, second, worker = support.run_ranks(again, 3, *ports)
        self.assertEqual((first, second), ([8, 9], [8, 9]))
        self.assertEqual(worker, ([7, 8], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))


class Settling(unittest.TestCase):
    def test_the_first_leaves_last(self):
        import threading

        store = torch.distributed.HashStore()
        first, second = (StoreExchange(store, rank, 2, SECONDS) for rank in (0, 1))
        heard = []
        thread = threading.Thread(target=lambda: heard.append(first.settle("x", 2, "done")))
        thread.start()
        self.assertEqual(second._hear("x", 0, "x"), b"done")
        self.assertEqual(heard, [])  # nobody has said that it has heard
        self.assertEqual(second.settle("x", 2), "done")
        thread.join()
        self.assertEqual(heard, ["done"])

    def test_the_first_may_take_its_time(self):
        store, looks = torch.distributed.HashStore(), []
        first, second = (StoreExchange(store, rank, 2, 0.01) for rank in (0, 1))

        def look():
            looks.append(1)
            if len(looks) == 3:
                first.tell("x", "done")

        self.assertEqual((second.settle("x", 2, look=look), len(looks)), ("done", 3))

    def test_a_store_that_is_closed_is_not_waited_for(self):
        """It is refused, or closes while it is asked: a trainer that is killed closes it last of all."""
        store = open_store("127.0.0.1", 0, True, SECONDS)
        reached = reach_store("127.0.0.1", store.port, SECONDS)
        reached.set("a", "b")
        self.assertEqual((store.get("a"), reached.timeout.total_seconds()), (b"b", SECONDS))
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]

        def close():
            listener.accept()
            listener.close()

        thread = threading.Thread(target=close)
        thread.start()
        for _ in range(2):
            with self.assertRaisesRegex(ferry.ExchangeFailed, "127.0.0.1:%d cannot be reached: .*refused" % port):
                reach_store("127.0.0.1", port, 10 * support.HANG_SECONDS)
        thread.join()

    def test_who_does_not_come_is_named(self):
        exchange = StoreExchange(torch.distributed.HashStore(), 1, 2, 0.01)
        with self.assertRaisesRegex(ferry.ExchangeFailed, "rank 0 of 2 has not come .*the end of it"):
            exchange.settle("the end of it", 2)


if __name__ == "__main__":
    unittest.main()
