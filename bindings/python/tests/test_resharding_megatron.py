# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Against the planner of the package megatron-core: its plans and ferry's put the same numbers into
the same places. One process plays all ranks; the package's collectives hand over lists.

Where the two are meant to differ, tests say so: packed blocks, buffers and biases of experts are
ferry's alone, and sources are chosen by the documented rule (the position in the DP group), while
the package goes by the global rank.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import unittest
import warnings
from typing import Any, Dict, Iterator, List
from unittest import mock

import ferry
from ferry.resharding import planner, utils
from resharding_models import Layout, Module, execute, random_layouts

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch.distributed as dist
        from megatron.core.resharding import planner as their_planner, utils as their_utils
except ImportError:
    their_planner = None


def without_extras(layout: Layout) -> Layout:
    """Only what the package plans too."""
    layers = [[t for t in layer if not t.blocks and not t.is_buffer
               and not (t.is_expert and t.dim is None)] for layer in layout.layers]
    return layout._replace(layers=layers)


def empty_module() -> Any:
    module = Module()
    module.pg_collection = object()
    return module


@contextlib.contextmanager
def rank_of_a_world(rank: int, world: int, gathered: List[List[Any]]) -> Iterator[List[Any]]:
    """The package believes to be a rank of a world whose ranks gather what is given."""
    plans: List[Any] = []
    calls = itertools.count()

    def all_gather_object(out: List[Any], mine: Any, group: Any = None) -> None:
        out[:] = gathered[next(calls)]

    def broadcast_object_list(objects: List[Any], src: int = 0, group: Any = None) -> None:
        plans[:] = objects

    with contextlib.ExitStack() as stack:
        for name, function in (("get_rank", lambda group=None: rank),
                               ("get_world_size", lambda group=None: world),
                               ("get_process_group_ranks", list),
                               ("all_gather_object", all_gather_object),
                               ("broadcast_object_list", broadcast_object_list)):
            stack.enter_context(mock.patch.object(dist, name, function))
        yield plans


def their_plans(src: Layout, dst: Layout, world: int, n_experts: int) -> Any:
    """(the package's plans of all ranks, its metadata of all ranks by side)"""
    gathered: List[List[Any]] = []
    with rank_of_a_world(0, world, gathered) as plans:
        for side in (src, dst):
            gathered.append([])
            for rank in range(world):
                module = side.module(rank) or empty_module()
                prefixes = their_utils._build_layer_module_prefix_map(module)
                gathered[-1].append([their_utils.extract_param_metadata(
                    parameter, name, rank, module.pg_collection, num_experts=n_experts or None,
                    layer_module_prefix_map=prefixes)
                    for name, parameter in module.named_parameters()])
        modules = [side.module(0) or empty_module() for side in (src, dst)]
        their_planner.build_centralized_reshard_plan(*modules, num_experts=n_experts or None)
    return plans, gathered


FIELDS = [name for name in utils.ParameterMetadata.__dataclass_fields__
          if name != "partition_sizes"]


def elements(transfers: Any, src_shape: Any, dst_shape: Any) -> Dict[Any, Any]:
    """From each element of the destination to the rank and element that it comes from."""
    found: Dict[Any, Any] = {}
    for rank, src, dst in transfers:
        froms, tos = (itertools.product(*(range(*s.indices(n)) for s, n in zip(slices, shape)))
                      for slices, shape in ((src, src_shape), (dst, dst_shape)))
        for place, source in zip(tos, froms):
            assert place not in found
            found[place] = (rank, source)
    return found


