# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Is a printed plan (ferry.plan/1) right for a spec (ferry.spec/1)?

`check_plan` holds a plan against the definitions of docs/formats.md, element by element, and
`check_balance` holds its busiest sender against the exact bound. Both return a list of sentences,
empty when nothing is wrong. They share no code and no method with the planner.
"""

import re
from collections import Counter, defaultdict
from fractions import Fraction

import ferry_cast
from block_work import block_work
from ferry_bound import Balance, Bound
from ferry_boxes import is_in_boxes, model_of
from ferry_layout import offsets, row_major_strides, runs

PLAN_KEYS = {"format", "digest", "world", "tensors", "bytes", "bound", "ranks", "moves"}
MOVE_KEYS = {"task_id", "tensor", "from", "to", "src", "dst", "bytes"}
REASONS = {"egress", "ingress", "node_egress", "node_ingress", "none"}
RELATIVE_ERROR = Fraction(1, 10**9)
MOST_PROBLEMS = 20


def is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Holder:
    """One side of a move: a box in the local shard of one rank, looked up element by element."""

    def __init__(self, tensor, placement, rank, box):
        self.tensor = tensor
        self.shard = placement.shards[rank]
        self.strides = placement.strides
        self.box = box

    def problem(self):
        """Why the box is not a box of this shard, or None."""
        shape = self.shard.shape
        if len(self.box) != len(shape):
            return "has %d dimensions, the shard %d" % (len(self.box), len(shape))
        for d, (begin, length) in enumerate(self.box):
            if length == 0:
                return "is empty"
            if begin + length > shape[d]:
                return "leaves the shard of shape %s" % shape
            if len(runs(self._indices(d))) != 1:
                return "is not contiguous in the global index on dim %d" % d
        if self.shard.flat is not None:
            local = self.local_offsets()
            if local[0] < 0 or local[-1] >= self.shard.flat[1] - self.shard.flat[0]:
                return "leaves the flat range %s" % (self.shard.flat,)
        if self.tensor.bits % 8 and not self._on_bytes():
            return "does not start and end on bytes"
        return None

    def _indices(self, d):
        begin, length = self.box[d]
        return self.shard.axes[d][begin:begin + length]

    def global_offsets(self):
        return offsets([self._indices(d) for d in range(len(self.box))], self.strides)

    def local_offsets(self):
        """Where the elements lie in the holder's memory, in elements."""
        spans = [range(begin, begin + length) for begin, length in self.box]
        first = self.shard.flat[0] if self.shard.flat is not None else 0
        return [offset - first for offset in offsets(spans, row_major_strides(self.shard.shape))]

    def _on_bytes(self):
        local = self.local_offsets()
        return all(local[at] * self.tensor.bits % 8 == 0 and length * self.tensor.bits % 8 == 0
                   for at, length in runs(local))

    def ends_before(self, other, d):
        """Does `other` continue this box on dimension d, locally and globally?"""
        begin, length = self.box[d]
        if begin + length != other.box[d][0]:
            return False
        axis = self.shard.axes[d]
        return axis[begin + length - 1] + 1 == axis[begin + length]


class Move:
    """A printed move with both of its sides resolved against the spec."""

    def __init__(self, record, tensor, source, sender, receiver, change=None):
        self.bits = change.bits if change else tensor.bits
        self.record = record
        self.tensor = tensor
        self.source = source
        self.sender = sender
        self.receiver = receiver

    @property
    def label(self):
        return "move %s of %s from %s to %s" % (
            self.record["task_id"], self.tensor.name, self.record["from"], self.record["to"])

    def bytes_of(self, elements):
        """What travels of so many elements; -1 where they end inside a byte."""
        return elements * self.bits // 8 if elements * self.bits % 8 == 0 else -1

    def order(self):
        return (self.record["to"], self.tensor.index, [begin for begin, _ in self.record["dst"]])

    def aligned(self):
        """Both boxes over the same number of dimensions: (source, destination) for each."""
        src, dst = self.record["src"], self.record["dst"]
        count = max(len(src), len(dst))
        return ([[0, 1]] * (count - len(src)) + src, [[0, 1]] * (count - len(dst)) + dst)


