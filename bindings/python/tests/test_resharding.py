# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import dataclasses
import doctest
import json
import os
import pickle
import random
import subprocess
import sys
import threading
import types
import unittest
from typing import Any, Dict, List, Tuple

import ferry
from ferry.resharding import planner, utils
from ferry.resharding.utils import (
    ParameterMetadata,
    ReshardPlan,
    ShardingDescriptor,
    TransferOp,
)
from resharding_models import Layout, Tensor, copy_box, execute, random_layouts, tensors_of_layer
from support import run_ranks

NO_DEFAULT = dataclasses.MISSING


def meta(name: str = "w", shape: Tuple[int, ...] = (8, 4), **fields: Any) -> ParameterMetadata:
    return ParameterMetadata(name, shape, fields.pop("dtype", "f32"),
                             fields.pop("element_size", 4), **fields)


def cut(shape: Tuple[int, ...], ranks: List[int], dim: int = 0, **fields: Any) -> ParameterMetadata:
    return meta(shape=shape, is_tp=True, partition_dim=dim, tensor_parallel_group_ranks=ranks,
                **fields)


class Classes(unittest.TestCase):
    def test_fields_and_defaults(self) -> None:
        groups = ("tensor", "expert", "data", "pipeline")
        expected = {
            TransferOp: [("param_name", NO_DEFAULT), ("peer_rank", NO_DEFAULT),
                         ("is_send", NO_DEFAULT), ("my_slice", NO_DEFAULT),
                         ("peer_slice", NO_DEFAULT), ("task_id", None)],
            ParameterMetadata: [("name", NO_DEFAULT), ("shape", NO_DEFAULT), ("dtype", NO_DEFAULT),
                                ("element_size", NO_DEFAULT), ("is_tp", False),
                                ("partition_dim", 0), ("partition_stride", 1), ("is_ep", False),
                                ("num_experts", None), ("owner_rank", None),
                                *((f"{name}_parallel_group_ranks", None) for name in groups),
                                ("resolved_name", None), ("global_expert_index", None)],
            ShardingDescriptor: [(name, NO_DEFAULT) for name in (
                "name", "dim", "src_stride", "dst_stride", "src_dim_ranks", "dst_dim_ranks")],
            ReshardPlan: [("send_ops", NO_DEFAULT), ("recv_ops", NO_DEFAULT)],
        }
        for cls, fields in expected.items():
            found = [(f.name, f.default) for f in dataclasses.fields(cls)]
            self.assertEqual(found[:len(fields)], fields, cls)
        self.assertEqual(len(dataclasses.fields(ParameterMetadata)), 17)  # and partition_sizes
        whole = (slice(0, 1),)
        op = TransferOp("w", 3, True, whole, whole)
        self.assertEqual(op, TransferOp(param_name="w", peer_rank=3, is_send=True, my_slice=whole,
                                        peer_slice=whole, task_id=None))

    def test_aliases(self) -> None:
        for module, names in ((utils, ("get_rank_in_group", "detect_expert_index_from_param_name")),
                              (planner, ("build_descriptors_for_param", "plan_multi_dim_lcm",
                                         "finalize_dp_transfers",
                                         "determine_source_ranks_for_dst_param"))):
            for name in names:
                self.assertIs(getattr(module, "_" + name), getattr(module, name))
            self.assertEqual(module.logger.name, module.__name__)

    def test_doctests(self) -> None:
        for module in (utils, planner):
            result = doctest.testmod(module)
            self.assertEqual(result.failed, 0)
            self.assertGreater(result.attempted, 0)

    def test_no_torch(self) -> None:
        code = "import sys, ferry.resharding; assert not {'torch', 'numpy'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))


