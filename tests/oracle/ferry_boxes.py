# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Sides in boxes of a ferry.spec/1 file, element by element.

A second reading of docs/formats.md, like ferry_layout.py: every box is expanded to the elements of
memory that it names, and memory is a list with one entry for each element.
"""

import itertools
import math

from ferry_cast import KEYS as CAST_KEYS, Cast
from ferry_dequantize import Dequantize, Product
from ferry_layout import (MAX_BYTES, MAX_DIMS, MAX_RANK, Model, Side, dtype_bits, fits, is_count,
                          offsets, require, row_major_strides, spans)
from ferry_quantize import Quantize, codes_of, scales_of

MOST_LOOPS = 4
PARAMETER_KEYS = {"rank", "ranks", "parameter", "dtype", "elements", "shape", "holds", "fill",
                  "partial", "quantize", "dequantize", *CAST_KEYS}
HOLD_KEYS = {"tensor", "begin", "shape", "offset", "strides", "repeat"}
FILL_KEYS = {"offset", "shape", "strides", "bits"}
LOOP_KEYS = {"count", "begin", "offset"}


class Box:
    """One box of memory: a part of a tensor (begin is where it begins there), or a fill (bits)."""

    def __init__(self, tensor, begin, shape, offset, strides, bits=None):
        self.tensor = tensor
        self.begin = begin
        self.shape = shape
        self.offset = offset
        self.strides = strides
        self.bits = bits

    def is_empty(self):
        return 0 in self.shape

    def addresses(self):
        """Where its elements lie, in row-major order of the box."""
        return [self.offset + step for step in offsets(map(range, self.shape), self.strides)]

    def last(self):
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides))


def check_keys(entry, allowed, required, what):
    require(isinstance(entry, dict), "%s: no object" % what)
    require(set(entry) <= allowed, "%s: unknown key in %s" % (what, sorted(entry)))
    require(required <= set(entry), "%s: lacks a key of %s" % (what, sorted(required)))


def check_counts(values, what):
    require(isinstance(values, list) and all(map(is_count, values)), "%s: no list of counts" % what)
    require(all(value <= MAX_BYTES for value in values), "%s: too large" % what)


def check_memory(box, elements, what):
    """A box that is not empty stays inside its parameter, and steps where it has a length."""
    if box.is_empty():
        return
    require(all(s > 0 for n, s in zip(box.shape, box.strides) if n > 1), "%s: stride 0" % what)
    require(box.last() < elements, "%s: leaves the parameter" % what)


class Parameter:
    """The memory of one name on some ranks."""

    def __init__(self, entry, which, tensors):
        what = "%s: %s" % (which, entry.get("parameter") if isinstance(entry, dict) else entry)
        required = {"parameter", "elements", "holds"}
        check_keys(entry, PARAMETER_KEYS, required, what)
        require(("rank" in entry) != ("ranks" in entry), "%s: needs rank or ranks" % what)
        self.what = what
        self.name = entry["parameter"]
        require(isinstance(self.name, str) and self.name, "%s: no name" % what)
        self.ranks = entry["ranks"] if "ranks" in entry else [entry["rank"]]
        check_counts(self.ranks, what)
        require(self.ranks, "%s: no ranks" % what)
        require(len(set(self.ranks)) == len(self.ranks), "%s: a rank twice" % what)
        require(max(self.ranks) < MAX_RANK, "%s: a rank too large" % what)
        self.elements = entry["elements"]
        require(is_count(self.elements), "%s: elements" % what)
        self.shape = entry.get("shape", [self.elements])
        check_counts(self.shape, what)
        require(len(self.shape) <= MAX_DIMS and math.prod(self.shape) == self.elements,
                "%s: shape" % what)
        self.partial = entry.get("partial", False)
        require(isinstance(self.partial, bool), "%s: partial" % what)
        require(which == "destination" or "fill" not in entry, "%s: a source has no fill" % what)
        self.boxes = [box for hold in as_list(entry["holds"], what)
                      for box in self._expand(hold, tensors)]
        self.cast = Cast(entry, what, require)
        require(which == "destination" or (self.cast.word is None and "quantize" not in entry
                                           and "dequantize" not in entry),
                "%s: a source casts" % what)
        self.dtype = self._dtype(entry, tensors)
        self.bits = dtype_bits(self.dtype)
        require(self.elements * self.bits <= 8 * MAX_BYTES, "%s: too large" % what)
        self.fills = [self._fill(fill) for fill in as_list(entry.get("fill", []), what)]
        for box in self.boxes + self.fills:
            check_memory(box, self.elements, what)
        self.memory = self._lay_out()
        if which == "destination" and not self.partial:
            require(None not in self.memory, "%s: nothing gives an element" % what)

    def _dtype(self, entry, tensors):
        """What it says, or the type of its first box; of other types only what is cast to it."""
        self.quantize = self.dequantize = None
        dtype = entry.get("dtype", tensors[self.boxes[0].tensor].dtype if self.boxes else None)
        if "quantize" in entry:
            self.quantize = Quantize(entry["quantize"], self.what, require)
            dtype = entry.get("dtype", self.quantize.codes)
            require(dtype == self.quantize.codes and self.cast.word is None, self.what)
        if "dequantize" in entry:
            self.dequantize = Dequantize(entry, self.what, require)
        require(isinstance(dtype, str), "%s: dtype" % self.what)
        self.cast.dtype = dtype
        for box in self.boxes:
            tensor = tensors[box.tensor]
            self.change(tensor)
            require(self.quantize is None or self.quantize.is_aligned(box.begin, box.shape,
                                                                      tensor.shape),
                    "%s: a part of a block" % self.what)
        return dtype

    def change(self, tensor):
        """What becomes of a tensor on its way here: a ferry_cast.Change, or None."""
        if tensor.values is not None:
            require(self.quantize is None and self.cast.becomes(tensor.dtype, self.what, require)
                    is None, "%s: scales are not cast" % self.what)
            return scales_of(tensor)
        if self.quantize is not None:
            return codes_of(self.quantize, tensor)
        if self.dequantize is not None:
            return Product(self.dequantize, tensor.dtype, tensor.staged.dtype)
        return self.cast.becomes(tensor.dtype, self.what, require)

    def _expand(self, hold, tensors):
        check_keys(hold, HOLD_KEYS, HOLD_KEYS - {"repeat"}, self.what)
        tensor = tensors.get(hold["tensor"]) if isinstance(hold["tensor"], str) else None
        require(tensor is not None, "%s: no tensor %s" % (self.what, hold["tensor"]))
        n_dims = len(tensor.shape)
        for key in ("begin", "shape", "strides"):
            check_counts(hold[key], self.what)
            require(len(hold[key]) == n_dims, "%s: %s has not %d" % (self.what, key, n_dims))
        require(is_count(hold["offset"]), "%s: offset" % self.what)
        loops = as_list(hold.get("repeat", []), self.what)
        require(len(loops) <= MOST_LOOPS, "%s: too many loops" % self.what)
        for loop in loops:
            check_keys(loop, LOOP_KEYS, LOOP_KEYS, self.what)
            require(is_count(loop["count"]) and loop["count"] >= 1, "%s: count" % self.what)
            check_counts(loop["begin"], self.what)
            require(len(loop["begin"]) == n_dims, "%s: begin of a loop" % self.what)
            require(is_count(loop["offset"]), "%s: offset of a loop" % self.what)
        farthest = [b + sum((loop["count"] - 1) * loop["begin"][d] for loop in loops)
                    for d, b in enumerate(hold["begin"])]
        require(fits(farthest, hold["shape"], tensor.shape), "%s: leaves %s" % (self.what,
                                                                              tensor.name))
        last = hold["offset"] + sum((loop["count"] - 1) * loop["offset"] for loop in loops)
        require(0 in hold["shape"] or last < self.elements, "%s: leaves the parameter" % self.what)
        for steps in itertools.product(*(range(loop["count"]) for loop in loops)):
            begin, offset = list(hold["begin"]), hold["offset"]
            for step, loop in zip(steps, loops):
                begin = [b + step * more for b, more in zip(begin, loop["begin"])]
                offset += step * loop["offset"]
            yield Box(tensor.name, begin, hold["shape"], offset, hold["strides"])

    def _fill(self, fill):
        check_keys(fill, FILL_KEYS, FILL_KEYS - {"bits"}, self.what)
        check_counts(fill["shape"], self.what)
        check_counts(fill["strides"], self.what)
        require(len(fill["shape"]) == len(fill["strides"]) <= MAX_DIMS, "%s: fill" % self.what)
        require(is_count(fill["offset"]), "%s: offset of a fill" % self.what)
        digits = fill.get("bits", "0" * (self.bits // 4))
        require(isinstance(digits, str) and len(digits) == self.bits // 4
                and set(digits) <= set("0123456789abcdef"), "%s: bits %r" % (self.what, digits))
        return Box(None, None, fill["shape"], fill["offset"], fill["strides"], digits)

    def _lay_out(self):
        """For each element of memory the box that gives it and the place there, or None."""
        memory = [None] * self.elements
        for box in self.boxes + self.fills:
            for place, address in enumerate(box.addresses()):
                require(memory[address] is None, "%s: two boxes on %d" % (self.what, address))
                memory[address] = box, place
        return memory

    def logical(self, tensor):
        """{address: row-major offset in the tensor} of all elements of it that lie here."""
        result = {}
        for box in self.boxes:
            if box.tensor == tensor.name:
                strides = row_major_strides(tensor.shape)
                of = offsets(spans(box.begin, box.shape), strides)
                result.update(zip(box.addresses(), of))
        return result


    def scales_entries(self, tensors):
        """The parameters that come beside one that dequantizes, of what is not empty."""
        return [entry for entry in (self._scales_entry(tensors, "staged", ":scales"),
                                    self._scales_entry(tensors, "staged_of_matrices", ":scales_2"))
                if entry]

    def _scales_entry(self, tensors, which, suffix):
        """Of the scales of each tensor the least box that has those of all elements here, by the names
        of the codes. None: of nothing."""
        holds, at, types = [], 0, set()
        for tensor in sorted({box.tensor for box in self.boxes}, key=lambda name: name.encode()):
            staged = getattr(tensors[tensor], which)
            if staged is None:
                continue
            types.add(staged.dtype)
            steps = [1] * (len(tensors[tensor].shape) - 2) + self.dequantize.block
            needed = {tuple(i // step for i, step in zip(index, steps))[:len(staged.shape)]
                      for box in self.boxes if box.tensor == tensor
                      for index in itertools.product(*spans(box.begin, box.shape))}
            if needed:
                begin = [min(axis) for axis in zip(*needed)]
                shape = [max(axis) + 1 - first for axis, first in zip(zip(*needed), begin)]
                holds.append({"tensor": staged.name, "begin": begin,
                              "shape": shape, "offset": at, "strides": row_major_strides(shape)})
                at += math.prod(shape)
        require(len(types) <= 1, "%s: scales of two types" % self.what)
        return {"ranks": self.ranks, "parameter": self.name + suffix, "elements": at,
                "dtype": min(types), "holds": holds} if holds else None


def as_list(value, what):
    require(isinstance(value, list), "%s: no list" % what)
    return value


class BoxPlacement:
    """Who holds what of one tensor, or of it in some parameters: as ferry_layout.Placement."""

    def __init__(self, tensor, side, takes=lambda parameter: True):
        self.shape = tensor.shape
        self.strides = row_major_strides(tensor.shape)
        self.shards = {}
        for rank in side.ranks:
            held = [offset for parameter in side.parameters[rank] if takes(parameter)
                    for offset in parameter.logical(tensor).values()]
            if held or (tensor.elements == 0 and side.names(rank, tensor)):
                self.shards[rank] = held

    def held(self, rank):
        """Global elements, as often as they lie there."""
        return self.shards[rank]

    def is_flat(self):
        return True  # for those who ask whether elements must be looked at one by one

    def holder_masks(self):
        masks = [0] * math.prod(self.shape)
        for rank, held in self.shards.items():
            for index in held:
                masks[index] |= 1 << rank
        return masks


def has_all(given, box):
    """Whether a box of scales has those of all matrices of another box."""
    return all(a <= b and b + n <= a + m for a, m, b, n in zip(
        given.begin, given.shape, box.begin[:-2], box.shape[:-2]))


class BoxSide:
    """`{"boxes": [...]}`. Lost ranks hold nothing."""

    def __init__(self, spec_side, which, lost, tensors):
        check_keys(spec_side, {"boxes"}, {"boxes"}, which)
        self.which = which
        self.tensors = tensors
        self.parameters = {}
        entries = as_list(spec_side["boxes"], which)
        require(entries, "%s: no boxes" % which)
        said = [Parameter(entry, which, tensors) for entry in entries]
        beside = [Parameter(entry, which, tensors) for parameter in said
                  if parameter.dequantize is not None
                  for entry in parameter.scales_entries(tensors)]
        for parameter in said + beside:
            parameter.is_beside = parameter in beside
            for rank in parameter.ranks:
                listed = self.parameters.setdefault(rank, [])
                require(parameter.name not in [other.name for other in listed],
                        "%s: twice on rank %d" % (parameter.what, rank))
                listed.append(parameter)
            for box in parameter.boxes:
                require(which == "destination" or tensors[box.tensor].source is None,
                        "%s: %s is made of others" % (parameter.what, box.tensor))
                require(which == "source" or tensors[box.tensor].only is None,
                        "%s: %s is only at the source" % (parameter.what, box.tensor))
        self.ranks = sorted(self.parameters)
        for rank in lost:
            if rank in self.parameters:
                self.parameters[rank] = []

    def has_rule(self, _name):
        return True

    def place(self, name, _shape):
        return BoxPlacement(self.tensors[name], self)

    def check_given(self, values, require_it):
        """Every rank that makes nvfp4 has, in one box, the scales of all matrices of each box of it,
        and the elements of a row side by side."""
        for parameters in self.parameters.values():
            given = [box for parameter in parameters for box in parameter.boxes
                     if box.tensor == values.given.name and parameter.change(values.given) is None]
            for box in (box for parameter in parameters for box in parameter.boxes
                        if box.tensor == values.name and parameter.quantize is not None
                        and parameter.quantize.is_f4 and not box.is_empty()):
                require_it(box.strides[-1] == 1, "%s: rows in pieces" % values.name)
                require_it(any(has_all(other, box) for other in given),
                           "%s: has not its scales" % values.name)

    def names(self, rank, tensor):
        return any(box.tensor == tensor.name for parameter in self.parameters[rank]
                   for box in parameter.boxes)

    def parameter(self, rank, name):
        for number, parameter in enumerate(self.parameters.get(rank, [])):
            if parameter.name == name:
                return number, parameter
        return None, None


class BoxModel(Model):
    """A spec whose sides are meshes or boxes."""

    def _add_scales(self, destination):
        super()._add_scales(destination)
        for entry in destination.get("boxes", []):
            if isinstance(entry, dict) and "quantize" in entry:
                quantize = Quantize(entry["quantize"], "boxes", require)
                for hold in entry.get("holds", []):
                    if hold["tensor"] in self.by_name:
                        self.add_scales(self.by_name[hold["tensor"]], quantize)

    def _add_staged(self, destination):
        super()._add_staged(destination)
        asked = [(Dequantize(entry, "boxes", require), entry.get("holds", []))
                 for entry in destination.get("boxes", [])
                 if isinstance(entry, dict) and "dequantize" in entry]
        for tensor in list(self.tensors):
            for how, holds in asked:
                if any(hold["tensor"] == tensor.name for hold in holds):
                    self.add_staged(tensor, how)

    def make_side(self, spec_side, which, lost):
        if "boxes" in spec_side:
            return BoxSide(spec_side, which, lost, self.by_name)
        return Side(spec_side, which, lost)

    def parts(self, tensor):
        if not self.in_boxes("destination"):
            return super().parts(tensor)
        ways = {}
        for parameters in self.destination.parameters.values():
            for parameter in parameters:
                if any(box.tensor == tensor.name for box in parameter.boxes):
                    change = parameter.change(tensor)
                    ways.setdefault(change.bits if change else tensor.bits, set()).add(parameter)
        return [(bits, BoxPlacement(tensor, self.destination, ways[bits].__contains__))
                for bits in sorted(ways)]

    def _validate_made(self, scales):
        """Whoever wants scales that receivers make has the codes of these blocks."""
        if not self.in_boxes("destination"):
            self.at_destination(scales.name)
            return
        for rank, parameters in self.destination.parameters.items():
            blocks, wanted = set(), set()
            for parameter in parameters:
                for box in parameter.boxes:
                    ranges = [range(b, b + n) for b, n in zip(box.begin, box.shape)]
                    if box.tensor == scales.name:
                        wanted.update(itertools.product(*ranges))
                    elif (box.tensor == scales.values.name and parameter.quantize is not None
                          and parameter.quantize.printed() == scales.quantize.printed()):
                        steps = [1] * (len(ranges) - 2) + scales.quantize.block
                        blocks.update(itertools.product(*({i // step for i in axis}
                                                          for axis, step in zip(ranges, steps))))
            require(wanted <= blocks, "rank %d: scales of %s without codes" % (rank, scales.name))

    def has_flat_over_shared(self, name):
        return not self.in_boxes("source") and super().has_flat_over_shared(name)

    def in_boxes(self, which):
        return isinstance(getattr(self, which), BoxSide)

    def validate(self):
        """As Model's, and: somebody holds every element that a destination wants."""
        moved = 0
        for tensor in self.tensors:
            if tensor.source is not None:
                self._validate_boxes(tensor)
        for tensor in self.tensors:
            if self.is_made(tensor):
                self._validate_made(tensor)
                continue
            self.elements(tensor)
            placement = self.at_destination(tensor.name)
            if placement is None or not placement.shards:
                continue
            self._validate_origins(tensor)
            self.parts(tensor)
            origin = self.origin(tensor)
            feeds = self.feeds(tensor)
            masks = [self.source_masks(feed.source) for feed in feeds]
            for rank in placement.shards:
                held = placement.held(rank)
                moved += len(held)
                for offset in held:
                    number, place = origin[offset]
                    require(masks[number][place], "%s: nobody holds element %d" % (tensor.name,
                                                                                  offset))
        require(moved > 0, "the plan moves and copies no bytes")

    def _validate_sub_byte(self, tensor):
        """Boxes are held against bytes where moves are judged."""


def is_in_boxes(spec):
    return any("boxes" in spec[which] for which in ("source", "destination"))


def model_of(spec, lost=()):
    return (BoxModel if is_in_boxes(spec) else Model)(spec, lost)
