# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""A planner of sides in boxes that is slow and obviously right, to test the judges with.

Its replica is the lowest rank that holds the element (with `prefer_self`, the destination rank
where it holds it). Within a box of the receiver's memory it lets boxes grow over single elements;
then it joins two moves for as long as any two are one box.
"""

import math
from collections import Counter, defaultdict
from itertools import product

from block_work import block_work
from ferry_boxes import BoxSide, model_of
from ferry_flow import members
from ferry_layout import offsets, row_major_strides
from reference_planner import align_coordinates, bound_of


class Place:
    """Where an element lies: the names of its memory, and its coordinates there.

    In boxes the coordinate is the address alone; in a mesh there is one for each dimension.
    """

    def __init__(self, name, at):
        self.name = name
        self.at = at

    def step_to(self, other):
        return tuple(b - a for a, b in zip(self.at, other.at))


class Holding:
    """Where one rank has the elements of one tensor on one side: {logical coordinates: Place}."""

    def __init__(self, side, tensor, rank, placement):
        self.places = {}
        self.wanted = []  # lists of coordinates that a box of memory has, each with its Places
        if isinstance(side, BoxSide):
            for parameter in side.parameters[rank]:
                for box in parameter.boxes:
                    if box.tensor == tensor.name:
                        self._add_box(parameter.name, box)
        else:
            self._add_shard(placement.shards[rank])

    def _add_box(self, name, box):
        ranges = [range(b, b + n) for b, n in zip(box.begin, box.shape)]
        found = {at: Place(name, (address,))
                 for at, address in zip(product(*ranges), box.addresses())}
        self._add(found)

    def _add_shard(self, shard):
        locals_ = product(*map(range, shard.shape))
        places = [(tuple(axis[i] for axis, i in zip(shard.axes, at)), Place("", at))
                  for at in locals_]
        if shard.flat is not None:
            places = places[slice(*shard.flat)]
        self._add(dict(places))

    def _add(self, found):
        self.wanted.append(found)
        for at, place in found.items():
            self.places.setdefault(at, place)


class Drawn:
    """A box that a move makes: where it begins, in tensors and in memory, and its steps."""

    def __init__(self, sender, source, begin, source_begin, src, dst):
        self.sender, self.source = sender, source
        self.begin, self.source_begin = begin, source_begin
        self.src, self.dst = src, dst
        self.shape = [1] * len(begin)
        self.src_steps = [None] * len(begin)
        self.dst_steps = [None] * len(begin)

    def at(self, index):
        """Logical coordinates and both places of an element of it, or of the next along d."""
        return (tuple(b + i for b, i in zip(self.begin, index)),
                move_along(self.src, self.src_steps, index),
                move_along(self.dst, self.dst_steps, index))

    def joins(self, other, d, surplus):
        """The whole of both, where `other` goes on on dimension d; else None."""
        if (self.sender, self.source) != (other.sender, other.source) or d + surplus < 0:
            return None
        if any(a != b for k, (a, b) in enumerate(zip(self.shape, other.shape)) if k != d):
            return None
        ahead = [self.shape[d] if k == d else 0 for k in range(len(self.shape))]
        if tuple(b + i for b, i in zip(self.begin, ahead)) != other.begin:
            return None
        both = Drawn(self.sender, self.source, self.begin, self.source_begin, self.src, self.dst)
        both.shape = [n + i for n, i in zip(self.shape, [other.shape[d] if i else 0
                                                         for i in ahead])]
        for key, first in (("src", self.src), ("dst", self.dst)):
            mine, its = getattr(self, key + "_steps"), getattr(other, key + "_steps")
            steps = [m if m is not None else i for m, i in zip(mine, its)]
            if any(m is not None and i is not None and m != i for m, i in zip(mine, its)):
                return None
            step = first.step_to(getattr(other, key))
            if steps[d] is None:
                steps[d] = step
            if (first.name != getattr(other, key).name or not is_ahead(step, d, first)
                    or step != tuple(self.shape[d] * s for s in steps[d])):
                return None
            setattr(both, key + "_steps", steps)
        return both


def is_ahead(step, d, place):
    """In boxes addresses grow; in a mesh the next coordinate is one more on one dimension only."""
    if len(step) == 1 and place.name:
        return step[0] > 0
    return sum(map(abs, step)) == max(step, default=0)


def move_along(place, steps, index):
    at = list(place.at)
    for step, i in zip(steps, index):
        if i:
            at = [a + i * s for a, s in zip(at, step)]
    return place.name, tuple(at)


class Planner:
    def __init__(self, spec, prefer_self, joined):
        self.model = model_of(spec)
        self.prefer_self = prefer_self
        self.joined = joined
        self.holdings = {}

    def holding(self, which, tensor, rank):
        key = which, tensor.name, rank
        if key not in self.holdings:
            placement = (self.model.at_source if which == "source" else
                         self.model.at_destination)(tensor.name)
            self.holdings[key] = Holding(getattr(self.model, which), tensor, rank, placement)
        return self.holdings[key]

    def drawn(self, tensor, rank):
        origin, feeds = self.model.origin(tensor), self.model.feeds(tensor)
        strides = row_major_strides(tensor.shape)
        found = []
        for wanted in self.holding("destination", tensor, rank).wanted:
            left = {}
            for at, place in wanted.items():
                number, offset = origin[sum(i * s for i, s in zip(at, strides))]
                left[at] = self.fetch(feeds[number].source, offset, rank) + (place,)
            found += grow(left, len(tensor.shape), self.model)
        if self.joined:
            found = join_all(found, tensor, self.model)
        return found

    def fetch(self, name, offset, rank):
        """(sender, source tensor, coordinates there, Place there) of one element."""
        mask, source = self.model.source_masks(name)[offset], self.model.by_name[name]
        sender = rank if self.prefer_self and mask >> rank & 1 else members(mask)[0]
        at = []
        for stride in row_major_strides(source.shape):
            at.append(offset // stride)
            offset -= at[-1] * stride
        return sender, name, tuple(at), self.holding("source", source, sender).places[tuple(at)]

    def moves(self):
        result = []
        for rank in range(self.model.world):
            records = [self.record(move, tensor, rank)
                       for tensor in self.model.wanted() if self.holds(tensor, rank)
                       for move in self.drawn(tensor, rank)]
            result += [record for _, record in sorted(records, key=lambda pair: pair[0])]
        for task_id, record in enumerate(result):
            record["task_id"] = task_id
        return result

    def holds(self, tensor, rank):
        return rank in self.model.at_destination(tensor.name).shards

    def record(self, move, tensor, rank):
        source = self.model.by_name[move.source]
        record = {"task_id": 0, "tensor": tensor.name, "from": move.sender, "to": rank,
                  "shape": move.shape,
                  "src": self.place(move.src, move.src_steps, move.shape, "source", source),
                  "dst": self.place(move.dst, move.dst_steps, move.shape, "destination", tensor),
                  "bytes": tensor.bytes_of(math.prod(move.shape))}
        change = self.change(tensor, rank, move)
        if change is not None:
            record["bytes"] = math.prod(move.shape) * change.bits // 8
            record.update(change.printed())
        if tensor.source is not None:
            record["source"] = move.source
        if self.model.in_boxes("destination"):
            side = self.model.destination
            return (side.parameter(rank, move.dst.name)[0], move.dst.at), record
        return (tensor.index, move.dst.at), record

    def change(self, tensor, rank, move):
        if self.model.in_boxes("destination"):
            return self.model.destination.parameter(rank, move.dst.name)[1].change(tensor)
        return self.model.change(tensor)

    def place(self, first, steps, shape, which, tensor):
        n_dims = len(tensor.shape)
        surplus = n_dims - len(shape)
        lengths = [1] * max(0, surplus) + shape[max(0, -surplus):]
        if not self.model.in_boxes(which):
            return [list(pair) for pair in zip(first.at, lengths)]
        steps = [None] * max(0, surplus) + steps[max(0, -surplus):]
        return {"parameter": first.name, "offset": first.at[0],
                "strides": [0 if step is None else step[0] for step in steps]}


def grow(left, n_dims, model):
    """Boxes over {coordinates: (sender, source, its coordinates, src, dst)}, from the first on."""
    while left:
        begin = min(left)
        sender, source, source_begin, src, dst = left[begin]
        move = Drawn(sender, source, begin, source_begin, src, dst)
        surplus = len(source_begin) - n_dims
        for d in range(n_dims - 1, -1, -1):
            while d + surplus >= 0 and grows(left, move, d):
                move.shape[d] += 1
        for index in product(*map(range, move.shape)):
            del left[move.at(index)[0]]
        yield move


def grows(left, move, d):
    edge = tuple(move.shape[d] if k == d else 0 for k in range(len(move.shape)))
    ahead = left.get(tuple(b + i for b, i in zip(move.begin, edge)))
    if ahead is None:
        return False
    if move.shape[d] == 1:  # the second along d says what the step is
        for key, place in (("src", ahead[3]), ("dst", ahead[4])):
            first = getattr(move, key)
            if first.name != place.name or not is_ahead(first.step_to(place), d, first):
                return False
        steps = move.src.step_to(ahead[3]), move.dst.step_to(ahead[4])
        move.src_steps[d], move.dst_steps[d] = steps
    slab = [range(move.shape[d], move.shape[d] + 1) if k == d else range(n)
            for k, n in enumerate(move.shape)]
    if all(fits_in(left, move, index) for index in product(*slab)):
        return True
    if move.shape[d] == 1:
        move.src_steps[d] = move.dst_steps[d] = None
    return False


def fits_in(left, move, index):
    at, src, dst = move.at(index)
    there = left.get(at)
    if there is None or (there[0], there[1]) != (move.sender, move.source):
        return False
    ahead = align_coordinates(list(index), len(move.source_begin))
    return (there[2] == tuple(b + i for b, i in zip(move.source_begin, ahead))
            and (there[3].name, there[3].at) == src and (there[4].name, there[4].at) == dst)


def join_all(found, tensor, model):
    """Joins pairs until there is none; those that can go on are found by where they begin."""
    found, again = list(found), True
    while again:
        again = False
        begins = defaultdict(list)
        for move in found:
            begins[move.sender, move.source, move.begin].append(move)
        for move in found:
            both, other = join_one(move, begins, tensor, model)
            if both is not None:
                found = [m for m in found if m is not move and m is not other] + [both]
                again = True
                break
    return found


def join_one(move, begins, tensor, model):
    surplus = len(model.by_name[move.source].shape) - len(tensor.shape)
    for d in range(len(tensor.shape)):
        ahead = tuple(b + (move.shape[d] if k == d else 0) for k, b in enumerate(move.begin))
        for other in begins[move.sender, move.source, ahead]:
            both = move.joins(other, d, surplus)
            if both is not None and joins_at_source(move, other, d):
                return both, other
    return None, None


def joins_at_source(move, other, d):
    ahead = [move.shape[d] if k == d else 0 for k in range(len(move.shape))]
    ahead = align_coordinates(ahead, len(move.source_begin))
    return tuple(b + i for b, i in zip(move.source_begin, ahead)) == other.source_begin


def fills_of(model):
    return [{"rank": rank, "parameter": parameter.name, "offset": box.offset, "shape": box.shape,
             "strides": box.strides, "bits": box.bits}
            for rank, parameters in sorted(model.destination.parameters.items())
            for parameter in parameters
            for box in sorted(parameter.fills, key=lambda box: box.offset) if not box.is_empty()]


def plan_of(spec, prefer_self=True, joined=True):
    """A ferry.plan/1 record of the spec, with a digest of zeros."""
    planner = Planner(spec, prefer_self, joined)
    model, moves = planner.model, planner.moves()
    sent, received, local = Counter(), Counter(), Counter()
    for move in moves:
        if move["from"] == move["to"]:
            local[move["to"]] += move["bytes"]
        else:
            sent[move["from"]] += move["bytes"]
            received[move["to"]] += move["bytes"]
    moved, kept = sum(sent.values()), sum(local.values())
    plan = {
        "format": "ferry.plan/1", "digest": "0" * 32, "world": model.world,
        "tensors": len(model.wanted(made=True)),
        "bytes": {"moved": moved, "local": kept, "total": moved + kept},
        "bound": bound_of(model),
        "ranks": [{"rank": r, "in": received[r], "out": sent[r], "local": local[r]}
                  for r in range(model.world)],
        "moves": moves,
    }
    if model.in_boxes("destination"):
        plan["fills"] = fills_of(model)
    blocks = block_work(model)
    if blocks:
        plan["blocks"] = blocks
    return plan