class Names(unittest.TestCase):
    def test_rank_in_group(self) -> None:
        self.assertEqual([utils.get_rank_in_group(r, [7, 3, 5]) for r in (7, 3, 5)], [0, 1, 2])
        with self.assertRaises(ValueError) as caught:
            utils.get_rank_in_group(4, [7, 3, 5])
        self.assertIsInstance(caught.exception, ferry.InvalidInput)
        self.assertIn(4, caught.exception.ranks)
        with self.assertRaises(ferry.InvalidInput):
            utils.get_rank_in_group(4, None)

    def test_expert_index(self) -> None:
        for name, index in (("a.weight3", 3), ("bias12.b", 12), ("weight", None),
                            ("weights3", None), ("a.weight3x", None), ("xweight3", None),
                            ("a.weight007", 7), ("fc1.weight0", 0), ("", None)):
            self.assertEqual(utils.detect_expert_index_from_param_name(name), index, name)
        with self.assertRaises(ferry.InvalidInput) as caught:
            utils.detect_expert_index_from_param_name("fc.weight" + "9" * 30)
        self.assertEqual(caught.exception.tensor, "fc.weight" + "9" * 30)

    def test_resolved_names(self) -> None:
        prefixes = {"layers.1": "layers.5", "layers.1.sub": "other", "layers": "wrong"}
        for name, whole in (("layers.1.w", "layers.5.w"), ("layers.1.sub.w", "other.w"),
                            ("layers.10.w", "wrong.10.w"), ("layers.1", "layers.5"),
                            ("x.w", "x.w")):
            one = meta(name, resolved_name="stale", global_expert_index=9)
            utils.assign_resolved_name_inplace(one, layer_module_prefix_map=prefixes)
            self.assertEqual((one.resolved_name, one.global_expert_index), (whole, None))
        utils.assign_resolved_name_inplace(one, base_name="layers.2.weight1")
        self.assertEqual(one.resolved_name, "layers.2.weight1")

    def test_experts(self) -> None:
        for owner in range(4):
            one = meta("layers.0.weight1", is_ep=True, num_experts=8, owner_rank=10 + owner,
                       expert_parallel_group_ranks=[10, 11, 12, 13])
            prefixes = {"layers.0": "layers.2"}
            utils.assign_resolved_name_inplace(one, layer_module_prefix_map=prefixes)
            self.assertEqual(one.global_expert_index, owner * 2 + 1)
            self.assertEqual(one.resolved_name, f"layers.2.weight{owner * 2 + 1}")

    def test_bad_experts(self) -> None:
        good = {"is_ep": True, "num_experts": 8, "owner_rank": 1,
                "expert_parallel_group_ranks": [0, 1]}
        for bad in ({"expert_parallel_group_ranks": None}, {"num_experts": None},
                    {"num_experts": 7}, {"owner_rank": 3}, {"num_experts": "x"},
                    {"num_experts": -8}, {"expert_parallel_group_ranks": 3}):
            one = meta("fc.weight3", **{**good, **bad})
            with self.assertRaises(ferry.InvalidInput, msg=str(bad)) as caught:
                utils.assign_resolved_name_inplace(one)
            self.assertEqual(caught.exception.tensor, "fc.weight3", bad)
            self.assertIsNone(one.resolved_name)


