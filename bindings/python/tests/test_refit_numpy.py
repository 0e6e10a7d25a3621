# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Refits of numpy and torch tensors of any strides, on random layouts, against shards cut here."""

import math
import random
import unittest

try:
    import numpy as np
except ImportError:
    np = None
try:
    import torch
except ImportError:
    torch = None

import ferry
from support import run_ranks

DTYPES = {"f32": "float32", "f64": "float64", "i64": "int64", "u8": "uint8", "i16": "int16"}


def random_side(rng, n_ranks, shapes):
    sizes = rng.choice([s for s in [(1,), (2,), (3,), (2, 2), (4,)] if math.prod(s) <= n_ranks])
    mesh = [["a%d" % at, size] for at, size in enumerate(sizes)]
    rules = []
    for name, shape in shapes.items():
        axes = list(range(len(sizes)))
        rng.shuffle(axes)
        dims = rng.sample(range(len(shape)), min(len(axes), len(shape), rng.randint(0, 2)))
        shard = []
        for dim, axis in zip(dims, axes):
            entry = {"dim": dim, "axis": "a%d" % axis}
            kind = rng.choice(["chunk", "stride", "cycle"])
            if kind != "chunk":
                entry[kind] = rng.randint(1, 3)
            shard.append(entry)
        rule = {"match": name, "shard": shard}
        left = [axis for axis in axes if axis not in [axes[i] for i in range(len(dims))]]
        if left and rng.random() < 0.3:
            rule["flat"] = {"axis": "a%d" % left[0]}
        rules.append(rule)
    return {"mesh": mesh, "ranks": rng.sample(range(n_ranks), math.prod(sizes)), "rules": rules}


