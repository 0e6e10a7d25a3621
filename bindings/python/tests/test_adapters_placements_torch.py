# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Placements as layouts, in one process: plans move exactly what torch.chunk cuts."""

import itertools
import math
import random
import unittest

try:
    import torch
except ImportError:
    torch = None

import ferry
from ferry.adapters import _placements
from ferry.adapters._placements import Holding

if torch is not None:
    from ferry.adapters.torch import Job, _jobs


def chunks(tensor, n, dim):
    """torch.chunk, with the empty ones that it leaves out."""
    parts = list(torch.chunk(tensor, n, dim))
    return parts + [parts[0].narrow(dim, 0, 0)] * (n - len(parts))


def cut(full, holding, place):
    """The local shard of the rank at this place of the mesh, cut as the placements say."""
    coordinates = []
    for size in reversed(holding.mesh):
        place, at = divmod(place, size)
        coordinates.insert(0, at)
    local = full
    for (kind, dim, split), size, at in zip(holding.placements, holding.mesh, coordinates):
        if kind == "shard":
            local = chunks(local, size, dim)[at]
        elif kind == "strided":
            pieces = [chunks(one, size, dim)[at] for one in chunks(local, split, dim)]
            local = torch.cat(pieces, dim)
    return local.clone()


def shards(full, holding):
    n = math.prod(holding.mesh)
    return {rank: cut(full, holding, at % n) for at, rank in enumerate(holding.ranks)}


def apply(job, sources, destinations):
    """What a refit does, without ferry's service: {name: {rank: tensor}} of both sides."""
    plan = ferry.plan(job.spec())
    views = []
    for side, states in enumerate((sources, destinations)):
        by_rank = {}
        for rank in job.sides[side].ranks:
            state = {name: of_rank[rank] for name, of_rank in states.items() if rank in of_rank}
            by_rank[rank] = job.shards(side, state, rank)
            for name, shard in plan.shards(("source", "destination")[side], rank).items():
                if shard.bytes:
                    assert tuple(by_rank[rank][name].shape) == shard.shape, (name, rank, shard)
        views.append(by_rank)
    for move in plan.moves():
        block = views[0][move.from_rank][move.tensor][move.src_slice]
        views[1][move.to_rank][move.tensor][move.dst_slice].copy_(block)
    return plan


MESHES = [(2,), (3,), (4,), (2, 2), (3, 2), (2, 3), (4, 2), (2, 2, 2)]


def random_holding(rng, shape, n_ranks):
    mesh = rng.choice([m for m in MESHES if math.prod(m) <= n_ranks])
    ranks = rng.sample(range(n_ranks), math.prod(mesh))
    placements = []
    for _ in mesh:
        kind = rng.choice(["replicate", "shard", "shard", "strided"])
        dim = rng.randrange(len(shape))
        split = rng.choice([2, 3, 4]) if kind == "strided" else 0
        placements.append((kind, 0 if kind == "replicate" else dim, split))
    return Holding(shape, "i64", mesh, tuple(ranks), tuple(placements))


@unittest.skipIf(torch is None, "torch is not installed")
class RandomPlacements(unittest.TestCase):
    def check(self, source, destination, label):
        full = torch.arange(math.prod(source.shape)).reshape(source.shape)
        jobs = _jobs(({"w": [source]}, {"w": [destination]}))
        self.assertEqual(len(jobs), 1, label)
        wanted = shards(full, destination)
        got = {rank: torch.full_like(one, -1) for rank, one in wanted.items()}
        apply(jobs[0], {"w": shards(full, source)}, {"w": got})
        for rank, one in wanted.items():
            self.assertTrue(torch.equal(got[rank], one), f"{label}: rank {rank}")
        return len(jobs[0].pieces)

    def test_random(self):
        n_pieces = []
        for seed in range(400):
            rng = random.Random(seed)
            shape = tuple(rng.randint(1, 13) for _ in range(rng.randint(1, 3)))
            sides = [random_holding(rng, shape, 8) for _ in range(2)]
            n_pieces.append(self.check(*sides, f"seed {seed}: {sides}"))
        self.assertGreater(n_pieces.count(1), 200)  # rules say how most are cut
        self.assertGreater(max(n_pieces), 1)  # and some have none

    def test_fsdp_over_tensor_parallelism(self):
        for extent in (8, 16, 24):
            source = Holding((extent, 3), "i64", (4, 2), tuple(range(8)),
                             (("strided", 0, 2), ("shard", 0, 0)))
            destination = Holding((extent, 3), "i64", (2, 4), (7, 6, 5, 4, 3, 2, 1, 0),
                                  (("shard", 1, 0), ("shard", 0, 0)))
            self.assertEqual(self.check(source, destination, str(extent)), 1)
            self.assertEqual(self.check(destination, source, str(extent)), 1)

    def test_all_pairs_of_shards_of_one_dimension(self):
        kinds = [("replicate", 0, 0), ("shard", 0, 0), ("strided", 0, 2), ("strided", 0, 3)]
        one = Holding((11,), "i64", (1,), (0,), (("replicate", 0, 0),))
        for first, second in itertools.product(kinds, kinds):
            two = Holding((11,), "i64", (3, 2), tuple(range(6)), (first, second))
            self.check(one, two, f"to {two.placements}")
            self.check(two, one, f"from {two.placements}")


