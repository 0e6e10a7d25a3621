# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Memory of the process, which every service shares, with nothing but the standard library: who
writes straight to it, and how long it lives."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import ferry
from ferry import _ferry
from ferry._memory import block_of
from support import fork_beside_sleepers, run_ranks

BYTES = 1 << 20


def spec(n):
    """Rows of n ranks become columns of them."""
    side = {"mesh": [["tp", n]]}
    return {
        "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [1024, 1024], "dtype": "u8"}],
        "source": dict(side, rules=[{"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]),
        "destination": dict(side, rules=[{"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]),
    }


def take(n_bytes):
    return block_of(_ferry.memory(n_bytes))


def n_files():
    """Files in memory that this process has open: one for each piece."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink("/proc/self/fd/" + name).startswith("/memfd:ferry-")
        except OSError:
            pass  # that of the list itself
    return found


def paths_of(refit, rank):
    """How many bytes of this rank's the last run sent by each way."""
    found = refit.service.statistics()
    paths = {way for peer in refit.service.peers() if peer.peer != rank for way in peer.paths}
    return found.bytes_mapped, found.bytes_staged, sorted(paths)


def both_ways(rank, size):
    """The same refit into memory of ferry, ordinary memory, and both again."""
    old = {"w": bytes([rank + 1]) * (BYTES // size)}
    across = BYTES // size // size * (size - 1)
    wanted = b"".join(bytes([r + 1]) * (1024 // size * 1024 // size) for r in range(size))
    for kind in (take, bytearray, take, bytearray):
        new = kind(BYTES // size)
        with ferry.Refit(old, {"w": new}, spec(size)) as refit:
            refit.run()
            mapped, staged, paths = paths_of(refit, rank)
        assert bytes(new) == wanted, kind
        if kind is take:
            assert (mapped, staged, paths) == (across, 0, ["mapped"]), (mapped, staged, paths)
        else:
            assert (mapped, staged, paths) == (0, across, ["staged"]), (mapped, staged, paths)
    return True


def parts_and_services(rank, size):
    """Two services at once on parts of one piece; registered by hand, and what is no whole part."""
    memory = take(4 * 4096)
    services = [ferry.RemoteCopyService() for _ in range(2)]
    for number, service in enumerate(services):
        service.init("WARN")
        part = memory[4096 * number + 100:4096 * number + 200]
        service.register_send(1, bytes([10 * number + rank]) * 100, 0, 100, 1 - rank)
        service.register_receive(1, part, 0, 100, 1 - rank)
        service.schedule()
    for service in services:
        service.run()
        found = service.statistics()
        assert (found.bytes_mapped, found.bytes_staged) == (100, 0), found
    services[0].finalize()
    services[1].run()
    for number in range(2):
        begin = 4096 * number + 100
        assert bytes(memory[begin:begin + 100]) == bytes([10 * number + 1 - rank]) * 100
        assert not any(memory[begin + 100:4096 * (number + 1)])
    services[1].finalize()
    return True


def replaced(rank, size):
    """Tensors take others' places, run after run: pieces that nobody has go, and none before."""
    old = {"w": bytearray([rank + 1]) * (BYTES // size)}
    refit = ferry.Refit(old, {"w": take(BYTES // size)}, spec(size))
    counts = []
    for version in (1, 2, 3):
        new = take(BYTES // size)
        refit.service.rebind(old, {"w": new})
        refit.run()
        assert paths_of(refit, rank)[1] == 0 and any(new)
        counts.append(n_files())
    assert counts == counts[:1] * 3, counts
    before = counts[0]
    del new
    gc.collect()
    assert n_files() == before  # the refit has it
    refit.close()
    gc.collect()
    assert n_files() == before - 1, (n_files(), before)
    return True


def outlives(rank, size):
    """Worlds and services close first: the bytes stay, and serve the next world."""
    new = take(BYTES // size)
    old = {"w": bytes([rank + 1]) * (BYTES // size)}
    ferry.refit(old, {"w": new}, spec(size))
    before = bytes(new)
    ferry.shutdown()
    assert bytes(new) == before and any(before)
    new[:4] = b"mine"
    assert bytes(new[:4]) == b"mine"
    with tempfile.TemporaryDirectory() as folder:
        (world,) = [_ferry.world_from_file(os.path.join(folder, "alone"), 0, 1)]
        service = ferry.RemoteCopyService(world)
        service.init("WARN")
        service.register_send(1, b"next", 0, 4, 0)
        service.register_receive(1, new, 0, 4, 0)
        service.schedule()
        service.run()
        del service  # which nobody has finalized
        gc.collect()
        world.close()
    assert bytes(new[:4]) == b"next"
    del new
    gc.collect()
    assert n_files() == 0, n_files()
    return True


def lost(rank, size):
    """A rank dies: the survivors go on, and what arrives goes straight to its place as before."""
    whole = {"match": "*"}
    plan = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [BYTES], "dtype": "u8"}],
            "source": {"mesh": [["dp", 2]], "rules": [whole]},
            "destination": {"mesh": [["dp", 1]], "first_rank": 2, "rules": [whole]}}
    old, new = bytearray(b"a") * BYTES, take(BYTES)
    refit = ferry.Refit({"w": old} if rank < 2 else None, {"w": new} if rank == 2 else None, plan)
    refit.run()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            refit.run()
    except ferry.PeerLost:
        pass
    assert refit.recover().whole >= 1
    old[:] = b"b" * BYTES
    refit.run()
    mapped, staged, _ = paths_of(refit, refit.service.my_pe)
    if rank == 2:
        assert bytes(new) == b"b" * BYTES
    if rank == 0:
        assert (mapped, staged) == (BYTES, 0), (mapped, staged)
    refit.close()
    ferry.shutdown()
    assert rank != 2 or bytes(new) == b"b" * BYTES
    return True


class Ranks(unittest.TestCase):
    def test_what_arrives_goes_straight_to_its_place(self):
        self.assertEqual(run_ranks(both_ways, 2), [True] * 2)

    def test_parts_of_a_piece_in_two_services(self):
        self.assertEqual(run_ranks(parts_and_services, 2), [True] * 2)

    def test_pieces_that_nobody_has_go(self):
        self.assertEqual(run_ranks(replaced, 2), [True] * 2)

    def test_it_outlives_worlds(self):
        self.assertEqual(run_ranks(outlives, 2), [True] * 2)

    def test_it_is_as_good_after_a_loss(self):
        self.assertEqual(run_ranks(lost, 3, may_fail=(1,)), [True, None, True])


class Memory(unittest.TestCase):
    def test_bytes(self):
        before = n_files()
        block = take(5000)
        self.assertEqual((len(block), any(block), n_files()), (5000, False, before + 1))
        part = block[10:20]
        del block
        gc.collect()
        part[:] = b"0123456789"
        self.assertEqual(n_files(), before + 1)
        del part
        gc.collect()
        self.assertEqual(n_files(), before)

    def test_bad_lengths(self):
        with self.assertRaisesRegex(ferry.InvalidInput, "0 bytes"):
            _ferry.memory(0)
        with self.assertRaisesRegex(ferry.InvalidInput, "negative"):
            _ferry.memory(-1)
        with self.assertRaises(ferry.NoMemory):
            _ferry.memory(1 << 50)

    def test_threads(self):
        """A world of threads: all memory is within reach, and such memory too."""
        worlds = _ferry.world_of_threads(1)
        service = ferry.RemoteCopyService(worlds[0])
        service.init("WARN")
        new = take(100)
        service.register_send(1, b"x" * 100, 0, 100, 0)
        service.register_receive(1, new, 0, 100, 0)
        service.schedule()
        service.run()
        self.assertEqual(bytes(new), b"x" * 100)
        service.finalize()
        worlds[0].close()

    def test_fork(self):
        """The memory is one, as after share_memory_ of torch; a child that lets go of it takes
        nothing away."""
        block = take(4096)
        child = fork_beside_sleepers()
        if child == 0:
            block[0] = 7
            del block
            gc.collect()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(block[0], 7)
        block[0] = 8
        self.assertEqual(n_files() > 0 and block[0], 8)

    def test_a_program_that_just_ends(self):
        code = ("import ferry, sys; from ferry._memory import block_of; "
                "kept = block_of(ferry._ferry.memory(1 << 20)); ferry.world(); "
                "service = ferry.RemoteCopyService(); service.init('WARN'); "
                "service.register_receive(1, kept, 0, None, 0); "
                "service.register_send(1, bytes(1 << 20), 0, None, 0); service.schedule(); "
                "service.run()")
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_descriptors_run_short(self):
        """One sentence; not memory that others reach more slowly."""
        code = ("import ferry, resource; from ferry._memory import block_of\n"
                "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
                "kept = []\n"
                "try:\n"
                "    for _ in range(64): kept.append(block_of(ferry._ferry.memory(100)))\n"
                "except ferry.LimitExceeded as error: print(len(kept), error)")
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        n, _, said = done.stdout.partition(" ")
        self.assertRegex(said, "100 bytes .* takes a descriptor, and half of those .* raise `ulimit")
        self.assertTrue(20 < int(n) < 32, n)


if __name__ == "__main__":
    unittest.main()
