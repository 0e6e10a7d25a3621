# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""How inference engines cut the weights of their parallel layers, as index ranges.

Written from what the engines' layers do when they load a weight: a linear layer split by columns
(the outputs) or by rows (the inputs), a vocabulary in chunks, attention with KV heads that several
ranks share, several matrices merged in one, state-space mixers. A layer says for a parameter of its
module, its shape, a rank and the number of ranks: {dimension: [(begin, end), ...]}, in the order in
which the rank keeps them. Nothing here knows ferry's rules.
"""


def share(extent, rank, ranks):
    """The engines refuse what does not divide."""
    if extent % ranks:
        raise ValueError("%d over %d ranks" % (extent, ranks))
    size = extent // ranks
    return rank * size, (rank + 1) * size


class Layer:
    """Whole on every rank, like norms and routers."""

    def ranges(self, shape, rank, ranks):
        """Of the weight."""
        return {}

    def cut(self, param, shape, rank, ranks):
        if param == "weight":
            return self.ranges(shape, rank, ranks)
        if param == "bias":
            rows = self.ranges([shape[0], 0], rank, ranks)
            return {0: rows[0]} if 0 in rows else {}
        if param == "weight_scale_inv":
            tile = 128
            weight = self.ranges([extent * tile for extent in shape], rank, ranks)
            return {dim: [(lo // tile, hi // tile) for lo, hi in held]
                    for dim, held in weight.items()}
        return {}


class Column(Layer):
    """Outputs (rows of the stored matrix) are divided among the ranks."""

    def ranges(self, shape, rank, ranks):
        return {0: [share(shape[0], rank, ranks)]}


class Row(Layer):
    """Inputs (columns) are divided; the sum over ranks makes the output, so a bias is whole."""

    def ranges(self, shape, rank, ranks):
        return {1: [share(shape[1], rank, ranks)]}


class Vocabulary(Layer):
    """Rows in chunks; the engine pads, the checkpoint ends where it ends."""

    def ranges(self, shape, rank, ranks):
        size = -(-shape[0] // ranks)
        return {0: [(min(shape[0], rank * size), min(shape[0], (rank + 1) * size))]}


class MergedColumn(Layer):
    """Several column layers in one matrix, each divided by itself."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def ranges(self, shape, rank, ranks):
        assert shape[0] == sum(self.sizes), (shape, self.sizes)
        held, begin = [], 0
        for size in self.sizes:
            lo, hi = share(size, rank, ranks)
            held.append((begin + lo, begin + hi))
            begin += size
        return {0: held}


class Attention:
    """Heads of q, k and v: as many KV heads a rank as there are, or one that neighbours share."""

    def __init__(self, heads, kv_heads, size):
        self.heads, self.kv_heads, self.size = heads, kv_heads, size

    def q_heads(self, rank, ranks):
        return share(self.heads, rank, ranks)

    def kv_of(self, rank, ranks):
        if ranks <= self.kv_heads:
            return share(self.kv_heads, rank, ranks)
        if ranks % self.kv_heads:
            raise ValueError("%d KV heads over %d ranks" % (self.kv_heads, ranks))
        first = rank // (ranks // self.kv_heads)
        return first, first + 1


class Q(Layer):
    def __init__(self, attention):
        self.attention = attention

    def ranges(self, shape, rank, ranks):
        lo, hi = self.attention.q_heads(rank, ranks)
        return {0: [(lo * self.attention.size, hi * self.attention.size)]}


class KV(Layer):
    def __init__(self, attention):
        self.attention = attention

    def ranges(self, shape, rank, ranks):
        lo, hi = self.attention.kv_of(rank, ranks)
        return {0: [(lo * self.attention.size, hi * self.attention.size)]}


class PackedQKV(Layer):
    """q above k above v."""

    def __init__(self, attention):
        self.attention = attention

    def ranges(self, shape, rank, ranks):
        size, heads, kv = self.attention.size, self.attention.heads, self.attention.kv_heads
        q = self.attention.q_heads(rank, ranks)
        k = self.attention.kv_of(rank, ranks)
        begins = [0, heads, heads + kv]
        return {0: [((begin + lo) * size, (begin + hi) * size)
                    for begin, (lo, hi) in zip(begins, [q, k, k])]}


class MixedHeads(Layer):
    """Rows are heads, each with its q, k and v: whole heads for a rank."""

    def __init__(self, heads, rows_each):
        self.heads, self.rows_each = heads, rows_each

    def ranges(self, shape, rank, ranks):
        lo, hi = share(self.heads, rank, ranks)
        return {0: [(lo * self.rows_each, hi * self.rows_each)]}


class GroupedStates:
    """The second kind of state space: heads, and B and C for each group of heads."""

    def __init__(self, heads, size, groups, state):
        self.heads, self.size, self.groups, self.state = heads, size, groups, state
        self.inner = heads * size

    def group_range(self, rank, ranks):
        """In rows of B: the groups of a rank's heads."""
        if self.groups % ranks == 0:
            lo, hi = share(self.groups, rank, ranks)
        else:
            lo = rank // (ranks // self.groups)
            hi = lo + 1
        return lo * self.state, hi * self.state

    def pieces(self, names, rank, ranks):
        states = self.groups * self.state
        sizes = {"z": self.inner, "x": self.inner, "B": states, "C": states, "dt": self.heads}
        held, begin = [], 0
        for name in names:
            lo, hi = (self.group_range(rank, ranks) if name in "BC"
                      else share(sizes[name], rank, ranks))
            held.append((begin + lo, begin + hi))
            begin += sizes[name]
        return held


class StatesIn(Layer):
    def __init__(self, states, names):
        self.states, self.names = states, names

    def ranges(self, shape, rank, ranks):
        return {0: self.states.pieces(self.names, rank, ranks)}


class StackedPair(Layer):
    """[experts, gate above up, hidden], or transposed [experts, hidden, gate beside up]."""

    def __init__(self, dim):
        self.dim = dim

    def ranges(self, shape, rank, ranks):
        half = shape[self.dim] // 2
        lo, hi = share(half, rank, ranks)
        return {self.dim: [(lo, hi), (half + lo, half + hi)]}


def share_in_blocks(extent, block, rank, ranks):
    """Whole blocks by chunks: the last ranks may have fewer, or none."""
    size = -(-(extent // block) // ranks) * block
    return min(extent, rank * size), min(extent, (rank + 1) * size)


class Turns(Layer):
    """Experts whose gate and up take turns: 2 i and 2 i + 1 are of the inner index i. A rank has both
    of its inner indices, in blocks of columns of down that share a scale."""

    def __init__(self, dim, block=1):
        self.dim, self.block = dim, block

    def ranges(self, shape, rank, ranks):
        lo, hi = share_in_blocks(shape[self.dim] // 2, self.block, rank, ranks)
        return {self.dim: [(2 * lo, 2 * hi)]}


class TurnsDown(Layer):
    """What is multiplied with them: inner indices, or blocks of these."""

    def __init__(self, dim):
        self.dim = dim

    def ranges(self, shape, rank, ranks):
        return {self.dim: [share_in_blocks(shape[self.dim], 1, rank, ranks)]}


class StackedDown(Layer):
    def __init__(self, dim):
        self.dim = dim

    def ranges(self, shape, rank, ranks):
        return {self.dim: [share(shape[self.dim], rank, ranks)]}
