# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs with sides in boxes, and other ways to write a side that mean the same.

A spec begins as one of spec_random.py, of two meshes. One side or both become boxes: what ranks
hold of the tensors is drawn anew (a source must have all that is wanted), and packed into
parameters: dimensions in any order, with pitches, beside each other or one within the gaps of the
other, written as loops, with replicas; gaps of a destination are filled, or the parameter is partial.
"""

import copy
import math
import random

from ferry_boxes import model_of
from ferry_layout import SpecError, dtype_bits, index_tuples, row_major_strides, runs
from spec_random import chance, composition, draw_cluster, random_spec

MOST_ELEMENTS = 6000


# ---- packing parts of tensors into one parameter -------------------------------------------------


class Part:
    """A box of a tensor."""

    def __init__(self, tensor, begin, shape):
        self.tensor, self.begin, self.shape = tensor, begin, shape


class Packer:
    """Fills one parameter from the front; `at` is the first element behind all that is in it."""

    def __init__(self, rng, dtype, gaps, is_dequantized):
        self.rng = rng
        self.step = 2 if dtype == "f4" else 1
        self.room = 1 if is_dequantized else self.step  # values may lie anywhere, codes on bytes
        self.dtype = dtype
        self.gaps = gaps
        self.at = 0
        self.holds = []

    def pad(self):
        return self.room * self.rng.choice([0, 0, 1, 2, 5]) if self.gaps else 0

    def put(self, parts):
        """Parts of equal shapes lie within each other, or one behind the other."""
        self.at += self.pad()
        together = len(parts) > 1 and self.rng.random() < 0.7
        for group in [parts] if together else [[part] for part in parts]:
            self._interleave(group)

    def _interleave(self, parts):
        """At one level of the memory the parts take turns."""
        rng, shape = self.rng, parts[0].shape
        order = list(range(len(shape)))
        if self.step == 1:
            rng.shuffle(order)
        levels = list(reversed(order))  # the innermost first
        turn = rng.randint(0 if self.step == 1 else 1, len(levels)) if len(parts) > 1 else None
        strides, span, offsets = [0] * len(shape), 1, [0] * len(parts)
        for level in range(len(levels) + 1):
            if level == turn:
                span += self.pad() if level else 0
                offsets = [k * span for k in range(len(parts))]
                span *= len(parts)
            if level == len(levels):
                break
            if level == 0 and self.step == 1 and self.gaps and chance(rng, 0.15):
                span *= rng.choice([2, 3])
            elif level and self.gaps and chance(rng, 0.25):
                span += self.room * rng.randint(1, 3)
            strides[levels[level]] = span
            span *= shape[levels[level]]
        last = 0
        for part, offset in zip(parts, offsets):
            self._write(part, self.at + offset, strides)
            last = max(last, self.at + offset + sum((n - 1) * s for n, s in zip(shape, strides)))
        self.at = last + 1 if 0 not in shape else self.at

    def _write(self, part, offset, strides):
        hold = {"tensor": part.tensor, "begin": list(part.begin), "shape": list(part.shape),
                "offset": offset, "strides": list(strides)}
        if chance(self.rng, 0.3):
            hold = as_loops(self.rng, hold, self.step)
        self.holds.append(hold)

    def finish(self):
        """The number of elements. Sub-byte parameters end on a byte."""
        self.at += self.pad()
        self.at += -self.at % self.room
        return self.at


def as_loops(rng, hold, step):
    """The same box as smaller ones that a loop, or several, set down."""
    hold = copy.deepcopy(hold)
    loops = []
    for d in rng.sample(range(len(hold["shape"])), min(len(hold["shape"]), rng.randint(1, 4))):
        extent = hold["shape"][d]
        unit = step if d == len(hold["shape"]) - 1 else 1
        counts = [n for n in range(2, extent + 1) if extent % n == 0 and extent // n % unit == 0]
        if not counts:
            continue
        count = rng.choice(counts)
        size = extent // count
        hold["shape"][d] = size
        begin = [size if k == d else 0 for k in range(len(hold["shape"]))]
        loops.append({"count": count, "begin": begin, "offset": size * hold["strides"][d]})
    if loops:
        hold["repeat"] = loops
    return hold


def draw_parameter(rng, tensors, parts, which, name, is_dequantized=False):
    """An entry, without its ranks, that holds the parts: all of one dtype."""
    dtype = tensors[parts[0].tensor].dtype
    packer = Packer(rng, dtype, chance(rng, 0.6), is_dequantized)
    rng.shuffle(parts)
    while parts:
        alike = [part for part in parts if part.shape == parts[0].shape]
        group = alike[:rng.randint(1, len(alike))]
        parts = [part for part in parts if part not in group]
        packer.put(group)
    rng.shuffle(packer.holds)
    entry = {"parameter": name, "elements": packer.finish(), "holds": packer.holds}
    if chance(rng, 0.4):
        entry["dtype"] = dtype
    if chance(rng, 0.1):
        entry["shape"] = [1, entry["elements"]]
    if which == "destination":
        fill_gaps(rng, entry, dtype)
    return entry


def addresses_of(hold):
    boxes = [(hold["offset"], hold["shape"], hold["strides"])]
    for loop in hold.get("repeat", []):
        boxes = [(offset + i * loop["offset"], shape, strides) for offset, shape, strides in boxes
                 for i in range(loop["count"])]
    result = set()
    for offset, shape, strides in boxes:
        found = [offset]
        for n, s in zip(shape, strides):
            found = [address + i * s for address in found for i in range(n)]
        result.update(found)
    return result


def fill_gaps(rng, entry, dtype):
    """Fills for what nothing gives; sometimes only for some of it, and the rest stays as it is."""
    held = set().union(*(addresses_of(hold) for hold in entry["holds"]))
    free = [address for address in range(entry["elements"]) if address not in held]
    if not free:
        if chance(rng, 0.1):
            entry["partial"] = chance(rng, 0.5)
        return
    bits = dtype_bits(dtype)
    gaps = [(free[at], length) for at, length in runs(free)]
    if bits > 64 or chance(rng, 0.15):
        entry["partial"] = True
        gaps = gaps[:rng.randint(0, len(gaps))] if bits <= 64 else []
    fills = join_gaps(rng, gaps)
    for fill in fills:
        if chance(rng, 0.7):
            fill["bits"] = "".join(rng.choice("0123456789abcdef") for _ in range(bits // 4))
    rng.shuffle(fills)
    if fills:
        entry["fill"] = fills


def join_gaps(rng, gaps):
    """Equal gaps at equal distances are rows of one fill, mostly."""
    fills = []
    while gaps:
        offset, length = gaps[0]
        rows, pitch = 1, 0
        if len(gaps) > 1 and chance(rng, 0.7):
            pitch = gaps[1][0] - offset
            while rows < len(gaps) and gaps[rows] == (offset + rows * pitch, length):
                rows += 1
        gaps = gaps[rows:]
        if rows > 1:
            fills.append({"offset": offset, "shape": [rows, length], "strides": [pitch, 1]})
        else:
            fills.append({"offset": offset, "shape": [length], "strides": [1]})
    return fills


# ---- what ranks hold -----------------------------------------------------------------------------


def draw_grid(rng, shape, step, most):
    """Boxes that tile a shape."""
    cells = [([], [])]
    for d, extent in enumerate(shape):
        unit = step if d == len(shape) - 1 else 1
        count = rng.randint(1, max(1, min(most, extent // unit))) if chance(rng, 0.5) else 1
        sizes = composition(rng, extent, count, unit, least=unit) if extent else [0]
        cells = [(begin + [sum(sizes[:i])], lengths + [n])
                 for begin, lengths in cells for i, n in enumerate(sizes)]
    return cells


def draw_box(rng, shape, step):
    """Some part of a shape, mostly not empty."""
    begin, lengths = [], []
    for d, extent in enumerate(shape):
        unit = step if d == len(shape) - 1 else 1
        units = extent // unit
        n = rng.randint(1, units) if units else 0
        if chance(rng, 0.4):
            n = units
        begin.append(unit * rng.randint(0, units - n))
        lengths.append(unit * n)
    return begin, lengths


def step_of(tensor):
    return 2 if tensor.dtype == "f4" else 1


def destination_parts(rng, tensors):
    """The parts of one parameter: parts of tensors of one dtype, some of them twice."""
    first = rng.choice(tensors)
    alike = [tensor for tensor in tensors if tensor.dtype == first.dtype]
    parts, room = [], MOST_ELEMENTS // 4
    for _ in range(rng.choice([1, 1, 2, 3, 6])):
        tensor = rng.choice(alike)
        cells = ([draw_box(rng, tensor.shape, step_of(tensor))] if chance(rng, 0.5)
                 else draw_grid(rng, tensor.shape, step_of(tensor), 4))
        for begin, lengths in cells:
            if math.prod(lengths) <= room:
                room -= math.prod(lengths)
                parts.append(Part(tensor.name, begin, lengths))
    return parts


def draw_destination(rng, tensors, ranks):
    """Entries; ranks of a group are alike."""
    names = {tensor.name: tensor for tensor in tensors}
    entries, number = [], 0
    while ranks:
        group, ranks = cut_group(rng, ranks)
        for _ in range(rng.choice([1, 1, 2, 3])):
            parts = destination_parts(rng, tensors)
            if parts:
                entry = draw_parameter(rng, names, parts, "destination", "p%d" % number)
                entries.append({**ranks_of(rng, group), **entry})
                number += rng.choice([0, 1]) if len(entries) > 1 else 1
        number += 1
    rng.shuffle(entries)
    return without_doubles(entries)


def cut_group(rng, ranks):
    n = rng.randint(1, len(ranks)) if chance(rng, 0.5) else 1
    return ranks[:n], ranks[n:]


def ranks_of(rng, group):
    return {"rank": group[0]} if len(group) == 1 and chance(rng, 0.6) else {"ranks": list(group)}


def listed_ranks(entry):
    return entry["ranks"] if "ranks" in entry else [entry["rank"]]


def without_doubles(entries):
    """Ranks may not have a name twice; different ranks may."""
    seen = set()
    for entry in entries:
        while any((rank, entry["parameter"]) in seen for rank in listed_ranks(entry)):
            entry["parameter"] += "x"
        seen.update((rank, entry["parameter"]) for rank in listed_ranks(entry))
    return entries


def draw_source(rng, tensors, ranks):
    """Every element of every tensor on some rank, much of it on several."""
    parts = {rank: [] for rank in ranks}
    for tensor in tensors:
        for begin, lengths in draw_grid(rng, tensor.shape, step_of(tensor), 4):
            n_holders = min(len(ranks), rng.choice([1, 1, 2, len(ranks)]))
            for rank in rng.sample(ranks, n_holders):
                parts[rank].append((tensor, begin, lengths))
        for _ in range(rng.choice([0, 0, 1, 2])):
            parts[rng.choice(ranks)].append((tensor, *draw_box(rng, tensor.shape, step_of(tensor))))
    entries = []
    for rank, held in parts.items():
        copies = rng.sample(ranks, rng.randint(1, len(ranks))) if chance(rng, 0.15) else []
        group = [rank] + [other for other in copies if other != rank]
        entries += source_entries(rng, held, group)
    rng.shuffle(entries)
    return without_doubles(entries)


def source_entries(rng, held, group):
    entries = []
    names = {tensor.name: tensor for tensor, _, _ in held}
    for dtype in sorted({tensor.dtype for tensor, _, _ in held}):
        alike = [Part(tensor.name, begin, lengths) for tensor, begin, lengths in held
                 if tensor.dtype == dtype]
        rng.shuffle(alike)
        while alike:
            n = rng.randint(1, len(alike))
            entry = draw_parameter(rng, names, alike[:n], "source", "s%d" % len(entries))
            entries.append({**ranks_of(rng, group), **entry})
            alike = alike[n:]
    return entries


# ---- whole specs ---------------------------------------------------------------------------------


def draw_ranks(rng, most):
    n = rng.randint(1, most)
    if chance(rng, 0.6):
        first = rng.randint(0, 6)
        return list(range(first, first + n))
    return rng.sample(range(16), n)


def draw_box_spec(rng, seed):
    spec = random_spec(seed, chance(rng, 0.3), chance(rng, 0.2))
    model = model_of(spec)
    kind = rng.choice(["both", "both", "both", "source", "destination"])
    sound = [tensor for tensor in model.tensors
             if tensor.elements <= MOST_ELEMENTS and tensor.only is None]
    kind = kind if sound else "source"
    if kind != "source":
        spec["destination"] = {"boxes": draw_destination(rng, sound, draw_ranks(rng, 6))}
    if kind != "destination":
        held = [tensor for tensor in model.tensors if tensor.source is None]
        spec["source"] = {"boxes": draw_source(rng, held, draw_ranks(rng, 6))}
    world = model_of(spec).world
    spec.pop("cluster", None)
    if chance(rng, 0.5):
        spec["cluster"] = draw_cluster(rng, world)
    return spec


def wanted_elements(model):
    return sum(len(model.at_destination(tensor.name).held(rank)) for tensor in model.wanted()
               for rank in model.at_destination(tensor.name).shards)


def random_box_spec(seed, most=20 * MOST_ELEMENTS):
    """A valid spec with one side in boxes or both, whose ranks want no more elements than that."""
    rng = random.Random("boxes %d" % seed)
    while True:
        try:
            spec = draw_box_spec(rng, rng.randrange(1 << 30))
            model = model_of(spec)
            if wanted_elements(model) <= most:
                model.validate()
                return spec
        except SpecError:
            continue


# ---- the same side in other words ----------------------------------------------------------------


def expanded(side):
    """Loops written out, in the order of the loops."""
    side = copy.deepcopy(side)
    for entry in side["boxes"]:
        holds = []
        for hold in entry["holds"]:
            loops = hold.pop("repeat", [])
            for index in index_tuples([loop["count"] for loop in loops]):
                begin, offset = list(hold["begin"]), hold["offset"]
                for i, loop in zip(index, loops):
                    begin = [b + i * more for b, more in zip(begin, loop["begin"])]
                    offset += i * loop["offset"]
                holds.append({**copy.deepcopy(hold), "begin": begin, "offset": offset})
        entry["holds"] = holds
    return side


def shuffled_boxes(rng, side):
    side = copy.deepcopy(side)
    for entry in side["boxes"]:
        rng.shuffle(entry["holds"])
        rng.shuffle(entry.get("fill", []))
    return side


def shuffled_ranks(rng, side):
    """One entry for each rank, those of one rank in their order, the ranks mixed."""
    queues = {}
    for entry in side["boxes"]:
        for rank in listed_ranks(entry):
            own = {key: value for key, value in entry.items() if key not in ("rank", "ranks")}
            queues.setdefault(rank, []).append({"rank": rank, **copy.deepcopy(own)})
    entries = []
    while queues:
        rank = rng.choice(sorted(queues))
        entries.append(queues[rank].pop(0))
        if not queues[rank]:
            del queues[rank]
    return {"boxes": entries}


def halved(rng, side, model):
    """Boxes without loops in two halves."""
    side = copy.deepcopy(side)
    for entry in side["boxes"]:
        holds = []
        for hold in entry["holds"]:
            step = step_of(model.by_name[hold["tensor"]])
            cuts = [(d, n) for d, n in enumerate(hold["shape"]) if n >= 2 * step]
            if not cuts or "repeat" in hold:
                holds.append(hold)
                continue
            d, n = rng.choice(cuts)
            first = step * rng.randint(1, n // step - 1) if n > step else n
            rest = copy.deepcopy(hold)
            hold["shape"][d] = first
            rest["shape"][d] = n - first
            rest["begin"][d] += first
            rest["offset"] += first * rest["strides"][d]
            holds += [hold, rest]
        entry["holds"] = holds
    return side


def boxes_of_mesh(model, which):
    """The side of a mesh as boxes: a parameter for each tensor that a rank has elements of, in
    row-major order. None where a shard is flat, which is no product of pieces."""
    side = getattr(model, which)
    entries = []
    for rank in sorted(side.ranks):
        for tensor in model.tensors:
            if which == "source" and tensor.source is not None:
                continue
            at = model.at_source if which == "source" else model.at_destination
            placement = at(tensor.name)
            if placement is None or rank not in placement.shards:
                continue
            shard = placement.shards[rank]
            if shard.flat is not None:
                return None
            if math.prod(shard.shape) or not tensor.elements:  # an empty one must be named
                entries.append({"rank": rank, "parameter": tensor.name, "dtype": tensor.dtype,
                                "elements": math.prod(shard.shape),
                                "holds": list(holds_of_shard(tensor, shard))})
    return {"boxes": entries} if entries else None


def holds_of_shard(tensor, shard):
    strides = row_major_strides(shard.shape)
    if not math.prod(shard.shape):
        yield {"tensor": tensor.name, "begin": [0] * len(strides), "shape": list(tensor.shape),
               "offset": 0, "strides": list(strides)}
        return
    cells = [([], [], 0)]
    for axis, stride in zip(shard.axes, strides):
        cells = [(begin + [axis[at]], lengths + [n], offset + at * stride)
                 for begin, lengths, offset in cells for at, n in runs(axis)]
    for begin, lengths, offset in cells:
        yield {"tensor": tensor.name, "begin": begin, "shape": lengths, "offset": offset,
               "strides": list(strides)}
