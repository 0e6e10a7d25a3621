# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A limit passes on ranks that live: one is slow, or stopped, and woken. Every value of every version
is right afterwards on all that go on, and versions never go back."""

import os
import signal
import tempfile
import time
import unittest

import ferry
from support import HANG_SECONDS, run_ranks

N = 3
ROW = 24 << 10
DEADLINE = 20.0  # of which ranks that live use little, also when they are held off the cores
PATTERN = bytes(range(251)) * (N * ROW // 251 + 2)
SPEC = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [N, ROW], "dtype": "u8"}],
        "source": {"mesh": [["dp", 2]], "rules": [{"match": "*"}]},
        "destination": {"mesh": [["tp", N]],
                        "rules": [{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}}


def whole(version):
    begin = version * 101 % 251
    return PATTERN[begin:begin + N * ROW]


def columns(version, rank):
    text, each = whole(version), ROW // N
    return b"".join(text[row * ROW + rank * each:row * ROW + (rank + 1) * each] for row in range(N))


class Scene:
    """A service whose runs take some time, and what it has moved."""

    def __init__(self, rank, commit):
        self.rank, self.swaps, self.versions = rank, commit == "swap", [0]
        self.source = bytearray(N * ROW)
        targets = bytearray(ROW), bytearray(ROW)
        self.service = ferry.RemoteCopyService(commit=commit, engines="delay=50ms", paths="staged",
                                               slot_bytes=4096, memory_cap=65536)
        self.service.init("OFF")
        self.service.bind(ferry.plan(SPEC), {"w": self.source} if rank < 2 else {},
                          {"w": targets if self.swaps else targets[0]})
        self.service.schedule()

    def run(self, version):
        self.source[:] = whole(version)
        self.service.run()
        self.check(version)
        assert version > self.versions[-1], (version, self.versions)
        self.versions.append(version)

    def check(self, version):
        found, = self.service.destinations()
        assert (found.state, found.version) == ("valid", version), found
        assert found.tensor == columns(version, self.rank), "the bytes are of another version"

    def recover(self):
        before = max(self.versions[-1], self.service.version)
        found = self.service.recover_onto(SPEC)
        assert found.next > before and found.whole >= (before if self.swaps else 0), (found, before)
        assert self.service.version >= before
        if found.whole != 0:
            self.check(found.whole)  # for readers, until the next run has ended
            self.versions += [found.whole] * (found.whole > self.versions[-1])
        self.run(found.next)
        self.run(found.next + 1)
        return found


def slow(rank, size, commit, begins_late):
    """Rank 1 lives and is in the run, and does not move it on for a deadline and a part of one: the
    run is given up, and the world lives on with everybody."""
    scene, seen, version = Scene(rank, commit), 0, 0
    for attempt in range(6):
        for _ in range(2):
            version += 1
            scene.run(version)
        waited = []

        def wait(progress):
            if not waited and begins_late == (progress.bytes_done == 0):
                waited.append(progress)
                time.sleep(1.15 * DEADLINE)  # a third of one is left to vote in

        scene.service.set_progress(wait if rank == 1 else None)
        scene.source[:] = whole(version + 1)
        said = "passed"
        try:
            scene.service.run()
        except ferry.Timeout as error:
            said = "late" if error.ranks[:1] == (1,) else str(error)
        scene.service.set_progress(None)
        if said == "passed":  # who was late made it all the same
            version += 1
            scene.check(version)
            scene.versions.append(version)
            continue
        ferry.world().check()
        found = scene.recover()
        assert (said, found.n_lost, ferry.world().size) == ("late", 0, N), (said, found)
        version, seen = found.next + 1, seen + 1
        if seen == 2:
            break
    scene.service.finalize()
    return seen, scene.versions


def stopped(rank, size, folder, commit):
    """Rank 1 is stopped until the others' run has ended, and woken. It may be in time for the smaller
    world, or learn that it was left out: that is known to all, and what they have is right."""
    scene, stops = Scene(rank, commit), []
    pids = [int(one) for one in ferry.world().all_gather(b"%d" % os.getpid())]
    for version in (1, 2, 3):
        scene.run(version)

    def stop(progress):
        if not stops:  # before it moves anything
            stops.append(progress)
            os.kill(os.getpid(), signal.SIGSTOP)

    scene.service.set_progress(stop if rank == 1 else None)
    scene.source[:] = whole(4)
    try:
        scene.service.run()
        said = "passed"
    except ferry.Error as error:
        said = type(error).__name__
    scene.service.set_progress(None)
    if rank == 1:
        try:
            found = scene.recover()
        except ferry.PeerLost as error:
            return "itself" in str(error), 1, scene.versions
        scene.service.finalize()
        return True, found.n_lost, scene.versions
    open(os.path.join(folder, str(rank)), "w").close()
    while len(os.listdir(folder)) < 2:
        time.sleep(0.01)
    if rank == 0:
        os.kill(pids[1], signal.SIGCONT)
    found = scene.recover()
    scene.service.finalize()
    return said, found.n_lost, scene.versions


class Limits(unittest.TestCase):
    def test_a_slow_rank(self):
        for commit in ("swap", "in-place"):
            for begins_late in (True, False):
                with self.subTest(commit, begins_late=begins_late):
                    found = run_ranks(slow, N, commit, begins_late, timeout=4 * HANG_SECONDS,
                                      env={"FERRY_DEADLINE": str(DEADLINE)})
                    self.assertEqual(found, [found[0]] * N)
                    self.assertGreater(found[0][0], 0, "the limit never passed")

    def test_a_stopped_rank(self):
        for commit in ("swap", "in-place"):
            with self.subTest(commit), tempfile.TemporaryDirectory() as folder:
                first, second, third = run_ranks(stopped, N, folder, commit,
                                                 env={"FERRY_DEADLINE": str(DEADLINE)})
                self.assertEqual(first, third)
                self.assertIn(first[0], ("Timeout", "PeerLost"))
                is_back = first[1] == 0
                self.assertEqual(second, (True, first[1], first[2] if is_back else [0, 1, 2, 3]))


if __name__ == "__main__":
    unittest.main()
