# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Placements on device meshes in the words of ferry.spec/1. Numbers only: no torch here.

A placement cuts what the placements of the mesh dimensions before it have left. So the indices of a
tensor dimension that a rank holds are a list of intervals in ascending order, which each placement
narrows: a plain shard takes a chunk of the list, a strided one chunks it into ``split`` pieces and
takes a chunk of each.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from .._errors import InvalidInput, Unsupported

Interval = Tuple[int, int]
# (mesh dimension, its size, split): split is 0 for a plain shard, else a strided one's factor.
Step = Tuple[int, int, int]
# (kind, dim, split): ("replicate", 0, 0), ("shard", 1, 0), ("strided", 0, 2)
Placement = Tuple[str, int, int]

MOST_PIECES = 4096  # of one tensor, where no rule of ferry.spec/1 says how it is cut


@dataclass(frozen=True)
class Holding:
    """How one tensor lies on the ranks of one mesh. ``ranks`` is row-major over ``mesh``."""

    shape: Tuple[int, ...]
    dtype: str
    mesh: Tuple[int, ...]
    ranks: Tuple[int, ...]
    placements: Tuple[Placement, ...]

    def steps(self, dim: int) -> Tuple[Step, ...]:
        return tuple(
            (at, self.mesh[at], split if kind == "strided" else 0)
            for at, (kind, cut, split) in enumerate(self.placements)
            if kind != "replicate" and cut == dim
        )


@functools.lru_cache(maxsize=256)
def collective_order(mesh: Tuple[int, ...], ranks: Tuple[int, ...]) -> Optional[Tuple[int, ...]]:
    """The ranks as torch's collectives along the dimensions of a mesh count them: each group takes
    its own in ascending order. None where that gives two ranks the same place.

    >>> collective_order((2, 2), (0, 2, 1, 3)), collective_order((2,), (5, 4))
    ((0, 2, 1, 3), (4, 5))
    >>> collective_order((2, 2), (0, 3, 2, 1)) is None
    True
    """
    strides = [math.prod(mesh[dim + 1 :]) for dim in range(len(mesh))]
    found: Dict[int, int] = {}
    for place, rank in enumerate(ranks):
        at = 0
        for size, stride in zip(mesh, strides):
            first = place - place // stride % size * stride
            group = sorted(ranks[first + n * stride] for n in range(size))
            at += group.index(rank) * stride
        if at in found:
            return None
        found[at] = rank
    return tuple(found[at] for at in range(len(ranks)))


def is_even(holding: Holding) -> bool:
    """Whether all shards are of one size."""
    return all(
        extent % math.prod(size * max(1, split) for _, size, split in holding.steps(dim)) == 0
        for dim, extent in enumerate(holding.shape)
    )


