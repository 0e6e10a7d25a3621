# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""DTensor state dicts between random meshes: held against torch's own full_tensor()."""

import math
import random
import unittest

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard
except ImportError:
    torch = None

import ferry
from support import run_ranks

if torch is not None:
    from ferry.adapters import torch as adapter


def together(rank, size, names):
    """Starting torch takes long: one start of the ranks for all of these functions."""
    dist.init_process_group("gloo")
    torch.manual_seed(size)
    found = {name: globals()[name](rank, size) for name in names}
    dist.barrier()
    dist.destroy_process_group()
    return found


def mesh_of(ranks, *shape):
    return DeviceMesh("cpu", torch.tensor(ranks).reshape(shape))


def random_mesh(rng, size):
    shape = rng.choice([s for s in [(1,), (2,), (3,), (4,), (2, 2), (1, 2), (2, 1)]
                        if math.prod(s) <= size])
    ranks = sorted(rng.sample(range(size), math.prod(shape)))
    if len(shape) == 2 and rng.random() < 0.5:  # the first dimension runs fastest
        return DeviceMesh("cpu", torch.tensor(ranks).reshape(shape[::-1]).t().contiguous())
    return mesh_of(ranks, *shape)


def random_placements(rng, mesh, n_dims):
    found = []
    for _ in range(mesh.ndim):
        dim = rng.randrange(n_dims)
        found.append(rng.choice([Replicate(), Shard(dim), Shard(dim), Shard(-1)]))
    return found


def sharded(full, mesh, placements, rank):
    """What a DTensor of these values is on this rank; None where it is not on the mesh."""
    tensor = distribute_tensor(full.clone(), mesh, placements, src_data_rank=None)
    return tensor if mesh.get_coordinate() is not None else None


def random_refits(rank, size):
    wrong = []
    for seed in range(100 * size, 100 * size + 8):
        rng = random.Random(seed)
        values = random.Random(seed + 1000)
        source, destination, wanted = {}, {}, {}
        meshes = [random_mesh(rng, size) for _ in range(2)]
        for at in range(4):
            shape = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))]
            full = torch.tensor([values.uniform(-9, 9) for _ in range(math.prod(shape))])
            dtype = rng.choice([torch.float32, torch.bfloat16, torch.float64])
            full = full.reshape(shape).to(dtype)
            if at == 3:  # on meshes of its own
                meshes = [random_mesh(rng, size) for _ in range(2)]
            old = sharded(full, meshes[0], random_placements(rng, meshes[0], len(shape)), rank)
            new = sharded(torch.full_like(full, -77), meshes[1],
                          random_placements(rng, meshes[1], len(shape)), rank)
            wanted["w.%d" % at] = full
            if old is not None:
                source["w.%d" % at] = old
            if new is not None:
                destination["w.%d" % at] = new
        adapter.refit(source or None, destination or None)
        for name, tensor in destination.items():
            if not torch.equal(tensor.full_tensor(), wanted[name]):
                wrong.append((seed, name))
            tensor.to_local().fill_(-77)
        refit_in_boxes(source, destination, wanted, rank)
        for name, tensor in destination.items():
            if not torch.equal(tensor.full_tensor(), wanted[name]):
                wrong.append((seed, name, "in boxes"))
    return wrong


def refit_in_boxes(source, destination, wanted, rank):
    """Each rank says what it has, and knows nothing of meshes."""
    base = {"format": "ferry.spec/1", "tensors": [
        {"name": name, "shape": one.shape, "dtype": one.dtype} for name, one in wanted.items()]}
    sides = [adapter.side_of(one, rank) if one else None for one in (source, destination)]
    spec = ferry.Spec.exchange(base, source=sides[0], destination=sides[1])
    ferry.refit(adapter.memory_of(source), adapter.memory_of(destination), spec)


def strided_refits(rank, size):
    """What FSDP over tensor parallelism makes, even and uneven, to and from plain shards."""
    wrong = []
    two, one = mesh_of([0, 2, 1, 3], 2, 2), mesh_of(range(4), 4)
    for rows in (8, 16, 5, 7, 12):
        full = torch.arange(rows * 3.0).reshape(rows, 3)
        for placements in ([_StridedShard(0, split_factor=2), Shard(0)],
                           [_StridedShard(0, split_factor=3), Replicate()],
                           [Shard(1), _StridedShard(0, split_factor=2)]):
            local = full
            for at, placement in zip(two.get_coordinate(), placements):
                if isinstance(placement, Replicate):
                    continue
                local = placement._split_tensor(local, 2, with_padding=False)[0][at]
            def strided(values):
                return DTensor.from_local(values, two, placements, run_check=False,
                                          shape=full.shape, stride=full.stride())
            plain = distribute_tensor(torch.zeros_like(full), one, [Shard(0)])
            adapter.refit({"w": strided(local.clone())}, {"w": plain})
            if not torch.equal(plain.full_tensor(), full):
                wrong.append((rows, placements, "from"))
            back = torch.full_like(local, -1)
            adapter.refit({"w": plain}, {"w": strided(back)})
            if not torch.equal(back, local):
                wrong.append((rows, placements, "to"))
    return [str(one) for one in wrong]


