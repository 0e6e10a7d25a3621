# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""ferry.empty and empty_like as arrays of numpy, and what is wrong with what they are given."""

import gc
import subprocess
import sys
import unittest

try:
    import numpy
except ImportError:
    numpy = None

import ferry
from ferry import _ferry
from support import run_ranks
from test_empty import n_files

ROWS = 64


def spec(dtype):
    rows = {"match": "*", "shard": [{"dim": 0, "axis": "tp"}]}
    return {
        "format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [ROWS, 16], "dtype": dtype}],
        "source": {"mesh": [["tp", 2]], "rules": [rows]},
        "destination": {"mesh": [["tp", 2]], "rules": [dict(rows, shard=[{"dim": 1, "axis": "tp"}])]},
    }


def refits(rank, size):
    """Each dtype, contiguous and not, beside ordinary arrays: what is mapped and what is staged."""
    full = numpy.arange(ROWS * 16).reshape(ROWS, 16)
    for name in ("f32", "i64", "u8", "f16"):
        wanted = ferry.empty_like(full, dtype=name)
        wanted[...] = full % 100
        old = wanted[rank * ROWS // 2:(rank + 1) * ROWS // 2].copy()
        part = wanted[:, rank * 8:rank * 8 + 8]
        across = part.nbytes // 2
        wide = ferry.empty(ROWS, 20, dtype=name)
        for new, direct in ((ferry.empty_like(part), True), (numpy.empty_like(part), False),
                            (wide[:, 5:13], True)):
            with ferry.Refit({"w": old}, {"w": new}, spec(name)) as refit:
                refit.run()
                found = refit.service.statistics()
            assert numpy.array_equal(new, part), name
            ways = (found.bytes_mapped, found.bytes_staged)
            assert ways == ((across, 0) if direct else (0, across)), (name, direct, ways)
        assert not wide[:, :5].any() and not wide[:, 13:].any()
    return True


@unittest.skipIf(numpy is None, "numpy is not installed")
class Arrays(unittest.TestCase):
    def is_there(self, array):
        return _ferry.has_memory(array.ctypes.data, array.nbytes)

    def test_shapes_and_dtypes(self):
        for made, shape, dtype in (
            (ferry.empty(4, 8, dtype=numpy.float32), (4, 8), "float32"),
            (ferry.empty((4, 8), dtype="f16"), (4, 8), "float16"),
            (ferry.empty([3], dtype=numpy.dtype("int16")), (3,), "int16"),
            (ferry.empty(numpy.int64(3), dtype="U8"), (3,), "uint8"),
            (ferry.empty((), dtype="bool"), (), "bool"),
            (ferry.empty(5), (5,), "float64"),
            (ferry.empty(2, like=numpy.zeros(1, "c8")), (2,), "complex64"),
            (ferry.empty(2, dtype="i8", like=numpy.zeros(1), device="cpu"), (2,), "int8"),
            (ferry.empty_like(numpy.ones((2, 3), "u4").T), (3, 2), "uint32"),
            (ferry.empty_like(numpy.ones((2, 3))[:, ::2], dtype="u64"), (2, 2), "uint64"),
        ):
            self.assertEqual((made.shape, str(made.dtype)), (shape, dtype))
            self.assertTrue(self.is_there(made) and made.flags.c_contiguous and not made.any())
            made[...] = 1

    def test_no_elements(self):
        before = n_files()
        for shape in ((0,), (3, 0, 2)):
            made = ferry.empty(shape, dtype="f32")
            self.assertEqual((made.shape, made.size, n_files()), (shape, 0, before))

    def test_it_lives_as_long_as_an_array_of_it(self):
        before = n_files()
        made = ferry.empty(100, dtype="u8")
        row = made.reshape(10, 10)[3]
        del made
        gc.collect()
        row[:] = 5
        self.assertEqual((int(row.sum()), n_files()), (50, before + 1))
        copied = row.copy()
        del row
        gc.collect()
        self.assertEqual((int(copied.sum()), n_files()), (50, before))

    def test_what_is_wrong(self):
        for call, kind, text in (
            (lambda: ferry.empty(-1), ferry.InvalidInput, r"the shape is \[-1\]: no extent is neg"),
            (lambda: ferry.empty(2, -3), ferry.InvalidInput, r"\[2, -3\]"),
            (lambda: ferry.empty(2.5), ferry.InvalidInput, "2.5: give whole numbers"),
            (lambda: ferry.empty((2, "x")), ferry.InvalidInput, "give whole numbers"),
            (lambda: ferry.empty("34"), ferry.InvalidInput, "give whole numbers"),
            (lambda: ferry.empty(None), ferry.InvalidInput, "give whole numbers"),
            (lambda: ferry.empty(), ferry.InvalidInput, "needs a shape"),
            (lambda: ferry.empty(1 << 62, 1 << 62), ferry.NoMemory, "which no machine has"),
            (lambda: ferry.empty(1 << 60), ferry.NoMemory, "which no machine has"),
            (lambda: ferry.empty(1 << 47), ferry.NoMemory, "bytes of memory"),
            (lambda: ferry.empty(2, dtype="f33"), ferry.Unsupported, "f33 is none"),
            (lambda: ferry.empty(2, dtype="bytes:3"), ferry.Unsupported, "no dtype bytes:3"),
            (lambda: ferry.empty(2, device="cuda:1"), ferry.Unsupported, '"cuda:1": this memory is'),
            (lambda: ferry.empty(2, like=[1]), ferry.InvalidInput, "like: an object of type list"),
            (lambda: ferry.empty_like([1]), ferry.InvalidInput, "empty_like: an object of type list"),
            (lambda: ferry.share_memory_({}), ferry.Unsupported, "torch, which is not imported"),
        ):
            with self.assertRaisesRegex(kind, text):
                call()

    def without(self, module, code):
        """What a program says in which that module is not to be had."""
        hidden = "import sys; sys.modules[%r] = None; import ferry\n" % module
        code = "try: %s\nexcept ferry.Unsupported as error: print(error)" % code
        done = subprocess.run([sys.executable, "-c", hidden + code], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_types_that_numpy_has_not(self):
        said = self.without("ml_dtypes", "ferry.empty(4, dtype='bf16')")
        self.assertRegex(said, 'no bf16: import torch before, install ml_dtypes, or take "u16"')
        said = self.without("ml_dtypes", "ferry.empty(4, dtype='f8e4m3')")
        self.assertRegex(said, 'no f8e4m3: .*, or take "u8"')
        said = self.without("numpy", "ferry.empty(4)")
        self.assertRegex(said, "import torch before, or install numpy")
        try:
            import ml_dtypes
        except ImportError:
            return
        self.assertEqual(ferry.empty(4, dtype="bf16").dtype, ml_dtypes.bfloat16)
        self.assertEqual(ferry.empty(4, dtype="f8e5m2").dtype, ml_dtypes.float8_e5m2)

    def test_refits(self):
        self.assertEqual(run_ranks(refits, 2), [True] * 2)


if __name__ == "__main__":
    unittest.main()
