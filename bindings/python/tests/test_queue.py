# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Queues of devices, with the test kind: runs and collectives in their order, events, and misuse."""

import array
import gc
import os
import signal
import threading
import unittest

import ferry
from support import fork_beside_sleepers, run_ranks

N = 30000


def ring(service, rank, size, source, target):
    service.register_send(1, source, 0, len(source), dest_pe=(rank + 1) % size)
    service.register_receive(1, target, 0, len(target), src_pe=(rank - 1) % size)
    service.schedule()


def content(rank, turn):
    return bytes((rank * 31 + turn * 7 + i) % 256 for i in range(N))


def runs_on_queues(rank, size):
    """Each rank chooses its queue: two devices', the host's, or none."""
    source, target = bytearray(N), bytearray(N)
    threads = set()
    queue = [ferry.Queue("far"), ferry.Queue("far", 1), ferry.Queue("host"), None][rank % 4]
    with ferry.RemoteCopyService() as service:
        service.init()
        ring(service, rank, size, source, target)
        service.set_progress(lambda progress: threads.add(threading.get_ident()))
        for turn in range(4):
            source[:] = content(rank, turn)
            if turn % 2 == 0:
                service.run(queue=queue)
            else:
                request = service.start(queue=queue)
                event = ferry.Event()
                event.record(queue)
                if rank % 4 < 2:  # the run is before it
                    event.wait()
                    assert request.test()
                request.wait()
                event.wait()
                assert request.done and event.done
            assert target == content((rank - 1) % size, turn), turn
        assert service.version == 4
        if queue is not None:
            queue.synchronize()
            queue.close()
    on_other_thread = threads - {threading.get_ident()}
    assert bool(on_other_thread) == (rank % 4 < 2), threads
    return True


def collectives_on_queues(rank, size):
    queue = ferry.Queue("far", 1) if rank != 1 else None
    with ferry.MixedCommHandler(rank, size, rank, size, 0, 1, None, None, None, None, "f32", "cpu",
                                use_autotune=False) as handler:
        for turn in range(3):
            x = array.array("f", [rank + 1 + turn + i % 5 for i in range(500)])
            y = array.array("f", bytes(4 * 500))
            outputs = [array.array("f", bytes(4 * 500)) for _ in range(3)]
            requests = []
            for output in outputs:
                requests.append(handler.start(ferry.MixedCommOp.ALLREDUCE, x, output, queue=queue))
                assert queue is not None or requests[-1].wait() is output  # one at a time
            for request, output in zip(reversed(requests), reversed(outputs)):
                assert request.wait() is output
                assert list(output) == [sum(r + 1 + turn + i % 5 for r in range(size))
                                        for i in range(500)]
            same = handler.run(ferry.MixedCommOp.ALLREDUCE, x, y, queue=queue)
            assert same is y
            assert list(y) == [sum(r + 1 + turn + i % 5 for r in range(size)) for i in range(500)]
        gone = ferry.Queue("far")
        gone.close()
        try:  # refused alike on all ranks: the handle goes on
            handler.run(ferry.MixedCommOp.ALLREDUCE, x, y, queue=gone)
            return "not refused"
        except ferry.Misuse as error:
            assert "it was destroyed" in str(error), error
        z = array.array("f", bytes(4 * 500))
        assert handler.run(ferry.MixedCommOp.ALLREDUCE, x, z, queue=queue) == y
    return "refused"


def interrupted(rank, size):
    """Ctrl-C while a run is on a queue: the exception here, and the run is cancelled for all."""
    source, target = bytearray(N), bytearray(N)
    with ferry.Queue("far") as queue, ferry.RemoteCopyService() as service:
        service.init()
        ring(service, rank, size, source, target)
        if rank == 0:
            met = []

            def interrupt(progress):
                if not met:
                    met.append(1)
                    os.kill(os.getpid(), signal.SIGINT)
                    while not said:
                        pass

            said = []
            signal.signal(signal.SIGINT, lambda *ignored: said.append(1) or raise_it())
            service.set_progress(interrupt)
        ended = "well"
        try:
            service.run(queue=queue)
        except KeyboardInterrupt:
            ended = "interrupted"
        except ferry.Aborted:
            ended = "aborted"
        service.set_progress(None)
        try:
            queue.synchronize()
        except ferry.Aborted:
            pass
        source[:] = content(rank, 9)
        service.run(queue=queue)
        assert target == content((rank - 1) % size, 9)
    return ended


def raise_it():
    raise KeyboardInterrupt