class Extraction(unittest.TestCase):
    def param(self, **marks: Any) -> Any:
        return types.SimpleNamespace(shape=[4, 6], dtype="bf16", itemsize=2, **marks)

    def test_defaults(self) -> None:
        groups = types.SimpleNamespace(dp=[0, 2])
        found = utils.extract_param_metadata(self.param(), "a.weight", 2, groups)
        self.assertEqual(found, ParameterMetadata(
            "a.weight", (4, 6), "bf16", 2, owner_rank=2, data_parallel_group_ranks=[0, 2],
            resolved_name="a.weight"))

    def test_all_marks(self) -> None:
        groups = types.SimpleNamespace(tp=[0, 1], expt_tp=(1, 2), ep=range(1, 5), dp=[1], pp=[1, 9])
        param = self.param(tensor_model_parallel=True, partition_dim=1, partition_stride=1,
                           partition_sizes=[4, 2], allreduce=False)
        found = utils.extract_param_metadata(param, "l.0.bias1", 2, groups, 8, {"l.0": "l.3"})
        self.assertEqual(found, ParameterMetadata(
            "l.0.bias1", (4, 6), "bf16", 2, True, 1, 1, True, 8, 2, [1, 2], [1, 2, 3, 4], [1],
            [1, 9], "l.3.bias3", 3, [4, 2]))
        groups.expt_tp = None
        found = utils.extract_param_metadata(param, "l.0.bias1", 2, groups, 8)
        self.assertEqual(found.tensor_parallel_group_ranks, [0, 1])

    def test_what_is_not_cut_has_any_dim(self) -> None:
        groups = types.SimpleNamespace(dp=[0])
        found = utils.extract_param_metadata(self.param(partition_dim=-1), "w", 0, groups)
        self.assertEqual((found.is_tp, found.partition_dim), (False, -1))

    def test_sinks_are_cut_as_heads_are(self) -> None:
        """Megatron-Core does not mark them: by their shape, one rank's would pass for another's."""
        name, groups = "layers.0.core_attention.softmax_offset", types.SimpleNamespace(tp=[2, 3], dp=[3])
        sinks = types.SimpleNamespace(shape=[4], dtype="bf16", itemsize=2)
        for own, ranks, is_cut in ((name, [2, 3], True), (name, [3], False), (name[9:], [2, 3], True),
                                   (name + "s", [2, 3], False), ("my" + name[9:], [2, 3], False)):
            groups.tp = ranks
            module = types.SimpleNamespace(
                pg_collection=groups, named_modules=lambda: [],
                named_parameters=lambda recurse, own=own: [(own, sinks)])
            found = planner.describe_module(module, 3, buffers=False)[0]
            self.assertEqual((found.is_tp, found.partition_dim, found.tensor_parallel_group_ranks),
                             (is_cut, 0, ranks) if is_cut else (False, found.partition_dim, None), own)

    def test_experts_are_cut_over_ranks_of_their_own(self) -> None:
        """Also those that are spread over no ranks, which Megatron-Core does not mark (allreduce=False)."""
        name = "layers.0.mlp.experts.local_experts.1.linear_fc1.weight"
        groups = types.SimpleNamespace(tp=[2, 3], ep=[3], dp=[3])
        param = self.param(tensor_model_parallel=True, partition_dim=0, partition_stride=1)
        for own, ranks, found in ((name, [3], [3]), (name, None, [2, 3]), (name[13:], [3], [3]),
                                  ("layers.0.mlp.linear_fc1.weight", [3], [2, 3]),
                                  ("layers.0.mlp.shared_experts.linear_fc1.weight", [3], [2, 3])):
            groups.expt_tp = ranks
            module = types.SimpleNamespace(
                pg_collection=groups, named_modules=lambda: [],
                named_parameters=lambda recurse, own=own: [(own, param)])
            meta = planner.describe_module(module, 3, buffers=False)[0]
            self.assertEqual((meta.name, meta.tensor_parallel_group_ranks), (own, found))
        loose = self.param()  # not cut at all
        module.named_parameters = lambda recurse: [(name, loose)]
        self.assertIsNone(planner.describe_module(module, 3, buffers=False)[0].tensor_parallel_group_ranks)

    def test_bad_parameters(self) -> None:
        groups = types.SimpleNamespace(tp=[0, 1], dp=[0])
        cut_marks = {"tensor_model_parallel": True, "partition_dim": 0}
        for bad in ({"partition_dim": 2}, {"partition_dim": -3}, {"partition_dim": "x"},
                    {"partition_stride": 0}, {"partition_stride": -1}, {"partition_sizes": [1, 2]},
                    {"partition_sizes": 4}, {"partition_sizes": [4, -0.5]},
                    {"partition_sizes": [2, 2], "partition_stride": 2}):
            with self.assertRaises(ferry.InvalidInput, msg=str(bad)) as caught:
                utils.extract_param_metadata(self.param(**{**cut_marks, **bad}), "w", 0, groups)
            self.assertEqual(caught.exception.tensor, "w", bad)
        for param, kind in ((3, ferry.InvalidInput), (None, ferry.InvalidInput),
                            (types.SimpleNamespace(shape=(1,) * 9, dtype="f32", itemsize=4),
                             ferry.LimitExceeded),
                            (types.SimpleNamespace(shape=(1,), dtype="f31", itemsize=4),
                             ferry.Unsupported)):
            with self.assertRaises(kind) as caught:
                utils.extract_param_metadata(param, "w", 0, groups)
            self.assertEqual(caught.exception.tensor, "w")
        with self.assertRaises(ferry.InvalidInput):
            utils.extract_param_metadata(self.param(), "w", -1, groups)
        with self.assertRaises(ferry.InvalidInput) as caught:
            utils.extract_param_metadata(self.param(), "w", 0, types.SimpleNamespace(tp=object()))
        self.assertIn("tp", str(caught.exception))


class Sources(unittest.TestCase):
    def chosen(self, groups: List[Any], dst_group: Any, rank: int) -> int:
        sources = [meta(data_parallel_group_ranks=g) for g in groups]
        found = utils.select_src_metadata_balanced(
            sources, meta(data_parallel_group_ranks=dst_group), rank)
        return next(i for i, source in enumerate(sources) if source is found)

    def test_by_hand(self) -> None:
        two = [[4, 5], [0, 1], [4, 5], [0, 1]]
        self.assertEqual([self.chosen(two, [8, 9, 10], rank) for rank in (8, 9, 10)], [1, 0, 1])
        self.assertEqual(self.chosen([[4, 5]] * 3, [8], 8), 0)  # one bucket: its first entry
        self.assertEqual(self.chosen(two, [8, 9], 30), 1)  # no member: as the first one
        self.assertEqual(self.chosen([[10], [9]], [0, 1], 0), 1)  # in order of numbers, not texts

    def test_rule_on_random_groups(self) -> None:
        rng = random.Random(5)
        for _ in range(200):
            pool = [rng.sample(range(16), rng.randint(1, 3)) for _ in range(4)]
            groups = [rng.choice(pool) for _ in range(rng.randint(1, 9))]
            dst = rng.sample(range(16), rng.randint(1, 5))
            rank = rng.choice(dst)
            buckets = sorted({tuple(g) for g in groups})
            bucket = list(buckets[dst.index(rank) % len(buckets)])
            self.assertEqual(self.chosen(groups, dst, rank), groups.index(bucket))

    def test_bad(self) -> None:
        with self.assertRaises(ferry.InvalidInput) as caught:
            utils.select_src_metadata_balanced([], meta("a.w"), 0)
        self.assertEqual(caught.exception.tensor, "a.w")
        for sources, destination in (([3], meta()), ([meta()], None), ([meta(
                data_parallel_group_ranks=[1, 1])], meta()), ([meta(
                    data_parallel_group_ranks=["x"])], meta())):
            with self.assertRaises(ferry.InvalidInput):
                utils.select_src_metadata_balanced(sources, destination, 0)


