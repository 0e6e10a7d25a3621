# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Is a printed plan right for a spec with a side in boxes? What ferry_oracle.check_plan asks.

Every element of every destination parameter must be written exactly once: by a move, from a rank
that holds the logical element at the very place that the move names, or by a fill with its bits.
"""

import json
from collections import defaultdict

import ferry_cast
from ferry_boxes import Box, check_memory
from ferry_layout import SpecError, offsets, row_major_strides, spans
from ferry_oracle import (MOVE_KEYS, PLAN_KEYS, Holder, Move, PlanChecker, is_box, is_count,
                          misaligned)

FILL_KEYS = {"rank", "parameter", "offset", "shape", "strides", "bits"}
PLACE_KEYS = {"parameter", "offset", "strides"}


def is_list_of_counts(value):
    return isinstance(value, list) and all(map(is_count, value))


def is_place(value):
    return (isinstance(value, dict) and set(value) == PLACE_KEYS
            and isinstance(value["parameter"], str) and is_count(value["offset"])
            and is_list_of_counts(value["strides"]))


class MemoryHolder:
    """One side of a move: a strided box in a parameter of one rank, looked up by address."""

    def __init__(self, tensor, side, rank, place, shape, logical):
        self.tensor = tensor
        self.logical = logical
        self.number, self.parameter = side.parameter(rank, place["parameter"])
        self.name = place["parameter"]
        self.shape = shape
        self.offset = place["offset"]
        self.strides = place["strides"]

    def problem(self):
        if self.parameter is None:
            return "has no parameter %s" % self.name
        if len(self.strides) != len(self.shape):
            return "has %d strides for %d dimensions" % (len(self.strides), len(self.shape))
        if 0 in self.shape:
            return "is empty"
        box = Box(None, None, self.shape, self.offset, self.strides)
        try:
            check_memory(box, self.parameter.elements, self.name)
        except SpecError as error:
            return str(error)
        self.addresses = box.addresses()
        of = self.logical(self.parameter, self.tensor)
        for address in self.addresses:
            if address not in of:
                return "element %d of %s is none of %s" % (address, self.name, self.tensor.name)
        self.globals = [of[address] for address in self.addresses]
        return None

    def global_offsets(self):
        return self.globals

    def local_offsets(self):
        return self.addresses

    def continues(self, other, d):
        """Is `other` the same box further along dimension d?"""
        step = self._step(other, d)
        return (self.name == other.name and step is not None and step > 0
                and other.offset == self.offset + self.shape[d] * step
                and all(s == t or n == 1 for k, (s, t, n) in
                        enumerate(zip(self.strides, other.strides, self.shape)) if k != d))

    def _step(self, other, d):
        """The stride on d of both; of boxes of length 1 that between them."""
        steps = {holder.strides[d] for holder in (self, other) if holder.shape[d] > 1}
        if len(steps) > 1:
            return None
        return steps.pop() if steps else other.offset - self.offset


class MeshHolder(Holder):
    def continues(self, other, d):
        return self.ends_before(other, d) and all(
            mine == its for k, (mine, its) in enumerate(zip(self.box, other.box)) if k != d)


class BoxMove(Move):
    """Lengths by the source's dimensions are those of `shape` with leading ones more or less."""

    def __init__(self, record, tensor, source, sender, receiver, change, number):
        super().__init__(record, tensor, source, sender, receiver, change)
        self.number = number

    def order(self):
        to, dst = self.record["to"], self.record["dst"]
        if self.number is None:
            return to, self.tensor.index, [begin for begin, _ in dst]
        return to, self.number, dst["offset"]

    def begin(self):
        """The first logical element, by dimension."""
        return coordinates(self.receiver.global_offsets()[0], self.tensor.shape)


