# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Planning from real modules and groups of torch, and moving the tensors by what it says."""

from __future__ import annotations

import sys
import unittest
from typing import Any, Dict, List

import ferry
from ferry.resharding import planner, utils
from support import run_ranks

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None  # type: ignore[assignment]

ROWS, COLUMNS, LAYERS = 12, 8, 4


class Collection:
    """Process groups by attribute, as Megatron's ProcessGroupCollection has them."""

    def __init__(self, **groups: Any) -> None:
        self.__dict__.update(groups)


def new_groups(side: List[int], tp: int, pp: int) -> Dict[str, Any]:
    """Makes the groups of a side on every rank of the world; those of this rank come back."""
    rank, mine = dist.get_rank(), {}
    kinds = {"tp": lambda p: (p // tp,), "pp": lambda p: (p % (len(side) // pp),),
             "dp": lambda p: (p % tp, p // (len(side) // pp))}
    for name, key in kinds.items():
        for value in sorted({key(p) for p in range(len(side))}):
            ranks = [r for p, r in enumerate(side) if key(p) == value]
            group = dist.new_group(ranks)
            if rank in ranks:
                mine[name] = group
    return mine


def numbers(layer: int, what: int) -> Any:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS) + (
        1000 * (10 * layer + what))


def part(whole: Any, dim: int, stride: int, index: int, n: int) -> Any:
    return torch.cat(list(whole.chunk(n * stride, dim)[index::n]), dim)


class Layer(torch.nn.Module if torch is not None else object):  # type: ignore[misc]
    def __init__(self, number: int, tp: int, index: int, fill: bool) -> None:
        super().__init__()
        self.layer_number = number + 1
        self.norm = torch.nn.Parameter(numbers(number, 0)[0, :5].to(torch.bfloat16).clone())
        self.fused = self.cut(numbers(number, 1), 0, 2, index, tp)
        self.out = self.cut(numbers(number, 2), 1, 1, index, tp)
        self.tied = self.out  # one parameter under two names
        self.register_buffer("bias", numbers(number, 3)[1, :3].to(torch.float64).clone())
        self.register_buffer("passing", torch.zeros(index + 1), persistent=False)
        if not fill:
            for tensor in (self.norm, self.fused, self.out, self.bias):
                tensor.data.fill_(-1)

    def cut(self, whole: Any, dim: int, stride: int, index: int, tp: int) -> Any:
        parameter = torch.nn.Parameter(part(whole, dim, stride, index, tp))
        parameter.tensor_model_parallel = True
        parameter.partition_dim, parameter.partition_stride = dim, stride
        return parameter


def model(side: List[int], tp: int, pp: int, fill: bool, groups: Dict[str, Any]) -> Any:
    """This rank's part of the model, or None outside of the side."""
    rank = dist.get_rank()
    if rank not in side:
        return None
    place = side.index(rank)
    stage, per_stage = place // (len(side) // pp), LAYERS // pp
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList(
        Layer(stage * per_stage + i, tp, place % tp, fill) for i in range(per_stage))
    module.pg_collection = Collection(**groups)
    return module


def tensors_of(module: Any) -> Dict[str, Any]:
    return {} if module is None else {**dict(module.named_parameters()),
                                      **dict(module.named_buffers())}


def carry_out(plan: Any, src: Any, dst: Any) -> None:
    """Sends and receives what the plan says, over torch.distributed."""
    have, want = tensors_of(src), tensors_of(dst)
    rank, waiting, own = dist.get_rank(), [], {}
    for op in plan.send_ops:
        piece = have[op.param_name].data[op.my_slice].contiguous()
        if op.peer_rank == rank:
            own[op.task_id] = piece
        else:
            waiting.append(dist.isend(piece, op.peer_rank, tag=op.task_id))
    arrived = []
    for op in plan.recv_ops:
        place = want[op.param_name].data[op.my_slice]
        if op.peer_rank == rank:
            place.copy_(own[op.task_id])
            continue
        piece = torch.empty_like(place.contiguous())
        waiting.append(dist.irecv(piece, op.peer_rank, tag=op.task_id))
        arrived.append((op, piece))
    for work in waiting:
        work.wait()
    for op, piece in arrived:
        want[op.param_name].data[op.my_slice] = piece


def extract(rank: int) -> Any:
    """What metadata say of this rank, whose groups are of torch."""
    pairs, alone = ([0, 1], [2, 3]), [dist.new_group([r]) for r in range(4)]
    group = [dist.new_group(pair) for pair in pairs][rank // 2]
    parameter = torch.nn.Parameter(torch.zeros(4, 6, dtype=torch.float16))
    parameter.tensor_model_parallel, parameter.partition_dim = True, 1
    collection = Collection(tp=group, dp=[rank], ep=None)
    found = utils.extract_param_metadata(parameter, "a.w", rank, collection)
    one = (found.shape, str(found.dtype), found.element_size, found.is_tp, found.partition_dim,
           found.tensor_parallel_group_ranks, found.data_parallel_group_ranks,
           found.pipeline_parallel_group_ranks)
    parameter.allreduce = False
    every = Collection(tp=group, expt_tp=alone[rank], ep=group, dp=group, pp=group)
    found = utils.extract_param_metadata(parameter, "e.weight0", rank, every, 4)
    return one, (found.is_ep, found.tensor_parallel_group_ranks, found.expert_parallel_group_ranks,
                 found.pipeline_parallel_group_ranks, found.resolved_name)


def reshard(rank: int, size: int, cases: Any) -> Any:
    dist.init_process_group("gloo")
    outcomes, extracted = [], extract(rank)
    for src_side, src_tp, src_pp, dst_side, dst_tp, dst_pp in cases:
        src = model(src_side, src_tp, src_pp, True, new_groups(src_side, src_tp, src_pp))
        dst_groups = new_groups(dst_side, dst_tp, dst_pp)
        dst = model(dst_side, dst_tp, dst_pp, False, dst_groups)
        expected = model(dst_side, dst_tp, dst_pp, True, dst_groups)
        plan = planner.build_centralized_reshard_plan(src, dst)
        same = planner.build_local_reshard_plan(src, dst) == plan
        carry_out(plan, src, dst)
        got = tensors_of(dst)
        outcomes.append(same and all(torch.equal(got[name], tensor)
                                     for name, tensor in tensors_of(expected).items()))
    dist.destroy_process_group()
    return outcomes, extracted, "ferry._world" not in sys.modules or ferry._world._default is None


@unittest.skipIf(torch is None or not dist.is_available(), "torch is not installed")
class Torch(unittest.TestCase):
    def test_one_process(self) -> None:
        parameter = torch.nn.Parameter(torch.zeros(3, 0, 2, dtype=torch.bfloat16))
        found = utils.extract_param_metadata(parameter, "w", 5, Collection(dp=[5]))
        self.assertIs(type(found.shape), tuple)
        self.assertEqual(found, utils.ParameterMetadata(
            "w", (3, 0, 2), torch.bfloat16, 2, owner_rank=5, data_parallel_group_ranks=[5],
            resolved_name="w"))

    def test_dtypes(self) -> None:
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
                      torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
                      torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64):
            tensor = torch.zeros(2, dtype=dtype)
            found = utils.extract_param_metadata(tensor, "w", 0, Collection(dp=[0]))
            self.assertEqual((found.dtype, found.element_size), (dtype, tensor.element_size()))
            (op,) = planner.plan_roster([[found]], [[found]]).for_rank(0).recv_ops
            self.assertEqual(op.my_slice, (slice(0, 2),))
        with self.assertRaises(ferry.Unsupported) as caught:
            utils.extract_param_metadata(torch.zeros(2, dtype=torch.complex128), "w", 0,
                                         Collection(dp=[0]))
        self.assertEqual(caught.exception.tensor, "w")
        self.assertIn("complex128", str(caught.exception))

    def test_meta_and_scalar_parameters(self) -> None:
        parameter = torch.nn.Parameter(torch.zeros((), device="meta"))
        found = utils.extract_param_metadata(parameter, "w", 0, Collection(dp=[0]))
        (op,) = planner.plan_roster([[found]], [[found]]).for_rank(0).recv_ops
        self.assertEqual((op.my_slice, op.peer_slice), ((), ()))
        self.assertEqual(torch.ones(())[op.my_slice], 1)

    def test_processes(self) -> None:
        cases = [([0, 1, 2, 3], 4, 1, [0, 1, 2, 3], 2, 1), ([0, 1, 2, 3], 2, 2, [2, 1], 1, 2),
                 ([0, 1], 2, 1, [2, 3], 1, 2), ([2], 1, 1, [0, 3], 2, 1)]
        for rank, (outcomes, extracted, no_world) in enumerate(run_ranks(reshard, 4, cases)):
            self.assertEqual(outcomes, [True] * len(cases), f"rank {rank}")
            pair, all_ranks = [rank // 2 * 2, rank // 2 * 2 + 1], [0, 1, 2, 3]
            self.assertEqual(extracted, (
                ((4, 6), "torch.float16", 2, True, 1, pair, [rank], all_ranks),
                (True, [rank], pair, pair, f"e.weight{2 * (rank % 2)}")))
            self.assertTrue(no_world, "planning over torch's group made a world")


if __name__ == "__main__":
    unittest.main()
