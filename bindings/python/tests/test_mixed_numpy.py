# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""MixedCommHandler on numpy arrays, on two nodes (faked ones), and the world of the environment."""

from __future__ import annotations

import unittest

try:
    import numpy
except ImportError:
    numpy = None

import ferry
from ferry import MixedCommHandler
from mixed_oracle import ALLREDUCE, SCATTERS, Topology, expected
from support import run_ranks


def numbers_of(rank, size, topologies):
    checked = 0
    for sizes in topologies:
        topology = Topology(*sizes)
        for dtype in (numpy.float16, numpy.float32):
            with MixedCommHandler(*topology.arguments(rank), dtype, None,
                                  use_autotune=False) as handler:
                assert [int(op) for op in handler.get_valid_op_list()] == topology.ops()
                for op in topology.ops():
                    for mode in handler.get_valid_mode_list():
                        for rows, columns in ((1, (1,)), (3, (5, 7)), (130, (33,))):
                            rows *= topology.dp if op in SCATTERS else 1
                            random = numpy.random.default_rng([op, rows])
                            inputs = random.integers(-8, 9, (size, rows, *columns)).astype("d")
                            wanted = expected(op, list(inputs), topology, rank,
                                              numpy.concatenate)
                            found = handler.run(op, inputs[rank].astype(dtype), mode=mode)
                            assert isinstance(found, numpy.ndarray) and found.dtype == dtype
                            assert numpy.array_equal(found.astype("d"), wanted), (sizes, op, mode)
                            checked += 1
                modes = [int(mode) for mode in handler.get_valid_mode_list()]
                assert modes == topology.modes(), (modes, topology)
    return checked


def arrays(rank, size):
    """bf16 as bits; what is refused; and what numpy has that others have not."""
    kinds = []
    with MixedCommHandler(rank, size, rank, size, 0, 1, None, None, None, None, "bf16", None,
                          use_autotune=False) as handler:
        # 1.0 and 2.0 in bf16 are 0x3f80 and 0x4000; their sum 3.0 is 0x4040.
        bits = numpy.full((2, 3), (0x3F80, 0x4000)[rank], dtype=numpy.uint16)
        summed = handler.run(ALLREDUCE, bits.view("V2"))
        assert (summed.view(numpy.uint16) == 0x4040).all()
        readonly = numpy.zeros((2, 3), "V2")
        readonly.flags.writeable = False
        for x_in, x_out in ((bits, None), (bits.astype(numpy.float16), None),
                            (bits.view("V2")[:, ::2], None), (bits.view("V2")[::-1], None),
                            (bits.view("V2"), readonly), (bits.view("V2").T, None),
                            (bits.view("V6"), None), (numpy.array(bits.view("V2")[0, 0]), None)):
            try:
                handler.run(ALLREDUCE, x_in, x_out)
                kinds.append("taken")
            except ferry.InvalidInput as error:
                kinds.append(error.tensor)
        readonly_in = bits.view("V2")
        readonly_in.flags.writeable = False
        again = handler.run(ALLREDUCE, readonly_in)
        assert (again.view(numpy.uint16) == 0x4040).all()
    return kinds


@unittest.skipUnless(numpy is not None, "numpy is not installed")
class OnNumpy(unittest.TestCase):
    def test_numbers_on_two_nodes(self):
        topologies = [(2, 1, 2, 1), (1, 2, 1, 2), (2, 1, 1, 2), (1, 2, 2, 1)]
        # One operation in seven modes; two in three; two in six, twice (no BYTES2, no BYTES1).
        wanted = 2 * 3 * (7 + 2 * 3 + 2 * 6 + 2 * 6)
        self.assertEqual(run_ranks(numbers_of, 4, topologies, env={"FERRY_NODES": "2"}),
                         [wanted] * 4)

    def test_arrays(self):
        self.assertEqual(run_ranks(arrays, 2),
                         [["x_in"] * 4 + ["x_out"] + ["x_in"] * 3] * 2)


if __name__ == "__main__":
    unittest.main()
