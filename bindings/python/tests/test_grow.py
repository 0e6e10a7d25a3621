# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Ranks that join a refit: they get the version that the others have, and these are sent nothing."""

import os
import tempfile
import threading
import unittest

import ferry
from ferry import _ferry
from support import await_mark, mark, run_ranks

BYTES = 3 * 100_000


def spec_of(replicas):
    """Rank 0 has the weights, and so many ranks behind it want all of them."""
    rules = [{"match": "*"}]
    return {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [3, 100_000], "dtype": "u8"}],
        "source": {"mesh": [["dp", 1]], "rules": rules},
        "destination": {"mesh": [["dp", replicas]], "first_rank": 1, "rules": rules},
    }


class Rank:
    """What a process has, and what it checks of each version."""

    def __init__(self, member, commit="in-place"):
        self.old = bytearray(BYTES)
        self.halves = (bytearray(BYTES), bytearray(BYTES))
        self.swaps = commit == "swap"
        self.source = {"w": self.old} if member == 0 else None
        pair = self.halves if self.swaps else self.halves[0]
        self.destination = {"w": pair} if member != 0 else None

    def fill(self, version):
        self.old[:] = bytes((i * version) % 251 for i in range(251)) * (BYTES // 251) + bytes(
            BYTES % 251
        )

    def received(self, refit):
        found = refit.service.statistics()
        return found.bytes_received + found.bytes_local

    def check(self, refit, version):
        """The version, bit for bit; how many bytes came for it in the last run."""
        self.fill(version)
        for one in refit.service.destinations():
            front = next(half for half in self.halves if one.tensor is half)
            assert (one.state, one.version) == ("valid", version), one
            assert front == self.old, "other bytes than the source's"
        return self.received(refit)


def world_of(rank, members, folder):
    return _ferry.world_from_file(os.path.join(folder, "start"), rank, members,
                                        deadline=100.0)


def newcomer(folder, member, replicas, commit="in-place"):
    own = Rank(member, commit)
    world = ferry.init(join=os.path.join(folder, "meet"), deadline=100.0)
    with ferry.Refit(own.source, own.destination, spec_of(replicas), world=world,
                     commit=commit) as refit:
        return world, own, run_on(own, refit)


def run_on(own, refit):
    """The run for the newcomer, and one more: how many bytes came in each."""
    own.fill(2)
    assert refit.run().version == 2
    came = [own.check(refit, 2)]
    own.fill(3)
    assert refit.run().version == 3
    return [*came, own.check(refit, 3)]


def another_replica(rank, size, folder, commit):
    """Ranks 0 to 2 make two versions, then rank 3 joins."""
    if rank == 3:
        return newcomer(folder, 3, 3, commit)[2]
    own = Rank(rank, commit)
    world = world_of(rank, 3, folder)
    refit = ferry.Refit(own.source, own.destination, spec_of(2), world=world, commit=commit)
    with refit:
        for version in (1, 2):
            own.fill(version)
            refit.run()
        try:
            refit.grow(path=os.path.join(folder, "nobody"), join_limit=0.5, spec=spec_of(3))
            return "nobody came, and it grew"
        except ferry.Timeout:
            own.check(refit, 2)
        larger = refit.grow(path=os.path.join(folder, "meet"), spec=spec_of(3))
        assert larger.size == 4 and refit.service.n_pes == 4
        own.check(refit, 2)
        came = run_on(own, refit)
    world.close()
    return came


def restarted(rank, size, folder):
    """Rank 1 dies, the others go on, and a new process takes its place, and the plan its digest."""
    if rank == 3:
        return newcomer(folder, 1, 2)[2]
    own = Rank(rank)
    world = world_of(rank, 3, folder)
    refit = ferry.Refit(own.source, own.destination, spec_of(2), world=world)
    digest = refit.digest
    own.fill(1)
    refit.run()
    mark("run.%d" % rank)
    if rank == 1:
        for other in (0, 2):
            await_mark("run.%d" % other)
        os._exit(0)
    try:
        own.fill(2)
        refit.run()
    except ferry.PeerLost:
        own.fill(refit.recover().next)
        refit.run()
    assert refit.digest != digest
    larger = refit.grow(members=[1], path=os.path.join(folder, "meet"))
    assert larger.members == (0, 2, 1) and refit.digest == digest
    came = run_on(own, refit)
    refit.close()
    return came


def alone(rank, size, folder):
    """Rank 0 was not started as one of several; then a replica joins what it has."""
    spec = {**spec_of(1), "destination": spec_of(1)["source"]}
    larger = {**spec, "destination": {**spec["source"], "mesh": [["dp", 2]]}}
    own = bytearray(b"1" * BYTES)
    new = bytearray(BYTES)
    if rank == 1:
        world = ferry.init(join=os.path.join(folder, "meet"), deadline=100.0)
        with ferry.Refit(None, {"w": new}, larger, world=world) as refit:
            refit.run()
            return refit.service.version, new == own
    (world,) = _ferry.world_of_threads(1, deadline=100.0)  # as ferry.world() makes it
    with ferry.Refit({"w": own}, {"w": new}, spec, world=world) as refit:
        refit.run()
        try:
            refit.grow(path=os.path.join(folder, "nobody"), join_limit=0.2, spec=larger)
            return "nobody came, and it grew"
        except ferry.Timeout:
            assert world.size == 1 and refit.service.version == 1
        made = refit.grow(path=os.path.join(folder, "meet"), spec=larger)
        assert (made.size, made.rank, made.members) == (2, 0, (0, 1))
        refit.run()
        return refit.service.version, new == own