def several_meshes(rank, size):
    """A norm on the ranks of its own data-parallel group, a plain tensor on some ranks, a parameter
    that is a view: all in one state dict."""
    mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2), mesh_dim_names=("dp", "tp"))
    serving = mesh_of([2, 3], 2)
    norm, weight = torch.randn(10), torch.randn(6, 8)
    # Different values on every rank, so that the same on all ranks come from the source.
    source = {
        "norm": distribute_tensor(norm, mesh["dp"], [Shard(0)], src_data_rank=None),
        "weight": distribute_tensor(weight, mesh, [Shard(0), Shard(1)], src_data_rank=None),
        "step": 12,
    }
    if rank == 1:
        source["plain"] = torch.arange(5)
    destination = {"norm": torch.nn.Parameter(torch.zeros(20)[::2]),
                   "plain": torch.zeros(5, dtype=torch.int64)}
    if rank >= 2:
        new = sharded(torch.zeros_like(weight), serving, [Shard(1)], rank)
        destination["weight"] = new
    else:
        sharded(torch.zeros_like(weight), serving, [Shard(1)], rank)
    with adapter.prepare(source, destination) as planned:
        for scale in (1, 2):
            for tensor in (source["norm"], source["weight"]):
                tensor.to_local().fill_(0).add_(scale)
            result = planned.run()
    checks = [torch.equal(destination["norm"].detach(), torch.full((10,), 2.0)),
              torch.equal(destination["plain"], torch.arange(5)),
              rank < 2 or torch.equal(destination["weight"].full_tensor(), torch.full((6, 8), 2.0)),
              result.version == 2, len(planned.plans) == 3]
    return checks


def other_orders(rank, size):
    """Meshes that list their ranks in another order than torch's collectives take them."""
    full = torch.arange(96.0).reshape(8, 12)
    found = []
    for ranks, shape in (([3, 1, 0, 2], (4,)), ([2, 3, 0, 1], (2, 2)), ([3, 2, 1, 0], (2, 2))):
        mesh = mesh_of(ranks, *shape)
        placements = [Shard(0), Shard(1)][:mesh.ndim]
        there = distribute_tensor(full, mesh, placements)
        new = torch.zeros_like(full)
        adapter.refit({"w": there}, {"w": new})
        back = distribute_tensor(torch.zeros_like(full), mesh, placements)
        adapter.refit({"w": new}, {"w": back})
        found.append(torch.equal(there.full_tensor(), full) and torch.equal(new, full)
                     and torch.equal(back.full_tensor(), full))
    uneven = distribute_tensor(torch.ones(5), mesh_of([1, 0, 2, 3], 4), [Shard(0)])
    twisted = distribute_tensor(torch.ones(4, 4), mesh_of([0, 3, 2, 1], 2, 2), [Shard(0), Shard(1)])
    for tensor in (uneven, twisted):
        try:
            adapter.layout_of(tensor)
        except ferry.Unsupported as error:
            found.append("list ranks in ascending order" in str(error))
    return found


def refused(rank, size):
    """The sentence of each bad input on this rank, and that the world still works."""
    mesh = mesh_of(range(size), size)
    rows = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    partial = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()], run_check=False)
    cases = [
        ({"w": partial} if rank == 1 else {"w": rows}, {"w": rows}),
        ({"v": rows}, {"w": rows}),
        ({"w": rows}, {"w": torch.zeros(4, 4 + rank)}),
        ({"w": rows.double()}, {"w": rows}),
        ({"w": rows} if rank == 0 else None, {"w": rows}),
    ]
    found = []
    for source, destination in cases:
        try:
            adapter.refit(source, destination)
            found.append("nothing was said")
        except ferry.Error as error:
            found.append((type(error).__name__, str(error), error.tensor))
    new = torch.zeros(4, 4)
    adapter.refit({"w": rows}, {"w": new})
    found.append(bool(torch.equal(new, torch.ones(4, 4))))
    return found


