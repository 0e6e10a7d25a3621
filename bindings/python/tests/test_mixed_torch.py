# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""MixedCommHandler on torch tensors and torch.distributed, as a script of the page uses it."""

from __future__ import annotations

import functools
import unittest

try:
    import torch
except ImportError:
    torch = None

import ferry
from ferry import MixedCommHandler, MixedCommMode, MixedCommOp, run_mixed_comm
from mixed_oracle import SCATTERS, Topology, expected
from support import run_ranks


def begin_torch():
    if not torch.distributed.is_initialized():
        torch.set_num_threads(1)
        torch.distributed.init_process_group("gloo")


def handler_of(topology, rank, dtype, **options):
    options.setdefault("use_autotune", False)
    return MixedCommHandler(*topology.arguments(rank), dtype, torch.device("cpu"), **options)


def inputs_of(topology, op, rows, columns, dtype, whole):
    """Everybody's inputs: whole numbers, whose sums are exact, or any."""
    rows *= topology.dp if op in SCATTERS else 1
    generator = torch.Generator().manual_seed(1000 * op + rows)
    shape = (topology.size, rows, *columns)
    if whole:
        every = torch.randint(-8, 9, shape, generator=generator).to(dtype)
    else:
        every = torch.randn(shape, generator=generator).to(dtype)
    return list(every)


def limit_of(inputs, dtype):
    """Three roundings at most, each of a partial sum no larger than the sum of magnitudes."""
    unit = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-23}[dtype]
    return 4 * unit * max(float(sum(x.double().abs() for x in inputs).max()), 1.0)


def check(handler, topology, rank, op, mode, rows, columns, dtype, whole, given):
    inputs = inputs_of(topology, op, rows, columns, dtype, whole)
    wanted = expected(op, [x.double() for x in inputs], topology, rank, torch.cat)
    x_in = inputs[rank].clone()
    x_out = torch.full(wanted.shape, 77, dtype=dtype) if given else None
    found = run_mixed_comm(MixedCommOp(op), handler, x_in, x_out, mode)
    where = (rank, topology, op, mode, rows, columns, dtype)
    assert x_out is None or found is x_out, where
    assert found.dtype == dtype and found.shape == wanted.shape, where
    assert torch.equal(x_in, inputs[rank]), ("the input was changed", where)
    if whole or op == MixedCommOp.ALLGATHER:
        assert torch.equal(found.double(), wanted), (where, found, wanted)
    else:
        error = float((found.double() - wanted).abs().max())
        assert error <= limit_of(inputs, dtype), (where, error)
    return found


def numbers_of(rank, size, topologies):
    """All operations in all modes: whole and other numbers, odd sizes, outputs made and given."""
    begin_torch()
    checked = 0
    for sizes in topologies:
        topology = Topology(*sizes)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            with handler_of(topology, rank, dtype) as handler:
                assert [int(op) for op in handler.get_valid_op_list()] == topology.ops()
                assert [int(m) for m in handler.get_valid_mode_list()] == topology.modes()
                for op in topology.ops():
                    for mode in (*handler.get_valid_mode_list(), None):
                        for rows, columns in ((1, (1,)), (3, (5, 7)), (129, (37,)), (7, ())):
                            check(handler, topology, rank, op, mode, rows, columns, dtype, True,
                                  rows == 3)
                        check(handler, topology, rank, op, mode, 65, (67,), dtype, False, True)
                        checked += 5
    return checked


