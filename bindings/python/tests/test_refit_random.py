# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random refits against an oracle that knows elements only: which of the whole tensor a rank holds
follows from the words of the format, one index after the other, in plain Python.

FERRY_TEST_CASES is how many specs are tried (default 20). With numpy and torch the shards also lie
in their memory: transposed, with gaps, of dtypes that one of them lacks.
"""

import math
import os
import random
import unittest
from itertools import product

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

N_CASES = int(os.environ.get("FERRY_TEST_CASES", "20"))
WIDTHS = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4,
          "i16": 2, "i8": 1, "u8": 1, "bool": 1, "c64": 8, "bytes:3": 3}
FORMATS = {"f64": "d", "f32": "f", "i64": "q", "i32": "i", "i16": "h", "i8": "b", "u8": "B"}
NUMPY = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "i16": "i2", "i8": "i1",
         "u8": "u1", "bool": "?", "c64": "c8", "bytes:3": "V3"}
TORCH = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "c64": "complex64",
         "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "i64": "int64", "i32": "int32",
         "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool"}
GAP = 0xA5


# The oracle.


def segments(extent, n, unit=1):
    """Where each of n parts begins and ends, in the manner of torch.chunk."""
    each = -(-(extent // unit) // n) * unit
    return [range(min(extent, i * each), min(extent, (i + 1) * each)) for i in range(n)]


def indices(extent, entry, n, place):
    """What part number `place` of n has of a dimension, in order."""
    if "sizes" in entry:
        begin = sum(entry["sizes"][:place])
        return list(range(begin, begin + entry["sizes"][place]))
    if "cycle" in entry:
        return [i for i in range(extent) if i // entry["cycle"] % n == place]
    if "parts" in entry:
        place, n = place * entry["parts"] // n, entry["parts"]
    if "blocks" in entry:
        found, begin = [], 0
        for size in entry["blocks"]:
            found += [begin + i for i in segments(size, n)[place]]
            begin += size
        return found
    cuts = segments(extent, n * entry.get("stride", 1), entry.get("unit", 1))
    return [i for number, cut in enumerate(cuts) if number % n == place for i in cut]


def held(side, name, shape, rank):
    """The shape that a rank holds of a tensor, and the numbers of its elements in the whole one."""
    if rank not in side["ranks"]:
        return None
    sizes, at, left = dict(map(tuple, side["mesh"])), {}, side["ranks"].index(rank)
    for axis, size in reversed(side["mesh"]):
        left, at[axis] = divmod(left, size)
    rule = next(one for one in side["rules"] if one["match"] == name)
    lists = [list(range(extent)) for extent in shape]
    for entry in rule["shard"]:
        axes = [entry["axis"]] if isinstance(entry["axis"], str) else entry["axis"]
        n = place = 0
        for axis in axes:
            place, n = place * sizes[axis] + at[axis], max(n, 1) * sizes[axis]
        lists[entry["dim"]] = indices(shape[entry["dim"]], entry, n, place)
    numbers = []
    for index in product(*lists):
        number = 0
        for i, extent in zip(index, shape):
            number = number * extent + i
        numbers.append(number)
    own_shape = [len(one) for one in lists]
    if "flat" in rule:
        axis = rule["flat"]["axis"]
        cut = segments(len(numbers), sizes[axis])[at[axis]]
        numbers = [numbers[i] for i in cut]
        own_shape = [len(numbers)]
    return own_shape, numbers


def element(dtype, name, number, version):
    """Bytes of which no two neighbours, tensors or versions have the same."""
    if dtype == "bool":
        return bytes([(number * 7 + version + ord(name[-1])) % 3 % 2])
    seed = (number * 2654435761 + version * 40503 + ord(name[-1]) * 977) % (1 << 32)
    return (seed * 6364136223846793005 + 1442695040888963407).to_bytes(16, "little")[3:3 + WIDTHS[dtype]]


def values(dtype, name, numbers, version):
    return b"".join(element(dtype, name, number, version) for number in numbers)


# Specs.


def random_entry(rng, dim, extent, axes, sizes):
    axis = rng.choice(axes)
    n, entry = sizes[axis], {"dim": dim, "axis": axis}
    if len(axes) > 1 and rng.random() < 0.2:
        entry["axis"] = rng.sample(axes, 2)
        n = sizes[entry["axis"][0]] * sizes[entry["axis"][1]]
    kind = rng.choice(["chunk", "chunk", "stride", "cycle", "sizes", "parts", "blocks", "unit"])
    if kind in ("stride", "cycle"):
        entry[kind] = rng.randint(1, 3)
    elif kind == "sizes":
        ends = sorted(rng.randint(0, extent) for _ in range(n - 1))
        entry["sizes"] = [b - a for a, b in zip([0, *ends], [*ends, extent])]
    elif kind == "parts":
        entry["parts"] = rng.choice([k for k in range(1, n + 1) if n % k == 0])
    elif kind == "blocks" and extent > 1:
        first = rng.randint(1, extent - 1)
        entry["blocks"] = [first, extent - first]
    elif kind == "unit" and extent > 0:
        entry["unit"] = rng.choice([k for k in range(1, extent + 1) if extent % k == 0])
    return entry


def random_side(rng, n_ranks, shapes):
    meshes = [mesh for mesh in [(), (1,), (2,), (3,), (2, 2), (4,), (5,), (2, 3), (3, 2), (6,),
                                (1, 2, 3), (2, 1, 2)] if math.prod(mesh) <= n_ranks]
    mesh = [["a%d" % i, size] for i, size in enumerate(rng.choice(meshes))]
    sizes, rules = dict(map(tuple, mesh)), []
    for name, (shape, _) in shapes.items():
        free, shard = list(sizes), []
        for dim in rng.sample(range(len(shape)), rng.randint(0, min(2, len(shape)))):
            if free:
                entry = random_entry(rng, dim, shape[dim], free, sizes)
                shard.append(entry)
                used = [entry["axis"]] if isinstance(entry["axis"], str) else entry["axis"]
                free = [axis for axis in free if axis not in used]
        rule = {"match": name, "shard": shard}
        if free and shape and rng.random() < 0.2:
            rule["flat"] = {"axis": rng.choice(free)}
        rules.append(rule)
    n = math.prod(sizes.values())
    return {"mesh": mesh, "ranks": rng.sample(range(n_ranks), n), "rules": rules}


def random_spec(rng, n_ranks):
    shapes = {"t0": ([rng.randint(1, 40)], rng.choice(list(WIDTHS)))}
    for i in range(1, rng.randint(2, 6)):
        dims = [rng.choice([0, 1, 2, 3, 5, 7, 8, 12]) for _ in range(rng.randint(0, 4))]
        shapes["t%d" % i] = (dims, rng.choice(list(WIDTHS)))
    sides = [random_side(rng, n_ranks, shapes) for _ in range(2)]
    return shapes, {
        "format": "ferry.spec/1", "source": sides[0], "destination": sides[1],
        "tensors": [{"name": name, "shape": shape, "dtype": dtype}
                    for name, (shape, dtype) in shapes.items()]}


# Memory.


class Held:
    """A shard in memory of some kind: `given` is what the package gets, `read` and `write` are the
    bytes of its elements in order, and what lies between them must stay as it is."""

    def __init__(self, rng, shape, dtype):
        self.width, self.shape = WIDTHS[dtype], shape
        order, wide = list(range(len(shape))), list(shape)
        kinds = ["row"]
        if dtype in FORMATS and shape and 0 not in shape:
            kinds.append("view")
        if np is not None:
            kinds += ["numpy"] * 3 * (dtype in NUMPY) + ["torch"] * 3 * (
                torch is not None and dtype in TORCH)
        kind = rng.choice(kinds)
        if kind in ("numpy", "torch"):
            rng.shuffle(order)
            wide = [extent + rng.choice([0, 0, 1, 2]) for extent in shape]
        strides, step = [0] * len(shape), 1
        for dim in reversed(order):
            strides[dim], step = step, step * max(wide[dim], 1)
        self.memory = bytearray([GAP if dtype != "bool" else 1]) * (step * self.width)
        self.before = bytes(self.memory)
        self.places = [sum(i * stride for i, stride in zip(index, strides)) * self.width
                       for index in product(*map(range, shape))]
        self.given = self.make(kind, dtype, strides)

    def make(self, kind, dtype, strides):
        row = memoryview(self.memory)[:len(self.places) * self.width]
        if kind == "row":
            return row
        if kind == "view":
            return row.cast(FORMATS[dtype], self.shape)
        flat = np.frombuffer(self.memory, np.uint8)
        if kind == "numpy":
            return np.lib.stride_tricks.as_strided(
                flat.view(NUMPY[dtype]), self.shape, [one * self.width for one in strides])
        return torch.from_numpy(flat).view(getattr(torch, TORCH[dtype])).as_strided(
            self.shape, strides)

    def write(self, data):
        for number, place in enumerate(self.places):
            self.memory[place:place + self.width] = data[number * self.width:][:self.width]

    def read(self):
        return b"".join(self.memory[place:place + self.width] for place in self.places)

    def gaps_are_whole(self):
        copy, own = bytearray(self.memory), self.width
        for place in self.places:
            copy[place:place + own] = self.before[place:place + own]
        return copy == self.before


def one_case(rank, n_ranks, seed):
    rng, own = random.Random(seed), random.Random(seed * 1009 + rank)
    shapes, spec = random_spec(rng, n_ranks)
    options = rng.choice([{}, {"checksum": "end"}, {"paths": "staged"}, {"relays": False},
                          {"slot_bytes": 4096, "checksum": "path"}])
    sides, numbers = [], {}
    for at, side in enumerate(("source", "destination")):
        sides.append({})
        for name, (shape, dtype) in shapes.items():
            found = held(spec[side], name, shape, rank)
            if found is not None:
                sides[at][name] = Held(own, found[0], dtype)
                numbers[at, name] = found[1]
    wrong, n_bytes = [], 0
    given = [{name: one.given for name, one in side.items()} for side in sides]
    with ferry.Refit(*given, spec, **options) as planned:
        for version in (1, 2):
            for name, one in sides[0].items():
                one.write(values(shapes[name][1], name, numbers[0, name], version))
            planned.run()
            for at, side in enumerate(sides):
                for name, one in side.items():
                    wanted = values(shapes[name][1], name, numbers[at, name], version)
                    n_bytes += len(wanted)
                    if one.read() != wanted or not one.gaps_are_whole():
                        wrong.append((seed, version, at, name))
    return wrong, n_bytes


def cases(rank, n_ranks, seeds):
    wrong, n_bytes = [], 0
    for seed in seeds:
        found, n = one_case(rank, n_ranks, seed)
        wrong += found
        n_bytes += n
    return wrong, n_bytes


class Random(unittest.TestCase):
    def test_refits(self):
        """Most on four ranks; where many are tried, on one to six."""
        sizes = (4,) if N_CASES <= 20 else (1, 2, 3, 4, 5, 6)
        each = -(-N_CASES // len(sizes))
        for n in sizes:
            seeds = list(range(n * 100000, n * 100000 + each))
            for wrong, n_bytes in run_ranks(cases, n, seeds, timeout=900):
                self.assertEqual(wrong, [])
                self.assertGreater(n_bytes, 0)


if __name__ == "__main__":
    unittest.main()
