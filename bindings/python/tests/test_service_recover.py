# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""From a service that has failed to one that goes on: is every byte of every version right, whoever
is killed, and do versions go on?"""

import concurrent.futures
import gc
import os
import signal
import threading
import unittest
import weakref

import ferry
from support import await_mark, is_in_use, lose_in_a_run, mark, run_ranks, until

ROW = 128 << 10
PART = ROW // 4
SLOW = {"engines": "delay=50ms", "paths": "staged", "slot_bytes": 32768, "memory_cap": 256 << 10}
NAMES = ("a", "b")
PATTERN = bytes(range(251)) * (ROW // 251 + 2)


class Held(bytearray):
    """A bytearray that can be watched."""


def spec_of(**source):
    """Rows 0 and 1 are on ranks 0 and 2, rows 2 and 3 on ranks 1 and 3; each rank wants a quarter
    of all rows, so each wants something of others."""
    return {"format": "ferry.spec/1",
            "tensors": [{"name": name, "shape": [4, ROW], "dtype": "u8"} for name in NAMES],
            "source": {"mesh": [["dp", 2], ["tp", 2]],
                       "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}], **source},
            "destination": {"mesh": [["tp", 4]],
                            "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}}


def truth(name, row, version):
    """The bytes of a row in a version: no two rows, tensors or versions have the same."""
    begin = (row * 67 + NAMES.index(name) * 31 + version * 101) % 251
    return PATTERN[begin:begin + ROW]


def fill(sources, rank, version):
    for name, one in sources.items():
        rows = range(4) if len(one) == 4 * ROW else (0, 1) if rank % 2 == 0 else (2, 3)
        one[:] = b"".join(truth(name, row, version) for row in rows)


def check_rows(service, rank, version):
    """Every byte of what this rank has, which is whole, and of this version."""
    found = service.destinations()
    assert sorted(one.name for one in found) == (sorted(NAMES) if rank < 4 else []), found
    for one in found:
        assert (one.state, one.version) == ("valid", version), (one.state, one.version, version)
        assert one.tensor == b"".join(truth(one.name, row, version)[rank * PART:(rank + 1) * PART]
                                      for row in range(4)), one.name


def meet():
    """All have ended the run before: who is killed from here on does not fail that one."""
    try:
        ferry.world().barrier()
    except ferry.PeerLost:
        pass  # one had met all, and died while others were still about to hear of it


def lost_in(run):
    """The ranks that a run fails for."""
    try:
        run()
    except ferry.PeerLost as error:
        return error.ranks
    raise AssertionError("nobody was lost")


def lose(service, run, dies):
    """A run in which a rank is killed."""
    meet()
    return lost_in(lambda: lose_in_a_run(service, run, dies, "v%d" % service.version))


def go_on(service, found, sources, rank):
    """Two runs after a recovery: the first moves what is missing, the second moves all again."""
    for version in (found.next, found.next + 1):
        fill(sources, rank, version)
        service.run()
        assert service.version == version
        check_rows(service, rank, version)
        if version == found.next:
            numbers = service.statistics()
            wanted = len(NAMES) * ROW if rank < 4 else 0
            arrived = numbers.bytes_received + numbers.bytes_local
            assert arrived == wanted - found.bytes_in_place, (arrived, wanted, found)
    return version


def killed(rank, size, commit, n_before):
    """Two ranks are killed, one after the other; then a run is cancelled in a world that lives."""
    sources = {name: bytearray(2 * ROW) for name in NAMES}
    fresh = [Held(ROW) for _ in range(4)]
    watched = [weakref.ref(one) for one in fresh]
    swaps = commit == "swap"
    service = ferry.RemoteCopyService(commit=commit, first_version=7, **SLOW)
    service.init("OFF")
    service.bind(ferry.plan(spec_of()), sources, {
        name: tuple(fresh[2 * i:2 * i + 2]) if swaps else fresh[2 * i]
        for i, name in enumerate(NAMES)})
    del fresh
    service.schedule()
    world, version, heard = ferry.world(), 6, []
    for _ in range(n_before):
        version += 1
        fill(sources, rank, version)
        service.run()
        check_rows(service, rank, version)
    for victim, n_left in ((1, 3), (2, 2)):
        fill(sources, rank, version + 1)
        lose(service, service.run, rank == victim)
        before = service.version
        found = service.recover_onto(spec_of())
        heard.append((found.whole, found.next, found.n_lost))
        was_any = n_before != 0 or victim != 1
        if found.next == version + 1:
            assert found.whole == (version if swaps and was_any else 0), (found, version)
        else:  # who is left had all of it
            version += 1
            assert (found.whole, found.next) == (version, version + 1), (found, version)
        assert found.n_lost == 1 and service.version >= max(before, found.whole)
        assert ferry.world() is world and world.size == service.n_pes == n_left
        assert world.members[service.my_pe] == rank
        if found.whole != 0:
            check_rows(service, rank, found.whole)  # for readers, until the next run has ended
        version = go_on(service, found, sources, rank)

    fill(sources, rank, version + 1)
    request = service.start()
    request.cancel()
    try:
        request.wait()
        raise AssertionError("nothing was cancelled")
    except ferry.Aborted:
        found = service.recover_onto(spec_of())
    heard.append((found.whole, found.next, found.n_lost))
    assert found.n_lost == 0 and found.next > version, found
    assert world.size == 2 and world.epoch == 2
    fill(sources, rank, found.next)
    service.run()
    assert service.version == found.next
    check_rows(service, rank, found.next)
    n_alive = sum(one() is not None for one in watched)
    service.finalize()
    gc.collect()
    return heard, n_alive, [one() for one in watched]


def memory_of_ferry(rank, size):
    """What alloc() gave stays what other ranks map, in the new service too."""
    sources = {name: bytearray(2 * ROW) for name in NAMES}
    service = ferry.RemoteCopyService(commit="swap")
    service.init("OFF")
    service.bind(ferry.plan(spec_of()), sources,
                 {name: (service.alloc(ROW), service.alloc(ROW)) for name in NAMES})
    service.schedule()
    fill(sources, rank, 1)
    service.run()
    paths, version = [], 1
    for victim in (1, 2):
        meet()
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        fill(sources, rank, version + 1)
        lost_in(service.run)
        version = go_on(service, service.recover_onto(spec_of()), sources, rank)
        paths.append(service.statistics().bytes_mapped != 0)
    watched = [weakref.ref(one.tensor) for one in service.destinations()]
    service.finalize()
    gc.collect()
    assert not any(one() for one in watched)
    more = ferry.RemoteCopyService(ferry.world())  # the world that is left is as good as any
    more.init("OFF")
    more.finalize()
    return any(paths)


def interrupted(rank, size):
    """Ctrl-C ends a recovery that waits for a rank; the next one goes on from there."""
    sources = {name: bytearray(2 * ROW) for name in NAMES}
    service = ferry.RemoteCopyService(**SLOW)
    service.init("OFF")
    service.bind(ferry.plan(spec_of()), sources, {name: bytearray(ROW) for name in NAMES})
    service.schedule()
    fill(sources, rank, 1)
    lose(service, service.run, rank == 1)
    said = ""
    if rank == 0:
        def strike():
            until(lambda: is_in_use(service))
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=strike, daemon=True).start()
        try:
            service.recover_onto(spec_of())
        except KeyboardInterrupt:
            said = "interrupted"
        mark("interrupted")
    else:
        await_mark("interrupted")
    found = service.recover_onto(spec_of())
    go_on(service, found, sources, rank)
    service.finalize()
    return said, found.next in (1, 2)


def only_the_lost_had_it(rank, size):
    """There is no plan: the service and the world stay, in a state in which they can be ended."""
    spec = spec_of(mesh=[["tp", 1]], first_rank=1)
    sources = {name: bytearray(4 * ROW) for name in NAMES} if rank == 1 else {}
    mine = {name: Held(ROW) for name in NAMES}
    watched = [weakref.ref(one) for one in mine.values()]
    service = ferry.RemoteCopyService(**SLOW)
    service.init("OFF")
    service.bind(ferry.plan(spec), sources, mine)
    del mine
    service.schedule()
    service.run()
    assert lose(service, service.run, rank == 1) == (1,)
    said = []
    for _ in range(2):  # the second attempt is in the smaller world
        try:
            service.recover_onto(spec)
        except ferry.InvalidPlan as error:
            said.append((type(error).__name__, error.tensor))
        assert ferry.world().size == 3
    try:
        service.run()
    except ferry.Error as error:
        said.append(type(error).__name__)
    assert all(one() is not None for one in watched)
    service.finalize()
    gc.collect()
    ferry.world().barrier()
    return said, [one() for one in watched]


def spare_ranks(rank, size):
    """Rank 4 has no part in the plan: it goes on with the others, and they go on without it."""
    sources = {name: bytearray(2 * ROW) for name in NAMES} if rank < 4 else None
    targets = {name: bytearray(ROW) for name in NAMES} if rank < 4 else None
    heard = []
    names = iter(list(NAMES))  # what is asked for again, as after a loss, must not be used up
    with ferry.Refit(sources, targets, spec_of(), subset=names, **SLOW) as refit:
        full = refit.digest
        assert refit.run().version == 1
        fill(sources or {}, rank, 2)
        lose(refit.service, refit.run, rank == 1)
        heard.append(refit.recover())
        assert heard[0].n_lost == 1 and heard[0].next in (2, 3) and refit.digest != full
        version = go_on(refit.service, heard[0], sources or {}, rank)
        meet()
        if rank == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        lost_in(refit.run)
        heard.append(refit.recover(min_size=2))
        assert (heard[1].n_lost, heard[1].next) == (1, version + 1), heard
        fill(sources, rank, version + 1)
        assert refit.run().version == version + 1
        check_rows(refit.service, rank, version + 1)
    return ferry.world().members, [(one.whole, one.next) for one in heard]


CASES = {
    (killed, "swap", 1): (4, (1, 2)), (killed, "swap", 2): (4, (1, 2)),
    (killed, "in-place", 0): (4, (1, 2)), (killed, "in-place", 1): (4, (1, 2)),
    (memory_of_ferry,): (4, (1, 2)), (interrupted,): (4, (1,)),
    (only_the_lost_had_it,): (4, (1,)), (spare_ranks,): (5, (1, 4)),
}


class Recoveries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Ranks wait most of the time here, so those of three cases run at once."""
        pool = concurrent.futures.ThreadPoolExecutor(3)
        cls.addClassCleanup(pool.shutdown)
        cls.runs = {case: pool.submit(run_ranks, case[0], size, *case[1:], may_fail=lost)
                    for case, (size, lost) in CASES.items()}

    def check(self, commit, befores, n_held):
        for n_before in befores:
            with self.subTest(n_before):
                first, *lost, last = self.runs[killed, commit, n_before].result()
                self.assertEqual(lost, [None, None])
                self.assertEqual(first, last)  # what all ranks are told is the same
                self.assertEqual(first[1:], (n_held, [None] * 4))

    def test_killed_ranks_with_pairs(self):
        self.check("swap", (1, 2), 4)

    def test_killed_ranks_in_place(self):
        self.check("in-place", (0, 1), 2)

    def test_memory_of_ferry(self):
        self.assertEqual(self.runs[(memory_of_ferry,)].result(), [True, None, None, True])

    def test_an_interrupt(self):
        waited = ("", True)
        self.assertEqual(self.runs[(interrupted,)].result(),
                         [("interrupted", True), None, waited, waited])

    def test_bytes_that_only_lost_ranks_had(self):
        said = self.runs[(only_the_lost_had_it,)].result()
        self.assertIsNone(said.pop(1))
        for (first, second, run), tensors in said:
            self.assertEqual((first[0], second[0]), ("InvalidPlan", "InvalidPlan"))
            self.assertTrue(first[1] == second[1] and first[1] in NAMES, first)
            self.assertEqual((run, tensors), ("PeerLost", [None, None]))

    def test_spare_ranks(self):
        first, *others = self.runs[(spare_ranks,)].result()
        self.assertEqual(first[0], (0, 2, 3))
        self.assertEqual(others, [None, first, first, None])


