#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""One rank makes a mistake in a collective call: all raise it, nobody waits, and all can go on."""

import os
import tempfile
import threading
import unittest

import ferry
from ferry import _ferry
from support import await_mark, mark, run_ranks

N = 64
SPEC = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [N, N], "dtype": "u8"}],
        "source": {"mesh": [["tp", 2]], "rules": [
            {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}]},
        "destination": {"mesh": [["tp", 2]], "rules": [
            {"match": "*", "shard": [{"dim": 1, "axis": "tp"}]}]}}
WHOLE = {"mesh": [], "rules": [{"match": "*"}]}


def source():
    return bytes(range(N)) * (N // 2)


def refit(world, target=None, **options):
    target = bytearray(N * N // 2) if target is None else target
    return ferry.Refit({"w": source()}, {"w": target}, SPEC, world=world, **options)


def handler(world, **options):
    how = {"dtype": "f32", "device": "cpu", "use_autotune": False, **options}
    dtype, device = how.pop("dtype"), how.pop("device")
    return ferry.MixedCommHandler(*[None] * 10, dtype, device, world=world, **how)


def service(world, log_level="WARN"):
    one = ferry.RemoteCopyService(world)
    one.init(log_level=log_level)
    return one


OPENED = {
    "service": (service, ({"log_level": "zzz"}, {"log_level": 5})),
    "refit": (refit, ({"checksum": "zzz"}, {"paths": "foo"}, {"memory_cap": -5},
                      {"threads": 10 ** 6}, {"slot_bytes": 10 ** 30}, {"progress": 5},
                      {"nothing": 1}, {"service": 5})),
    "mixed": (handler, ({"dtype": "zz"}, {"device": "tpu"}, {"device": "a\0b"}, {"grid_size": -1},
                        {"engines": 5}, {"engines": "a\0b"}, {"tune_file": "a\0b"}, {"group": 5})),
}


ABOUT = {"dtype": "zz", "paths": "a path is", "log_level": ""}  # where it is not the option's name


def opened(rank, size, folder, kind):
    """What each rank hears of each mistake of rank 1, and that all is well without one."""
    world = _ferry.world_from_file(os.path.join(folder, "start"), rank, size, deadline=100.0)
    make, mistakes = OPENED[kind]
    heard = []
    for wrong in mistakes:
        try:
            make(world, **(wrong if rank == 1 else {})).__exit__(None, None, None)
            heard.append("nothing")
        except (ferry.Error, TypeError) as error:
            heard.append((type(error).__name__, str(error)))
    make(world).__exit__(None, None, None)
    world.close()
    return heard


def given_by_one(rank, size, folder):
    world = _ferry.world_from_file(os.path.join(folder, "start"), rank, size, deadline=100.0)
    try:
        refit(world, **({"service": ferry.RemoteCopyService(world)} if rank == 1 else {}))
        said = "nothing"
    except ferry.InvalidInput as error:
        said = str(error)
    refit(world).close()
    world.close()
    return said


def recovering(rank, size, folder, dies):
    """Recoveries to which rank 1 brings a mistake, and then one to which it brings none."""
    world = _ferry.world_from_file(os.path.join(folder, "start"), rank, size, deadline=100.0)
    target = bytearray(N * N // 2)
    one = refit(world, target)
    one.run()
    mark("run.%d" % rank)
    if rank == 2:
        for other in (0, 1):
            await_mark("run.%d" % other)
        os._exit(0)
    if dies:
        try:
            one.run()
            return "the run went well without rank 2"
        except ferry.PeerLost:
            pass
    heard = []
    for wrong in ({"min_size": "x"}, {"min_size": -1}, "spec", "replica"):
        try:
            if isinstance(wrong, dict):
                one.recover(**(wrong if rank == 1 else {}))
            elif rank == 1:
                one.service.recover_onto("{}" if wrong == "spec" else SPEC,
                                         replica="zz" if wrong == "replica" else "balanced")
            else:
                one.recover()
            heard.append("nothing")
        except ferry.InvalidInput as error:
            heard.append(("InvalidInput", str(error)))
    one.recover()
    target[:] = bytes(len(target))
    one.run()
    half = bytes(range(N))[rank * N // 2:(rank + 1) * N // 2]
    assert target == half * N, "other bytes than the source's"
    one.close()
    world.close()
    return heard


class OneMistakes(unittest.TestCase):
    WRONG = "min_size", "min_size", '"format"', "replica"

    def check(self, ranks, *about):
        """The others hear what the one that is wrong raises."""
        heard, own = ranks
        self.assertEqual(len(heard), len(own))
        for i, (other, mine) in enumerate(zip(heard, own)):
            self.assertNotEqual("nothing", mine)
            self.assertIn(about[i] if about else "", mine[1])
            self.assertRegex(other[1], "^rank 1( says)?: ")
            self.assertTrue(other[1].endswith(mine[1].replace("\0", "\\0")), (other, mine))

    def test_opened(self):
        for kind in OPENED:
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                self.check(run_ranks(opened, 2, folder, kind),
                           *(ABOUT.get(next(iter(one)), next(iter(one))) for one in OPENED[kind][1]))

    def test_service_of_some_ranks(self):
        """All raise the same, and the world is there for the next refit."""
        with tempfile.TemporaryDirectory() as folder:
            said = run_ranks(given_by_one, 2, folder)
        self.assertEqual(["service is given on some ranks and not on others"] * 2, said)

    def test_recovering(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(run_ranks(recovering, 2, folder, False), *self.WRONG)

    def test_recovering_without_a_rank(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(run_ranks(recovering, 3, folder, True)[:2], *self.WRONG)

    def test_close_that_is_refused(self):
        """The refit stays as it was, and closes later."""
        began, go_on = threading.Event(), threading.Event()

        def wait(progress):
            began.set()
            go_on.wait(60)

        whole = {**SPEC, "source": WHOLE, "destination": WHOLE}
        target = bytearray(N * N)
        one = ferry.Refit({"w": bytes(range(N)) * N}, {"w": target}, whole, progress=wait)
        runs = threading.Thread(target=one.run)
        runs.start()
        self.assertTrue(began.wait(60))
        with self.assertRaises(ferry.Misuse):
            one.close()
        go_on.set()
        runs.join()
        self.assertEqual(target, bytes(range(N)) * N)
        target[:] = bytes(N * N)
        self.assertEqual(one.run().version, 2)
        self.assertEqual(target, bytes(range(N)) * N)
        one.close()
        with self.assertRaisesRegex(ferry.Misuse, "the refit is closed"):
            one.run()

    def test_a_block_that_raises_in_a_run(self):
        """What it raises is what the caller gets, whoever has the service."""
        whole = {**SPEC, "source": WHOLE, "destination": WHOLE}
        for is_given in (False, True):
            with self.subTest(is_given=is_given):
                (world,) = _ferry.world_of_threads(1)
                own = service(world)
                given = {"service": own} if is_given else {"world": world}
                target = bytearray(N * N)
                with self.assertRaisesRegex(KeyError, "of the block"):
                    with ferry.Refit({"w": bytes(N * N)}, {"w": target}, whole, **given) as one:
                        run = one.start()
                        raise KeyError("of the block")
                self.assertFalse(run is None)
                with self.assertRaisesRegex(ferry.Misuse, "the refit is closed"):
                    one.run()
                own.finalize()
                world.close()

    def test_defaults_by_none(self):
        whole = {**SPEC, "source": WHOLE, "destination": WHOLE}
        target = bytearray(N * N)
        with ferry.Refit({"w": bytes(range(N)) * N}, {"w": target}, whole, checksum=None, commit=None,
                         paths=None, engines=None) as one:
            one.run()
        self.assertEqual(target, bytes(range(N)) * N)

    def test_numbers_beyond_32_bits(self):
        (world,) = _ferry.world_of_threads(1)
        for wrong in (-1, 1 << 32, 1 << 40, "x"):
            with self.subTest(wrong), self.assertRaisesRegex(ferry.InvalidInput, "min_size"):
                world.shrink(min_size=wrong)
        world.check()


if __name__ == "__main__":
    unittest.main()