def tied(rank, size):
    """A head that is the embedding: of plain tensors, and of DTensors, of which a rank may have
    nothing. Then which sentences tell of two that are not one at the source, and of modules."""
    mesh = mesh_of(range(size), size)
    found = []
    for rows in (6, 1):  # of one row only the first rank has something
        full = torch.arange(rows * 4.0).reshape(rows, 4) + 1
        plain, cut = full.clone(), distribute_tensor(full, mesh, [Shard(0)])
        for old, new in ((plain, torch.zeros_like(full)),
                         (plain, distribute_tensor(torch.zeros_like(full), mesh, [Shard(0)])),
                         (cut, torch.zeros_like(full)),
                         (cut, distribute_tensor(torch.zeros_like(full), mesh, [Shard(1)]))):
            for source in ({"embed": old, "head": old}, {"embed": old}, {"head": old}):
                adapter.refit(source, {"embed": new, "head": new})
                whole = new.full_tensor() if hasattr(new, "full_tensor") else new
                found.append(bool(torch.equal(whole, full)))
                (new.to_local() if hasattr(new, "to_local") else new).zero_()
    # One tensor on rank 0 alone: rank 1 has two, and both are written.
    other = torch.zeros(6, 4) if rank else new_of(6)
    own = {"embed": other, "head": torch.zeros(6, 4) if rank else other}
    both = new_of(6)
    adapter.refit({"embed": both, "head": both}, own)
    found.append(bool(torch.equal(own["embed"], both) and torch.equal(own["head"], both)))
    said = []
    for source in ({"embed": torch.ones(6, 4), "head": torch.ones(6, 4)}, torch.nn.Linear(2, 2)):
        new = torch.zeros(6, 4)
        try:
            adapter.refit(source, {"embed": new, "head": new})
        except ferry.InvalidInput as error:
            said.append(str(error))
    return found, said


def turned_ties(rank, size):
    """Ranks 0 and 1 have one tensor for two names, which they list in another order; rank 2 has two
    tensors; rank 3 sends one for both."""
    one = torch.zeros(4)
    source = {"a": torch.ones(4)} if rank == 3 else None
    if source is not None:
        source["b"] = source["a"]
    two = {"a": torch.zeros(4), "b": torch.zeros(4)}
    target = [{"a": one, "b": one}, {"b": one, "a": one}, two, None][rank]
    adapter.refit(source, target)
    return [float(tensor.sum()) for tensor in (target or {}).values()]


def new_of(rows):
    return torch.arange(rows * 4.0).reshape(rows, 4) - 5


def specs(rank, size):
    mesh = mesh_of([0, 1], 2)
    rows = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
    spec = adapter.spec_of({"w": rows}, {"w": torch.zeros(4, 6)})
    plan = ferry.plan(spec)
    found = [adapter.layout_of(rows), sorted(plan.traffic().items())]
    return found


TWO = ("random_refits", "refused", "specs", "tied")
FOUR = ("random_refits", "strided_refits", "other_orders", "several_meshes", "turned_ties")


@unittest.skipIf(torch is None, "torch is not installed")
class TwoRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = run_ranks(together, 2, TWO)

    def test_random_placements(self):
        for found in self.found:
            self.assertEqual(found["random_refits"], [])

    def test_every_rank_says_what_is_wrong(self):
        first, second = [found["refused"] for found in self.found]
        kinds = [[said[0] for said in one[:-1]] for one in (first, second)]
        expected = ["Unsupported"] + ["InvalidInput"] * 4
        self.assertEqual(kinds, [expected, expected])
        self.assertEqual([one[-1] for one in (first, second)], [True, True])
        for said in first[:-1]:
            self.assertEqual(said[2], "w", said)
        self.assertIn("redistribute() it", second[0][1])
        self.assertIn("rank 1 says:", first[0][1])
        self.assertIn("no rank has it as a source", first[1][1])
        self.assertIn("[4, 4] of f32 on rank 0, but [4, 5] of f32 on rank 1", first[2][1])
        self.assertIn("of f64 at the source", first[3][1])
        self.assertIn("cast the source's first", first[3][1])
        self.assertIn('source tensor "w" on rank 1 is missing', second[4][1])

    def test_tied_tensors(self):
        for found, said in (one["tied"] for one in self.found):
            self.assertEqual(found, [True] * 25)
            self.assertIn('tied: the destination\'s "embed" and "head" are one tensor, and two on', said[0])
            self.assertIn("a state dict is of type Linear", said[1])

    def test_layout_and_spec(self):
        for found in self.found:
            layout, traffic = found["specs"]
            self.assertEqual(layout, {
                "mesh": [["m0", 2]], "ranks": [0, 1],
                "rules": [{"match": "*", "shard": [{"dim": 0, "axis": "m0"}]}]})
            # Each rank keeps its rows and sends them to the other.
            self.assertEqual(traffic, [((0, 0), 48), ((0, 1), 48), ((1, 0), 48), ((1, 1), 48)])


@unittest.skipIf(torch is None, "torch is not installed")
class FourRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = run_ranks(together, 4, FOUR)

    def test_random_placements(self):
        for found in self.found:
            self.assertEqual(found["random_refits"], [])

    def test_strided_shards(self):
        for found in self.found:
            self.assertEqual(found["strided_refits"], [])

    def test_meshes_in_other_orders_mean_what_full_tensor_says(self):
        for found in self.found:
            self.assertEqual(found["other_orders"], [True] * 5)

    def test_ties_in_another_order_on_each_rank(self):
        self.assertEqual([found["turned_ties"] for found in self.found], [[4.0, 4.0]] * 3 + [[]])

    def test_several_meshes_and_repeated_runs(self):
        for found in self.found:
            self.assertEqual(found["several_meshes"], [True] * 5)


if __name__ == "__main__":
    unittest.main()