class OneParameter(unittest.TestCase):
    def test_descriptors(self) -> None:
        src, dst = cut((4, 4), [0, 1], partition_stride=2), cut((2, 4), [2, 3, 4, 5])
        self.assertEqual(planner.build_descriptors_for_param(src, dst),
                         [ShardingDescriptor("tp", 0, 2, 1, [0, 1], [2, 3, 4, 5])])
        self.assertEqual(planner.build_descriptors_for_param(meta(), meta()), [])
        unknown = cut((4, 4), [0], partition_stride=1)
        unknown.tensor_parallel_group_ranks = None
        self.assertEqual(planner.build_descriptors_for_param(unknown, dst), [])
        with self.assertRaises(ferry.InvalidPlan) as caught:
            planner.build_descriptors_for_param(cut((4, 4), [0, 1]), cut((4, 4), [2, 3, 4]))
        self.assertEqual(caught.exception.tensor, "w")
        self.assertIsInstance(caught.exception, ValueError)

    def check(self, tensor: Tensor, n_src: int, n_dst: int, route: Any) -> None:
        sides = []
        for first, n in ((0, n_src), (10, n_dst)):
            blocks = [b // n for b in tensor.blocks] or None
            sides.append(cut(tensor.local_shape(n), list(range(first, first + n)), tensor.dim,
                             partition_stride=tensor.stride, partition_sizes=blocks))
        for part in range(n_dst):
            got = dict.fromkeys(tensor.shard(part, n_dst, 0), -1)
            for rank, src_slice, dst_slice in route(*sides, 10 + part):
                copy_box(tensor.shard(rank, n_src, 0), src_slice, got, dst_slice)
            self.assertEqual(got, tensor.shard(part, n_dst, 0), (tensor, n_src, n_dst))

    def test_cut_on_both_sides(self) -> None:
        def by_lcm(src: Any, dst: Any, rank: int) -> Any:
            descriptors = planner.build_descriptors_for_param(src, dst)
            return planner.plan_multi_dim_lcm("w", src, dst, descriptors, rank)

        def by_route(src: Any, dst: Any, rank: int) -> Any:
            return planner.determine_source_ranks_for_dst_param("w", src, dst, rank)

        for tensor in (Tensor("w", (24,), 0), Tensor("w", (2, 24, 2), 1, 2),
                       Tensor("w", (48, 2), 0, 2), Tensor("w", (36, 1), 0, 1, (24, 12))):
            for n_src in (1, 2, 3, 4):
                for n_dst in (1, 2, 3, 4):
                    if tensor.stride * n_src * n_dst <= 24:
                        self.check(tensor, n_src, n_dst, by_lcm)
                        self.check(tensor, n_src, n_dst, by_route)

    def test_negative_dim_counts_from_the_end(self) -> None:
        src, dst = cut((3, 4), [0, 1], -1), cut((3, 8), [5], 1)
        self.assertEqual([(r, a[1], b[1]) for r, a, b in
                          planner.determine_source_ranks_for_dst_param("w", src, dst, 5)],
                         [(0, slice(0, 4), slice(0, 4)), (1, slice(0, 4), slice(4, 8))])

    def test_replicated(self) -> None:
        whole = (slice(0, 8), slice(0, 4))
        src = meta(data_parallel_group_ranks=[0, 1, 2])
        dst = meta(data_parallel_group_ranks=[2, 5, 6, 7])
        for rank, source in ((5, 2), (6, 0), (7, 1), (2, 2)):
            for route in (planner.finalize_dp_transfers,
                          planner.determine_source_ranks_for_dst_param):
                self.assertEqual(route("w", src, dst, rank), [(source, whole, whole)])
        self.assertEqual(planner.finalize_dp_transfers("w", src, dst, 4), [])
        owned = meta(owner_rank=3)
        self.assertEqual(planner.finalize_dp_transfers("w", owned, dst, 5), [(3, whole, whole)])
        with self.assertRaises(ferry.InvalidInput):
            planner.finalize_dp_transfers("w", meta(), dst, 5)  # nobody knows who has it

    def test_bad(self) -> None:
        src, dst = cut((4, 4), [0, 1]), cut((2, 4), [2, 3, 4, 5])
        good = planner.build_descriptors_for_param(src, dst)
        odd = dataclasses.replace(good[0], name="ep")
        groupless = cut((4, 4), [0, 1])
        groupless.tensor_parallel_group_ranks = None
        for call, kind in (
            (lambda: planner.plan_multi_dim_lcm("w", src, dst, [], 2), ferry.Error),
            (lambda: planner.plan_multi_dim_lcm("w", src, dst, good * 2, 2), ferry.Error),
            (lambda: planner.plan_multi_dim_lcm("w", src, dst, [odd], 2), ferry.Unsupported),
            (lambda: planner.plan_multi_dim_lcm("w", src, dst, [3], 2), ferry.InvalidInput),
            (lambda: planner.determine_source_ranks_for_dst_param("w", groupless, dst, 2),
             ferry.InvalidPlan),
            (lambda: planner.finalize_dp_transfers("w", meta(), meta(shape=(8, 5)), 2),
             ferry.Error),
            (lambda: planner.finalize_dp_transfers("w", meta(), meta(shape=(8,)), 2), ferry.Error),
        ):
            with self.assertRaises(kind) as caught:
                call()
            self.assertEqual(caught.exception.tensor, "w", caught.exception)
        with self.assertRaises(ferry.InvalidInput):
            planner.plan_multi_dim_lcm("w", 3, dst, good, 2)
        self.assertEqual(planner.plan_multi_dim_lcm("w", src, dst, good, 9), [])  # an outsider
        with self.assertRaises(ferry.InvalidInput):
            planner.plan_multi_dim_lcm("w", src, dst, good, -1)


def described(src: Layout, dst: Layout, world: int, n_experts: int) -> Tuple[List[Any], List[Any]]:
    sides = []
    for side in (src, dst):
        modules = [side.module(rank) for rank in range(world)]
        sides.append([None if module is None else planner.describe_module(
            module, rank, n_experts or None) for rank, module in enumerate(modules)])
    return sides[0], sides[1]


class Rosters(unittest.TestCase):
    def test_random_layouts(self) -> None:
        seed = int(os.environ.get("FERRY_TEST_SEED", "41"))
        rng = random.Random(seed)
        for i in range(24):
            src, dst, world, n_experts = random_layouts(rng)
            sides = described(src, dst, world, n_experts)
            for replica in ("balanced", "seed"):
                roster = planner.plan_roster(*sides, replica=replica)
                plans = [roster.for_rank(rank) for rank in range(world)]
                got = execute(plans, src, dst)
                for rank in range(world):
                    self.assertEqual(got[rank], dst.shards(rank),
                                     f"seed {seed}, case {i}, {replica}, rank {rank}")

    def test_each_op_once_and_in_order(self) -> None:
        src, dst, world, n_experts = random_layouts(random.Random(7))
        roster = planner.plan_roster(*described(src, dst, world, n_experts))
        received = [op.task_id for r in range(world) for op in roster.for_rank(r).recv_ops]
        self.assertEqual(sorted(received), list(range(len(received))))
        for rank in range(world):
            sent = [op.task_id for op in roster.for_rank(rank).send_ops]
            self.assertEqual(sent, sorted(sent))
        self.assertEqual(roster.plan.world_size, world)
        self.assertEqual(roster.plan.n_moves, len(received))
        self.assertEqual(roster.digest, roster.for_rank(0).digest)

    def test_dicts_gaps_and_subsets(self) -> None:
        src, dst = {3: [meta("a"), meta("b")]}, {1: [meta("b"), meta("a")], 5: None}
        roster = planner.plan_roster(src, dst, subset="a*")
        self.assertEqual(roster.world_size, 6)
        self.assertEqual([op.param_name for op in roster.for_rank(1).recv_ops], ["a"])
        self.assertEqual(len(roster.for_rank(5).recv_ops), 0)
        for rank in (-1, 6):
            with self.assertRaises(ferry.InvalidInput):
                roster.for_rank(rank)

    def test_num_experts_fills_in(self) -> None:
        def expert(rank: int, ranks: List[int]) -> ParameterMetadata:
            return meta("weight0", owner_rank=rank, is_ep=True, expert_parallel_group_ranks=ranks)

        sides = [[expert(0, [0, 1])], [expert(1, [0, 1])]], [None, None, [expert(2, [2, 3])],
                                                              [expert(3, [2, 3])]]
        with self.assertRaises(ferry.InvalidInput) as caught:
            planner.plan_roster(*sides)
        self.assertEqual(caught.exception.tensor, "weight0")
        roster = planner.plan_roster(*sides, num_experts=2)
        for rank in (2, 3):
            (op,) = roster.for_rank(rank).recv_ops
            self.assertEqual((op.param_name, op.peer_rank), ("weight0", rank - 2))

    def test_tied_output_layer(self) -> None:
        words, head = meta("embedding.word_embeddings.weight"), meta("output_layer.weight")
        roster = planner.plan_roster([[words], None], [None, [head]])
        (send,), (recv,) = roster.for_rank(0).send_ops, roster.for_rank(1).recv_ops
        self.assertEqual(send.param_name, "embedding.word_embeddings.weight")
        self.assertEqual(recv.param_name, "output_layer.weight")

    def test_bad_input(self) -> None:
        def plan(src: Any, dst: Any = None) -> Any:
            return lambda: planner.plan_roster([src], [[meta()] if dst is None else dst])

        cases = {
            "a group without the rank": plan([cut((4, 4), [1, 2])], [cut((4, 4), [1, 2])]),
            "lengths that do not add up": plan([cut((3, 4), [0])], [cut((4, 4), [0])]),
            "two of a name": plan([meta(), meta()]),
            "two of a resolved name": plan([meta("a", resolved_name="w"), meta()]),
            "no source": plan([meta("v")]),
            "another dtype": plan([meta(dtype="i32")]),
            "another shape": plan([meta(shape=(8, 5))]),
            "another rank": plan([meta(owner_rank=1)]),
            "a wrong size": plan([meta(element_size=2)]),
            "no dtype": plan([meta(dtype=None)]),
            "a dtype that nobody knows": plan([meta(dtype="float11")]),
            "a shape of texts": plan([meta(shape=("a", 1))]),
            "no shape": plan([meta(shape=None)]),
            "a negative length": plan([meta(shape=(8, -4))]),
            "too much": plan([meta(shape=(2**62, 2**62))]),
            "a dim too far": plan([cut((4, 4), [0], 2)]),
            "a stride of nothing": plan([cut((4, 4), [0], partition_stride=0)]),
            "a group of texts": plan([cut((8, 4), ["a"])]),
            "a group that is none": plan([cut((8, 4), 5)]),
            "a rank twice": plan([cut((4, 4), [0, 0])]),
            "a rank too high": plan([cut((4, 4), [0, 2**40])]),
            "blocks that do not add up": plan([cut((8, 4), [0], partition_sizes=[4, 3])]),
            "a resolved name that is none": plan([meta(resolved_name=4)]),
        }
        for name, call in cases.items():
            with self.assertRaises(ferry.Error, msg=name) as caught:
                call()
            self.assertIn(caught.exception.tensor, ("w", "a"), f"{name}: {caught.exception}")
        for src in (3, [3], [[3]], ["ab"], [[None]]):
            with self.assertRaises((ferry.Error, TypeError), msg=str(src)):
                planner.plan_roster(src, [None])
        with self.assertRaises(ferry.InvalidInput):
            planner.plan_roster([], [])
        with self.assertRaises(ferry.InvalidInput) as caught:
            planner.plan_roster([[meta()]], [[meta()]], replica="fair")
        self.assertIn("balanced", str(caught.exception))


class Lists(unittest.TestCase):
    def setUp(self) -> None:
        layers = [tensors_of_layer(random.Random(1), 0) for _ in range(60)]
        src, dst = Layout(0, 4, 1, 1, 1, layers, 0), Layout(0, 1, 1, 1, 1, layers, 0)
        self.roster = planner.plan_roster(*described(src, dst, 4, 0))
        self.plan = self.roster.for_rank(0)
        self.ops = self.plan.recv_ops
        self.real = list(self.ops)

    def test_reads_like_a_list(self) -> None:
        ops, real = self.ops, self.real
        self.assertGreater(len(real), 600)
        self.assertEqual(len(ops), len(real))
        self.assertEqual([ops[i] for i in range(-len(real), len(real))], real * 2)
        for index in (slice(None), slice(3, 9), slice(-5, None), slice(None, None, -1),
                      slice(500, 3, -7), slice(9, 3), slice(0, 10**9)):
            self.assertEqual(ops[index], real[index])
            self.assertIsInstance(ops[index], list)
        self.assertEqual(list(reversed(ops)), real[::-1])
        self.assertTrue(ops == real and real == ops and ops == self.roster.for_rank(0).recv_ops)
        self.assertFalse(ops == real[:-1] or ops != real or ops == tuple(real))
        self.assertIsInstance(ops, list)
        self.assertEqual(json.dumps([op.task_id for op in ops]), json.dumps([op.task_id for op in real]))
        self.assertIn(real[7], ops)
        self.assertNotIn(3, ops)
        self.assertEqual((ops.index(real[7]), ops.count(real[7])), (7, 1))
        begin, _, rest = repr(ops).rpartition(", ... ")  # as far as anybody reads it
        self.assertEqual((begin, rest), (repr(real[:32])[:-1], "%d more]" % (len(real) - 32)))
        self.assertEqual(ops + real[:1], real + real[:1])
        self.assertEqual(real[:1] + ops, real[:1] + real)
        self.assertEqual(ops * 2, real * 2)
        self.assertEqual(sorted(ops, key=lambda op: -op.task_id), real[::-1])
        for index in (len(real), -len(real) - 1, 2**70):
            with self.assertRaises(IndexError):
                ops[index]
        for index in ("1", 1.0, None):
            with self.assertRaises(TypeError):
                ops[index]
        with self.assertRaises(TypeError):
            hash(ops)

    def test_is_made_when_looked_at(self) -> None:
        plan = self.roster.for_rank(0)
        str(plan), plan.digest
        self.assertEqual(set(vars(plan)), {"_built"})
        self.assertIs(plan.recv_ops, plan.recv_ops)
        self.assertEqual(set(vars(plan)), {"_built", "recv_ops"})
        with self.assertRaisesRegex(AttributeError, "'ReshardPlan' object has no attribute 'ops'"):
            plan.ops
        self.assertIs(self.ops[0], self.ops[0])
        self.assertIs(next(iter(self.ops)), self.ops[0])
        self.assertIsInstance(self.ops[0], TransferOp)
        self.assertIs(type(self.ops[0].is_send), bool)
        for part in self.ops[0].my_slice:
            self.assertIsNone(part.step)

    def test_a_change_of_an_op_stays(self) -> None:
        for look in (lambda ops: ops[3], lambda ops: ops[2:5][1], lambda ops: list(ops)[3],
                     lambda ops: ops[-len(ops) + 3]):
            plan = self.roster.for_rank(0)
            self.assertEqual(plan.recv_ops[3], self.real[3])
            self.assertIsNotNone(plan.digest)
            look(plan.recv_ops).peer_rank = 77
            self.assertEqual(plan.recv_ops[3].peer_rank, 77)
            self.assertEqual([op.peer_rank for op in plan.recv_ops].count(77), 1)
            self.assertIsNone(plan.digest)
            plan.recv_ops.append(self.real[0])
            self.assertEqual(plan.recv_ops[3].peer_rank, 77)

    def test_changes(self) -> None:
        real, digest = self.real, self.plan.digest
        self.assertEqual(len(digest), 32)
        self.assertIn(f"recvs={len(real)}, send_bytes=", str(self.plan))
        for change in (lambda l: l.append(real[0]), lambda l: l.pop(), lambda l: l.reverse(),
                       lambda l: l.insert(1, real[5]), lambda l: l.remove(real[3]),
                       lambda l: l.__setitem__(2, real[0]), lambda l: l.__delitem__(slice(1, 5)),
                       lambda l: l.extend(real[:2]), lambda l: l.clear(),
                       lambda l: l.sort(key=lambda op: -op.task_id),
                       lambda l: l.__iadd__(real[:1])):
            plan, expected = self.roster.for_rank(0), list(real)
            change(plan.recv_ops)
            change(expected)
            self.assertEqual(plan.recv_ops, expected)
            self.assertEqual([plan.recv_ops[i] for i in range(len(expected))], expected)
            self.assertIsNone(plan.digest)
            self.assertNotIn("send_bytes", str(plan))
        self.assertEqual(self.ops, real)

    def test_copies(self) -> None:
        for made in (copy.copy(self.ops), copy.deepcopy(self.ops), self.ops.copy()):
            self.assertIsInstance(made, list)
            self.assertEqual(made, self.real)
        again = pickle.loads(pickle.dumps(self.plan))
        self.assertEqual(again, self.plan)
        self.assertIs(type(again.recv_ops), list)
        self.assertEqual(copy.deepcopy(self.plan), self.plan)

    def test_plans_are_compared_by_ops(self) -> None:
        self.assertEqual(self.plan, ReshardPlan(list(self.plan.send_ops), self.real))
        self.assertNotEqual(self.plan, self.roster.for_rank(1))
        self.assertEqual(str(ReshardPlan([], self.real[:2])), "ReshardPlan(sends=0, recvs=2)")

    def test_threads(self) -> None:
        failed = []

        def look() -> None:
            for _ in range(3):
                if list(self.ops) != self.real:
                    failed.append(1)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])


