# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service on what the standard library has: bytes, arrays, memory views and pointers."""

import array
import ctypes
import gc
import inspect
import os
import random
import threading
import unittest
import weakref

import ferry
from support import run_ranks


class Held(bytearray):
    """A bytearray that can be watched."""


def pattern(seed, n_bytes):
    return random.Random(seed).randbytes(n_bytes)


def everybody_to_everybody(rank, size):
    """Each pair of ranks has a buffer of its own length; three runs, each with other contents."""
    def n_bytes(a, b):
        return 1 + 7 * a + 100 * b + (300000 if (a, b) == (0, 1) else 0)

    out = {to: bytearray(n_bytes(rank, to)) for to in range(size)}
    into = {by: bytearray(n_bytes(by, rank)) for by in range(size)}
    with ferry.RemoteCopyService() as service:
        service.init()
        assert (service.my_pe, service.n_pes) == (rank, size)
        service.register_sends([(5, out[to], 0, len(out[to]), to) for to in out])
        service.register_receives([[5, into[by], 0, None, by] for by in into])
        service.schedule()
        for turn in range(3):
            for to in out:
                out[to][:] = pattern(repr((rank, to, turn)), n_bytes(rank, to))
            service.run()
            for by in into:
                assert into[by] == pattern(repr((by, rank, turn)), n_bytes(by, rank)), by
        assert service.version == 3
        numbers = service.statistics()
        assert numbers.n_runs == 3 and numbers.n_schedules == 1
        assert numbers.bytes_local == n_bytes(rank, rank)
        assert numbers.bytes_received == sum(n_bytes(by, rank) for by in into if by != rank)
        assert [peer.peer for peer in service.peers()] == list(range(size))
        assert [peer.bytes_out for peer in service.peers()] == [len(out[to]) for to in sorted(out)]
    return service.initialized


def parts_of_one_buffer(rank, size):
    """Rank 0's rows go to rank 1 in another order, by positions; the rest stays as it was."""
    rows = list(range(64))
    random.Random(3).shuffle(rows)
    source = bytearray(pattern("rows", 64 * 24))
    target = bytearray(b"\xee" * (64 * 24 + 8))
    service = ferry.RemoteCopyService(checksum="end", trace=True)
    service.init("WARN")
    if rank == 0:
        service.register_sends((row, source, row * 24, 24, 1) for row in range(64))
    else:
        service.register_receives((row, target, at * 24, 24, 0) for at, row in enumerate(rows))
    service.schedule()
    service.run()
    if rank == 1:
        expected = b"".join(bytes(source[row * 24 : row * 24 + 24]) for row in rows)
        assert target == expected + b"\xee" * 8
        unpacked = [span for span in service.spans() if span.kind == "unpack"]
        assert sum(span.bytes for span in unpacked) == 64 * 24, service.spans()
        assert {span.peer for span in unpacked} == {0}
        (one,) = service.destinations()
        assert (one.state, one.version, one.bytes, one.missing) == ("valid", 1, 64 * 24, 0)
        assert one.tensor is target
    service.clear_requests()  # and all over again, with other tasks
    assert service.destinations() == []
    small = bytearray(b"ab" if rank == 1 else b"..")
    (service.register_send if rank == 1 else service.register_receive)(1, small, 1, 1, 1 - rank)
    service.schedule()
    service.run()
    service.finalize()
    service.finalize()
    return bytes(small).decode()


def mismatches(rank, size):
    said = []
    service = ferry.RemoteCopyService()
    service.init("WARN")
    mine = bytearray(16)

    def expect_refusal():
        try:
            service.schedule()
        except ferry.InvalidInput as error:
            said.append((str(error), error.ranks))
        service.clear_requests()

    if rank == 0:
        service.register_send(1, mine, 0, 16, 1)
    else:
        service.register_receive(1, mine, 0, 12, 0)
    expect_refusal()
    if rank == 0:  # two writers to one byte
        service.register_send(1, mine, 0, 8, 1)
        service.register_send(2, mine, 8, 8, 1)
    else:
        service.register_receive(1, mine, 0, 8, 0, name="overlapped")
        service.register_receive(2, mine, 7, 8, 0)
    expect_refusal()
    if rank == 0:
        service.register_send(9, mine, 0, 16, 1)
    expect_refusal()
    service.finalize()
    return said


