# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Layouts of a ferry.spec/1 file, element by element.

This is a second reading of docs/formats.md, written without a look at the library. It lists the
global index of every local element instead of computing with intervals, so it is slow and has few
places in which to be wrong. Nothing here knows about moves; see ferry_oracle.py for plans.

The words: a *cut* is what one shard entry makes of one dimension (a list of global indices for each
part), a *shard* is what one rank holds of one tensor, a *placement* is the shards of all holders.
"""

import itertools
import math
import re
from functools import lru_cache

from ferry_cast import KEYS as CAST_KEYS, Cast
from ferry_dequantize import Dequantize, Product
from ferry_quantize import Quantize, codes_of, scales_of

MAX_DIMS = 8
MAX_RANK = 1 << 24
MAX_BYTES = (1 << 63) - 1

DTYPE_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8e4m3": 8, "f8e5m2": 8, "f8e8m0": 8, "f4": 4,
    "i64": 64, "u64": 64, "i32": 32, "u32": 32, "i16": 16, "u16": 16, "i8": 8, "u8": 8, "bool": 8,
    "c64": 64,
}


class SpecError(Exception):
    """The spec breaks a rule of docs/formats.md."""


def require(condition, sentence):
    if not condition:
        raise SpecError(sentence)


class BrokenBlock(SpecError):
    """A shard has a part of a block."""


def require_whole(condition, sentence):
    if not condition:
        raise BrokenBlock(sentence)


def is_count(value):
    """A JSON integer that is not negative; Python's bool is an int, JSON's is not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def dtype_bits(dtype):
    """Bits of one element."""
    if dtype in DTYPE_BITS:
        return DTYPE_BITS[dtype]
    match = re.fullmatch(r"bytes:([1-9][0-9]*)", dtype)
    require(match, "unknown dtype %s" % dtype)
    return 8 * int(match.group(1))


# ---- names ---------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def _glob_regex(pattern):
    pieces = []
    for byte in pattern.encode("utf-8"):
        char = bytes([byte])
        pieces.append({b"*": b".*", b"?": b"."}.get(char, re.escape(char)))
    return re.compile(b"".join(pieces), re.DOTALL)


def glob_match(pattern, name):
    """`*` is any text (also none), `?` is one byte of the UTF-8 name, all else is itself."""
    return _glob_regex(pattern).fullmatch(name.encode("utf-8")) is not None


def stage_number(pattern, name):
    """The number that `{}` stands for when `name` fits `pattern`, else None.

    The leftmost fit decides; of the numbers that begin there the longest that fits.
    """
    require(pattern.count("{}") == 1, "stage %s: {} must appear exactly once" % pattern)
    head, tail = pattern.split("{}")
    for begin in range(len(name)):
        digits = re.match(r"0|[1-9][0-9]*", name[begin:], re.ASCII)
        if digits is None or not glob_match(head, name[:begin]):
            continue
        for end in range(begin + digits.end(), begin, -1):
            if glob_match(tail, name[end:]):
                return int(name[begin:end])
    return None


# ---- cuts: one dimension over P parts ------------------------------------------------------------