# Several processes, over a world of ferry.


def layouts_of(seed: int, size: int) -> Tuple[Layout, Layout, int]:
    layers = [tensors_of_layer(random.Random(seed), 4) for _ in range(2)]
    return Layout(0, 2, 1, 1, 1, layers, 4), Layout(size - 2, 1, 2, 1, 1, layers, 4), 4


def build_on_rank(rank: int, size: int) -> Any:
    src, dst, n_experts = layouts_of(3, size)
    modules = src.module(rank), dst.module(rank)
    plans = [build(*modules, n_experts) for build in (planner.build_centralized_reshard_plan,
                                                      planner.build_local_reshard_plan)]
    roster = planner.plan_roster(*described(src, dst, size, n_experts))
    same = all(plan == roster.for_rank(rank) for plan in plans)
    ferry.shutdown()
    digests = {plan.digest for plan in (*plans, roster)}
    return same, len(digests), len(plans[0].recv_ops), len(plans[0].send_ops)


def fail_on_rank(rank: int, size: int, hows: Any) -> Any:
    """What each way to fail raised, and whether a good call worked after it."""
    outcomes = []
    for how in hows:
        src, dst, n_experts = layouts_of(3, size)
        module = src.module(rank)
        if rank == 1 and how == "parameter":
            module.children["decoder"].children["layers"].children["0"].children[
                "attention"].children["qkv"].parameters["weight"].partition_stride = -1
        if rank == 1 and how == "groups":
            module.pg_collection = None
        if rank == 1 and how == "module":
            module = 17
        if how == "source":
            module = None
        caught = None
        try:
            planner.build_centralized_reshard_plan(module, dst.module(rank), n_experts)
        except ferry.Error as error:
            caught = (type(error).__name__, str(error), error.tensor)
        again = planner.build_centralized_reshard_plan(
            src.module(rank), dst.module(rank), n_experts)
        outcomes.append((caught, len(again.recv_ops) + len(again.send_ops) > 0))
    ferry.shutdown()
    return outcomes


