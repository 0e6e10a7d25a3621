# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Is a printed schedule right for a spec and the moves printed with it?

`check_schedule` holds the "schedule" of a ferry.plan/1 document against docs/formats.md: every
byte once, every round proper, every figure recomputed. `check_quality` holds the makespan against
the bound where the two must nearly meet, and `check_trace` holds a Chrome trace against the port
model. All return sentences, none when nothing is wrong. That the moves themselves are right is
ferry_oracle's affair.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from fractions import Fraction

import ferry_cast
from ferry_boxes import model_of
from ferry_oracle import MOST_PROBLEMS, is_count, is_number
from schedule_model import Batch, Network, OneSlot, PortModel, port_orders

SCHEDULE_KEYS = {"rounds", "degree", "makespan_s", "bound_s", "ratio", "idle_s", "batches"}
BATCH_KEYS = {"round", "from", "to", "bytes", "segments"}
SLOT_BYTES = 16 << 20
MAX_TASKS = 10000
RELATIVE_ERROR = 1e-9
OPTIMAL, FIRST_FIT, FIRST_FIT_HALF = "optimal", "first-fit", "first-fit-half"
LONG_ELEMENTS = 4096  # pairs of ranks that have this much between them fill rounds evenly
LONG_BATCHES = 64


class Options:
    """What the schedule was asked for."""

    def __init__(self, rule=OPTIMAL, duplex=None, slot_bytes=None, max_tasks=None, relays=True):
        self.rule = rule
        self.half = duplex == "half" or rule == FIRST_FIT_HALF
        self.slot_bytes = SLOT_BYTES if slot_bytes is None else slot_bytes
        self.max_tasks = MAX_TASKS if max_tasks is None else max_tasks
        self.relays = relays and rule == OPTIMAL
        self.duplex = duplex
        self._asked = [("--duplex", duplex), ("--slot-bytes", slot_bytes),
                       ("--max-tasks", max_tasks)]
        self._no_relays = ["--no-relays"] * (not relays)

    def arguments(self):
        """The options of the command; what is default is left unsaid."""
        words = ["--schedule" if self.rule == OPTIMAL else "--schedule=" + self.rule]
        for name, value in self._asked:
            words += [] if value is None else [name, str(value)]
        return words + self._no_relays

    def spelled_out(self):
        """The same, with every default said."""
        return ["--schedule=" + self.rule, "--duplex", "half" if self.half else "full",
                "--slot-bytes", str(self.slot_bytes), "--max-tasks", str(self.max_tasks),
                *self._no_relays]