class Alone(unittest.TestCase):
    """What is refused, in a world of one."""

    def setUp(self):
        self.spec = {"format": "ferry.spec/1",
                     "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}],
                     "source": {"mesh": [], "rules": [{"match": "*"}]},
                     "destination": {"mesh": [], "rules": [{"match": "*"}]}}
        self.source, self.target = bytearray(b"abcd"), bytearray(4)
        self.service = ferry.RemoteCopyService(first_version=5)
        self.addCleanup(self.service.finalize)
        self.service.init("OFF")

    def bind(self):
        self.service.bind(ferry.plan(self.spec), {"w": self.source}, {"w": self.target})
        self.service.schedule()

    def test_without_a_plan(self):
        self.service.register_send(1, self.source, 0, None, 0)
        self.service.register_receive(1, self.target, 0, None, 0)
        self.service.schedule()
        with self.assertRaisesRegex(ferry.Misuse, "bound plan"):
            self.service.recover_onto(self.spec)

    def test_while_a_run_is_under_way(self):
        self.bind()
        request = self.service.start()
        with self.assertRaisesRegex(ferry.Misuse, "under way"):
            self.service.recover_onto(self.spec)
        request.wait()

    def test_while_a_collective_uses_the_transport(self):
        self.bind()
        handler = ferry.MixedCommHandler(
            0, 1, 0, 1, 0, 1, None, None, None, None, "f32", "cpu", transport=self.service)
        with self.assertRaisesRegex(ferry.Misuse, "collectives"):
            self.service.recover_onto(self.spec)
        handler.shutdown()
        self.service.recover_onto(self.spec)

    def test_arguments(self):
        self.bind()
        for wrong in ({"spec": 7}, {"spec": self.spec, "replica": "best"},
                      {"spec": {"format": "ferry.spec/1"}}):
            with self.assertRaises(ferry.InvalidInput):
                self.service.recover_onto(**wrong)
        for number in (-1, "7", 1 << 64):
            with self.assertRaises((ferry.InvalidInput, OverflowError, TypeError)):
                ferry.RemoteCopyService(first_version=number).init("OFF")

    def test_where_nobody_was_lost(self):
        self.bind()
        self.service.run()
        found = self.service.recover_onto(self.spec)
        self.assertEqual(found, (5, 6, 0, 0))
        self.assertIsInstance(found, ferry.Recovery)
        self.source[:] = b"efgh"
        self.service.run()
        self.assertEqual((self.service.version, self.target), (6, b"efgh"))

    def test_a_world_that_was_ended(self):
        """The only rank goes on in a world of its own."""
        self.bind()
        self.service.run()
        world = self.service._world
        world.abort("between two runs")
        self.source[:] = b"ijkl"
        self.assertRaises(ferry.Aborted, self.service.run)
        found = self.service.recover_onto(self.spec)
        self.assertEqual((found.next, found.n_lost, world.size, world.epoch), (6, 0, 1, 1))
        self.service.run()
        self.assertEqual((self.service.version, self.target), (6, b"ijkl"))

    def test_a_refit_of_boxes(self):
        wide = memoryview(bytearray(8))[::2]
        with ferry.Refit({"w": wide}, {"w": self.target}, self.spec) as refit:
            refit.run()
            with self.assertRaisesRegex(ferry.Misuse, "contiguous"):
                refit.recover()


if __name__ == "__main__":
    unittest.main()