def chunk(extent, parts):
    """PyTorch's chunk rule: [begin, end) of each part."""
    size = -(-extent // parts)
    return [(min(extent, p * size), min(extent, (p + 1) * size)) for p in range(parts)]


def chunk_in_units(extent, parts, unit):
    require(extent % unit == 0, "unit %d does not divide %d" % (unit, extent))
    return [(lo * unit, hi * unit) for lo, hi in chunk(extent // unit, parts)]


def cut_even(extent, parts, unit=1):
    return [list(range(lo, hi)) for lo, hi in chunk_in_units(extent, parts, unit)]


def cut_stride(extent, parts, stride, unit=1):
    """P * stride segments; segment j belongs to part j mod P."""
    pieces = [[] for _ in range(parts)]
    for j, (lo, hi) in enumerate(chunk_in_units(extent, parts * stride, unit)):
        pieces[j % parts].extend(range(lo, hi))
    return pieces


def cut_cycle(extent, parts, block):
    pieces = [[] for _ in range(parts)]
    for index in range(extent):
        pieces[index // block % parts].append(index)
    return pieces


def cut_sizes(extent, parts, sizes):
    require(len(sizes) == parts, "sizes: %d entries for %d parts" % (len(sizes), parts))
    require(sum(sizes) == extent, "sizes sum to %d, not to %d" % (sum(sizes), extent))
    pieces, begin = [], 0
    for size in sizes:
        pieces.append(list(range(begin, begin + size)))
        begin += size
    return pieces


def cut_nested(begin, end, counts, unit):
    """Cut over the slowest axis, then each part over the next one; parts in row-major order."""
    if not counts:
        return [list(range(begin, end))]
    pieces = []
    for lo, hi in chunk_in_units(end - begin, counts[0], unit):
        pieces.extend(cut_nested(begin + lo, begin + hi, counts[1:], unit))
    return pieces


def spread(pieces, ranks):
    """`parts`: rank-part p of P holds piece floor(p * k / P)."""
    require(ranks % len(pieces) == 0, "parts %d does not divide %d" % (len(pieces), ranks))
    return [pieces[p * len(pieces) // ranks] for p in range(ranks)]


def cut_blocks(extent, ranks, blocks, parts, unit):
    """Every block is cut by itself, perhaps over fewer parts than there are ranks."""
    result, begin = [[] for _ in range(ranks)], 0
    for block in blocks:
        size, k = block if isinstance(block, list) else (block, parts)
        require(k >= 1, "blocks: 0 parts")
        for p, piece in enumerate(spread(cut_even(size, k, unit), ranks)):
            result[p].extend(begin + index for index in piece)
        begin += size
    require(begin == extent, "blocks sum to %d, not to %d" % (begin, extent))
    return result


def cut_dim(extent, counts, entry):
    """Global indices of each of the prod(counts) rank-parts, for one entry of `shard`."""
    kinds = [key for key in ("stride", "blocks", "sizes", "cycle") if key in entry]
    require(len(kinds) <= 1, "more than one of stride, blocks, sizes, cycle")
    for key in ("stride", "cycle", "unit", "parts"):
        require(entry.get(key, 1) >= 1, "%s must be at least 1" % key)
    ranks, unit = math.prod(counts), entry.get("unit", 1)
    if entry.get("nested"):
        require(not kinds and "parts" not in entry, "nested allows no other way to cut")
        return cut_nested(0, extent, counts, unit)
    parts = entry.get("parts", ranks)
    if "blocks" in entry:
        return cut_blocks(extent, ranks, entry["blocks"], parts, unit)
    if "sizes" in entry or "cycle" in entry:
        require("unit" not in entry, "unit cannot be combined with sizes or cycle")
    if "sizes" in entry:
        pieces = cut_sizes(extent, parts, entry["sizes"])
    elif "cycle" in entry:
        pieces = cut_cycle(extent, parts, entry["cycle"])
    elif "stride" in entry:
        pieces = cut_stride(extent, parts, entry["stride"], unit)
    else:
        pieces = cut_even(extent, parts, unit)
    return spread(pieces, ranks)


# ---- shards and placements -----------------------------------------------------------------------


def row_major_strides(shape):
    strides, step = [0] * len(shape), 1
    for d in range(len(shape) - 1, -1, -1):
        strides[d] = step
        step *= shape[d]
    return strides


def offsets(index_lists, strides):
    """Row-major offsets of a product of index lists, in row-major order of the product."""
    result = [0]
    for indices, stride in zip(index_lists, strides):
        steps = [index * stride for index in indices]
        result = [base + step for base in result for step in steps]
    return result


class Shard:
    """What one rank holds: `axes[d][i]` is the global index of local index i on dimension d.

    `flat` is None, or the [lo, hi) of the row-major order of those axes that the rank really holds.
    """

    __slots__ = ("axes", "flat", "_held")

    def __init__(self, axes, flat=None):
        self.axes = axes
        self.flat = flat
        self._held = None

    @property
    def shape(self):
        """The shape before flattening."""
        return [len(axis) for axis in self.axes]

    def held(self, global_strides):
        """Global row-major offset of every element held, in local order."""
        if self._held is None:
            everything = offsets(self.axes, global_strides)
            self._held = everything if self.flat is None else everything[slice(*self.flat)]
        return self._held


class Placement:
    """Who holds what of one tensor on one side: `shards` maps rank to Shard, ranks ascending."""

    def __init__(self, shape, shards):
        self.shape = shape
        self.strides = row_major_strides(shape)
        self.shards = dict(sorted(shards.items()))

    def held(self, rank):
        return self.shards[rank].held(self.strides)

    def is_flat(self):
        return any(shard.flat is not None for shard in self.shards.values())

    def shares_partly(self):
        """Do two holders have some, but not all, of their indices on a dimension in common?"""
        for d in range(len(self.shape)):
            parts = {tuple(shard.axes[d]) for shard in self.shards.values()}
            if sum(map(len, parts)) > len(set().union(*parts)):
                return True
        return False

    def holder_masks(self):
        """For each global element the set of ranks that hold it, as a bit mask."""
        masks = [0] * math.prod(self.shape)
        for rank in self.shards:
            bit = 1 << rank
            for index in self.held(rank):
                masks[index] |= bit
        return masks


class Side:
    """`source` or `destination` of a spec: a mesh, its ranks, its rules. Lost ranks hold nothing."""

    def __init__(self, spec_side, which, lost=()):
        self.which = which
        self.lost = frozenset(lost)
        self.axes = [axis for axis, _ in spec_side["mesh"]]
        self.sizes = [size for _, size in spec_side["mesh"]]
        require(len(set(self.axes)) == len(self.axes), "%s: an axis appears twice" % which)
        require(all(size >= 1 for size in self.sizes), "%s: an axis without ranks" % which)
        count = math.prod(self.sizes)
        require(count <= MAX_RANK, "%s: %d ranks" % (which, count))
        self.rules = spec_side["rules"]
        require(which == "destination" or not any(
            key in rule for rule in self.rules for key in ("dtype", "quantize", "dequantize",
                                                   *CAST_KEYS)),
            "%s: a rule casts" % which)
        self.stages = spec_side.get("stages", [])
        if "ranks" in spec_side:
            self.ranks = spec_side["ranks"]
            require(len(self.ranks) == count, "%s: %d ranks for %d places"
                    % (which, len(self.ranks), count))
            require(len(set(self.ranks)) == count, "%s: a rank appears twice" % which)
        else:
            first = spec_side.get("first_rank", 0)
            self.ranks = list(range(first, first + count))
        require(max(self.ranks) < MAX_RANK, "%s: rank %d" % (which, max(self.ranks)))

    def size_of(self, axis):
        require(axis in self.axes, "%s: the mesh has no axis %s" % (self.which, axis))
        return self.sizes[self.axes.index(axis)]

    def coordinates(self):
        """(rank, {axis: coordinate}) of every rank, in row-major order of the mesh."""
        for index, rank in enumerate(self.ranks):
            where, rest = {}, index
            for axis, size in zip(reversed(self.axes), reversed(self.sizes)):
                where[axis] = rest % size
                rest //= size
            yield rank, where

    def has_rule(self, name):
        return any(glob_match(rule["match"], name) for rule in self.rules)

    def rule_for(self, name):
        for rule in self.rules:
            if glob_match(rule["match"], name):
                return rule
        raise SpecError("%s: no rule of the %s matches" % (name, self.which))

    def shares(self, name, first):
        """Whether neighbours have a packed block together, on a dimension from the first on."""
        for entry in self.rule_for(name).get("shard", []):
            axes = [entry["axis"]] if isinstance(entry["axis"], str) else entry["axis"]
            parts = entry.get("parts", math.prod(map(self.size_of, axes)))
            if entry["dim"] >= first and any(isinstance(block, list) and block[0] > 0
                                             and block[1] != parts
                                             for block in entry.get("blocks", [])):
                return True
        return False

    def stage_pins(self, name):
        """{axis: coordinate} from every stage that fits the name."""
        pins = {}
        for stage in self.stages:
            number = stage_number(stage["match"], name)
            if number is None:
                continue
            axis, size = stage["axis"], self.size_of(stage["axis"])
            require(axis not in pins, "%s: two stages on axis %s" % (name, axis))
            pins[axis] = {stage_coordinate(name, stage, number, size)}
        return pins

    def pins(self, name, rule):
        """{axis: set of coordinates}: `on` of the rule overrides a stage on the same axis."""
        result = self.stage_pins(name)
        for axis, value in rule.get("on", {}).items():
            size = self.size_of(axis)
            values = value if isinstance(value, list) else [value]
            require(all(-size <= v < size for v in values), "%s: on %s out of range" % (name, axis))
            result[axis] = {v % size for v in values}
            require(len(result[axis]) == len(values) or (size == 1 and sorted(values) == [-1, 0]),
                    "%s: on %s twice" % (name, axis))
        return result

    def place(self, name, shape):
        """The placement of a tensor, or None when this side skips it."""
        rule = self.rule_for(name)
        if rule.get("skip"):
            return None
        pins = self.pins(name, rule)
        entries = [(entry, axis_list(entry["axis"])) for entry in rule.get("shard", [])]
        self._check_rule(name, shape, rule, entries, pins)
        cuts = {}
        for entry, axes in entries:
            counts = [self.size_of(axis) for axis in axes]
            cuts[entry["dim"]] = (axes, counts, cut_dim(shape[entry["dim"]], counts, entry))
        whole = [list(range(extent)) for extent in shape]
        shards = {}
        for rank, where in self.coordinates():
            outside = any(where[axis] not in allowed for axis, allowed in pins.items())
            if outside or rank in self.lost:
                continue
            axes_held = list(whole)
            for dim, (axes, counts, parts) in cuts.items():
                axes_held[dim] = parts[row_major([where[a] for a in axes], counts)]
            shards[rank] = Shard(axes_held, self._flat_range(rule, where, axes_held))
        return Placement(shape, shards)

    def _flat_range(self, rule, where, axes_held):
        if "flat" not in rule:
            return None
        flat, count = rule["flat"], math.prod(len(axis) for axis in axes_held)
        parts = self.size_of(flat["axis"])
        if "sizes" in flat:
            pieces = cut_sizes(count, parts, flat["sizes"])
            begin = sum(flat["sizes"][:where[flat["axis"]]])
            return begin, begin + len(pieces[where[flat["axis"]]])
        return chunk(count, parts)[where[flat["axis"]]]

    def _check_rule(self, name, shape, rule, entries, pins):
        used = list(pins)
        for _, axes in entries:
            used.extend(axes)
        if "flat" in rule:
            used.append(rule["flat"]["axis"])
        for axis in used:
            self.size_of(axis)
            require(used.count(axis) == 1, "%s: axis %s is used twice" % (name, axis))
        dims = [entry["dim"] for entry, _ in entries]
        require(len(set(dims)) == len(dims), "%s: a dim appears twice" % name)
        require(all(dim < len(shape) for dim in dims), "%s: dim out of range" % name)
        require(shape or "flat" not in rule, "%s: flat on a scalar" % name)


def axis_list(axis):
    return axis if isinstance(axis, list) else [axis]


def row_major(coordinates, sizes):
    index = 0
    for coordinate, size in zip(coordinates, sizes):
        index = index * size + coordinate
    return index


def stage_coordinate(name, stage, number, axis_size):
    if "sizes" in stage:
        require(len(stage["sizes"]) == axis_size, "stage %s: sizes" % stage["match"])
        for coordinate, items in enumerate(stage["sizes"]):
            if number < items:
                return coordinate
            number -= items
        raise SpecError("%s: beyond the sizes of stage %s" % (name, stage["match"]))
    require(number < stage["count"], "%s: %d >= count %d" % (name, number, stage["count"]))
    return number * axis_size // stage["count"]


# ---- tensors and where the destination's elements come from --------------------------------------


class Tensor:
    def __init__(self, index, name, shape, dtype, source, only=None):
        self.index = index
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.values = self.quantize = None  # of scales: whose they are
        self.codes = self.staged = None  # of scales that come beside codes, and of these
        self.staged_of_matrices = None  # of f4 also those of its matrices
        self.quantized_at = "sender"  # who makes its codes and scales
        self.given = None  # where it becomes nvfp4: the tensor with a scale of each matrix
        self.bits = dtype_bits(dtype)
        self.source = source
        self.only = only  # "source": the destination has no place for it
        self.elements = math.prod(shape)
        require(len(shape) <= MAX_DIMS, "%s: %d dimensions" % (name, len(shape)))
        require(only in (None, "source"), "%s: only %r" % (name, only))
        require(only is None or source is None, "%s: a source, and only at the source" % name)
        require(self.elements * self.bits <= 8 * MAX_BYTES, "%s: too large" % name)

    def is_in(self, subset):
        """Whether a pattern wants it; scales are wanted where the codes are that they are beside."""
        return subset is None or glob_match(subset, (self.codes or [self])[0].name)

    def bytes_of(self, elements):
        require(elements * self.bits % 8 == 0, "%s: %d elements end inside a byte"
                % (self.name, elements))
        return elements * self.bits // 8


class Feed:
    """Box (begin, extents) of tensor `source` fills the box of these extents that starts at `at`.

    Where the two tensors differ in their number of dimensions, the extents of either side are
    aligned at the last dimension and the leading ones are 1 (an expert inside a stack of experts).
    """

    def __init__(self, source, begin, shape, at, n_dims):
        self.source = source
        self.begin = begin
        self.source_extents = shape
        self.at = at
        self.extents = align(shape, n_dims)


def source_names(tensor):
    if tensor.source is None:
        return []
    if isinstance(tensor.source, str):
        return [tensor.source]
    return [box["tensor"] for box in tensor.source]


def coordinates_of(offset, shape, strides):
    return [offset // stride % extent for stride, extent in zip(strides, shape)]


def boxes_of(places, n_dims):
    """A set of places as boxes: runs along the last dimension as long as they are, and the places
    that have the same run as boxes of the dimensions before it."""
    if n_dims == 0:
        return [[]]
    rows, runs = {}, {}
    for place in places:
        rows.setdefault(place[:-1], []).append(place[-1])
    for row, numbers in rows.items():
        numbers.sort()
        begin = numbers[0]
        for number, behind in zip(numbers, numbers[1:] + [None]):
            if behind != number + 1:
                runs.setdefault((begin, number + 1 - begin), set()).add(row)
                begin = behind
    return [box + [run] for run, its in runs.items() for box in boxes_of(its, n_dims - 1)]


def align(shape, n_dims):
    """The same extents over n_dims dimensions, by adding or dropping leading ones."""
    surplus = max(0, len(shape) - n_dims)
    require(all(extent == 1 for extent in shape[:surplus]), "box: extents do not fit")
    return [1] * (n_dims - len(shape)) + list(shape[surplus:])


def expand_tensors(entries):
    """Entries with `count` stand for one tensor per index tuple, {0} slowest."""
    result = []
    for entry in entries:
        for index in index_tuples(entry.get("count", [])):
            name, source = entry["name"], entry.get("source")
            for k, value in enumerate(index):
                require("{%d}" % k in name, "%s: {%d} is missing" % (name, k))
                name = name.replace("{%d}" % k, str(value))
            source = numbered_source(source, index)
            result.append(Tensor(len(result), name, entry["shape"], entry["dtype"], source,
                                 entry.get("only")))
    names = [tensor.name for tensor in result]
    require(len(set(names)) == len(names), "a tensor appears twice")
    return result


def numbered_source(source, index):
    """The names in a source with the numbers of a repeated entry."""
    if isinstance(source, str):
        for k, value in enumerate(index):
            source = source.replace("{%d}" % k, str(value))
        return source
    if source is None:
        return None
    return [{**box, "tensor": numbered_source(box["tensor"], index)} for box in source]


def index_tuples(counts):
    if not counts:
        return [()]
    return [(i,) + rest for i in range(counts[0]) for rest in index_tuples(counts[1:])]


class Model:
    """A whole spec, expanded. Placements are made on first use and kept."""

    def __init__(self, spec, lost=()):
        self.tensors = expand_tensors(spec["tensors"])
        self.by_name = {tensor.name: tensor for tensor in self.tensors}
        self._add_scales(spec["destination"])
        self._add_staged(spec["destination"])
        self.source = self.make_side(spec["source"], "source", lost)
        self.destination = self.make_side(spec["destination"], "destination", lost)
        self.cluster = spec.get("cluster")
        self.world = 1 + max(self.source.ranks + self.destination.ranks)
        self._placed = {}
        self._masks = {}
        self._elements = {}
        self._composed = {}
        whole = self.make_side(spec["source"], "source", ()) if lost else self.source
        for scales in self.tensors:
            if scales.values is not None and not self._have_blocks(whole, scales):
                scales.values.quantized_at = "receiver"
        for values in (tensor for tensor in self.tensors if tensor.given is not None):
            self._check_given(whole, values)
        self.between = {name for tensor in self.tensors for name in source_names(tensor)
                        if name in self.by_name and self.by_name[name].source is not None}

    def _add_scales(self, destination):
        """Tensors of scales, behind all others, that the destination asks for."""
        for tensor in list(self.tensors):
            rule = next((rule for rule in destination.get("rules", [])
                         if glob_match(rule["match"], tensor.name)), {})
            if "quantize" in rule and not rule.get("skip") and tensor.only != "source":
                self.add_scales(tensor, Quantize(rule["quantize"], rule["match"], require))

    def _add_staged(self, destination):
        """And those of scales that come beside codes."""
        for tensor in list(self.tensors):
            rule = next((rule for rule in destination.get("rules", [])
                         if glob_match(rule["match"], tensor.name)), {})
            if ("dequantize" not in rule or rule.get("skip") or tensor.only == "source"
                    or tensor.values is not None):
                continue
            self.add_staged(tensor, Dequantize(rule, rule["match"], require))

    def add_staged(self, tensor, how):
        scales = how.find(tensor, self.by_name, require)
        if tensor.staged is not None:
            require(tensor.staged.source == scales.name
                    and tensor.staged.codes[1].block == how.block,
                    "%s: dequantized in two ways" % tensor.name)
            return
        if len(self._parts_of(scales)) > 1:
            for begin in self._parts_of(tensor).values():
                require(all(at % block == 0 for at, block in zip(begin, how.block)),
                        "%s: a part begins inside a block" % tensor.name)
        tensor.staged = self._add_beside(tensor, how, scales, ":scales")
        of_matrices = how.find_of_matrices(tensor, self.by_name, require)
        if of_matrices is not None:
            if len(self._parts_of(of_matrices)) > 1:
                require(all(not any(begin) for begin in self._parts_of(tensor).values()),
                        "%s: a part begins inside a matrix" % tensor.name)
            tensor.staged_of_matrices = self._add_beside(tensor, how, of_matrices, ":scales_2")

    def _add_beside(self, tensor, how, scales, suffix):
        name = tensor.name + suffix
        require(name not in self.by_name, "%s: is a tensor" % name)
        staged = Tensor(len(self.tensors), name, scales.shape, scales.dtype, scales.name)
        staged.codes = tensor, how
        self.tensors.append(staged)
        self.by_name[name] = staged
        return staged

    def _parts_of(self, tensor):
        """Where each part of a tensor begins, in rows and columns; boxes of one are moved alike."""
        parts = {}
        for feed in [] if tensor.source is None else self.written_feeds(tensor):
            n = max(len(feed.begin), len(feed.at))
            moved = tuple(a - b for a, b in zip([0] * (n - len(feed.begin)) + list(feed.begin),
                                                [0] * (n - len(feed.at)) + list(feed.at)))
            here = parts.setdefault((feed.source, moved), list(feed.at[-2:]))
            here[:] = map(min, here, feed.at[-2:])
        return parts

    def _check_given(self, source, values):
        """Whoever makes nvfp4, makes each of its matrices by the scales that it has of them."""
        at_source = values.quantized_at == "sender"
        side = source if at_source else self.destination
        if not isinstance(side, Side):
            side.check_given(values, require)
            return
        try:
            placement = side.place(values.name, values.shape)
        except SpecError:  # which is said to whoever looks there
            return
        given = side.place(values.given.name, values.given.shape)
        require(at_source or not given or self.change(values.given) is None,
                "%s: its scales are cast" % values.name)
        for rank, shard in placement.shards.items() if placement else []:
            own = given.shards.get(rank) if given else None
            require(own is not None and own.flat is None
                    and list(map(list, own.axes)) == list(map(list, shard.axes[:-2])),
                    "%s: rank %d has not its scales" % (values.name, rank))

    def add_scales(self, tensor, quantize):
        quantize.check(tensor, "destination", require)
        if quantize.is_f4:
            given = quantize.given_of(tensor, self.by_name, require)
            require(tensor.given in (None, given), "%s: two scales of a matrix" % tensor.name)
            tensor.given = given
        name = quantize.name(tensor)
        if name in self.by_name:
            found = self.by_name[name]
            require(found.values is tensor and found.quantize.printed() == quantize.printed(),
                    "%s: is the name of scales" % name)
            return
        scales = Tensor(len(self.tensors), name, quantize.shape(tensor.shape), quantize.scales,
                        None)
        scales.values, scales.quantize = tensor, quantize
        self.tensors.append(scales)
        self.by_name[name] = scales

    def _have_blocks(self, source, scales):
        """Whether every rank that has some of a block at the source has all of it, and alone."""
        values = scales.values
        if not isinstance(source, Side) or values.source is not None:
            return False
        try:
            self._divide(source.place(values.name, values.shape), values, scales.quantize,
                         scales.shape)
            return not source.shares(values.name, len(values.shape) - 2)
        except BrokenBlock:
            return False
        except SpecError:  # which is said to whoever looks there
            return True

    def is_made(self, tensor):
        """Whether it has scales that no move brings: receivers make them."""
        return tensor.values is not None and tensor.values.quantized_at == "receiver"

    def make_side(self, spec_side, which, lost):
        """A side of a mesh; ferry_boxes.py has the model that knows others."""
        return Side(spec_side, which, lost)

    def at_source(self, name):
        """The placement at the source; a tensor that is fed from others is not placed there."""
        tensor = self.by_name[name]
        require(tensor.source is None, "%s: is not placed at the source" % name)
        return self._place(self.source, tensor)

    def at_destination(self, name):
        if self.by_name[name].only == "source":
            return None
        if name in self.between and not self.destination.has_rule(name):
            return None
        return self._place(self.destination, self.by_name[name])

    def _place(self, side, tensor):
        key = side.which, tensor.name
        if key not in self._placed and tensor.values is not None and isinstance(side, Side):
            self._placed[key] = self._divide(self._place(side, tensor.values), tensor.values,
                                             tensor.quantize, tensor.shape)
        if key not in self._placed and tensor.codes is not None and isinstance(side, Side):
            codes, how = tensor.codes
            where = self._place(side, codes)
            self._placed[key] = (self._of_matrices(where, tensor.shape)
                                 if codes.staged_of_matrices is tensor else
                                 self._divide(where, codes, how, tensor.shape))
        if key not in self._placed:
            require(tensor.values is None or side.which == "destination",
                    "%s: quantized from boxes" % tensor.name)
            self._placed[key] = side.place(tensor.name, tensor.shape)
        return self._placed[key]

    @staticmethod
    def _of_matrices(placement, shape):
        """Where the scales of matrices are: with whoever has a part of these."""
        return placement and Placement(shape, {rank: Shard(list(shard.axes[:-2]))
                                               for rank, shard in placement.shards.items()})

    @staticmethod
    def _divide(placement, values, how, shape):
        """Where the scales are: where the blocks of the values are."""
        if placement is None:
            return None
        shards = {}
        for rank, shard in placement.shards.items():
            require_whole(shard.flat is None, "%s: is cut flat" % values.name)
            shards[rank] = Shard(how.blocks_of(shard.axes, values.shape, require_whole))
        return Placement(shape, shards)

    def source_masks(self, name):
        """Holder masks at the source, by global element."""
        if name not in self._masks:
            self._masks[name] = self.at_source(name).holder_masks()
        return self._masks[name]

    def has_flat_over_shared(self, name):
        """Whether elements have several holders at the source that cut different shards flat."""
        cuts = {tuple(map(tuple, shard.axes)) for shard in self.at_source(name).shards.values()
                if shard.flat is not None}
        return any(all(set(x) & set(y) for x, y in zip(a, b))
                   for a, b in itertools.combinations(cuts, 2))

    def change(self, tensor):
        """What becomes of a tensor on its way to a mesh: a ferry_cast.Change, or None."""
        if tensor.values is not None:
            return scales_of(tensor)
        if tensor.codes is not None:
            return None
        if tensor.staged is not None:
            return Product(tensor.staged.codes[1], tensor.dtype, tensor.staged.dtype)
        rule = self.destination.rule_for(tensor.name)
        if "quantize" in rule:
            require("cast" not in rule, "%s: cast and quantize" % tensor.name)
            quantize = Quantize(rule["quantize"], tensor.name, require)
            require(rule.get("dtype", quantize.codes) == quantize.codes, "%s: dtype" % tensor.name)
            return codes_of(quantize, tensor)
        cast = Cast(rule, "destination: rule %s" % rule["match"], require)
        return cast.becomes(tensor.dtype, tensor.name, require)

    def parts(self, tensor):
        """[(bits of an element on its way, who wants what)]"""
        change = self.change(tensor)
        return [(change.bits if change else tensor.bits, self.at_destination(tensor.name))]

    def wanted(self, subset=None, made=False):
        """The tensors that some destination rank wants, in spec order; made: also scales that no
        move brings."""
        return [tensor for tensor in self.tensors
                if tensor.is_in(subset)
                and (made or not self.is_made(tensor))
                and self.at_destination(tensor.name) is not None
                and self.at_destination(tensor.name).shards]

    def without_given(self, subset):
        """A tensor of the subset of which receivers make nvfp4 by one that is not in it, or None."""
        return next((tensor for tensor in self.wanted(subset)
                     if tensor.given and tensor.quantized_at == "receiver"
                     and not tensor.given.is_in(subset)), None)

    def feeds(self, tensor):
        """The boxes that make up the tensor at the destination, of tensors without a source."""
        if not any(name in self.between for name in source_names(tensor)):
            return self.written_feeds(tensor)
        if tensor.name not in self._composed:
            self._composed[tensor.name] = self._compose(tensor)
        return self._composed[tensor.name]

    def _compose(self, tensor):
        """From where each element comes: sets of those that have one displacement, as boxes."""
        groups = {}
        strides = row_major_strides(tensor.shape)
        for offset, (name, start) in enumerate(self.elements(tensor)):
            source = self.by_name[name]
            to = [0] * 8 + coordinates_of(offset, tensor.shape, strides)
            begin = [0] * 8 + coordinates_of(start, source.shape, row_major_strides(source.shape))
            to, begin = to[-8:], begin[-8:]
            key = name, tuple(b - t for b, t in zip(begin, to))
            groups.setdefault(key, set()).add(tuple(to))
        n_dims, feeds = len(tensor.shape), []
        for (name, displacement), places in groups.items():
            n_source = len(self.by_name[name].shape)
            for box in boxes_of(places, 8):
                begin = [t + d for (t, _), d in zip(box, displacement)]
                extents = [extent for _, extent in box]
                at = [t for t, _ in box]
                feeds.append((at, Feed(name, begin[8 - n_source:], extents[8 - n_source:],
                                       at[8 - n_dims:], n_dims)))
        if not feeds:
            name = self.written_feeds(tensor)[0].source
            while self.by_name[name].source is not None:
                name = self.written_feeds(self.by_name[name])[0].source
            n_source = len(self.by_name[name].shape)
            shared = min(n_source, n_dims)
            extents = [1] * (n_source - shared) + [0] * shared
            return [Feed(name, [0] * n_source, extents, [0] * n_dims, n_dims)]
        return [feed for _, feed in sorted(feeds, key=lambda pair: pair[0])]

    def elements(self, tensor):
        """For each global element the tensor without a source that it comes from, and its offset
        there: one step after the other, each through an element of the tensor in between."""
        if tensor.name in self._elements:
            require(self._elements[tensor.name] is not None, "%s: a circle" % tensor.name)
            return self._elements[tensor.name]
        if tensor.source is None:
            return [(tensor.name, offset) for offset in range(tensor.elements)]
        self._elements[tensor.name] = None
        result = [None] * tensor.elements
        strides = row_major_strides(tensor.shape)
        for feed in self.written_feeds(tensor):
            source = self.by_name[feed.source]
            its = self.elements(source)
            to = offsets(spans(feed.at, feed.extents), strides)
            start = offsets(spans(feed.begin, feed.source_extents), row_major_strides(source.shape))
            for destination, offset in zip(to, start):
                require(result[destination] is None, "%s: source boxes overlap" % tensor.name)
                result[destination] = its[offset]
        require(None not in result, "%s: source boxes leave a gap" % tensor.name)
        self._elements[tensor.name] = result
        return result

    def written_feeds(self, tensor):
        """The boxes of the tensor as the spec has them."""
        n_dims = len(tensor.shape)
        if tensor.source is None or isinstance(tensor.source, str):
            name = tensor.source or tensor.name
            zeros = [0] * n_dims
            return [Feed(name, zeros, tensor.shape, zeros, n_dims)]
        return [Feed(box["tensor"], box["begin"], box["shape"], box["at"], n_dims)
                for box in tensor.source]

    def origin(self, tensor):
        """For each global element its feed number and its offset in the source tensor."""
        origin = [None] * tensor.elements
        strides = row_major_strides(tensor.shape)
        for number, feed in enumerate(self.feeds(tensor)):
            source = self.by_name[feed.source]
            to = offsets(spans(feed.at, feed.extents), strides)
            start = offsets(spans(feed.begin, feed.source_extents), row_major_strides(source.shape))
            for destination, offset in zip(to, start):
                require(origin[destination] is None, "%s: source boxes overlap" % tensor.name)
                origin[destination] = (number, offset)
        require(None not in origin, "%s: source boxes leave a gap" % tensor.name)
        return origin

    def validate(self):
        """Raises SpecError for what docs/formats.md calls an error; used on generated specs."""
        moved = 0
        for tensor in self.tensors:
            if tensor.source is not None:
                self._validate_boxes(tensor)
        for tensor in self.tensors:
            if self.is_made(tensor):
                self.at_destination(tensor.name)  # of whole blocks
                continue
            if tensor.source is None:
                self.at_source(tensor.name)
            else:
                self.elements(tensor)
            if self.at_destination(tensor.name) is None:
                continue
            self._validate_origins(tensor)
            self.change(tensor)
            placement = self.at_destination(tensor.name)
            moved += sum(len(placement.held(rank)) for rank in placement.shards)
        require(moved > 0, "the plan moves and copies no bytes")

    def _validate_boxes(self, tensor):
        for feed in self.written_feeds(tensor):
            source = self.by_name.get(feed.source)
            require(source is not None, "%s: no source %s" % (tensor.name, feed.source))
            require(source.dtype == tensor.dtype, "%s: dtype of its source" % tensor.name)
            if not isinstance(tensor.source, list):
                require(source.shape == tensor.shape, "%s: shape of its source" % tensor.name)
            require(len(feed.begin) == len(feed.source_extents) == len(source.shape)
                    and len(feed.at) == len(tensor.shape), "%s: dims of a box" % tensor.name)
            require(fits(feed.begin, feed.source_extents, source.shape)
                    and fits(feed.at, feed.extents, tensor.shape), "%s: box exceeds" % tensor.name)

    def _validate_origins(self, tensor):
        for feed in self.feeds(tensor):
            require(self.at_source(feed.source) is not None,
                    "%s: the source skips %s" % (tensor.name, feed.source))
        self.origin(tensor)
        if tensor.bits % 8:
            self._validate_sub_byte(tensor)

    def _validate_sub_byte(self, tensor):
        """Stricter than the format needs: every edge on the last dimension is on a byte."""
        require(tensor.shape, "%s: a scalar of half a byte" % tensor.name)
        for feed in self.feeds(tensor):
            edges = [feed.at[-1], feed.begin[-1], feed.extents[-1]]
            require(all(edge % 2 == 0 for edge in edges), "%s: odd box" % tensor.name)
            require(cuts_are_even(self.at_source(feed.source)), "%s: odd cut" % tensor.name)
        require(cuts_are_even(self.at_destination(tensor.name)), "%s: odd cut" % tensor.name)


def spans(begin, extents):
    return [range(b, b + n) for b, n in zip(begin, extents)]


def fits(begin, extents, shape):
    return all(b + n <= size for b, n, size in zip(begin, extents, shape))


def runs(indices):
    """[first position, length] of each maximal run of consecutive numbers."""
    result = []
    for position, index in enumerate(indices):
        if result and index == indices[position - 1] + 1:
            result[-1][1] += 1
        else:
            result.append([position, 1])
    return result


def cuts_are_even(placement):
    for shard in placement.shards.values():
        last = shard.axes[-1]
        if any(last[at] % 2 or at % 2 or length % 2 for at, length in runs(last)):
            return False
        if shard.flat is not None and (shard.flat[0] % 2 or shard.flat[1] % 2):
            return False
    return True