class Task:
    """A move between two ranks. Equal `content` is equal bytes, at the same places of the boxes."""

    def __init__(self, move, tensor):
        self.id = move["task_id"]
        self.sender, self.receiver, self.bytes = move["from"], move["to"], move["bytes"]
        self.element_bytes = max(1, tensor.bits // 8)
        if "at" in move:
            of = ("dst_dtype",) if "quantize" in move else ("src_dtype", "dst_dtype")
            self.element_bytes = max(1, min(ferry_cast.width(move[key]) for key in of) // 8)
        made = {"sender": sorted(ferry_cast.printed(move).items(), key=str), "receiver": self.id}
        self.content = (self.sender, move.get("source", move["tensor"]), read_of(move),
                        str(made.get(move.get("at"))))  # a receiver cannot pass on what it casts


def read_of(move):
    """The bytes that a move reads, in the order in which it sends them."""
    src, shape = move["src"], move.get("shape", [])
    if isinstance(src, list):
        return tuple(map(tuple, src))
    surplus = len(src["strides"]) - len(shape)
    lengths = [1] * max(0, surplus) + shape[max(0, -surplus):]
    steps = tuple((n, s) for n, s in zip(lengths, src["strides"]) if n != 1)
    return src["parameter"], src["offset"], steps


class Segment:
    def __init__(self, batch, numbers):
        self.batch = batch
        self.task, self.first, self.bytes = numbers[:3]
        self.relay = numbers[3] if len(numbers) > 3 else None

    @property
    def end(self):
        return self.first + self.bytes

    @property
    def label(self):
        relayed = "" if self.relay is None else " relayed from task %d" % self.relay
        return "batch %d, bytes [%d, %d) of task %d%s" % (
            self.batch, self.first, self.end, self.task, relayed)


def tasks_of(model, moves):
    return {move["task_id"]: Task(move, model.by_name[move["tensor"]])
            for move in moves if move["from"] != move["to"]}


def close(found, expected, scale=0.0):
    return is_number(found) and abs(found - expected) <= RELATIVE_ERROR * max(abs(expected), scale)


class ScheduleChecker:
    def __init__(self, spec, plan, options):
        self.model = model_of(spec)
        self.network = Network(self.model.cluster, self.model.world)
        self.plan = plan
        self.options = options
        self.tasks = tasks_of(self.model, plan["moves"])
        self.problems = []
        self.segments = []
        self.batches = []

    def complain(self, sentence, *values):
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(sentence % values)

    def check(self):
        """Each step relies on those before it, so the first that finds anything is the last."""
        for step in (self.check_form, self.check_segments, self.check_limits, self.check_coverage,
                     self.check_rounds, self.check_relays, self.check_degree, self.check_rule,
                     self.check_numbers, self.check_slots):
            step()
            if self.problems:
                break
        return self.problems

    # -- the printed form --

    def check_form(self):
        schedule = self.plan.get("schedule")
        if not isinstance(schedule, dict) or set(schedule) != SCHEDULE_KEYS:
            self.complain("schedule is %.200s", schedule)
            return
        self.schedule = schedule
        for key in ("rounds", "degree"):
            if not is_count(schedule[key]):
                self.complain("%s is %r", key, schedule[key])
        for key in ("idle_s", "batches"):
            if not isinstance(schedule[key], list):
                self.complain("%s is %.200r", key, schedule[key])
                return
        for index, record in enumerate(schedule["batches"]):
            self._check_batch_form(index, record)

    def _check_batch_form(self, index, record):
        if not isinstance(record, dict) or set(record) != BATCH_KEYS:
            self.complain("batch %d is %.200s", index, record)
            return
        numbers = [record[key] for key in ("round", "from", "to", "bytes")]
        segments = record["segments"]
        if (not all(map(is_count, numbers)) or not isinstance(segments, list) or not segments
                or not all(map(is_segment, segments))):
            self.complain("batch %d is malformed: %.200s", index, record)
            return
        if max(record["from"], record["to"]) >= self.model.world:
            self.complain("batch %d is between unknown ranks: %.200s", index, record)
            return
        self.batches.append(Batch(index, *numbers))
        self.segments += [Segment(index, numbers) for numbers in segments]

    # -- what travels --

    def check_segments(self):
        for segment in self.segments:
            batch, task = self.batches[segment.batch], self.tasks.get(segment.task)
            if task is None:
                self.complain("%s: no such move between two ranks", segment.label)
            elif segment.bytes == 0 or segment.end > task.bytes:
                self.complain("%s: the task has %d bytes", segment.label, task.bytes)
            elif segment.first % task.element_bytes or segment.bytes % task.element_bytes:
                self.complain("%s: cuts an element of %d bytes", segment.label, task.element_bytes)
            elif batch.receiver != task.receiver:
                self.complain("%s: goes to %d, not to %d", segment.label, batch.receiver,
                              task.receiver)
            elif segment.relay is None and batch.sender != task.sender:
                self.complain("%s: comes from %d, not from %d", segment.label, batch.sender,
                              task.sender)
            elif segment.relay is not None:
                self._check_relay(segment, batch, task)

    def _check_relay(self, segment, batch, task):
        other = self.tasks.get(segment.relay)
        if not self.options.relays:
            self.complain("%s: nothing may be relayed", segment.label)
        elif other is None:
            self.complain("%s: no such task", segment.label)
        elif other.content != task.content:
            self.complain("%s: the two are different bytes", segment.label)
        elif other.receiver != batch.sender:
            self.complain("%s: that goes to %d, not to %d", segment.label, other.receiver,
                          batch.sender)

    def check_limits(self):
        sums, counts = Counter(), Counter()
        for segment in self.segments:
            sums[segment.batch] += segment.bytes
            counts[segment.batch] += 1
        for batch in self.batches:
            if batch.bytes != sums[batch.index]:
                self.complain("batch %d says %d bytes, its segments have %d", batch.index,
                              batch.bytes, sums[batch.index])
            if batch.bytes > self.options.slot_bytes:
                self.complain("batch %d has %d bytes, a slot %d", batch.index, batch.bytes,
                              self.options.slot_bytes)
            if counts[batch.index] > self.options.max_tasks:
                self.complain("batch %d has %d segments, of at most %d", batch.index,
                              counts[batch.index], self.options.max_tasks)

    def check_coverage(self):
        parts = defaultdict(list)
        for segment in self.segments:
            parts[segment.task].append(segment)
        for number, task in self.tasks.items():
            covered = 0
            for segment in sorted(parts[number], key=lambda segment: segment.first):
                if segment.first != covered:
                    self.complain("%s: follows byte %d", segment.label, covered)
                    break
                covered = segment.end
            else:
                if covered != task.bytes:
                    self.complain("task %d: %d of %d bytes travel", number, covered, task.bytes)

    # -- when it travels --

    def check_rounds(self):
        order = [(batch.round, batch.sender) for batch in self.batches]
        if order != sorted(order):
            self.complain("the batches are not in order of round and sender")
        if sorted(set(batch.round for batch in self.batches)) != list(
                range(self.schedule["rounds"])):
            self.complain("there are batches in rounds %s, rounds is %d", sorted(
                set(batch.round for batch in self.batches))[:20], self.schedule["rounds"])
        taken = {}
        for batch in self.batches:
            for port in port_names(batch, self.options.half):
                other = taken.setdefault((batch.round, port), batch.index)
                if other != batch.index:
                    self.complain("batches %d and %d are both in round %d for %s", other,
                                  batch.index, batch.round, "rank %d %s" % (port[1], port[0]))

    def check_relays(self):
        """What is relayed arrived in earlier rounds, all of it."""
        parts = defaultdict(list)
        for segment in sorted(self.segments, key=lambda segment: segment.first):
            parts[segment.task].append(segment)
        firsts = {task: [part.first for part in found] for task, found in parts.items()}
        waits = defaultdict(set)
        for segment in self.segments:
            if segment.relay is None:
                continue
            found = parts[segment.relay]
            at = bisect_right(firsts[segment.relay], segment.first) - 1
            while at < len(found) and found[at].first < segment.end:
                waits[segment.batch].add(found[at].batch)
                self._check_arrival(segment, found[at])
                at += 1
        for index, others in waits.items():
            self.batches[index].waits = sorted(others)

    def _check_arrival(self, segment, part):
        relayed, arrived = self.batches[segment.batch].round, self.batches[part.batch].round
        if arrived >= relayed:
            self.complain("%s: is relayed in round %d, but %s arrives in round %d", segment.label,
                          relayed, part.label, arrived)

    def check_degree(self):
        degree = max((len(order) for order in port_orders(self.batches, False).values()), default=0)
        if self.schedule["degree"] != degree:
            self.complain("degree is %d, the busiest side of a rank has %d batches",
                          self.schedule["degree"], degree)

    def check_rule(self):
        rounds = self.schedule["rounds"]
        if self.options.rule != OPTIMAL:
            self._check_first_fit()
        elif all(segment.relay is None for segment in self.segments):
            if not self.options.half and rounds != self.schedule["degree"]:
                self.complain("%d rounds for degree %d", rounds, self.schedule["degree"])
            most = max(map(len, port_orders(self.batches, True).values()), default=0)
            if self.options.half and rounds > -(-3 * most // 2):
                self.complain("%d rounds; a rank takes part in at most %d batches", rounds, most)

    def _check_first_fit(self):
        """Pack every pair anew, then give every batch the first round that is free."""
        printed = defaultdict(list)
        for batch, record in zip(self.batches, self.schedule["batches"]):
            printed[batch.sender, batch.receiver].append((batch, record["segments"]))
        pairs = defaultdict(list)
        for task in self.tasks.values():
            pairs[task.sender, task.receiver].append(task)
        taken = defaultdict(set)
        for pair in sorted(pairs):
            packed = pack(pairs[pair], self.options.slot_bytes, self.options.max_tasks)
            if [sorted(segments) for _, segments in printed[pair]] != list(map(sorted, packed)):
                self.complain("from %d to %d: batches are %.300s, not %.300s", *pair,
                              [segments for _, segments in printed[pair]], packed)
            for batch, _ in printed[pair]:
                ports = port_names(batch, self.options.half)
                free = first_free([taken[port] for port in ports])
                if batch.round != free:
                    self.complain("batch %d from %d to %d is in round %d; first fit is %d",
                                  batch.index, *pair, batch.round, free)
                for port in ports:
                    taken[port].add(free)

    # -- the figures --

    def check_numbers(self):
        model = PortModel(self.batches, self.network, self.options.half)
        least, most = bound_of(self.tasks.values(), self.network, self.options.half)
        seconds = self.network.has_seconds
        makespan, ratio = self.schedule["makespan_s"], self.schedule["ratio"]
        if (not close(makespan, model.makespan)) if seconds else makespan is not None:
            self.complain("makespan_s is %r, the port model's %r", makespan, model.makespan)
        bound = self.schedule["bound_s"]
        if (not between(least, bound, most)) if seconds else bound is not None:
            self.complain("bound_s is %r, not %r .. %r", bound, float(least), float(most))
        if self.tasks:
            largest, smallest = model.makespan / float(least), model.makespan / float(most)
        else:
            largest = smallest = 1.0
        if not between(smallest, ratio, largest):
            self.complain("ratio is %r, not %r .. %r", ratio, smallest, largest)
        elif ratio < 1 - RELATIVE_ERROR:
            self.complain("ratio is %r: no schedule is faster than the bound", ratio)
        if seconds and not self.problems and self.tasks and not close(ratio, makespan / bound):
            self.complain("ratio is %r, makespan_s / bound_s is %r", ratio, makespan / bound)
        self._check_idle(model)

    def _check_idle(self, model):
        entries = self.schedule["idle_s"]
        if (not all(isinstance(entry, list) and len(entry) == 2 for entry in entries)
                or [rank for rank, _ in entries] != list(range(self.model.world))):
            self.complain("idle_s is %.200s", entries)
            return
        for (rank, idle), expected in zip(entries, model.idle()):
            if not self.network.has_seconds:
                if idle is not None:
                    self.complain("idle_s of rank %d is %r without a cluster", rank, idle)
            elif not close(idle, expected, model.makespan):
                self.complain("idle_s of rank %d is %r, not %r", rank, idle, expected)

    def check_slots(self):
        stuck = OneSlot(self.batches, self.options.half).stuck()
        if stuck is not None:
            self.complain("batch %d never arrives when every rank has one slot", stuck)


def is_segment(numbers):
    return isinstance(numbers, list) and len(numbers) in (3, 4) and all(map(is_count, numbers))


def port_names(batch, half):
    if half:
        return [("taking part", batch.sender), ("taking part", batch.receiver)]
    return [("sending", batch.sender), ("receiving", batch.receiver)]


def first_free(taken):
    number = 0
    while any(number in rounds for rounds in taken):
        number += 1
    return number


def pack(tasks, slot_bytes, max_tasks):
    """The seed's batches of one pair: lists of [task_id, first_byte, bytes], largest first."""
    pieces = []
    for task in tasks:
        step = slot_bytes - slot_bytes % task.element_bytes
        pieces += [[task.id, first, min(step, task.bytes - first)]
                   for first in range(0, task.bytes, step)]
    batches, room = [], 0
    for piece in sorted(pieces, key=lambda piece: (-piece[2], piece[0], piece[1])):
        if not batches or piece[2] > room or len(batches[-1]) == max_tasks:
            batches.append([])
            room = slot_bytes
        batches[-1].append(piece)
        room -= piece[2]
    return batches


def between(low, value, high):
    return is_number(value) and (
        low * (1 - Fraction(RELATIVE_ERROR)) <= value <= high * (1 + Fraction(RELATIVE_ERROR)))


def bound_of(tasks, network, half):
    """(least, most): the bound, exactly.

    A sender counts a box once that several receivers want. The two values differ where one
    receiver alone wants it several times, of which the format says nothing.
    """
    least, most = (Counter() for _ in range(2))
    contents = defaultdict(list)
    for task in tasks:
        contents[task.content].append(task)
    for wanted in contents.values():
        size, sender = wanted[0].bytes, wanted[0].sender
        copies = len(wanted) if len({task.receiver for task in wanted}) == 1 else 1
        _add(least, ("out", "rank", sender), half, size)
        _add(most, ("out", "rank", sender), half, size * copies)
        for task in wanted:
            for sums in (least, most):
                _add(sums, ("in", "rank", task.receiver), half, size)
        entered = Counter(network.node(task.receiver) for task in wanted
                          if network.crosses(sender, task.receiver))
        for node, times in entered.items():
            least["in", "node", node] += size
            most["in", "node", node] += size * (times if copies > 1 else 1)
        if entered:
            least["out", "node", network.node(sender)] += size
            most["out", "node", network.node(sender)] += size * copies
    return tuple(max((Fraction(size) / Fraction(rate_of(network, port))
                      for port, size in sums.items()), default=Fraction(0))
                 for sums in (least, most))


def _add(sums, port, half, size):
    sums["in and out" if half else port[0], port[1], port[2]] += size


def rate_of(network, port):
    return network.rank_rate(port[2]) if port[1] == "rank" else network.node_rate(port[2])


def check_schedule(spec, plan, options):
    """Everything that is wrong with the printed schedule; see the top of the file."""
    return ScheduleChecker(spec, plan, options).check()


# ---- how near to the bound -----------------------------------------------------------------------


def is_even(cluster, world):
    """Do all ranks have one rate, no latency, and nodes that never limit them?"""
    if cluster is None:
        return True
    nodes = range(-(-world // cluster["ranks_per_node"]))
    kinds = [{**cluster, **cluster.get("nodes", {}).get(str(node), {})} for node in nodes]
    return (not cluster.get("latency_us", 0)
            and len({kind["rank_gbytes_per_s"] for kind in kinds}) == 1
            and all(kind["node_gbytes_per_s"]
                    >= min(world, cluster["ranks_per_node"]) * kind["rank_gbytes_per_s"]
                    for kind in kinds))


def is_long(tasks, options):
    """Has every pair enough, in pieces small enough, to fill rounds evenly?"""
    pairs = defaultdict(list)
    for task in tasks.values():
        pairs[task.sender, task.receiver].append(task)
    largest = max((task.element_bytes for task in tasks.values()), default=1)
    return (bool(pairs) and options.slot_bytes >= LONG_BATCHES * largest
            and all(sum(task.bytes // largest for task in tasks) >= LONG_ELEMENTS
                    and len(tasks) <= options.max_tasks for tasks in pairs.values()))


def check_quality(spec, plan, options, tolerance=1.02):
    """Where nothing is copied and rounds are long, the makespan must nearly meet the bound."""
    model = model_of(spec)
    tasks = tasks_of(model, plan["moves"])
    copied = len({task.content for task in tasks.values()}) < len(tasks)
    if (options.rule != OPTIMAL or options.half or copied or not is_long(tasks, options)
            or not is_even(model.cluster, model.world)):
        return []
    ratio = plan["schedule"]["ratio"]
    return [] if ratio <= tolerance else [
        "ratio is %r where %r can be reached" % (ratio, tolerance)]


# ---- the trace -----------------------------------------------------------------------------------


def check_trace(spec, plan, options, trace):
    """A Chrome trace has every batch on the sender's and on the receiver's track, when it travels.

    Times are microseconds; without a cluster a byte counts as a nanosecond.
    """
    checker = ScheduleChecker(spec, plan, options)
    problems = checker.check()
    if problems or not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return problems or ["the trace has no traceEvents"]
    model = PortModel(checker.batches, checker.network, options.half)
    unit = 1e6 if checker.network.has_seconds else 1e-3
    expected, found = defaultdict(list), defaultdict(list)
    for batch in checker.batches:
        span = model.starts[batch.index] * unit, model.ends[batch.index] * unit
        expected[batch.sender, "send"].append((*span, batch))
        expected[batch.receiver, "receive"].append((*span, batch))
    processes = {key[0]: name for key, name in names_in(trace, "process_name").items()}
    if processes != {rank: "rank %d" % rank for rank in range(checker.model.world)}:
        problems.append("the trace has the processes %.200s" % processes)
    tracks = names_in(trace, "thread_name")
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            found[event["pid"], tracks.get((event["pid"], event["tid"]))].append(event)
    for track in set(expected) | set(found):
        problems += compare_track(track, expected[track], found[track], model.makespan * unit)
    return problems[:MOST_PROBLEMS]


def names_in(trace, kind):
    """{(process, thread): name} of what the trace names."""
    return {(event["pid"], event.get("tid")): event["args"]["name"]
            for event in trace["traceEvents"] if event["ph"] == "M" and event["name"] == kind}


def compare_track(track, expected, found, makespan):
    label = "trace, rank %s %s" % track
    if len(expected) != len(found):
        return ["%s: %d events for %d batches" % (label, len(found), len(expected))]
    problems = []
    expected = sorted(expected, key=lambda entry: (entry[0], entry[2].round))
    found = sorted(found, key=lambda event: (event["ts"], event["args"].get("round", 0)))
    for (start, end, batch), event in zip(expected, found):
        if not close(event["ts"], start, makespan) or not close(
                event["ts"] + event["dur"], end, makespan):
            problems.append("%s: batch %d is at %r for %r, not at %r for %r" % (
                label, batch.index, event["ts"], event["dur"], start, end - start))
        facts = {"batch": batch.index, "round": batch.round, "from": batch.sender,
                 "to": batch.receiver, "bytes": batch.bytes}
        wrong = {key: value for key, value in facts.items() if event["args"].get(key) != value}
        if wrong:
            problems.append("%s: an event says %s, not %s" % (label, event["args"], wrong))
    return problems