class PlanChecker:
    def __init__(self, spec, plan, policy, subset=None, lost=()):
        self.model = model_of(spec, lost)
        self.plan = plan
        self.policy = policy
        self.subset = subset
        self.problems = []
        self.moves = []
        self._origins = {}

    def complain(self, sentence, *values):
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(sentence % values if values else sentence)

    def check(self):
        self.check_header()
        if self.problems:
            return self.problems
        for position, record in enumerate(self.plan["moves"]):
            self.check_record(position, record)
        if self.problems:
            return self.problems
        self.check_order()
        self.check_elements()
        self.check_maximal()
        if self.policy == "seed":
            self.check_product()
        else:
            self.check_self_preference()
        self.check_sums()
        self.check_bound()
        return self.problems

    # -- the printed form --

    def check_header(self):
        plan = self.plan
        if not isinstance(plan, dict) or set(plan) - {"blocks"} != PLAN_KEYS:
            self.complain(
                "the plan's keys are %s", sorted(plan) if isinstance(plan, dict) else plan
            )
            return
        if plan["format"] != "ferry.plan/1":
            self.complain("format is %r", plan["format"])
        if not isinstance(plan["digest"], str) or not re.fullmatch("[0-9a-f]{32}", plan["digest"]):
            self.complain("digest is %r", plan["digest"])
        if plan["world"] != self.model.world or not is_count(plan["world"]):
            self.complain(
                "world is %r, the largest rank is %d", plan["world"], self.model.world - 1
            )
        self._check_tensors(plan["tensors"])
        self._check_counts("bytes", plan["bytes"], {"moved", "local", "total"})
        if not isinstance(plan["bound"], dict) or set(plan["bound"]) != {"seconds", "rank", "why"}:
            self.complain("bound is %r", plan["bound"])
        if not isinstance(plan["ranks"], list) or not isinstance(plan["moves"], list):
            self.complain("ranks or moves is no list")
            return
        for entry in plan["ranks"]:
            self._check_counts("ranks", entry, {"rank", "in", "out", "local"})
        expected = block_work(self.model, self.subset)
        if plan.get("blocks", []) != expected or plan.get("blocks") == []:
            self.complain("blocks is %s, not %s", plan.get("blocks"), expected)

    def _check_tensors(self, tensors):
        """A number of tensors, or a list of them: the page does not say which tensors count."""
        if isinstance(tensors, list):
            tensors = len(tensors)
        if not is_count(tensors) or not 0 < tensors <= len(self.model.tensors):
            self.complain("tensors is %r of %d", self.plan["tensors"], len(self.model.tensors))

    def _check_counts(self, name, entry, keys):
        if (
            not isinstance(entry, dict)
            or set(entry) != keys
            or not all(map(is_count, entry.values()))
        ):
            self.complain("%s holds %r", name, entry)

    def check_record(self, position, record):
        """The fields of one move; a record without problems becomes a Move."""
        if (not isinstance(record, dict)
                or set(record) - {"source"} - ferry_cast.PRINTED != MOVE_KEYS):
            self.complain("move %d has the fields %s", position, record)
            return
        numbers = [record["task_id"], record["from"], record["to"], record["bytes"]]
        boxes, names = [record["src"], record["dst"]], [record["tensor"], record.get("source", "")]
        well_formed = all(map(is_count, numbers)) and all(map(is_box, boxes))
        if not well_formed or not all(isinstance(name, str) for name in names):
            self.complain("move %d is malformed: %s", position, record)
            return
        tensor = self.model.by_name.get(record["tensor"])
        if tensor is None or not tensor.is_in(self.subset):
            self.complain("move %d: no tensor %s is wanted", position, record["tensor"])
            return
        if ("source" in record) != (tensor.source is not None or tensor.values is not None):
            self.complain("move %d of %s: source given or missing", position, tensor.name)
            return
        if tensor.values is not None:
            record = self.in_blocks(position, record, tensor)
        if record is not None:
            self._resolve(record, tensor)

    def in_blocks(self, position, record, tensor):
        """A move of scales as if the sender had them: what it reads of the values, in blocks."""
        placement = self.model.at_source(tensor.values.name)
        wrong = "move %d of %s: its source is not the blocks that it has the scales of"
        if (record["source"] != tensor.values.name or placement is None
                or record["from"] not in placement.shards):
            self.complain(wrong, position, tensor.name)
            return None
        shape = placement.shards[record["from"]].shape
        lengths = (record["shape"] if "shape" in record
                   else [length for _, length in record["dst"]])
        block = [1] * (len(shape) - 2) + tensor.quantize.block
        wanted = [[begin, min(n * b, extent - begin)] for (begin, _), n, b, extent
                  in zip(record["src"], lengths, block, shape)]
        if record["src"] != wanted or any(begin % b for (begin, _), b in zip(wanted, block)):
            self.complain(wrong, position, tensor.name)
            return None
        record = {key: value for key, value in record.items() if key != "source"}
        record["src"] = [[begin // b, n] for (begin, _), b, n in zip(wanted, block, lengths)]
        return record

    def _resolve(self, record, tensor):
        name = record.get("source", tensor.name)
        label = "move %s of %s" % (record["task_id"], tensor.name)
        if name not in {feed.source for feed in self.model.feeds(tensor)}:
            self.complain("%s: %s is none of its sources", label, name)
            return
        source = self.model.by_name[name]
        sides = []
        for which, placement, of, rank, box in (
            ("src", self.model.at_source(name), source, record["from"], record["src"]),
            ("dst", self.model.at_destination(tensor.name), tensor, record["to"], record["dst"]),
        ):
            if placement is None or rank not in placement.shards:
                self.complain("%s: rank %d does not hold %s (%s)", label, rank, of.name, which)
                return
            side = Holder(of, placement, rank, [tuple(pair) for pair in box])
            problem = side.problem()
            if problem:
                self.complain("%s: %s %s at rank %d %s", label, which, box, rank, problem)
                return
            sides.append(side)
        change = self.model.change(tensor)
        problem = ferry_cast.complaint(record, change) or misaligned(change, sides[0], tensor)
        if problem:
            self.complain("%s: %s", label, problem)
            return
        move = Move(record, tensor, source, *sides, change)
        src, dst = move.aligned()
        if [length for _, length in src] != [length for _, length in dst]:
            self.complain("%s: src %s and dst %s differ in shape", label, src, dst)
            return
        self.moves.append(move)

    # -- the order and the elements --

    def check_order(self):
        for position, move in enumerate(self.moves):
            if move.record["task_id"] != position:
                self.complain("%s stands at position %d", move.label, position)
                return
            if position and not self.moves[position - 1].order() < move.order():
                self.complain("%s is out of order", move.label)
                return

    def origin(self, tensor):
        if tensor.name not in self._origins:
            self._origins[tensor.name] = self.model.origin(tensor)
        return self._origins[tensor.name]

    def check_elements(self):
        """Every wanted element is written exactly once, and with the right one."""
        written = {(tensor.name, rank): bytearray(tensor.elements)
                   for tensor in self.model.wanted(self.subset)
                   for rank in self.model.at_destination(tensor.name).shards}
        for move in self.moves:
            self._check_move_elements(move, written[move.tensor.name, move.record["to"]])
        for (name, rank), marks in written.items():
            held = self.model.at_destination(name).held(rank)
            missing = [offset for offset in held if not marks[offset]]
            if missing:
                self.complain("%s at rank %d: %d of %d elements are never written, the first is "
                              "global element %d", name, rank, len(missing), len(held), missing[0])

    def _check_move_elements(self, move, marks):
        origin, feeds = self.origin(move.tensor), self.model.feeds(move.tensor)
        read, write = move.sender.global_offsets(), move.receiver.global_offsets()
        if move.record["bytes"] != move.bytes_of(len(write)):
            self.complain("%s: bytes %d for %d elements of %d bits", move.label,
                          move.record["bytes"], len(write), move.bits)
        for source, destination in zip(read, write):
            feed, wanted = origin[destination]
            if wanted != source or feeds[feed].source != move.source.name:
                self.complain("%s: global element %d is fed from element %d of %s, not from "
                              "element %d of %s", move.label, destination, source, move.source.name,
                              wanted, feeds[feed].source)
                return
            if marks[destination]:
                self.complain("%s: global element %d is written twice", move.label, destination)
                return
            marks[destination] = 1

    # -- maximal moves --

    def check_maximal(self):
        """No two moves between the same holders, of one box of the source, make one box.

        Two boxes make one if they agree on all dimensions but one, and there the second begins
        where the first ends: in the source shard, in the destination shard and in both global
        indices. So it is enough to look for the box that would follow.
        """
        groups = defaultdict(list)
        for move in self.moves:
            key = move.record["from"], move.record["to"], move.tensor.name, move.source.name
            first = move.receiver.global_offsets()[:1]
            fed = self.origin(move.tensor)[first[0]][0] if first else None
            groups[key + (fed,)].append(move)
        for moves in groups.values():
            self._check_group_maximal(moves)

    def _check_group_maximal(self, moves):
        begins = {self._corner(move.receiver.box): move for move in moves}
        for move in moves:
            src, dst = move.aligned()
            for d in range(len(move.receiver.box)):
                following = [begin + (length if k == d else 0)
                             for k, (begin, length) in enumerate(move.receiver.box)]
                other = begins.get(tuple(following))
                if other is not None and self._mergeable(move, other, d):
                    self.complain("%s: goes on in move %d on dim %d; the two are one box %s %s",
                                  move.label, other.record["task_id"], d, src, dst)

    @staticmethod
    def _corner(box):
        return tuple(begin for begin, _ in box)

    @staticmethod
    def _mergeable(move, other, d):
        d += max(0, len(move.sender.box) - len(move.receiver.box))
        for mine, its in zip(move.aligned(), other.aligned()):
            if any(mine[k] != its[k] for k in range(len(mine)) if k != d):
                return False
        of_sender = d - (len(move.aligned()[0]) - len(move.sender.box))
        of_receiver = d - (len(move.aligned()[0]) - len(move.receiver.box))
        return (of_sender >= 0 and of_receiver >= 0
                and move.sender.ends_before(other.sender, of_sender)
                and move.receiver.ends_before(other.receiver, of_receiver))

    def check_product(self):
        """With the seed policy the moves of a rank and tensor are a product of runs.

        Together with check_maximal: no run is cut without a reason. Each source box is by itself.
        Flat sides are left out, because a flat range is no product, and so are sources on which
        two holders share only some indices of a dimension (`[size, k]` in blocks): there a run
        ends or goes on with the choice of the sender.
        """
        groups = defaultdict(list)
        for move in self.moves:
            first = self.origin(move.tensor)[move.receiver.global_offsets()[0]][0]
            groups[move.record["to"], move.tensor.name, first].append(move)
        for (rank, name, _), moves in groups.items():
            source = self.model.at_source(moves[0].source.name)
            if (source.is_flat() or self.model.at_destination(name).is_flat()
                    or source.shares_partly() or self._spans_feeds(moves)):
                continue
            cells = 1
            for intervals in zip(*(move.receiver.box for move in moves)):
                ordered = sorted(set(intervals))
                cells *= len(ordered)
                if any(a[0] + a[1] > b[0] for a, b in zip(ordered, ordered[1:])):
                    self.complain("%s at rank %d: runs overlap: %s", name, rank, ordered)
            if cells != len(moves):
                self.complain("%s at rank %d: %d moves, but the product of its runs is %d",
                              name, rank, len(moves), cells)

    def _spans_feeds(self, moves):
        return any(len({self.origin(move.tensor)[offset][0]
                        for offset in move.receiver.global_offsets()}) > 1 for move in moves)

    # -- who sends, and the sums --

    def check_self_preference(self):
        for move in self.moves:
            if move.record["from"] == move.record["to"]:
                continue
            masks = self.model.source_masks(move.source.name)
            if any(
                masks[offset] >> move.record["to"] & 1 for offset in move.sender.global_offsets()
            ) and not self._may_be_sent_its_own(move):
                self.complain("%s: the receiver holds some of it itself", move.label)

    def _may_be_sent_its_own(self, move):
        """Replicas of a shard may hold its bytes at different places of flat shards: see the
        layout algebra, section 8. They take the same moves, by what the first of them has."""
        if not self.model.has_flat_over_shared(move.source.name):
            return False
        shards = self.model.at_destination(move.tensor.name).shards
        own = shards[move.record["to"]]
        return any(rank != move.record["to"] and (shard.axes, shard.flat) == (own.axes, own.flat)
                   for rank, shard in shards.items())

    def check_sums(self):
        sent, received, local = Counter(), Counter(), Counter()
        for move in self.moves:
            record = move.record
            if record["from"] == record["to"]:
                local[record["to"]] += record["bytes"]
            else:
                sent[record["from"]] += record["bytes"]
                received[record["to"]] += record["bytes"]
        moved, kept = sum(sent.values()), sum(local.values())
        expected = {"moved": moved, "local": kept, "total": moved + kept}
        if self.plan["bytes"] != expected:
            self.complain("bytes are %s, the moves sum to %s", self.plan["bytes"], expected)
        listed = [entry["rank"] for entry in self.plan["ranks"]]
        if listed != sorted(set(listed)) or any(rank >= self.model.world for rank in listed):
            self.complain("ranks lists %s", listed)
        for rank in set(sent) | set(received) | set(local):
            if rank not in listed:
                self.complain("ranks does not list rank %d", rank)
        for entry in self.plan["ranks"]:
            rank = entry["rank"]
            expected = {"rank": rank, "in": received[rank], "out": sent[rank], "local": local[rank]}
            if entry != expected:
                self.complain("ranks says %s, the moves sum to %s", entry, expected)

    # -- the bound --

    def check_bound(self):
        bound = self.plan["bound"]
        if bound["why"] not in REASONS:
            self.complain("bound.why is %r", bound["why"])
            return
        rank = bound["rank"]
        if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool)):
            self.complain("bound.rank is %r", rank)
        if self.model.cluster is None:
            if bound["seconds"] is not None:
                self.complain("bound.seconds is %r without a cluster", bound["seconds"])
        elif not is_number(bound["seconds"]):
            self.complain("bound.seconds is %r with a cluster", bound["seconds"])
        else:
            self._check_seconds(bound)

    def _check_seconds(self, bound):
        exact = Bound(self.model, self.subset)
        terms = exact.terms()
        if self.policy == "seed":
            # This policy may fetch what the receiver holds itself; whether that counts is not said.
            own = exact.terms(incoming=self._incoming_bits())
            terms["ingress"] = (terms["ingress"][0], max(terms["ingress"][1], own["ingress"][1]))
        seconds = Fraction(bound["seconds"])
        least = max(low for low, _ in terms.values())
        most = max(high for _, high in terms.values())
        if not between(least, seconds, most):
            self.complain("bound.seconds is %.12g, the exact bound is %.12g .. %.12g (%s)",
                          float(seconds), float(least), float(most), describe(terms))
        elif bound["why"] == "none":
            if seconds != 0:
                self.complain("bound.why is none for %.12g seconds", float(seconds))
        elif not between(terms[bound["why"]][0], seconds, terms[bound["why"]][1]):
            self.complain("bound.why is %s for %.12g seconds (%s)", bound["why"], float(seconds),
                          describe(terms))

    def _incoming_bits(self):
        incoming = Counter()
        for move in self.moves:
            if move.record["from"] != move.record["to"]:
                incoming[move.record["to"]] += 8 * move.record["bytes"]
        return incoming