@unittest.skipIf(torch is None, "torch is not installed")
class Jobs(unittest.TestCase):
    def plain(self, rank, shape=(4,), dtype="f32"):
        return Holding(shape, dtype, (), (rank,), ())

    def test_meshes_of_one_tensor_are_replicas(self):
        rows = (("shard", 0, 0),)
        ones = [Holding((4,), "f32", (2,), ranks, rows) for ranks in ((0, 2), (3, 1))]
        self.assertEqual(_placements.stacked("w", ones)[0].ranks, (0, 2, 3, 1))
        job, = _jobs(({"w": ones}, {"w": [self.plain(rank) for rank in range(4)]}))
        self.assertEqual(job.spec()["source"]["mesh"], [["replica", 2], ["m0", 2]])
        self.assertEqual(job.spec()["source"]["ranks"], [0, 2, 3, 1])

    def test_overlapping_meshes_are_named(self):
        rows = (("shard", 0, 0),)
        ones = [Holding((4,), "f32", (2,), ranks, rows) for ranks in ((0, 2), (2, 1))]
        with self.assertRaisesRegex(ferry.InvalidInput, 'tensor "w" lies on several meshes'):
            _jobs(({"w": ones}, {"w": [self.plain(0)]}))

    def test_what_does_not_fit_is_named(self):
        with self.assertRaises(ferry.InvalidInput) as caught:
            _jobs(({}, {"w": [self.plain(3)]}))
        self.assertEqual((caught.exception.tensor, caught.exception.ranks), ("w", (3,)))
        with self.assertRaisesRegex(ferry.InvalidInput, r'"w" is \[4\] of f32 at the source, but '
                                                        r"\[4\] of bf16"):
            _jobs(({"w": [self.plain(0)]}, {"w": [self.plain(1, dtype="bf16")]}))

    def test_a_spec_for_each_pair_of_meshes(self):
        sharded = Holding((4,), "f32", (2,), (0, 1), (("shard", 0, 0),))
        jobs = _jobs(({"a": [sharded], "b": [self.plain(0)], "c": [sharded]},
                      {name: [self.plain(2)] for name in "abc"}))
        self.assertEqual([[piece.name for piece, _, _ in job.pieces] for job in jobs],
                         [["a", "c"], ["b"]])
        self.assertIsInstance(jobs[0], Job)


class Rules(unittest.TestCase):
    def test_names_that_differ_in_numbers_share_a_rule(self):
        rows, whole = {"shard": [{"dim": 0, "axis": "m0"}]}, {}
        names = {f"layers.{i}.{part}": rows if part == "w" else whole
                 for i in range(20) for part in ("w", "norm")}
        self.assertEqual(_placements.rules_of(names),
                         [{"match": "layers.*.w", **rows}, {"match": "layers.*.norm"}])

    def test_a_pattern_that_would_catch_another_name_is_not_used(self):
        rows, whole = {"shard": [{"dim": 0, "axis": "m0"}]}, {}
        names = {"layers.0.w": rows, "layers.1.w": rows, "layers.0.mlp.w": whole}
        rules = _placements.rules_of(names)
        self.assertEqual([rule["match"] for rule in rules], list(names))

    def test_layers_that_differ_have_rules_of_their_own(self):
        names = {"layers.0.w": {}, "layers.1.w": {"shard": [{"dim": 0, "axis": "m0"}]}}
        self.assertEqual([rule["match"] for rule in _placements.rules_of(names)], list(names))


if __name__ == "__main__":
    unittest.main()