def held(extent, parts, part, entry):
    """Global indices of a part."""
    if "cycle" in entry:
        return [i for i in range(extent) if i // entry["cycle"] % parts == part]
    n = parts * entry.get("stride", 1)
    length = -(-extent // n)
    return [i for i in range(extent) if i // length % parts == part]


def cut(full, side, name, rank):
    """The shard of the rank by the words of the format, or None."""
    if rank not in side["ranks"]:
        return None
    place, at = side["ranks"].index(rank), {}
    for axis, size in reversed(side["mesh"]):
        place, at[axis] = divmod(place, size)
    sizes = dict(map(tuple, side["mesh"]))
    rule = next(rule for rule in side["rules"] if rule["match"] == name)
    for entry in rule["shard"]:
        index = held(full.shape[entry["dim"]], sizes[entry["axis"]], at[entry["axis"]], entry)
        full = np.take(full, index, entry["dim"])
    if "flat" in rule:
        axis = rule["flat"]["axis"]
        row, n = full.reshape(-1), -(-full.size // sizes[axis])
        full = row[at[axis] * n:(at[axis] + 1) * n]
    return full


def strided(rng, values):
    """The same values in memory of other strides, as numpy or as torch."""
    if rng.random() < 0.3:
        holder = values.copy()
    elif values.ndim == 1:
        holder = np.zeros(3 * len(values), values.dtype)[1::rng.randint(1, 3)][:len(values)]
        holder[...] = values
    else:
        order = list(range(values.ndim))
        rng.shuffle(order)
        holder = np.zeros([n + rng.randint(0, 1) for n in np.transpose(values, order).shape],
                          values.dtype)
        inner = holder[tuple(slice(0, values.shape[dim]) for dim in order)]
        inner = np.transpose(inner, np.argsort(order))
        inner[...] = values
        holder = inner
    if torch is not None and rng.random() < 0.5:
        return torch.from_numpy(holder)
    return holder


def random_refits(rank, n_ranks, seeds):
    wrong = []
    for seed in seeds:
        rng, own = random.Random(seed), random.Random(seed * 100 + rank)
        shapes = {"t%d" % i: [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
                  for i in range(4)}
        dtype = {name: rng.choice(list(DTYPES)) for name in shapes}
        sides = [random_side(rng, n_ranks, shapes) for _ in range(2)]
        spec = {"format": "ferry.spec/1", "source": sides[0], "destination": sides[1], "tensors": [
            {"name": name, "shape": shape, "dtype": dtype[name]} for name, shape in shapes.items()]}
        old, new, wanted = {}, {}, {}
        for at, (name, shape) in enumerate(shapes.items()):
            full = (np.arange(math.prod(shape)) * 7 + at).reshape(shape).astype(DTYPES[dtype[name]])
            mine = [cut(full, side, name, rank) for side in sides]
            if mine[0] is not None:
                old[name] = strided(own, mine[0])
            if mine[1] is not None:
                wanted[name] = mine[1]
                new[name] = strided(own, np.zeros_like(mine[1]))
        with ferry.Refit(old, new, spec) as planned:
            planned.run()
        for name, one in wanted.items():
            if not np.array_equal(np.asarray(new[name]), one):
                wrong.append((seed, name))
    return wrong


def flat_parts(rank, n_ranks, spec):
    """Each rank has its part of the row in every second element of its memory, or every third."""
    memory = np.full(40, -1, np.float32)
    new = memory[2::2 + rank % 2][:5 if rank < 4 else 4]
    old = {"w": np.arange(24, dtype=np.float32).reshape(4, 6)} if rank == 0 else None
    with ferry.Refit(old, {"w": new}, spec) as planned:
        planned.run()
    assert (memory == -1).sum() == len(memory) - len(new), memory
    return new.astype(int).tolist()


def whole(name="w", shape=(4, 6), dtype="bf16", flat=False):
    cut_flat = {"flat": {"axis": "a"}} if flat else {}
    side = {"mesh": [["a", 1]], "rules": [{"match": "*", **cut_flat}]}
    return {"format": "ferry.spec/1", "source": side, "destination": side,
            "tensors": [{"name": name, "shape": list(shape), "dtype": dtype}]}


@unittest.skipIf(np is None, "numpy is not installed")
class Strides(unittest.TestCase):
    def test_random_layouts_and_strides(self):
        for wrong in run_ranks(random_refits, 4, list(range(60))):
            self.assertEqual(wrong, [])

    def test_the_cuts_of_this_file_are_those_of_the_plan(self):
        """The oracle's shapes, so that a mistake in it does not pass as one of the package."""
        for seed in range(30):
            rng = random.Random(seed)
            shapes = {"t": [rng.randint(1, 9) for _ in range(3)]}
            side = random_side(rng, 4, shapes)
            spec = dict(whole(shape=shapes["t"], name="t", dtype="i64"), source=side,
                        destination=side)
            plan = ferry.plan(spec)
            for rank in side["ranks"]:
                shard = plan.shards("destination", rank)["t"]
                mine = cut(np.zeros(shapes["t"], np.int64), side, "t", rank)
                self.assertEqual(shard.shape, mine.shape, (seed, side, rank))

    def test_a_transposed_parameter_needs_no_copy(self):
        old = np.arange(24, dtype=np.float32).reshape(6, 4).T
        new = np.zeros((8, 12), np.float32)[::2, ::2]
        with ferry.Refit({"w": old}, {"w": new}, whole(dtype="f32")) as planned:
            planned.run()
            self.assertTrue(np.array_equal(new, old))
            old += 1
            planned.run()
        self.assertTrue(np.array_equal(new, old))

    def test_a_flat_shard_is_a_row_in_any_stride(self):
        spec = whole(dtype="f32")
        spec["destination"] = {"mesh": [["a", 5]], "rules": [{"match": "*", "flat": {"axis": "a"}}]}
        rows = run_ranks(flat_parts, 5, spec)
        self.assertEqual(sum(rows, []), list(range(24)))


@unittest.skipIf(np is None, "numpy is not installed")
class Dtypes(unittest.TestCase):
    def test_bytes_stand_for_any_dtype(self):
        """numpy has no bf16: one row of as many bytes is taken."""
        old = np.arange(24, dtype=np.uint16)
        new = np.zeros(24, np.uint16)
        ferry.refit({"w": old.view(np.uint8)}, {"w": new.view(np.uint8)}, whole())
        self.assertTrue(np.array_equal(new, old))

    def test_bytes_beside_a_tensor_that_is_not_contiguous(self):
        spec = whole(dtype="i16")
        spec["tensors"].append({"name": "v", "shape": [2, 2], "dtype": "i16"})
        old = {"w": np.arange(24, dtype=np.int16), "v": np.arange(4, dtype=np.int16).reshape(2, 2)}
        for make in (lambda one: one.view(np.uint8), lambda one: memoryview(one).cast("B")):
            new = {"w": np.zeros(24, np.int16), "v": np.zeros((2, 4), np.int16)[:, ::2]}
            ferry.refit({**old, "w": make(old["w"])}, {**new, "w": make(new["w"])}, spec)
            for name, one in new.items():
                self.assertTrue(np.array_equal(one, old[name]), name)

    def test_another_dtype_of_the_same_size_is_refused(self):
        old, new = np.zeros((4, 6), np.uint16), np.zeros((4, 6), np.float16)
        for dtype, tensor in (("u16", old), ("f16", new)):
            sentence = f"is of {dtype}.*of bf16.*one row of 48 u8"
            with self.assertRaisesRegex(ferry.InvalidInput, sentence):
                ferry.refit({"w": tensor}, {"w": tensor}, whole())

    def test_shapes(self):
        for shape in ((6, 4), (24,), (4, 6, 1)):
            old = np.zeros(shape, np.float32)
            with self.assertRaisesRegex(ferry.InvalidInput, r"has the shape \[.*\[4, 6\] of f32"):
                ferry.refit({"w": old}, {"w": old}, whole(dtype="f32"))
            new = np.ones(shape, np.float32)  # but of a flat shard the count is all
            ferry.refit({"w": old}, {"w": new}, whole(dtype="f32", flat=True))
            self.assertFalse(new.any())

    def test_casts_on_the_way(self):
        """Each end has its own dtype; strides that would need boxes are refused."""
        spec = whole(dtype="f32")
        spec["destination"] = {"mesh": [["a", 1]], "rules": [
            {"match": "*", "dtype": "f16", "cast": "round", "scale": 2, "add": 1}]}
        old, new = np.arange(24, dtype=np.float32).reshape(4, 6), np.zeros((4, 6), np.float16)
        with ferry.Refit({"w": old}, {"w": new}, spec) as planned:
            for _ in range(2):
                planned.run()
                self.assertTrue(np.array_equal(new, old * 2 + 1))
                old += 3
        with self.assertRaisesRegex(ferry.InvalidInput, "is of f32.*expects.* of f16"):
            ferry.refit({"w": old}, {"w": old}, spec)
        with self.assertRaisesRegex(ferry.Unsupported, '"w" is converted.*contiguous'):
            ferry.refit({"w": old.T.copy().T}, {"w": new}, spec)

    def test_a_scalar(self):
        new = np.zeros((), np.float64)
        ferry.refit({"w": np.array(2.5)}, {"w": new}, whole(shape=(), dtype="f64"))
        self.assertEqual(new, 2.5)


@unittest.skipIf(np is None, "numpy is not installed")
class Swap(unittest.TestCase):
    def test_pairs(self):
        front, back, old = np.zeros(4, "f"), np.zeros(4, "f"), np.ones(4, "f")
        with ferry.Refit({"w": old}, {"w": (front, back)}, whole(shape=(4,), dtype="f32"),
                         commit="swap") as planned:
            planned.run()
            old[:] = 2
            planned.run()
            self.assertEqual(planned.service.destinations()[0].version, 2)
        self.assertEqual([list(front), list(back)], [[2] * 4, [1] * 4])

    def test_pairs_need_rows(self):
        pair = tuple(np.zeros((2, 4), "f")[:, ::2] for _ in range(2))
        with self.assertRaisesRegex(ferry.Unsupported, "is a pair to swap"):
            ferry.refit({"w": np.ones((2, 2), "f")}, {"w": pair}, whole(shape=(2, 2), dtype="f32"),
                        commit="swap")


@unittest.skipIf(np is None, "numpy is not installed")
class WithoutDims(unittest.TestCase):
    def test_a_scale_beside_strided_tensors(self):
        """As a source it is read at each run, as a destination it is written."""
        made = whole("w", (6, 4), "f32")
        made["tensors"].append({"name": "scale", "shape": [], "dtype": "f32"})
        scale, out = np.array(1, "f4"), np.zeros((), "f4")
        with ferry.Refit({"scale": scale, "w": np.zeros((4, 6), "f4").T},
                         {"scale": out, "w": np.zeros((6, 4), "f4")}, made) as planned:
            for value in (1, 2, 3):
                scale[...] = value
                planned.run()
                self.assertEqual(out, value)

    def test_dtypes_that_are_none_of_ferrys(self):
        for given, planned in ((">f4", "f32"), ("datetime64[ns]", "f64"), ("<U1", "f32"),
                               ("complex128", "c64"), ("S4", "f32"), ("V4", "i32")):
            width = np.dtype(given).itemsize
            n = 4 * width // {"f32": 4, "f64": 8, "c64": 8, "i32": 4}[planned]
            odd = np.zeros(4, given)
            plain = np.zeros(n, {"f32": "f4", "f64": "f8", "c64": "c8", "i32": "i4"}[planned])
            for sides in ((odd, plain), (plain, odd)):
                with self.subTest(given, source=sides[0] is odd):
                    with self.assertRaises(ferry.InvalidInput):
                        ferry.refit({"w": sides[0]}, {"w": sides[1]}, whole("w", (n,), planned))
                    with ferry.RemoteCopyService() as service:
                        service.init("OFF")
                        service.register_send(1, sides[0], 0, None, 0, name="w")
                        service.register_receive(1, sides[1], 0, None, 0, name="w")
                        with self.assertRaisesRegex(ferry.InvalidInput, '"w".* of dtype'):
                            service.schedule()
            same = np.frombuffer(bytes(range(1, 4 * width + 1)), "u1").view(given)
            target = np.zeros(4, given)
            ferry.refit({"w": same}, {"w": target}, whole("w", (4,), "bytes:%d" % width))
            self.assertEqual(target.tobytes(), same.tobytes())


if __name__ == "__main__":
    unittest.main()