def refit_of(world, spec, source, destination, ledger=None, **options):
    """One that resumes, as grow() makes it."""
    made = ferry.Refit.__new__(ferry.Refit)
    made._open([(spec, source, destination)], world, {"subset": None, "replica": "balanced"}, None,
               (), {"commit": "swap", **options}, ledger)
    return made


SLOW = {"engines": "delay=2ms:inproc", "slot_bytes": 4096}


def cancelled(refit, is_time):
    """Whether a run was cancelled: once it is time to."""
    run = refit.start()
    try:
        while not run.done:
            if is_time():
                run.cancel()
    except ferry.Aborted:
        return True
    return False


class Resuming(unittest.TestCase):
    """Two buffers that runs write to in turns, and ledgers of what is in which. Ranks are threads."""

    def together(self, n_ranks, function):
        found = [None] * n_ranks

        def call(rank):
            found[rank] = function(rank, worlds[rank])

        worlds = _ferry.world_of_threads(n_ranks, deadline=100.0)
        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(n_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def test_a_front_that_a_failed_run_has_written_to(self):
        """Half a version is in the buffer that is the front now: that is no reason to leave it out."""
        own = bytes(b"1" * BYTES)
        first, second, third = (bytearray(BYTES) for _ in range(3))

        def bring(rank, world):
            sources = {"w": own} if rank == 0 else None
            failed = refit_of(world, spec_of(1), sources,
                              {"w": (first, second)} if rank else None, **SLOW)
            was_cancelled = cancelled(failed, lambda: rank == 1 and b"1" in second)
            self.assertIn(0, second)
            pair = (second, third)
            again = refit_of(world, spec_of(1), sources, {"w": pair} if rank else None,
                             failed.service.take_ledger())
            again.run()
            fronts = [bytes(one.tensor) for one in again.service.destinations()]
            again.close()
            failed.close()
            return was_cancelled, fronts

        self.assertEqual(self.together(2, bring), [(True, []), (True, [own])])

    def test_fewer_bytes_in_the_same_memory(self):
        """The ledger is of another plan: all of this one is brought, and swapped in."""
        own, pair = bytearray(b"A" * BYTES), (bytearray(BYTES), bytearray(BYTES))
        n = BYTES // 3

        def bring(rank, world):
            before = refit_of(world, spec_of(1), {"w": own} if rank == 0 else None,
                              {"w": pair} if rank else None)
            before.run()
            if rank == 0:
                own[:] = b"B" * BYTES
            spec = spec_of(1)
            spec["tensors"][0]["shape"] = [1, n]
            halves = tuple(memoryview(half)[:n] for half in pair)
            after = refit_of(world, spec, {"w": memoryview(own)[:n]} if rank == 0 else None,
                             {"w": halves} if rank else None, before.service.take_ledger())
            after.run()
            fronts = [bytes(one.tensor) for one in after.service.destinations()]
            after.close()
            before.close()
            return fronts

        self.assertEqual(self.together(2, bring), [[], [b"B" * n]])

    def test_a_newcomer_has_no_version_before(self):
        """A run that was to bring it its first one fails: nobody calls that version whole."""
        own = bytes(b"1" * BYTES)

        def bring(rank, world):
            def pair():
                return {"w": (bytearray(BYTES), bytearray(BYTES))} if rank else None

            sources, here = {"w": own} if rank == 0 else None, pair()
            before = refit_of(world, spec_of(2), sources, here)
            before.run()
            before.run()
            joins = rank == 2  # from here on
            after = refit_of(world, spec_of(2), sources, pair() if joins else here,
                             None if joins else before.service.take_ledger(), **SLOW)
            was_cancelled = cancelled(after, lambda: rank == 0)
            found = was_cancelled, after.service.recover(world), after.service.version
            after.close()
            before.close()
            return found

        self.assertEqual(self.together(3, bring), [(True, 0, 2), (True, 0, 2), (True, 0, 1)])


class Joining(unittest.TestCase):
    def test_another_replica(self):
        for commit in ("in-place", "swap"):
            with self.subTest(commit), tempfile.TemporaryDirectory() as folder:
                came = run_ranks(another_replica, 4, folder, commit)
                self.assertEqual(came, [[0, 0], [0, BYTES], [0, BYTES], [BYTES, BYTES]])

    def test_restarted(self):
        with tempfile.TemporaryDirectory() as folder:
            came = run_ranks(restarted, 4, folder)
        self.assertEqual(came, [[0, 0], None, [0, BYTES], [BYTES, BYTES]])

    def test_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_ranks(alone, 2, folder), [(1, True), (1, True)])

    def test_threads(self):
        for world in _ferry.world_of_threads(2, entry_limit=1.0):
            with self.assertRaisesRegex(ferry.Misuse, "has several threads: start its ranks as"):
                world.grow(path="/nowhere")
            world.check()

    def test_refused(self):
        (world,) = _ferry.world_of_threads(1)
        with ferry.RemoteCopyService(world) as service:
            service.init(log_level="ERROR")
            new = bytearray(BYTES)
            one = {**spec_of(1), "destination": spec_of(1)["source"]}
            with ferry.Refit({"w": bytes(BYTES)}, {"w": new}, one, service=service) as refit:
                with self.assertRaisesRegex(ferry.Misuse, "which made its service"):
                    refit.grow()
        for nothing in (None, ""):
            with self.assertRaisesRegex(ferry.InvalidInput, "join is a path, or True"):
                ferry.init(join=nothing)


if __name__ == "__main__":
    unittest.main()