class Processes(unittest.TestCase):
    def test_same_as_in_one_process(self) -> None:
        for size in (2, 3, 5):  # 2: all have both; 3: rank 1 has; 5: rank 2 has neither
            for rank, (same, digests, recvs, sends) in enumerate(run_ranks(build_on_rank, size)):
                self.assertTrue(same, rank)
                self.assertEqual(digests, 1)
                self.assertEqual(recvs > 0, rank >= size - 2)
                self.assertEqual(sends > 0, rank < 2)

    def test_all_fail_together(self) -> None:
        rows = (("parameter", "InvalidInput", "decoder.layers.0.attention.qkv.weight"),
                ("groups", "InvalidInput", None), ("module", "InvalidInput", None),
                ("source", "InvalidPlan", "decoder.layers.0.norm.weight"))
        first, second = run_ranks(fail_on_rank, 2, [row[0] for row in rows])
        self.assertEqual(first, second)
        self.assertEqual(len(first), len(rows))
        for (how, kind, tensor), (caught, went_on) in zip(rows, first):
            self.assertIsNotNone(caught, how)
            name, sentence, named = caught
            self.assertTrue(went_on, how)
            self.assertEqual(name, kind, sentence)
            if how != "source":
                self.assertTrue(sentence.startswith("rank 1: "), sentence)
            self.assertEqual(named, tensor, sentence)