def misaligned(change, sender, tensor):
    """Whether codes are made of a part of a block."""
    if getattr(change, "part", None) != "codes" or change.at == "receiver":
        return None
    begin = [sender._indices(d)[0] for d in range(len(sender.box))]
    lengths = [length for _, length in sender.box]
    return (None if change.quantize.is_aligned(begin, lengths, tensor.shape)
            else "is no box of whole blocks")


def is_box(box):
    return isinstance(box, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(map(is_count, pair)) for pair in box)


def between(low, value, high):
    return low * (1 - RELATIVE_ERROR) <= value <= high * (1 + RELATIVE_ERROR)


def describe(terms):
    return ", ".join("%s %.9g..%.9g" % (name, float(low), float(high))
                     for name, (low, high) in terms.items())


def check_plan(spec, plan, policy, subset=None, lost=()):
    """Everything that is wrong with a plan for `spec`, as printed by `ferry plan SPEC --json`.

    `policy` is "balanced" or "seed"; `subset` the pattern of --subset, if one was given, and `lost`
    the ranks of --without.
    """
    if is_in_boxes(spec):
        from box_oracle import check_box_plan  # which is made of what is above
        return check_box_plan(spec, plan, policy, subset, lost)
    return PlanChecker(spec, plan, policy, subset, lost).check()