def coordinates(offset, shape):
    result = []
    for stride in row_major_strides(shape):
        result.append(offset // stride if stride else 0)
        offset -= result[-1] * stride
    return result


def aligned(shape, n_dims):
    """None where a dimension that must go is longer than 1."""
    surplus = max(0, len(shape) - n_dims)
    if any(n != 1 for n in shape[:surplus]):
        return None
    return [1] * (n_dims - len(shape)) + list(shape[surplus:])


class BoxPlanChecker(PlanChecker):
    def __init__(self, spec, plan, policy, subset=None, lost=(), maximal=True):
        super().__init__(spec, plan, policy, subset, lost)
        self.must_be_maximal = maximal
        self.shares_blocks = '"blocks"' in json.dumps(spec["source"].get("rules", []))
        self.has_fills = self.model.in_boxes("destination")
        self.wanted = {tensor.name for tensor in self.model.wanted(subset)}
        self._logical = {}

    def logical(self, parameter, tensor):
        """As the parameter says it, once."""
        key = id(parameter), tensor.name
        if key not in self._logical:
            self._logical[key] = parameter.logical(tensor)
        return self._logical[key]

    def check_header(self):
        plan = self.plan
        if self.has_fills and isinstance(plan, dict) and isinstance(plan.get("fills"), list):
            self.plan = {key: value for key, value in plan.items() if key != "fills"}
        super().check_header()
        self.plan = plan
        if not self.problems and (set(plan) - {"blocks"} == PLAN_KEYS) == self.has_fills:
            self.complain("the plan's keys are %s", sorted(plan))

    def check(self):
        super().check()
        if not self.problems and self.has_fills:
            self.check_fills()
        return self.problems

    def check_record(self, position, record):
        if not isinstance(record, dict) or "shape" not in record:
            self.complain("move %d has the fields %s", position, record)
            return
        if not is_list_of_counts(record["shape"]):
            self.complain("move %d is malformed: %s", position, record)
            return
        for which, key in (("source", "src"), ("destination", "dst")):
            well = is_place if self.model.in_boxes(which) else is_box
            if not well(record.get(key)):
                self.complain("move %d: %s is malformed: %s", position, key, record)
                return
        numbers = [record.get(key) for key in ("task_id", "from", "to", "bytes")]
        names = [record.get("tensor"), record.get("source", "")]
        if (set(record) - {"source", "shape"} - ferry_cast.PRINTED != MOVE_KEYS or not all(map(is_count, numbers))
                or not all(isinstance(name, str) for name in names)):
            self.complain("move %d is malformed: %s", position, record)
            return
        self._look_up(position, record)

    def _look_up(self, position, record):
        tensor = self.model.by_name.get(record["tensor"])
        if tensor is None or tensor.name not in self.wanted:
            self.complain("move %d: no tensor %s is wanted", position, record["tensor"])
            return
        if ("source" in record) != (tensor.source is not None or tensor.values is not None):
            self.complain("move %d of %s: source given or missing", position, tensor.name)
            return
        if tensor.values is not None:
            record = self.in_blocks(position, record, tensor)
        if record is not None:
            self._resolve(record, tensor)

    def _resolve(self, record, tensor):
        label = "move %s of %s" % (record["task_id"], tensor.name)
        name = record.get("source", tensor.name)
        if name not in {feed.source for feed in self.model.feeds(tensor)}:
            self.complain("%s: %s is none of its sources", label, name)
            return
        source, shape = self.model.by_name[name], record["shape"]
        src_shape = aligned(shape, len(source.shape))
        if len(shape) != len(tensor.shape) or src_shape is None:
            self.complain("%s: shape %s does not fit", label, shape)
            return
        sides = []
        for which, of, rank, key, lengths in (
            ("source", source, record["from"], "src", src_shape),
            ("destination", tensor, record["to"], "dst", shape),
        ):
            holder = self._holder(which, of, rank, record[key], lengths, label)
            if holder is None:
                return
            sides.append(holder)
        offsets = [side.local_offsets() for side in sides]
        if tensor.bits % 8 and not bytes_stay_whole(*offsets, 8 // tensor.bits, "dequantize" in record):
            self.complain("%s: does not start and end on bytes", label)
            return
        number = sides[1].number if self.has_fills else None
        change = sides[1].parameter.change(tensor) if self.has_fills else self.model.change(tensor)
        problem = ferry_cast.complaint(record, change) or misaligned(change, sides[0], tensor)
        if problem:
            self.complain("%s: %s", label, problem)
            return
        self.moves.append(BoxMove(record, tensor, source, *sides, change, number))

    def _holder(self, which, tensor, rank, place, lengths, label):
        """A side of a move, or None once something is wrong with it."""
        side = getattr(self.model, which)
        if self.model.in_boxes(which):
            holder = MemoryHolder(tensor, side, rank, place, lengths, self.logical)
        else:
            placement = (self.model.at_source if which == "source" else
                         self.model.at_destination)(tensor.name)
            if placement is None or rank not in placement.shards:
                self.complain("%s: rank %d does not hold %s (%s)", label, rank, tensor.name, which)
                return None
            holder = MeshHolder(tensor, placement, rank, [tuple(pair) for pair in place])
            if [length for _, length in place] != lengths:
                self.complain("%s: %s has another shape than %s", label, place, lengths)
                return None
        problem = holder.problem()
        if problem is None and not is_logical_box(holder.global_offsets(), tensor.shape, lengths):
            problem = "is no box of %s" % tensor.name
        if problem:
            self.complain("%s: the %s %s at rank %d: %s", label, which, place, rank, problem)
            return None
        return holder

    # -- the elements --

    def check_elements(self):
        if not self.has_fills:
            super().check_elements()
            return
        written = {}
        for move in self.moves:
            if not self._check_move(move, written):
                return
        for rank, parameters in sorted(self.model.destination.parameters.items()):
            for parameter in parameters:
                self._check_covered(rank, parameter, written)

    def _check_move(self, move, written):
        record, origin = move.record, self.origin(move.tensor)
        feeds = self.model.feeds(move.tensor)
        read, write = move.sender.global_offsets(), move.receiver.global_offsets()
        if record["bytes"] != move.bytes_of(len(write)):
            self.complain("%s: bytes %d for %d elements of %d bits", move.label, record["bytes"],
                          len(write), move.bits)
        for source, destination, address in zip(read, write, move.receiver.local_offsets()):
            feed, wanted = origin[destination]
            if wanted != source or feeds[feed].source != move.source.name:
                self.complain("%s: global element %d is fed from element %d of %s, not from "
                              "element %d of %s", move.label, destination, wanted,
                              feeds[feed].source, source, move.source.name)
                return False
            key = record["to"], move.receiver.name, address
            if key in written:
                self.complain("%s: element %d of %s is written by move %d too", move.label, address,
                              move.receiver.name, written[key])
                return False
            written[key] = record["task_id"]
        return True

    def _check_covered(self, rank, parameter, written):
        for address, there in enumerate(parameter.memory):
            if there is None or there[0].tensor not in self.wanted:
                continue
            if (rank, parameter.name, address) not in written:
                self.complain("rank %d: element %d of %s, which is of %s, is never written", rank,
                              address, parameter.name, there[0].tensor)
                return

    def check_fills(self):
        """All fills of the ranks that are there, each element once and with its bits, in order."""
        filled, last = {}, None
        side = self.model.destination
        for position, record in enumerate(self.plan["fills"]):
            if not is_fill(record):
                self.complain("fill %d is malformed: %s", position, record)
                return
            number, parameter = side.parameter(record["rank"], record["parameter"])
            if parameter is None:
                self.complain("fill %d: rank %d has no parameter %s", position, record["rank"],
                              record["parameter"])
                return
            order = record["rank"], number, record["offset"]
            if last is not None and not last < order:
                self.complain("fill %d is out of order", position)
            last = order
            if not self._check_fill(position, record, parameter, filled):
                return
        for rank, parameters in sorted(side.parameters.items()):
            for parameter in parameters:
                for address, there in enumerate(parameter.memory):
                    if (there is not None and there[0].tensor is None
                            and (rank, parameter.name, address) not in filled):
                        self.complain("rank %d: element %d of %s is never filled", rank, address,
                                      parameter.name)
                        return

    def _check_fill(self, position, record, parameter, filled):
        box = Box(None, None, record["shape"], record["offset"], record["strides"])
        try:
            check_memory(box, parameter.elements, "fill")
        except SpecError as error:
            self.complain("fill %d: %s", position, error)
            return False
        if box.is_empty():
            self.complain("fill %d is empty", position)
        for address in box.addresses():
            there, key = parameter.memory[address], (record["rank"], parameter.name, address)
            if there is None or there[0].tensor is not None or key in filled:
                self.complain("fill %d: element %d of %s on rank %d is %s", position, address,
                              parameter.name, record["rank"],
                              "filled twice" if key in filled else "not to be filled")
                return False
            if record["bits"] != there[0].bits:
                self.complain("fill %d: element %d of %s has the bits %s, not %s", position,
                              address, parameter.name, record["bits"], there[0].bits)
                return False
            filled[key] = position
        return True

    # -- maximal moves --

    def check_maximal(self):
        """No two moves of the same holders, of one box of the source, are one box, logically and in
        both memories."""
        if not self.must_be_maximal:
            return
        groups = defaultdict(list)
        for move in self.moves:
            fed = self.origin(move.tensor)[move.receiver.global_offsets()[0]][0]
            key = move.record["from"], move.record["to"], move.tensor.name, move.source.name, fed
            groups[key].append(move)
        for moves in groups.values():
            begins = defaultdict(list)
            for move in moves:
                begins[tuple(move.begin())].append(move)
            for move in moves:
                for d, length in enumerate(move.record["shape"]):
                    at = [b + (length if k == d else 0) for k, b in enumerate(move.begin())]
                    for other in begins[tuple(at)]:
                        if self._joins(move, other, d):
                            self.complain("%s: goes on in move %d on dim %d", move.label,
                                          other.record["task_id"], d)

    @staticmethod
    def _joins(move, other, d):
        mine, its = move.record["shape"], other.record["shape"]
        if any(a != b for k, (a, b) in enumerate(zip(mine, its)) if k != d):
            return False
        surplus = len(move.source.shape) - len(move.tensor.shape)
        return (d + surplus >= 0 and move.sender.continues(other.sender, d + surplus)
                and move.receiver.continues(other.receiver, d))

    def check_product(self):
        """Of meshes alone."""

    def check_seed_senders(self):
        """Who sends under the rule of seeds: whoever wants what he has himself, else the lowest
        holder, or in turn. Among neighbours that share a block of a mesh it is the first of them."""
        for move in [] if self.shares_blocks else self.moves:
            sender, receiver = move.record["from"], move.record["to"]
            masks = self.model.source_masks(move.source.name)
            for mask in {masks[offset] for offset in move.sender.global_offsets()}:
                holders = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
                named = {holders[0], holders[receiver % len(holders)]}
                if sender not in named | ({receiver} & set(holders)):
                    self.complain("%s: the rule of seeds names one of %s", move.label,
                                  sorted(named))
                    return


def is_fill(record):
    return (isinstance(record, dict) and set(record) == FILL_KEYS and is_count(record["rank"])
            and isinstance(record["parameter"], str) and is_count(record["offset"])
            and is_list_of_counts(record["shape"]) and is_list_of_counts(record["strides"])
            and len(record["shape"]) == len(record["strides"])
            and isinstance(record["bits"], str))


def is_logical_box(globals_, shape, lengths):
    begin = coordinates(globals_[0], shape)
    if any(b + n > size for b, n, size in zip(begin, lengths, shape)):
        return False
    return globals_ == offsets(spans(begin, lengths), row_major_strides(shape))


def bytes_stay_whole(read, write, per_byte, are_values_written):
    """Every byte that is written is one that is read, its elements in their order. Values that codes become
    are bytes each: what is read together is written side by side, wherever that is."""
    if len(write) % per_byte:
        return False
    order = sorted(zip(write, read))
    for first in range(0, len(order), per_byte):
        (write_at, read_at) = order[first]
        if write_at % per_byte and not are_values_written or read_at % per_byte:
            return False
        for k, (to, source) in enumerate(order[first:first + per_byte]):
            if to != write_at + k or source != read_at + k:
                return False
    return True


def check_box_plan(spec, plan, policy, subset=None, lost=(), maximal=True):
    return BoxPlanChecker(spec, plan, policy, subset, lost, maximal).check()


def check_seed_plan(spec, plan):
    """The same of a plan by the rule of seeds, and who sends."""
    checker = BoxPlanChecker(spec, plan, "seed")
    if not checker.check():
        checker.check_seed_senders()
    return checker.problems