class Queues(unittest.TestCase):
    def test_runs(self):
        self.assertEqual(run_ranks(runs_on_queues, 4), [True] * 4)

    def test_collectives(self):
        self.assertEqual(run_ranks(collectives_on_queues, 3), ["refused"] * 3)

    def test_interrupt(self):
        self.assertEqual(run_ranks(interrupted, 2), ["interrupted", "aborted"])

    def test_about(self):
        with ferry.Queue("far", device=1) as queue:
            self.assertEqual((queue.kind, queue.device), ("far", 1))
            self.assertGreater(queue.native, 0)
            self.assertEqual(repr(queue), "<ferry.Queue of far, device 1>")
            with ferry.Queue("far", 1, native=queue.native) as same:
                self.assertEqual(same.native, queue.native)
                event = ferry.Event()
                self.assertEqual(repr(event), "<ferry.Event, has come>")
                event.record(same)
                event.wait(queue)
                queue.synchronize()
                self.assertTrue(event.done)
        self.assertEqual(repr(queue), "<ferry.Queue, closed>")
        self.assertEqual((queue.kind, queue.device, queue.native), ("host", 0, None))
        queue.close()
        with ferry.Queue("host") as host:
            self.assertIsNone(host.native)
            host.synchronize()

    def test_misuse(self):
        closed, queue, event = ferry.Queue("far"), ferry.Queue("far"), ferry.Event()
        closed.close()
        newer = ferry.Queue("far")  # perhaps where the other one was
        rows = [
            (lambda: closed.synchronize(), ferry.Misuse, "it was destroyed, or never created"),
            (lambda: event.record(closed), ferry.Misuse, "it was destroyed, or never created"),
            (lambda: event.wait(closed), ferry.Misuse, "it was destroyed, or never created"),
            (lambda: event.record(7), TypeError, "a queue is a ferry.Queue, a stream of CUDA or None, not int"),
            (lambda: ferry.Queue("far\0"), ferry.InvalidInput, "is no kind of memory"),
            (lambda: ferry.Queue("\ud800"), ferry.InvalidInput, "is no kind of memory"),
            (lambda: ferry.Queue("near"), ferry.InvalidInput, "'near' is no kind of memory"),
            (lambda: ferry.Queue("far", 2), ferry.Misuse, "there is no device 2 of kind far"),
            (lambda: ferry.Queue("far", -1), ferry.Misuse, "there is no device -1 of kind far"),
            (lambda: ferry.Queue("far", native=0), ferry.InvalidInput, "that is not 0"),
            (lambda: ferry.Queue("far", native=4096), ferry.Misuse, "is no far queue that is open"),
            (lambda: ferry.Queue("far", 1, native=queue.native), ferry.Misuse, "not 1"),
            (lambda: ferry.Queue("host", native=queue.native), ferry.Misuse, "the host has no queues"),
            (lambda: ferry.Queue("far", native="x"), TypeError, ""),
            (lambda: ferry.Queue(), TypeError, ""),
            (lambda: ferry.Event(3), TypeError, ""),
        ]
        for call, kind, words in rows:
            with self.assertRaises(kind) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        newer.synchronize()

    def test_cuda(self):
        """As much as the machine has: a queue, or a sentence about what lacks."""
        try:
            ferry.Queue("cuda").synchronize()
        except ferry.Unsupported as error:
            self.assertRegex(str(error), "kind cuda.*(there is no|cannot|needs|not)")

    def test_misuse_of_runs(self):
        source, target = bytearray(N), bytearray(N)
        closed, queue, other = ferry.Queue("far"), ferry.Queue("far"), ferry.Queue("far", 1)
        closed.close()
        with ferry.RemoteCopyService() as service:
            service.init()
            ring(service, 0, 1, source, target)
            for wrong, kind in (closed, ferry.Misuse), ("far", TypeError):
                with self.assertRaises(kind):
                    service.run(queue=wrong)
                with self.assertRaises(kind):
                    service.start(queue=wrong)
            request = service.start(queue=queue)
            with self.assertRaises(ferry.Misuse):
                service.run()
            with self.assertRaises(ferry.Misuse):
                service.run(queue=other)
            request.wait()
            del request
            service.run(queue=other)
            self.assertEqual(target, source)

    def test_without_an_end(self):
        """Queues that nobody closes, and one that goes before its request."""
        source, target = bytearray(content(0, 1)), bytearray(N)
        for _ in range(5):
            ferry.Queue("far", 1).synchronize()
        with ferry.RemoteCopyService() as service:
            service.init()
            ring(service, 0, 1, source, target)
            request = service.start(queue=ferry.Queue("far"))
            gc.collect()
            request.wait()
            self.assertEqual(target, source)

    def test_fork(self):
        queue, begun = ferry.Queue("far"), ferry.Event()
        begun.record(queue)
        begun.wait()  # so its thread is there, and has nothing more to do
        child = fork_beside_sleepers()
        if child == 0:
            try:
                queue.synchronize()
            except ferry.Misuse as error:
                if "before this process was forked" in str(error):
                    queue.close()
                    os._exit(0)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        queue.synchronize()


if __name__ == "__main__":
    unittest.main()