def check_balance(spec, plan, tolerance=1.05, subset=None):
    """What is wrong with the load of the senders of a balanced plan.

    See ferry_bound.Balance for the rounding that is allowed on top of the tolerance.
    """
    balance = Balance(model_of(spec), subset)
    sent = Counter()
    for move in plan["moves"]:
        if move["from"] != move["to"]:
            sent[move["from"]] += move["bytes"]
    problems = []
    if 8 * sum(sent.values()) != balance.moved_bits:
        problems.append(
            "%d bytes move, but %d must" % (sum(sent.values()), balance.moved_bits // 8)
        )
    busiest = max(sent.values(), default=0)
    if busiest < balance.busiest:
        problems.append(
            "the busiest rank sends %d bytes, fewer than the bound %s: the oracle or the "
            "plan is wrong" % (busiest, balance.busiest)
        )
    for rank, amount in sorted(sent.items()):
        if amount > balance.limit(rank, tolerance):
            problems.append(
                "rank %d sends %d bytes; no rank need send more than %.1f (ratio %.4f, "
                "tolerance %.3g, rounding allowed %d bytes)"
                % (
                    rank,
                    amount,
                    float(balance.busiest),
                    float(amount / max(1, balance.busiest)),
                    tolerance,
                    balance.allowance_bits[rank] // 8,
                )
            )
    return problems
