# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A planner that is slow and obviously right, to test the oracle with plans of any spec.

It knows one way to choose a replica: the lowest rank that holds the element (with `prefer_self`,
the destination rank itself where it holds it). It looks at single elements and lets boxes grow over
them.
"""

import math
from collections import Counter
from itertools import product

from ferry_bound import Bound
from ferry_flow import members
from ferry_layout import Model, align, glob_match, offsets, row_major_strides, spans


class Piece:
    """What one destination rank wants from one feed: {coordinates: (sender, its coordinates)}."""

    def __init__(self, model, tensor, rank, feed, prefer_self):
        self.source = model.by_name[feed.source]
        self.source_placement = model.at_source(feed.source)
        self.shard = model.at_destination(tensor.name).shards[rank]
        self.surplus = len(self.source.shape) - len(tensor.shape)
        self.masks = model.source_masks(feed.source)
        self.local_of = {}
        self.elements = {}
        for coordinates in self._wanted(feed):
            at = [axis[i] for axis, i in zip(self.shard.axes, coordinates)]
            inside = align_coordinates([g - a for g, a in zip(at, feed.at)], len(self.source.shape))
            origin = [b + i for b, i in zip(feed.begin, inside)]
            sender = self._sender(origin, rank, prefer_self)
            self.elements[coordinates] = sender, self._local(sender, origin)

    def _wanted(self, feed):
        """Local coordinates of the shard that lie in the feed's box and in the flat range."""
        choices = [[i for i, g in enumerate(axis) if a <= g < a + n]
                   for axis, a, n in zip(self.shard.axes, feed.at, feed.extents)]
        coordinates = product(*choices)
        if self.shard.flat is None:
            return list(coordinates)
        places = offsets(choices, row_major_strides(self.shard.shape))
        lo, hi = self.shard.flat
        return [c for c, place in zip(coordinates, places) if lo <= place < hi]

    def _sender(self, origin, rank, prefer_self):
        mask = self.masks[sum(o * s for o, s in zip(origin, self.source_placement.strides))]
        return rank if prefer_self and mask >> rank & 1 else members(mask)[0]

    def _local(self, sender, origin):
        if sender not in self.local_of:
            axes = self.source_placement.shards[sender].axes
            self.local_of[sender] = [{g: i for i, g in enumerate(axis)} for axis in axes]
        return tuple(lookup[o] for lookup, o in zip(self.local_of[sender], origin))

    def boxes(self):
        """(sender, src box, dst box), greedily from the first element, last dimension first."""
        left = dict(sorted(self.elements.items()))
        while left:
            begin = next(iter(left))
            lengths = [1] * len(begin)
            for d in range(len(begin) - 1, -1, -1):
                while self._grows(left, begin, lengths, d):
                    lengths[d] += 1
            sender, origin = left[begin]
            for coordinates in product(*spans(begin, lengths)):
                del left[coordinates]
            extents = align(lengths, len(origin))
            yield (sender, [list(pair) for pair in zip(origin, extents)],
                   [list(pair) for pair in zip(begin, lengths)])

    def _grows(self, left, begin, lengths, d):
        """May the box take in the next slab on dimension d?"""
        edge, s = begin[d] + lengths[d], d + self.surplus
        axis = self.shard.axes[d]
        if s < 0 or edge >= len(axis) or axis[edge] != axis[edge - 1] + 1:
            return False
        sender, origin = left[begin]
        from_axis, from_edge = self.source_placement.shards[sender].axes[s], origin[s] + lengths[d]
        if from_edge >= len(from_axis) or from_axis[from_edge] != from_axis[from_edge - 1] + 1:
            return False
        slab = [range(edge, edge + 1) if k == d else range(b, b + n)
                for k, (b, n) in enumerate(zip(begin, lengths))]
        for coordinates in product(*slab):
            steps = align_coordinates([c - b for c, b in zip(coordinates, begin)], len(origin))
            expected = sender, tuple(o + step for o, step in zip(origin, steps))
            if left.get(coordinates) != expected:
                return False
        return True


def align_coordinates(coordinates, n_dims):
    """As ferry_layout.align, for offsets: the dimensions added or dropped are at 0."""
    surplus = max(0, len(coordinates) - n_dims)
    return [0] * (n_dims - len(coordinates)) + list(coordinates[surplus:])


def begin_of(found):
    return [begin for begin, _ in found[0]]


def moves_of(model, prefer_self, subset=None):
    moves = []
    for rank in range(model.world):
        for tensor in model.wanted(subset):
            if rank not in model.at_destination(tensor.name).shards:
                continue
            found = []
            for feed in model.feeds(tensor):
                piece = Piece(model, tensor, rank, feed, prefer_self)
                found += [(dst, src, sender, feed.source) for sender, src, dst in piece.boxes()]
            for dst, src, sender, source in sorted(found, key=begin_of):
                elements = math.prod(length for _, length in dst)
                move = {"task_id": len(moves), "tensor": tensor.name, "from": sender, "to": rank,
                        "src": src, "dst": dst, "bytes": tensor.bytes_of(elements)}
                if tensor.source is not None:
                    move["source"] = source
                moves.append(move)
    return moves


def bound_of(model, subset=None):
    if model.cluster is None:
        return {"seconds": None, "rank": None, "why": "none"}
    terms = {name: low for name, (low, _) in Bound(model, subset).terms().items()}
    why = max(terms, key=terms.get)
    seconds = terms[why]
    return {"seconds": float(seconds), "rank": None, "why": why if seconds else "none"}


def plan_of(spec, prefer_self=True, subset=None):
    """A ferry.plan/1 record of the spec, with a digest of zeros."""
    model = Model(spec)
    moves = moves_of(model, prefer_self, subset)
    sent, received, local = Counter(), Counter(), Counter()
    for move in moves:
        if move["from"] == move["to"]:
            local[move["to"]] += move["bytes"]
        else:
            sent[move["from"]] += move["bytes"]
            received[move["to"]] += move["bytes"]
    moved, kept = sum(sent.values()), sum(local.values())
    names = [t.name for t in model.tensors if subset is None or glob_match(subset, t.name)]
    return {
        "format": "ferry.plan/1", "digest": "0" * 32, "world": model.world, "tensors": len(names),
        "bytes": {"moved": moved, "local": kept, "total": moved + kept},
        "bound": bound_of(model, subset),
        "ranks": [{"rank": r, "in": received[r], "out": sent[r], "local": local[r]}
                  for r in range(model.world)],
        "moves": moves,
    }