def in_place(rank, size):
    """Where the smaller tensor is the larger one's own chunk, and where it is another."""
    begin_torch()
    topology = Topology(size // 2, 2, 1, 1) if size > 2 else Topology(1, 2, 1, 1)
    mine = topology.dp_rank(rank)
    with handler_of(topology, rank, torch.bfloat16) as handler:
        for op in topology.ops():
            for mode in handler.get_valid_mode_list():
                inputs = inputs_of(topology, op, 6, (5,), torch.bfloat16, True)
                wanted = expected(op, [x.double() for x in inputs], topology, rank, torch.cat)
                large = torch.empty(12, 5, dtype=torch.bfloat16)
                chunk = large[6 * mine:6 * mine + 6]
                x_in, x_out = (large, chunk) if op in SCATTERS else (chunk, large)
                x_in.copy_(inputs[rank])
                handler.run(op, x_in, x_out, mode)
                assert torch.equal(x_out.double(), wanted), (op, mode)
            other = large[6 * (1 - mine):12 - 6 * mine]
            try:
                handler.run(op, *((large, other) if op in SCATTERS else (other, large)))
                return "another chunk was taken"
            except ferry.InvalidInput:
                pass
    with handler_of(Topology(size, 1, 1, 1), rank, torch.float32) as handler:
        x = torch.full((3, 4), float(rank + 1))
        assert handler.run(MixedCommOp.ALLREDUCE, x, x) is x
    return float(x[2, 3])


def dropped_inputs(rank, size):
    """What a call that was begun reads stays, whoever lets go of it."""
    n, sums = 1 << 16, []
    with handler_of(Topology(size, 1, 1, 1), rank, torch.float32) as handler:
        for turn in range(5):
            request = handler.start(0, torch.full((n,), rank + 1.0 + turn), torch.zeros(n))
            others = [torch.full((n,), 99.0) for _ in range(8)]  # in its memory, if that is free
            sums += request.wait().unique().tolist()
            del others
    return sums


def bad_calls(rank, size):
    """Each is refused on all ranks alike, and the next call works."""
    begin_torch()
    topology = Topology(1, 2, 1, 1)
    x = torch.ones(4, 6, dtype=torch.bfloat16)
    gather, scatter = MixedCommOp.ALLGATHER, MixedCommOp.REDUCESCATTER
    bad = (
        ("dtype in", ferry.InvalidInput, "x_in", (gather, x.float())),
        ("dtype out", ferry.InvalidInput, "x_out", (gather, x, torch.empty(8, 6))),
        ("integers of its size", ferry.InvalidInput, "x_in", (gather, x.view(torch.int16))),
        ("no dims", ferry.InvalidInput, "x_in", (gather, x[0, 0])),
        ("columns out", ferry.InvalidInput, "x_out", (gather, x, x.new_empty(8, 5))),
        ("dims out", ferry.InvalidInput, "x_out", (gather, x, x.new_empty(48))),
        ("rows out", ferry.InvalidInput, None, (gather, x, x.new_empty(7, 6))),
        ("rows in", ferry.InvalidInput, None, (scatter, x[:3])),
        ("empty", ferry.InvalidInput, None, (gather, x[:0])),
        ("strides in", ferry.InvalidInput, "x_in", (gather, x[:, ::2])),
        ("transposed", ferry.InvalidInput, "x_in", (gather, x.t())),
        ("strides out", ferry.InvalidInput, "x_out", (gather, x, x.new_empty(6, 8).t())),
        ("expanded out", ferry.InvalidInput, "x_out", (gather, x, x[:1].expand(8, 6))),
        ("device", ferry.Unsupported, "x_in", (gather, x.to("meta"))),
        ("device out", ferry.Unsupported, "x_out", (gather, x, torch.empty(8, 6, device="meta",
                                                                           dtype=x.dtype))),
        ("overlap", ferry.InvalidInput, None, (scatter, x, x[1:3])),
        ("operation", ferry.InvalidInput, None, (MixedCommOp.ALLREDUCE, x)),
        ("mode", ferry.InvalidInput, None, (gather, x, None, MixedCommMode.FUSED_OPT_BYTES1_MC)),
        ("untuned", ferry.InvalidInput, None, (gather, x, None, MixedCommMode.AUTOTUNE)),
        ("sparse", ferry.Error, None, (gather, x.float().to_sparse())),
    )
    wrong = []
    with handler_of(topology, rank, torch.bfloat16) as handler:
        for name, kind, tensor, arguments in bad:
            try:
                handler.run(*arguments)
                wrong.append(name)
            except kind as error:
                if error.tensor != tensor and name != "sparse":
                    wrong.append((name, error.tensor, str(error)))
            except Exception as error:
                wrong.append((name, repr(error)))
            found = handler.run(gather, x + rank)
            if float(found.sum()) != 24 * 1 + 24 * 2:
                wrong.append((name, "the next call is wrong"))
    return wrong


def changed_tensors(rank, size):
    """The same objects with other memory, shape or dtype: nothing is remembered of them."""
    begin_torch()
    topology = Topology(size, 1, 1, 1)
    results = []
    with handler_of(topology, rank, torch.float32) as handler:
        x, y = torch.full((2, 3), 1.0), torch.empty(2, 3)
        results.append(float(handler.run(0, x, y).sum()))
        x.resize_(100, 100).fill_(2.0)
        y.resize_(100, 100)
        results.append(float(handler.run(0, x, y).sum()))
        x.data, y.data = torch.full((3, 4), 3.0), torch.empty(3, 4)
        results.append(float(handler.run(0, x, y).sum()))
        x.t_()
        try:
            handler.run(0, x, y)
        except ferry.InvalidInput as error:
            results.append(error.tensor)
        x.data = torch.full((3, 4), 3.0).half()
        try:
            handler.run(0, x, y)
        except ferry.InvalidInput as error:
            results.append(error.tensor)
        parameter = torch.nn.Parameter(torch.full((3, 4), 4.0))
        results.append(float(handler.run(0, parameter).sum()))
    return results


def tuned(rank, size):
    """Measured at construction; all ranks choose alike, and the default mode is the chosen one."""
    begin_torch()
    topology = Topology(1, size, 1, 1)
    chosen = []
    with handler_of(topology, rank, torch.float16, use_autotune=True,
                    autotune_bytes=16384) as handler:
        assert handler.get_valid_mode_list()[-1] is MixedCommMode.AUTOTUNE
        for op in handler.get_valid_op_list():
            for rows in (1, 8, 64):
                x = torch.ones(rows * size, 512, dtype=torch.float16)
                chosen.append(int(handler.select_autotune_mode(op, x)))
                check(handler, topology, rank, int(op), MixedCommMode.AUTOTUNE, rows, (512,),
                      torch.float16, True, False)
                check(handler, topology, rank, int(op), None, rows, (512,), torch.float16, True,
                      True)
    return chosen


def on_a_group(rank, size):
    """Ranks 1 and 2 of three make a handler of their own, on a group of torch's."""
    begin_torch()
    group = torch.distributed.new_group([1, 2])
    if rank == 0:
        return None  # it goes on to what all three do
    with MixedCommHandler(rank - 1, 2, rank - 1, 2, 0, 1, None, None, None, None, torch.float32,
                          "cpu", use_autotune=False, group=group) as handler:
        return float(handler.run("ALLREDUCE", torch.full((2, 2), float(rank)))[1, 1])


def deterministic(rank, size):
    """One tree of sums: every mode gives the same bits."""
    begin_torch()
    torch.manual_seed(rank)
    x = torch.randn(1000, 3) * 10.0 ** torch.randint(-3, 4, (1000, 3))
    with handler_of(Topology(size, 1, 1, 1), rank, torch.float32, deterministic=True) as handler:
        results = [handler.run(0, x, mode=mode) for mode in handler.get_valid_mode_list()]
    return len(results) > 2, all(torch.equal(results[0], one) for one in results)


# What the ranks of one start of processes do: torch takes seconds to load.
TURNS = {
    2: (("numbers", [(2, 1, 1, 1), (1, 2, 1, 1)]), ("in_place",), ("dropped_inputs",), ("bad_calls",),
        ("changed_tensors",), ("tuned",)),
    3: (("on_a_group",), ("deterministic",)),
    4: (("numbers", [(4, 1, 1, 1), (1, 4, 1, 1), (2, 2, 1, 1)]), ("in_place",)),
}


def take_turns(rank, size):
    functions = {"numbers": numbers_of, "in_place": in_place,
                 "dropped_inputs": dropped_inputs, "bad_calls": bad_calls,
                 "changed_tensors": changed_tensors, "tuned": tuned, "on_a_group": on_a_group,
                 "deterministic": deterministic}
    return {name: functions[name](rank, size, *others) for name, *others in TURNS[size]}


@functools.lru_cache(maxsize=None)
def outcome(size):
    return run_ranks(take_turns, size)


@unittest.skipUnless(torch is not None, "torch is not installed")
class OnTorch(unittest.TestCase):
    def check(self, size, name, values):
        self.assertEqual([one[name] for one in outcome(size)], values)

    def test_numbers_on_two_ranks(self):
        # tp 2: one operation, five modes and the default; dp 2: two operations, three and it.
        self.check(2, "numbers", [3 * 5 * (1 * 6 + 2 * 4)] * 2)

    def test_numbers_on_four_ranks(self):
        self.check(4, "numbers", [3 * 5 * (1 * 6 + 2 * 4 + 2 * 7)] * 4)

    def test_in_place(self):
        self.check(2, "in_place", [3.0] * 2)
        self.check(4, "in_place", [10.0] * 4)

    def test_dropped_inputs(self):
        self.check(2, "dropped_inputs", [[3.0 + 2 * turn for turn in range(5)]] * 2)

    def test_bad_calls(self):
        self.check(2, "bad_calls", [[]] * 2)

    def test_changed_tensors(self):
        self.check(2, "changed_tensors", [[12.0, 40000.0, 72.0, "x_in", "x_in", 96.0]] * 2)

    def test_tuned(self):
        chosen = [one["tuned"] for one in outcome(2)]
        self.assertEqual(chosen[0], chosen[1])
        self.assertEqual(len(chosen[0]), 6)

    def test_on_a_group(self):
        self.check(3, "on_a_group", [None, 3.0, 3.0])

    def test_deterministic(self):
        self.check(3, "deterministic", [(True, True)] * 3)


if __name__ == "__main__":
    unittest.main()