class Exchanges(unittest.TestCase):
    """One process, with an exchange of its own."""

    class Alone:
        rank, size = 0, 1

        def __init__(self, fails_at: int = 0) -> None:
            self.calls, self.fails_at = 0, fails_at

        def all_gather(self, data: bytes) -> List[bytes]:
            self.calls += 1
            if self.calls == self.fails_at:
                raise KeyError("the wire is cut")
            return [data]

    def test_alone(self) -> None:
        src, dst, n_experts = layouts_of(3, 2)
        layout = Layout(0, 1, 1, 1, 1, src.layers, 4)
        plan = planner.build_centralized_reshard_plan(layout.module(0), layout.module(0), 4,
                                                      exchange=self.Alone())
        self.assertEqual([op.task_id for op in plan.send_ops],
                         [op.task_id for op in plan.recv_ops])
        self.assertEqual({op.peer_rank for op in plan.send_ops}, {0})
        self.assertTrue(any("router.bias" in op.param_name for op in plan.recv_ops))
        fewer = planner.build_centralized_reshard_plan(layout.module(0), layout.module(0), 4,
                                                       exchange=self.Alone(), buffers=False)
        self.assertFalse(any("router.bias" in op.param_name for op in fewer.recv_ops))

    def test_nothing_at_all(self) -> None:
        for build in (planner.build_centralized_reshard_plan, planner.build_local_reshard_plan):
            with self.assertRaises(ferry.InvalidPlan):
                build(None, None, exchange=self.Alone())

    def test_failing_exchange(self) -> None:
        with self.assertRaises(KeyError):
            planner.build_local_reshard_plan(None, None, exchange=self.Alone(1))
        with self.assertRaises(ferry.ExchangeFailed) as caught:
            planner.build_local_reshard_plan(None, None, exchange=self.Alone(2))
        self.assertIsInstance(caught.exception.__cause__, KeyError)

    def test_buffers_that_do_not_persist(self) -> None:
        layout = Layout(0, 1, 1, 1, 1, [tensors_of_layer(random.Random(1), 0)] * 2, 0)
        module = layout.module(0)
        mlp = module.child(["decoder", "layers", "0", "mlp", "router"])
        mlp._buffers["none"] = None
        mlp._buffers["passing"] = object()  # would be refused, if it were looked at
        mlp._non_persistent_buffers_set.add("passing")
        names = [m.name for m in planner.describe_module(module, 0)]
        self.assertIn("decoder.layers.0.mlp.router.bias", names)
        self.assertFalse([name for name in names if "passing" in name or "none" in name])


if __name__ == "__main__":
    unittest.main()
