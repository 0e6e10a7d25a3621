# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Arrays whose memory goes elsewhere between registering and running."""
from __future__ import annotations

import unittest
from typing import Callable

import ferry
from support import run_ranks

try:
    import numpy as np
except ImportError:
    raise unittest.SkipTest("needs numpy")


class Resized(unittest.TestCase):
    def setUp(self) -> None:
        self.service = ferry.RemoteCopyService()
        self.service.init("ERROR")
        self.addCleanup(self.service.finalize)

    def register(self, source: np.ndarray, destination: np.ndarray) -> None:
        bytes_ = source.nbytes
        self.service.register_send(1, source, 0, bytes_, 0, name="trainer.w")
        self.service.register_receive(1, destination, 0, bytes_, 0, name="engine.w")
        self.service.schedule()
        self.service.run()

    def check_is_named(self, name: str) -> None:
        with self.assertRaisesRegex(ferry.InvalidInput, f'"{name}" was moved or resized') as caught:
            self.service.run()
        self.assertEqual(caught.exception.tensor, name)

    def test_a_refit_is_made_again(self) -> None:
        """Whoever makes a refit has registered nothing: the remedy is theirs."""
        side = {"mesh": [], "rules": [{"match": "*"}]}
        spec = {"format": "ferry.spec/1", "source": side, "destination": side,
                "tensors": [{"name": "w", "shape": [1 << 16], "dtype": "u8"}]}
        source, destination = np.arange(1 << 16, dtype=np.uint8), np.zeros(1 << 16, np.uint8)
        with ferry.Refit({"w": source}, {"w": destination}, spec) as refit:
            refit.run()
            destination.resize(1 << 22, refcheck=False)
            with self.assertRaisesRegex(
                ferry.InvalidInput, '"w" was moved or resized .*: make another Refit$'
            ) as caught:
                refit.run()
            self.assertEqual(caught.exception.tensor, "w")

    def test_destination(self) -> None:
        source, destination = np.arange(1 << 16, dtype=np.uint8), np.zeros(1 << 16, np.uint8)
        self.register(source, destination)
        destination.resize(1 << 22, refcheck=False)
        self.check_is_named("engine.w")
        self.service.clear_requests()  # and it can be given once more
        destination[:] = 0
        self.register(source, destination)
        self.assertTrue((destination[: 1 << 16] == source).all())
        self.assertFalse(destination[1 << 16 :].any())

    def test_source(self) -> None:
        source, destination = np.ones((64, 1024), np.float32), np.zeros((64, 1024), np.float32)
        self.register(source, destination)
        source.resize(3, refcheck=False)
        self.check_is_named("trainer.w")

    def test_dates(self) -> None:  # which buffers have no word for
        source = np.arange(1 << 13).astype("datetime64[s]")
        destination = np.zeros_like(source)
        self.register(source, destination)
        destination.resize(1 << 19, refcheck=False)
        self.check_is_named("engine.w")

    def test_others_stay(self) -> None:
        for make in (lambda: bytearray(b"w" * 64), lambda: memoryview(bytearray(b"w" * 64))):
            source, destination = make(), memoryview(bytearray(64))
            self.service.register_send(1, source, 0, 64, 0)
            self.service.register_receive(1, destination, 0, 64, 0)
            strided = np.zeros((8, 8), np.float32)
            self.service.register_send(3, np.ones((8, 4), np.float32), 0, 128, 0)
            self.service.register_receive(3, strided[:, ::2], 0, 128, 0)
            self.service.schedule()
            self.service.run()
            self.assertEqual(bytes(destination), b"w" * 64)
            self.assertEqual(strided.sum(), 32)
            self.service.clear_requests()

    def test_empty(self) -> None:  # numpy's strides are 0 then
        self.service.register_send(1, np.zeros((4, 0)), 0, 0, 0)
        self.service.register_receive(1, np.zeros((0, 4)), 0, None, 0)
        self.service.schedule()
        self.service.run()


def moved(rank: int, size: int) -> list:
    """The array of one rank goes elsewhere: all hear of it, whatever they call, and go on after."""
    service = ferry.RemoteCopyService()
    service.init("OFF")
    said = []

    def arrays() -> tuple:
        return np.full(1 << 12, rank + 1, np.uint8), np.zeros(1 << 12, np.uint8)

    def register(source: np.ndarray, destination: np.ndarray) -> None:
        service.clear_requests()
        service.register_send(1, source, 0, None, (rank + 1) % size, name="trainer.w")
        service.register_receive(1, destination, 0, None, (rank - 1) % size, name="engine.w")

    def hear(call: Callable[[], object]) -> None:
        try:
            call()
            said.append("passed")
        except ferry.InvalidInput as error:
            said.append((error.tensor, 1 in error.ranks or rank == 1))

    for side, name in ((0, "trainer.w"), (1, "engine.w")):
        for way in ("run", "start", "test", "schedule"):
            both = arrays()
            register(*both)
            if way != "schedule":
                service.schedule()
                service.run()
            if rank == 1:
                both[side].resize(1 << 20, refcheck=False)
            hear({"run": service.run, "start": lambda: service.start().wait(),
                  "schedule": service.schedule, "test": lambda: until_done(service.start())}[way])
            assert said[-1] == (name, True), (way, said)
            ferry.world().check()
            both = arrays()
            register(*both)
            service.schedule()
            service.run()
            assert (both[1] == (rank - 1) % size + 1).all()
    spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [64], "dtype": "u8"}],
            "source": {"mesh": [], "rules": [{"match": "*"}]},
            "destination": {"mesh": [["dp", size]], "rules": [{"match": "*"}]}}
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    service.clear_requests()
    service.bind(ferry.plan(spec), {"w": source} if rank == 0 else {}, {"w": target})
    service.schedule()
    for wrong in ({"w": np.zeros(63, np.uint8)}, {"w": np.zeros(16, np.float32)}, {"w": (target, target)}):
        other = np.zeros(64, np.uint8)
        hear(lambda: service.rebind({}, wrong if rank == 1 else {"w": other}))
        assert said[-1][0] == "w", said
        service.run()
        assert (target == np.arange(64)).all() and not other.any()
    service.finalize()
    return [one[1] for one in said]


def until_done(request: ferry._ferry.Request) -> None:
    while not request.test():
        pass


class Ranks(unittest.TestCase):
    def test_one_rank_of_three(self) -> None:
        for said in run_ranks(moved, 3):
            self.assertEqual(said, [True] * 11)


if __name__ == "__main__":
    unittest.main()
