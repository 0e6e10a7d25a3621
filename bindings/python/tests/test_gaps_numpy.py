# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Sources in boxes that lack parts of a tensor, and ranks that want parts of it: a plan is made where
somebody has each element that is wanted, and moves that, and no other plan is."""

import math
import random
import re
import unittest

import ferry

try:
    import numpy as np
except ImportError:
    np = None


def cut(rng, begin, shape, depth):
    """Boxes that tile another one."""
    if depth == 0 or max(shape) == 1:
        return [(begin, shape)]
    dim = rng.choice([d for d, extent in enumerate(shape) if extent > 1])
    at = rng.randint(1, shape[dim] - 1)
    low, high = list(shape), list(shape)
    low[dim], high[dim] = at, shape[dim] - at
    behind = list(begin)
    behind[dim] += at
    return cut(rng, begin, low, depth - 1) + cut(rng, behind, high, depth - 1)


def part_of(rng, begin, shape):
    first = [rng.randint(0, extent - 1) for extent in shape]
    return ([b + f for b, f in zip(begin, first)],
            [rng.randint(1, extent - f) for extent, f in zip(shape, first)])


def region(box):
    return tuple(slice(b, b + n) for b, n in zip(*box))


class Case:
    """A tensor, what ranks have of it, and what they want."""

    def __init__(self, seed):
        rng = random.Random(seed)
        n_dims = rng.randint(1, 3)
        self.shape = [rng.randint(2, 8) for _ in range(n_dims)]
        tiles = cut(rng, [0] * n_dims, self.shape, rng.randint(1, 4))
        held = [box for box in tiles if rng.random() < 0.6] or tiles[:1]
        wanted = []
        for _ in range(rng.randint(1, 3)):
            whole = rng.choice(held) if rng.random() < 0.8 else ([0] * n_dims, self.shape)
            wanted.append(whole if rng.random() < 0.3 else part_of(rng, *whole))
        n_ranks = rng.randint(1, 3)
        self.sides = [[(rng.randrange(n_ranks), f"{name}{i}", box) for i, box in enumerate(boxes)]
                      for name, boxes in (("s", held), ("d", wanted))]
        self.had = np.zeros(self.shape, bool)
        for box in held:
            self.had[region(box)] = True
        self.lacks = np.zeros(self.shape, bool)
        for box in wanted:
            self.lacks[region(box)] |= ~self.had[region(box)]

    def spec(self):
        def side(said):
            return {"boxes": [{"rank": rank, "parameter": name, "elements": math.prod(shape), "holds": [
                {"tensor": "w", "begin": begin, "shape": shape, "offset": 0,
                 "strides": [math.prod(shape[d + 1:]) for d in range(len(shape))]}]}
                for rank, name, (begin, shape) in said]}
        return {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": self.shape, "dtype": "i32"}],
                "source": side(self.sides[0]), "destination": side(self.sides[1])}

    def moved(self, plan):
        """The parameters of the destination as the plan's moves leave them."""
        whole = np.arange(1, 1 + math.prod(self.shape)).reshape(self.shape)
        source = {(rank, name): whole[region(box)].reshape(-1) for rank, name, box in self.sides[0]}
        got = {(rank, name): np.zeros(math.prod(box[1]), int) for rank, name, box in self.sides[1]}
        for move in plan.moves():
            for index in np.ndindex(*move.length):
                to = move.dst_offset + sum(i * s for i, s in zip(index, move.dst_strides))
                at = move.src_offset + sum(i * s for i, s in zip(index, move.src_strides))
                got[move.to_rank, move.dst_parameter][to] = source[move.from_rank, move.src_parameter][at]
        return all((got[rank, name] == whole[region(box)].reshape(-1)).all()
                   for rank, name, box in self.sides[1])


@unittest.skipIf(np is None, "NumPy is not installed")
class Gaps(unittest.TestCase):
    def test_random(self):
        n_planned = n_refused = 0
        for seed in range(400):
            case = Case(seed)
            if not case.lacks.any():
                self.assertTrue(case.moved(ferry.plan(case.spec())), seed)
                n_planned += 1
                continue
            with self.assertRaises(ferry.InvalidPlan, msg=seed) as caught:
                ferry.plan(case.spec())
            named = re.search(r"wants its element \[([\d, ]+)\], which no", str(caught.exception))
            if named is not None:  # else a slice is named, or none
                index = tuple(int(text) for text in named[1].split(","))
                self.assertTrue(case.lacks[index], (seed, str(caught.exception)))
            n_refused += 1
        self.assertGreater(min(n_planned, n_refused), 40)


if __name__ == "__main__":
    unittest.main()
