# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""The copy service on numpy arrays, against numpy's own copies."""

import gc
import random
import unittest

try:
    import numpy
except ImportError:
    numpy = None

import ferry
from support import run_ranks


def strided(chance):
    dtype = chance.choice(["f4", "f8", "u1", "i2", "c8", "c16", "S5", "M8[s]"])
    shape = [chance.randrange(1, 8) for _ in range(chance.randrange(5))]
    n_bytes = int(numpy.prod(shape, dtype=int)) * numpy.dtype(dtype).itemsize
    base = numpy.frombuffer(bytearray(chance.randbytes(n_bytes)), dtype="u1").view(dtype)
    base = base.reshape(shape)
    steps = [slice(chance.randrange(length), None, chance.choice((1, 1, 2))) for length in shape]
    view = base[(*steps, ...)]
    order = list(range(view.ndim))
    chance.shuffle(order)
    return base, view.transpose(order)


def arrays_of_all_kinds(rank, size, seed):
    chance = random.Random(seed)
    tasks = []
    for task in range(30):
        _, source = strided(chance)
        holes = numpy.zeros((2,) + source.shape[::-1] + (2,), source.dtype)
        tasks.append((task, chance.randrange(size), chance.randrange(size), source, holes,
                      holes[1, ..., 0].transpose()))
    service = ferry.RemoteCopyService()
    service.init("WARN")
    for task, by, to, source, holes, target in tasks:
        if by == rank:
            service.register_send(task, source, 0, None, to)
        if to == rank:
            service.register_receive(task, target, 0, source.nbytes, by)
    service.schedule()
    for turn in range(2):
        for task, by, to, source, holes, target in tasks:
            raw = numpy.frombuffer(random.Random(repr((seed, turn, task))).randbytes(source.nbytes),
                                   dtype="u1").view(source.dtype).reshape(source.shape)
            source[...] = raw
            holes[...] = numpy.zeros((), source.dtype)
        service.run()
        for task, by, to, source, holes, target in tasks:
            if to == rank:
                wanted = numpy.zeros_like(holes)
                wanted[1, ..., 0].transpose()[...] = source
                assert holes.tobytes() == wanted.tobytes(), (seed, turn, task)
    service.finalize()
    return True


@unittest.skipIf(numpy is None, "numpy is not installed")
class Arrays(unittest.TestCase):
    def setUp(self):
        self.service = ferry.RemoteCopyService()
        self.service.init("ERROR")
        self.addCleanup(self.service.finalize)

    def carry(self, source, target):
        self.service.clear_requests()
        self.service.register_send(1, source, 0, None, 0)
        self.service.register_receive(1, target, 0, None, 0)
        self.service.schedule()
        self.service.run()

    def test_arrays_of_all_kinds(self):
        for seed in (1, 2):
            with self.subTest(seed=seed):
                self.assertEqual(run_ranks(arrays_of_all_kinds, 2, seed), [True] * 2)

    def test_dlpack_alone(self):
        class Only:
            """What exports DLPack and no buffer."""

            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **options):
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        source = numpy.arange(12, dtype="i4").reshape(3, 4)
        target = numpy.zeros((4, 3), "i4")
        self.carry(Only(source.T), target)
        self.assertEqual(target.tolist(), source.T.tolist())

    def test_scalars_and_indices(self):
        target = numpy.zeros((), "f8")
        self.carry(numpy.full((), 2.5), target)
        self.assertEqual(float(target), 2.5)
        self.service.clear_requests()
        array = numpy.arange(4, dtype="u1")
        self.service.register_sends([(numpy.int64(3), array, numpy.int32(1), numpy.uint8(2),
                                      numpy.int16(0))])
        self.service.register_receive(3, array, 0, 1 + 1, 0)
        with self.assertRaisesRegex(ferry.InvalidInput, "task_id"):
            self.service.register_send(numpy.float64(4), array, 0, 1, 0)

    def test_refusals(self):
        array = numpy.zeros((4, 4))
        constant = numpy.zeros(4)
        constant.flags.writeable = False
        with self.assertRaisesRegex(ferry.InvalidInput, "read-only"):
            self.service.register_receive(1, constant, 0, None, 0)
        self.service.register_send(1, constant, 0, None, 0)
        objects = numpy.array(["a", None])
        for tensor, words in ((array[::-1], "stride"), (numpy.broadcast_to(array, (2, 4, 4)), "."),
                              (objects, "Python objects"),
                              (numpy.zeros(2, [("a", "i4"), ("b", "O")]), "Python objects"),
                              (numpy.zeros(2, "M8[s]")[::-1], "stride")):
            with self.subTest(words=words), self.assertRaisesRegex(ferry.Error, words):
                self.service.register_send(2, tensor, 0, None, 0)
        with self.assertRaises((ValueError, BufferError)):
            constant.flags.writeable = True
            constant.resize(100)
        dates = numpy.zeros(4, "M8[s]")
        dates.flags.writeable = False
        with self.assertRaisesRegex(ferry.InvalidInput, "read-only"):
            self.service.register_receive(2, dates, 0, None, 0)

    def test_memory_of_the_service(self):
        array = numpy.frombuffer(self.service.alloc(80), "f8")
        self.carry(numpy.arange(10.0), array)
        self.service.finalize()
        gc.collect()
        array *= 2
        self.assertEqual(array.tolist(), [2.0 * i for i in range(10)])


if __name__ == "__main__":
    unittest.main()