@unittest.skipIf(their_planner is None, "megatron-core is not installed")
class Megatron(unittest.TestCase):
    def test_random_layouts(self) -> None:
        seed = int(os.environ.get("FERRY_TEST_SEED", "42"))
        rng = random.Random(seed)
        for case in range(16):
            src, dst, world, n_experts = random_layouts(rng, 16)
            src, dst = without_extras(src), without_extras(dst)
            plans, gathered = their_plans(src, dst, world, n_experts)
            theirs = execute(plans, src, dst)
            sides = []
            for side, metadata in zip((src, dst), gathered):
                modules = [side.module(rank) for rank in range(world)]
                own = [module and planner.describe_module(module, rank, n_experts or None)
                       for rank, module in enumerate(modules)]
                self.same_metadata(own, metadata, f"seed {seed}, case {case}")
                sides.append(own)
            for roster in (planner.plan_roster(*sides), planner.plan_roster(*gathered),
                           planner.plan_roster(*sides, replica="seed")):
                ours = execute([roster.for_rank(rank) for rank in range(world)], src, dst)
                for rank in range(world):
                    self.assertEqual(ours[rank], theirs[rank], f"seed {seed}, case {case}")
                    self.assertEqual(ours[rank], dst.shards(rank), f"seed {seed}, case {case}")

    def same_metadata(self, own: List[Any], theirs: List[Any], why: str) -> None:
        for ours, other in zip(own, theirs):
            self.assertEqual(len(ours or []), len(other), why)
            for a, b in zip(ours or [], other):
                for name in FIELDS:
                    self.assertEqual(getattr(a, name), getattr(b, name), f"{why}: {name}")

    def test_transfers_of_one_parameter(self) -> None:
        rng = random.Random(43)
        n_checked = 0
        for _ in range(120):
            src, dst = (self.random_side(rng, first) for first in (0, rng.choice([0, 3, 20])))
            for rank in dst.tensor_parallel_group_ranks:
                call = ("w", src, dst, rank)
                theirs = their_planner._determine_source_ranks_for_dst_param(*call)
                ours = planner._determine_source_ranks_for_dst_param(*call)
                self.assertEqual(elements(ours, src.shape, dst.shape),
                                 elements(theirs, src.shape, dst.shape), call)
                self.assertLessEqual(len(ours), len(theirs))  # runs are joined
                descriptors = planner._build_descriptors_for_param(src, dst)
                self.assertEqual([vars(d) for d in descriptors], [
                    vars(d) for d in their_planner._build_descriptors_for_param(src, dst)])
                again = planner._plan_multi_dim_lcm("w", src, dst, descriptors, rank)
                self.assertEqual(again, ours)
                n_checked += 1
        self.assertGreater(n_checked, 120)

    def random_side(self, rng: random.Random, first: int) -> Any:
        n, stride = rng.choice([1, 2, 3, 4, 6]), rng.choice([1, 1, 2, 3])
        ranks = rng.sample(range(first, first + 8), n)
        return their_utils.ParameterMetadata(
            "w", (2, 72 // n), "f32", 4, is_tp=True, partition_dim=1, partition_stride=stride,
            tensor_parallel_group_ranks=ranks, data_parallel_group_ranks=[first])

    def test_replicated(self) -> None:
        rng = random.Random(44)
        for _ in range(100):
            groups = [rng.sample(range(8), rng.randint(1, 4)) for _ in range(2)]
            if rng.random() < 0.3:
                groups[1] = list(groups[0])
            src, dst = (their_utils.ParameterMetadata(
                "w", (3, 2), "f32", 4, owner_rank=group[0], data_parallel_group_ranks=group)
                for group in groups)
            for rank in range(8):
                if rank in groups[0] and groups[0] != groups[1]:
                    continue  # it has the parameter: ferry leaves it where it is
                call = ("w", src, dst, rank)
                self.assertEqual(
                    elements(planner._finalize_dp_transfers(*call), (3, 2), (3, 2)),
                    elements(their_planner._finalize_dp_transfers(*call), (3, 2), (3, 2)), call)

    def test_names(self) -> None:
        rng = random.Random(45)
        parts = ["weight", "bias", "weight3", "bias12", "layers", "0", "1", "weight1x", "x", "10"]
        prefixes = {"layers.0": "layers.7", "layers.1": "layers.8", "layers.0.x": "y", "x": "z.z"}
        for _ in range(400):
            name = ".".join(rng.choices(parts, k=rng.randint(1, 5)))
            found = utils._detect_expert_index_from_param_name(name)
            self.assertEqual(found, their_utils._detect_expert_index_from_param_name(name), name)
            is_ep = rng.random() < 0.5 and (found is None or found < 16)
            fields: Dict[str, Any] = {"is_ep": is_ep, "num_experts": 64, "owner_rank": 5,
                                      "expert_parallel_group_ranks": [9, 5, 2, 3]}
            ours = utils.ParameterMetadata(name, (1,), "f32", 4, **fields)
            theirs = their_utils.ParameterMetadata(name, (1,), "f32", 4, **fields)
            options = {"layer_module_prefix_map": rng.choice([None, {}, prefixes]),
                       "base_name": rng.choice([None, "layers.0.w.weight2"])}
            utils.assign_resolved_name_inplace(ours, **options)
            their_utils.assign_resolved_name_inplace(theirs, **options)
            self.assertEqual((ours.resolved_name, ours.global_expert_index),
                             (theirs.resolved_name, theirs.global_expert_index), (name, options))

    def test_the_documented_choice_of_sources(self) -> None:
        sources = [utils.ParameterMetadata("w", (1,), "f32", 4, data_parallel_group_ranks=g)
                   for g in ([0], [1])]
        dst = utils.ParameterMetadata("w", (1,), "f32", 4, data_parallel_group_ranks=[5, 7])
        ours = [utils.select_src_metadata_balanced(sources, dst, r) is sources[i]
                for i, r in enumerate((5, 7))]
        self.assertEqual(ours, [True, True])
        # The package takes 5 % 2 and 7 % 2: both from the same group.
        theirs = [their_utils.select_src_metadata_balanced(sources, dst, r) for r in (5, 7)]
        self.assertIs(theirs[0], theirs[1])

    def test_what_the_package_gets_wrong_is_refused(self) -> None:
        """A parameter that is cut, but whose groups one side does not know, is not replicated."""
        cut = {"is_tp": True, "data_parallel_group_ranks": [0]}
        src = utils.ParameterMetadata("w", (4,), "f32", 4, **cut, tensor_parallel_group_ranks=[0])
        dst = utils.ParameterMetadata("w", (4,), "f32", 4, **cut)
        theirs = their_planner._determine_source_ranks_for_dst_param("w", src, dst, 0)
        self.assertEqual(len(theirs), 1)
        with self.assertRaises(ferry.InvalidPlan):
            planner.determine_source_ranks_for_dst_param("w", src, dst, 0)


if __name__ == "__main__":
    unittest.main()
