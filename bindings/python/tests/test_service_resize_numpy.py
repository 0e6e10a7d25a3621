# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Arrays whose memory goes elsewhere between registering and running."""
from __future__ import annotations

import unittest

import ferry

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


if __name__ == "__main__":
    unittest.main()