def chunk(intervals: Sequence[Interval], n_parts: int, part: int) -> List[Interval]:
    """Part ``part`` of the listed indices, cut as torch.chunk cuts.

    >>> chunk([(0, 4), (8, 11)], 2, 1)
    [(8, 11)]
    """
    n = sum(end - begin for begin, end in intervals)
    length = -(-n // n_parts)
    first, last = min(n, part * length), min(n, (part + 1) * length)
    found, at = [], 0
    for begin, end in intervals:
        low, high = max(first, at), min(last, at + end - begin)
        if low < high:
            found.append((begin + low - at, begin + high - at))
        at += end - begin
    return found


def held(extent: int, steps: Sequence[Step], coordinates: Dict[int, int]) -> List[Interval]:
    """The indices of a dimension that the rank at these mesh coordinates holds.

    >>> held(8, [(0, 2, 2), (1, 2, 0)], {0: 1, 1: 0})  # FSDP over shards of tensor parallelism
    [(2, 4)]
    """
    intervals: List[Interval] = [(0, extent)] if extent else []
    for axis, size, split in steps:
        part = coordinates[axis]
        if split == 0:
            intervals = chunk(intervals, size, part)
        else:
            pieces = (chunk(intervals, split, j) for j in range(split))
            intervals = joined(run for piece in pieces for run in chunk(piece, size, part))
    return intervals


def coordinates_of(holding: Holding, rank: int) -> Dict[int, int]:
    """Where a rank is on the mesh, as what it holds of a tensor says.

    >>> coordinates_of(Holding((8,), "u8", (2, 2), (4, 5, 6, 7), ()), 6)
    {0: 1, 1: 0}
    """
    place = holding.ranks.index(rank)
    return {
        axis: place // math.prod(holding.mesh[axis + 1 :]) % size
        for axis, size in enumerate(holding.mesh)
    }


def boxes_of(
    holding: Holding, rank: int
) -> List[Tuple[List[int], List[int], List[int]]]:
    """What a rank holds of a tensor: boxes, each by its begin, its shape, and where it begins in the
    local shard.

    >>> boxes_of(Holding((8, 2), "u8", (2,), (4, 5), (("strided", 0, 2),)), 5)
    [([2, 0], [2, 2], [0, 0]), ([6, 0], [2, 2], [2, 0])]
    """
    coordinates = coordinates_of(holding, rank)
    per_dim = []
    for dim, extent in enumerate(holding.shape):
        at, found = 0, []
        for begin, end in held(extent, holding.steps(dim), coordinates):
            found.append((begin, end - begin, at))
            at += end - begin
        per_dim.append(found)
    return [
        ([one[0] for one in runs], [one[1] for one in runs], [one[2] for one in runs])
        for runs in itertools.product(*per_dim)
    ]


def joined(intervals: Iterable[Interval]) -> List[Interval]:
    found: List[Interval] = []
    for begin, end in intervals:
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


def all_coordinates(steps: Sequence[Step]) -> List[Dict[int, int]]:
    axes = [axis for axis, _, _ in steps]
    parts = itertools.product(*(range(size) for _, size, _ in steps))
    return [dict(zip(axes, part)) for part in parts]


def axis_name(at: int) -> str:
    return "m%d" % at


@functools.lru_cache(maxsize=4096)
def cut_of(extent: int, steps: Tuple[Step, ...], dim: int) -> Optional[Dict[str, Any]]:
    """The entry of ``shard`` that cuts as the steps do; None where there is none.

    >>> cut_of(8, ((0, 2, 0),), 1)
    {'dim': 1, 'axis': 'm0'}
    >>> cut_of(8, ((0, 2, 2), (1, 2, 0)), 0)
    {'dim': 0, 'axis': ['m1', 'm0'], 'nested': True}
    >>> cut_of(9, ((0, 2, 2),), 0)
    {'dim': 0, 'axis': 'm0', 'blocks': [5, 4]}
    """
    if len(steps) == 1:
        axis, size, split = steps[0]
        entry: Dict[str, Any] = {"dim": dim, "axis": axis_name(axis)}
        if split > 1 and extent % (size * split) == 0:
            entry["stride"] = split
        elif split > 1:
            pieces = (chunk([(0, extent)], split, j) for j in range(split))
            entry["blocks"] = [piece[0][1] - piece[0][0] for piece in pieces if piece]
        return entry
    wanted = [(at, held(extent, steps, at)) for at in all_coordinates(steps)]
    # Strided placements stand for cuts that were made in another order than that of the mesh.
    for order in itertools.permutations(steps):
        plain = [(axis, size, 0) for axis, size, _ in order]
        if all(held(extent, plain, at) == intervals for at, intervals in wanted):
            return {"dim": dim, "axis": [axis_name(axis) for axis, _, _ in order], "nested": True}
    return None


def cuts_of(holding: Holding) -> Dict[int, Optional[Dict[str, Any]]]:
    """For each dimension that is cut, its entry of ``shard``, or None where there is none."""
    cuts = {}
    for dim, extent in enumerate(holding.shape):
        steps = holding.steps(dim)
        if steps:
            cuts[dim] = cut_of(extent, steps, dim)
    return cuts


@dataclass(frozen=True)
class Piece:
    """A part of a tensor that every rank holds whole or not at all, but for plain cuts of other
    dimensions: a tensor of its own in a spec. Of a tensor that needs none, all of it."""

    tensor: str
    begin: Tuple[int, ...]
    shape: Tuple[int, ...]
    whole: bool

    @property
    def name(self) -> str:
        if self.whole:
            return self.tensor
        ends = (b + n for b, n in zip(self.begin, self.shape))
        return "%s[%s]" % (self.tensor, ", ".join("%d:%d" % at for at in zip(self.begin, ends)))


def pieces_of(name: str, sides: Sequence[Holding]) -> List[Piece]:
    """The tensor as a whole where rules say how both sides cut it, else in pieces."""
    shape = sides[0].shape
    odd = sorted({dim for side in sides for dim, cut in cuts_of(side).items() if cut is None})
    if not odd:
        return [Piece(name, (0,) * len(shape), shape, True)]
    runs = [[(0, extent)] for extent in shape]
    for dim in odd:
        ends = {0, shape[dim]}
        for side in sides:
            for at in all_coordinates(side.steps(dim)):
                ends.update(end for run in held(shape[dim], side.steps(dim), at) for end in run)
        ordered = sorted(ends)
        runs[dim] = list(zip(ordered, ordered[1:]))
    if math.prod(len(of_dim) for of_dim in runs) > MOST_PIECES:
        raise Unsupported(
            f'tensor "{name}": its placements cut it into more than {MOST_PIECES} pieces that no '
            "layout joins; shard it evenly",
            tensor=name,
        )
    pieces = []
    for box in itertools.product(*runs):
        begin, ends_of = tuple(b for b, _ in box), tuple(e for _, e in box)
        shape_of = tuple(e - b for b, e in box)
        pieces.append(Piece(name, begin, shape_of, begin == (0,) * len(shape) and ends_of == shape))
    return pieces


def rule_of(piece: Piece, holding: Holding) -> Dict[str, Any]:
    """The rule, without its ``match``, by which this piece of the tensor lies on the mesh."""
    shard, on = [], {}
    for dim in range(len(holding.shape)):
        steps = holding.steps(dim)
        if not steps:
            continue
        begin, end = piece.begin[dim], piece.begin[dim] + piece.shape[dim]
        if piece.whole or (begin, end) == (0, holding.shape[dim]):
            cut = cut_of(holding.shape[dim], steps, dim)
            if cut is not None:
                shard.append(cut)
                continue
        on.update(_owner(holding, dim, begin, end))
    rule: Dict[str, Any] = {}
    if shard:
        rule["shard"] = shard
    if on:
        rule["on"] = on
    return rule


def _owner(holding: Holding, dim: int, begin: int, end: int) -> Dict[str, int]:
    steps = holding.steps(dim)
    for at in all_coordinates(steps):
        runs = held(holding.shape[dim], steps, at)
        if any(first <= begin and end <= last for first, last in runs):
            return {axis_name(axis): part for axis, part in at.items()}
    raise AssertionError("pieces end where holders change")


def local_box(piece: Piece, holding: Holding, rank: int) -> Optional[Tuple[slice, ...]]:
    """Where the rank's part of the piece lies in its shard of the tensor; None: it has none."""
    coordinates = coordinates_of(holding, rank)
    box = []
    for dim, extent in enumerate(holding.shape):
        runs = held(extent, holding.steps(dim), coordinates)
        begin, end = piece.begin[dim], piece.begin[dim] + piece.shape[dim]
        before = sum(max(0, min(last, begin) - first) for first, last in runs)
        inside = sum(max(0, min(last, end) - max(first, begin)) for first, last in runs)
        if inside == 0:
            return None
        box.append(slice(before, before + inside))
    return tuple(box)


def stacked(name: str, holdings: Sequence[Holding]) -> List[Holding]:
    """Holdings of one tensor that differ in nothing but their ranks become one, whose list of ranks
    is theirs one behind the other: each is a replica."""
    alike: Dict[Tuple[Any, ...], List[Holding]] = {}
    for one in holdings:
        alike.setdefault((one.mesh, one.placements), []).append(one)
    found = []
    for (mesh, placements), ones in alike.items():
        ranks = tuple(rank for one in ones for rank in one.ranks)
        if len(set(ranks)) != len(ranks):
            raise InvalidInput(
                f'tensor "{name}" lies on several meshes of shape {list(mesh)} that have ranks in '
                "common",
                tensor=name,
            )
        found.append(Holding(ones[0].shape, ones[0].dtype, mesh, ranks, placements))
    # The most replicas first.
    return sorted(found, key=lambda one: (-len(one.ranks), one.ranks))


def side_of(holding: Holding) -> Dict[str, Any]:
    """A side without its rules. Where the list of ranks holds several meshes, they are replicas."""
    replicas = len(holding.ranks) // math.prod(holding.mesh)
    mesh = [[axis_name(at), size] for at, size in enumerate(holding.mesh)]
    if replicas > 1:
        mesh.insert(0, ["replica", replicas])
    return {"mesh": mesh, "ranks": list(holding.ranks)}


_NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")


def _fits(pattern: str) -> "re.Pattern[str]":
    return re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def rules_of(by_name: Dict[str, Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Few rules where names that differ in numbers only are alike; else one for each name."""
    patterns: Dict[str, Dict[str, Any]] = {}
    alike = True
    for name, rule in by_name.items():
        alike = patterns.setdefault(_NUMBER.sub("*", name), rule) == rule and alike
    if alike:
        fits = [(_fits(pattern), rule) for pattern, rule in patterns.items()]
        for name, rule in by_name.items():
            first = next(found for fit, found in fits if fit.fullmatch(name))
            if first != rule:
                alike = False
                break
    chosen = patterns if alike else by_name
    return [{"match": match, **rule} for match, rule in chosen.items()]