def in_mapped_memory(rank, size):
    """Memory of the service takes bytes by one copy, and outlives it."""
    n_bytes = 1 << 20
    service = ferry.RemoteCopyService()
    service.init("WARN")
    memory = service.alloc(n_bytes + 100)
    assert bytes(memory[:8]) == b"\0" * 8 and memory.nbytes == n_bytes + 100
    part = memory[64:64 + n_bytes]
    mine = bytearray(pattern(rank, 64) * (n_bytes // 64))
    service.register_send(0, mine, 0, None, 1 - rank)
    service.register_receive(0, part, 0, None, 1 - rank)
    service.schedule()
    service.run()
    mapped = service.statistics().bytes_mapped
    service.finalize()
    del service
    gc.collect()
    memory[0] = 9
    assert bytes(part) == pattern(1 - rank, 64) * (n_bytes // 64)
    return mapped


def by_a_plan(rank, size):
    """Rows to columns and back to other buffers, by name."""
    def side(dim):
        return {"mesh": [["tp", size]],
                "rules": [{"match": "*", "shard": [{"dim": dim, "axis": "tp"}]}]}

    plan = ferry.plan(ferry.Spec({
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [4, 6], "dtype": "u8"},
                    {"name": "v", "shape": [8, 2], "dtype": "f32"}],
        "source": side(0), "destination": side(1)}))
    whole_w = [[10 * row + column for column in range(6)] for row in range(4)]
    v = array.array("f", [float(100 * rank + i) for i in range(8)])
    w = bytearray(sum(whole_w[rank * 2 : rank * 2 + 2], []))
    new_v, new_w = array.array("f", [0.0] * 8), bytearray(12)
    expected_w = bytes(value for row in whole_w for value in row[rank * 3 : rank * 3 + 3])
    expected_v = [float(100 * r + i) for r in range(2) for i in range(8) if i % 2 == rank]
    with ferry.RemoteCopyService() as service:
        service.init("WARN")
        for sources, wanted in (({"w": w}, '"?v"?.*no tensor'), ({"w": w, "v": bytearray(3)}, "v"),
                                ({"w": w, "v": array.array("i", [0] * 8)}, None)):
            try:
                service.bind(plan, sources, {"w": new_w, "v": new_v})
            except ferry.InvalidInput as error:
                assert wanted is not None, error
                assert __import__("re").search(wanted, str(error)), error
                continue
            assert wanted is None
        service.clear_requests()
        try:
            service.bind(plan, {"w": w, "v": v}, {"w": new_w, "v": array.array("d", [0] * 8)})
            raise AssertionError("another dtype was bound")
        except ferry.InvalidInput as error:
            assert error.tensor == "v" and "f64" in str(error) and "f32" in str(error), error
        service.bind(plan, {"w": w, "v": v, "unknown": bytearray(1)}, {"w": new_w, "v": new_v})
        service.schedule()
        service.run()
        assert new_w == expected_w and list(new_v) == expected_v
        assert {one.name: one.tensor is {"w": new_w, "v": new_v}[one.name]
                for one in service.destinations()} == {"w": True, "v": True}
        other_v, other_w = array.array("f", [0.0] * 8), bytearray(12)
        service.rebind(destinations={"v": other_v, "w": other_w})
        new_w[:] = bytes(12)
        new_v[0] = -1.0
        old = weakref.ref(new_v)
        del new_v
        gc.collect()
        assert old() is None  # what was bound before is let go
        service.run()
        assert other_w == expected_w and list(other_v) == expected_v
        assert new_w == bytes(12)  # and not written
    return True


def by_swapped_buffers(rank, size):
    spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [2, 4], "dtype": "u8"}],
            "source": {"mesh": [["tp", 2]],
                       "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
            "destination": {"mesh": [["tp", 2]],
                            "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}}
    source, front, back = bytearray(4), bytearray(b"...."), bytearray(b"----")
    service = ferry.RemoteCopyService(commit="swap")
    service.init("WARN")
    service.bind(ferry.plan(spec), {"w": source}, {"w": (front, back)})
    service.schedule()
    seen = []
    for turn in range(2):
        source[:] = bytes([rank * 4 + i + 16 * turn for i in range(4)])
        service.run()
        (one,) = service.destinations()
        seen.append((one.tensor is back, one.tensor is front, list(one.tensor)))
    service.finalize()
    expected = [[4 * row + 2 * rank + i for row in range(2) for i in range(2)]]
    expected.append([value + 16 for value in expected[0]])
    return seen == [(True, False, expected[0]), (False, True, expected[1])] and bytes(front) != b""


def in_steps(rank, size):
    n_bytes = 8 << 20
    mine, other = bytearray(pattern(rank, 16) * (n_bytes // 16)), bytearray(n_bytes)
    service = ferry.RemoteCopyService()
    service.init("WARN")
    service.register_send(0, mine, 0, n_bytes, 1 - rank)
    service.register_receive(0, other, 0, n_bytes, 1 - rank)
    service.schedule()
    heard = []
    service.set_progress(heard.append)
    request = service.start()
    try:
        service.run()
        raise AssertionError("two runs at once")
    except ferry.Misuse as error:
        assert "under way" in str(error), error
    while not request.test():
        pass
    request.wait()
    assert request.done and request.test()
    assert other == pattern(1 - rank, 16) * (n_bytes // 16)
    assert heard and isinstance(heard[-1], ferry.Progress)
    assert heard[-1].bytes_done == heard[-1].bytes_total == 2 * n_bytes
    service.set_progress(None)
    n_heard = len(heard)
    other[:] = bytes(n_bytes)
    service.start().wait()
    assert other == pattern(1 - rank, 16) * (n_bytes // 16) and len(heard) == n_heard
    service.finalize()
    try:
        service.start()
    except ferry.Misuse:
        return True
    return False


class Ranks(unittest.TestCase):
    def test_everybody_to_everybody(self):
        self.assertEqual(run_ranks(everybody_to_everybody, 3), [False] * 3)

    def test_parts_of_one_buffer(self):
        self.assertEqual(run_ranks(parts_of_one_buffer, 2), [".b", "ab"])

    def test_mismatches_are_named_on_all_ranks(self):
        first, second = run_ranks(mismatches, 2)
        self.assertEqual(first, second)
        self.assertEqual(len(first), 3)
        self.assertRegex(first[0][0], "task 1 .*16.*12|task 1 .*12.*16")
        self.assertEqual(set(first[0][1]), {0, 1})
        self.assertIn("overlapped", first[1][0])
        self.assertIn("task 9", first[2][0])

    def test_memory_of_the_service(self):
        self.assertEqual(run_ranks(in_mapped_memory, 2), [1 << 20] * 2)

    def test_a_plan(self):
        self.assertEqual(run_ranks(by_a_plan, 2), [True] * 2)

    def test_swapped_buffers(self):
        self.assertEqual(run_ranks(by_swapped_buffers, 2), [True] * 2)

    def test_runs_in_steps(self):
        self.assertEqual(run_ranks(in_steps, 2), [True] * 2)


class Service(unittest.TestCase):
    """What one rank can see; the world is this process."""

    def setUp(self):
        self.service = ferry.RemoteCopyService()
        self.service.init("ERROR")
        self.addCleanup(self.service.finalize)

    def carry(self, source, target, size=None, source_pos=0, target_pos=0):
        self.service.clear_requests()
        self.service.register_send(1, source, source_pos, size, 0)
        self.service.register_receive(1, target, target_pos, size, 0)
        self.service.schedule()
        self.service.run()

    def test_the_page(self):
        from ferry.resharding.nvshmem_copy_service.service import RemoteCopyService

        self.assertIs(RemoteCopyService, ferry.RemoteCopyService)
        page = {
            "init": ["log_level"],
            "register_send": ["task_id", "src_tensor", "src_pos", "size", "dest_pe"],
            "register_receive": ["task_id", "dest_tensor", "dest_pos", "size", "src_pe"],
            "schedule": [], "run": [], "clear_requests": [], "finalize": [], "_segment_tasks": [],
            "_prepare_iter_schedules": ["schedule_batches", "workloads", "global_summaries",
                                        "num_iterations"],
        }
        for name, wanted in page.items():
            parameters = inspect.signature(getattr(RemoteCopyService, name)).parameters.values()
            self.assertEqual([one.name for one in parameters
                              if one.kind is one.POSITIONAL_OR_KEYWORD], ["self"] + wanted)
        self.assertEqual(inspect.signature(RemoteCopyService.init).parameters["log_level"].default,
                         "INFO")
        self.assertEqual((self.service.my_pe, self.service.n_pes, self.service.initialized,
                          str(self.service.device)), (0, 1, True, "cpu"))
        self.assertIsNone(self.service._segment_tasks())

    def test_iterations_of_a_schedule(self):
        from types import SimpleNamespace as Batch

        own = Batch(src_pe=0, dest_pe=0, batch_index=0)
        out = Batch(src_pe=0, dest_pe=3, batch_index=1)
        into = Batch(src_pe=2, dest_pe=0, batch_index=0)
        other = Batch(src_pe=2, dest_pe=3, batch_index=0)
        group = Batch(tasks=["a", "b"], total_size=7)
        summary = Batch(total_size=5, task_ids=[1], task_sizes=[5])
        got = self.service._prepare_iter_schedules(
            {0: [own, out], 2: [other, into]}, {3: [None, group]}, {(2, 0, 0): summary}, 3)
        self.assertEqual(got, [{"send": out, "recv": None}, {"send": None, "recv": None},
                               {"send": None, "recv": into}])
        self.assertEqual((out.tasks, out.total_size), (["a", "b"], 7))
        self.assertEqual((into.tasks_summary, into.total_size), (summary, 5))

    def test_kinds_of_memory(self):
        data = pattern("kinds", 48)
        place = ctypes.create_string_buffer(48)
        for source in (data, bytearray(data), memoryview(data), array.array("H", data),
                       (ctypes.c_double * 6).from_buffer_copy(data),
                       (ctypes.c_uint8 * 12 * 4).from_buffer_copy(data)):
            target = bytearray(48)
            self.carry(source, target)
            self.assertEqual(target, data)
        place.raw = data
        target = bytearray(48)
        self.carry(ctypes.addressof(place), target, 48)
        self.assertEqual(target, data)
        place.raw = b"\0" * 48
        self.carry(bytearray(data), ctypes.addressof(place), 40, 8, 4)
        self.assertEqual(place.raw, b"\0" * 4 + data[8:] + b"\0" * 4)

    def test_memory_with_gaps(self):
        data = pattern("gaps", 120)
        target = bytearray(40)
        self.carry(memoryview(data)[1:121:3], target)
        self.assertEqual(target, data[1::3])
        holes = bytearray(120)
        self.carry(data[:40], memoryview(holes)[2::3])
        self.assertEqual(holes[2::3], data[:40])
        self.assertEqual(holes[0::3] + holes[1::3], bytes(80))
        part = bytearray(10)
        self.carry(memoryview(data)[::3], part, 10, 5)
        self.assertEqual(part, data[15:45:3])

    def test_refusals(self):
        data = bytearray(64)
        send, receive = self.service.register_send, self.service.register_receive
        send(1, data, 0, 8, 0)
        cases = [
            (lambda: send(1, data, 8, 8, 0), ferry.InvalidInput, "task 1 .*registered already"),
            (lambda: send(2, data, 60, 8, 0), ferry.InvalidInput, "64 bytes.* 8 from byte 60"),
            (lambda: send(2, data, 65, None, 0), ferry.InvalidInput, "from byte 65"),
            (lambda: send(2, data, -1, 8, 0), ferry.InvalidInput, "src_pos is negative"),
            (lambda: receive(2, data, 0, -8, 0), ferry.InvalidInput, "size is negative"),
            (lambda: send(-2, data, 0, 8, 0), ferry.InvalidInput, "task_id is negative"),
            (lambda: send(2.5, data, 0, 8, 0), ferry.InvalidInput, "task_id is not a whole number"),
            (lambda: send(2, data, 0, 8, 1), ferry.InvalidInput, "no rank 1 in a world of 1"),
            (lambda: receive(2, data, 0, 8, -1), ferry.InvalidInput, "src_pe is negative"),
            (lambda: receive(2, data, 1 << 63, 1 << 63, 0), ferry.InvalidInput, "64 bytes"),
            (lambda: receive(2, b"constant", 0, 8, 0), ferry.InvalidInput, '"task 2" is read-only'),
            (lambda: send(2, "text", 0, 4, 0), ferry.InvalidInput, "of type str"),
            (lambda: send(2, True, 0, 4, 0), ferry.InvalidInput, "of type bool"),
            (lambda: send(2, None, 0, 4, 0), ferry.InvalidInput, "of type NoneType"),
            (lambda: send(2, id(data), 0, None, 0), ferry.InvalidInput, "without a size"),
            (lambda: send(2, 0, 0, 4, 0), ferry.InvalidInput, "pointer 0"),
            (lambda: send(2, memoryview(data)[::-1], 0, None, 0), ferry.InvalidInput, "stride"),
            (lambda: send(2, data, 0, 4, 0, name=7), ferry.InvalidInput, "name of a task"),
            (lambda: self.service.register_sends([(2, data, 0, 4)]), ferry.InvalidInput,
             "4 values.*dest_pe"),
            (lambda: self.service.register_sends([7]), TypeError, "iterable"),
            (lambda: self.service.register_receives(7), TypeError, "iterable"),
            (lambda: self.service.run(), ferry.Misuse, "schedule"),
            (lambda: self.service.start(), ferry.Misuse, "schedule"),
            (lambda: self.service.schedule(), ferry.InvalidInput, "task 1"),
            (lambda: self.service.bind(7), ferry.Error, "."),
            (lambda: self.service.resume(7), ferry.InvalidInput, "ledger"),
            (lambda: self.service.recover(7), ferry.InvalidInput, "World"),
            (lambda: self.service.set_progress(7), ferry.InvalidInput, "function"),
            (lambda: self.service.alloc(0), ferry.InvalidInput, "0 bytes"),
            (lambda: self.service.alloc(-1), ferry.InvalidInput, "negative"),
            (lambda: self.service.alloc(1 << 60), ferry.Error, "."),
        ]
        for number, (call, kind, words) in enumerate(cases):
            with self.subTest(number=number, words=words), self.assertRaisesRegex(kind, words):
                call()

    def test_options_are_checked(self):
        for options, words in (({"checksum": "all"}, "'none', 'path', 'end'"),
                               ({"commit": "now"}, "'in-place', 'swap'"),
                               ({"paths": ["air"]}, "'staged'"), ({"paths": []}, "empty"),
                               ({"world": 1, "group": 2}, "one of them")):
            with self.subTest(options=options), self.assertRaisesRegex(ferry.InvalidInput, words):
                ferry.RemoteCopyService(**options)
        for options in ({"memory_cap": -1}, {"threads": 1 << 40}, {"slot_bytes": "x"},
                        {"world": 7}):
            with self.subTest(options=options), self.assertRaises(ferry.InvalidInput):
                ferry.RemoteCopyService(**options).init()
        with self.assertRaises(ferry.InvalidInput):
            ferry.RemoteCopyService().init("LOUD")
        with self.assertRaises(ferry.Error):
            ferry.RemoteCopyService(engines="no-such-engine").init("ERROR")
        service = ferry.RemoteCopyService(memory_cap=1 << 20, slot_bytes=4096, threads=1,
                                          paths="staged", relays=False, engines="inproc")
        service.init("ERROR")
        service.finalize()

    def test_a_refused_end_is_not_kept(self):
        data = Held(b"12345678")
        kept = weakref.ref(data)
        with self.assertRaises(ferry.InvalidInput):
            self.service.register_send(1, data, 4, 8, 0)
        del data
        gc.collect()
        self.assertIsNone(kept())

    def test_tensors_live_as_long_as_they_are_registered(self):
        source, target = Held(b"12345678"), bytearray(8)
        kept = weakref.ref(source)
        self.service.register_sends([(i, source, i, 1, 0) for i in range(8)])
        self.service.register_receives([(i, target, 7 - i, 1, 0) for i in range(8)])
        del source
        gc.collect()
        self.service.schedule()
        self.service.run()
        self.assertEqual(target, b"87654321")
        self.assertIsNotNone(kept())
        with self.assertRaises(BufferError):
            kept().extend(b"more")  # what is registered cannot be resized
        self.service.clear_requests()
        gc.collect()
        self.assertIsNone(kept())

    def test_dropping_a_service_lets_go_of_its_tensors(self):
        source = Held(b"1234")
        kept = weakref.ref(source)
        service = ferry.RemoteCopyService()
        service.init("ERROR")
        service.register_send(1, source, 0, 4, 0)
        service.set_progress(lambda progress: service.my_pe)
        del source, service
        gc.collect()
        self.assertIsNone(kept())

    def test_after_the_end(self):
        service = ferry.RemoteCopyService()
        with self.assertRaisesRegex(ferry.Misuse, "init"):
            service.register_send(1, bytearray(4), 0, 4, 0)
        with self.assertRaisesRegex(ferry.Misuse, "init"):
            service.my_pe
        self.assertFalse(service.initialized)
        self.assertIn("not initialized", repr(service))
        service.init("ERROR")
        service.init("ERROR")
        self.assertIn("PE 0 of 1", repr(service))
        service.finalize()
        service.finalize()
        self.assertFalse(service.initialized)
        for call in (service.run, service.schedule, service.init, service.clear_requests,
                     service.statistics, service.start, lambda: service.version,
                     lambda: service.register_sends([])):
            with self.assertRaisesRegex(ferry.Misuse, "finalized"):
                call()

    def test_types_make_no_empty_objects(self):
        for name in ("Service", "Request", "Ledger", "Memory"):
            with self.subTest(name=name), self.assertRaises(TypeError):
                getattr(ferry._ferry, name)()

    def test_another_thread_is_refused(self):
        source, target, raised, seen = bytearray(8), bytearray(8), [], []
        self.service.register_send(1, source, 0, 8, 0)
        self.service.register_receive(1, target, 0, 8, 0)
        self.service.schedule()
        calls = (self.service.clear_requests, self.service.finalize, self.service.run,
                 self.service.statistics, lambda: ferry.world().barrier())

        def meanwhile():
            for call in calls:
                try:
                    call()
                except ferry.Misuse as error:
                    raised.append(str(error))

        def progress(told):
            seen.append(told)
            one = threading.Thread(target=meanwhile)
            one.start()
            one.join()
            meanwhile()  # nor does this thread, from within

        self.service.set_progress(progress)
        self.service.run()
        self.assertGreaterEqual(len(seen), 2)  # before anything moves, and at the end
        self.assertEqual(len(raised), 2 * len(calls) * len(seen))
        self.assertTrue(all("in use" in text for text in raised), raised)
        self.service.set_progress(None)
        self.service.run()

    def test_a_child_of_fork_is_refused(self):
        self.service.register_send(1, bytearray(8), 0, 8, 0)
        inlet, outlet = os.pipe()
        child = os.fork()
        if child == 0:
            text = "nothing raised"
            try:
                self.service.register_send(2, bytearray(8), 0, 8, 0)
            except ferry.Misuse as error:
                text = str(error)
            self.service = None
            gc.collect()
            os.write(outlet, text.encode())
            os._exit(0)
        os.close(outlet)
        with os.fdopen(inlet) as file:
            self.assertIn("spawn", file.read())
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.service.register_receive(1, bytearray(8), 0, 8, 0)
        self.service.schedule()
        self.service.run()

    def test_a_closed_world_is_named(self):
        (world,) = ferry._ferry.world_of_threads(1)
        service = ferry.RemoteCopyService(world)
        service.init("ERROR")
        world.close()
        with self.assertRaisesRegex(ferry.Misuse, "world was closed"):
            service.schedule()
        service.finalize()

    def test_threads_are_ranks(self):
        worlds = ferry._ferry.world_of_threads(3)
        targets, raised = [bytearray(4) for _ in worlds], []

        def work(rank):
            try:
                with ferry.RemoteCopyService(worlds[rank]) as service:
                    service.init("ERROR")
                    service.register_send(0, bytes([rank] * 4), 0, 4, (rank + 1) % 3)
                    service.register_receive(0, targets[rank], 0, 4, (rank + 2) % 3)
                    service.schedule()
                    for _ in range(20):
                        service.run()
                worlds[rank].close()  # it waits for the others
            except BaseException as error:
                raised.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual(raised, [])
        self.assertEqual(targets, [bytes([(rank + 2) % 3] * 4) for rank in range(3)])


if __name__ == "__main__":
    unittest.main()
