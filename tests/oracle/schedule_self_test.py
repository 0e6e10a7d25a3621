#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Can the oracle of schedules fail? Times computed by hand, and schedules broken on purpose.

    schedule_self_test.py [--seed S] [--count N]

A toy scheduler makes schedules that are right; every way of breaking one must be noticed. Prints
the name of every failing row and exits 1.
"""

import argparse
import copy
import random
import sys
from collections import defaultdict
from itertools import count

import reference_planner
import schedule_specs
from ferry_layout import Model
from schedule_model import Batch, Contradiction, Network, OneSlot, PortModel, max_min_shares
from schedule_oracle import (
    FIRST_FIT, FIRST_FIT_HALF, OPTIMAL, Options, bound_of, check_quality, check_schedule,
    check_trace, first_free, pack, port_names, tasks_of)

FAILURES = []
MOST_TOY_BATCHES = 150


def expect(name, condition, detail=""):
    if not condition:
        FAILURES.append(name)
        print("FAILED %s %s" % (name, detail))


# ---- times by hand -------------------------------------------------------------------------------


TWO_NODES = {"ranks_per_node": 2, "rank_gbytes_per_s": 1, "node_gbytes_per_s": 1}
SLOW_NODE = {**TWO_NODES, "nodes": {"1": {"rank_gbytes_per_s": 0.5}}}
LATE = {**TWO_NODES, "latency_us": 1}
ONE_FAST = {**TWO_NODES, "node_gbytes_per_s": 1.5}

# cluster, half duplex, batches (round, from, to, bytes, waits...), (start, end) of each; with a
# cluster of one gigabyte a second, a thousand bytes are a microsecond.
TIMES = [
    ("nothing", None, False, [], []),
    ("a chain does not wait", None, False, [(0, 0, 1, 8), (1, 1, 2, 4)], [(0, 8), (0, 4)]),
    ("a relay waits", None, False, [(0, 0, 1, 8), (1, 1, 2, 4, 0)], [(0, 8), (8, 12)]),
    ("one port for both", None, True, [(0, 0, 1, 8), (1, 1, 2, 4)], [(0, 8), (8, 12)]),
    ("to each other", None, False, [(0, 0, 1, 8), (0, 1, 0, 4)], [(0, 8), (0, 4)]),
    ("to each other over one port", None, True, [(0, 0, 1, 8), (1, 1, 0, 4)], [(0, 8), (8, 12)]),
    ("incast", None, False, [(0, 0, 2, 3), (1, 1, 2, 5)], [(0, 3), (3, 8)]),
    ("no barrier", None, False, [(0, 0, 1, 9), (0, 2, 3, 1), (1, 2, 4, 1), (1, 5, 1, 1)],
     [(0, 9), (0, 1), (1, 2), (9, 10)]),
    ("the slower rate", SLOW_NODE, False, [(0, 0, 2, 1000), (1, 0, 1, 1000)],
     [(0, 2e-6), (2e-6, 3e-6)]),
    ("latency", LATE, False, [(0, 0, 1, 1000), (1, 0, 1, 500)], [(0, 2e-6), (2e-6, 3.5e-6)]),
    ("two share a node's port", TWO_NODES, False, [(0, 0, 2, 1000), (0, 1, 3, 500)],
     [(0, 1.5e-6), (0, 1e-6)]),
    ("inside a node nothing is shared", TWO_NODES, False, [(0, 0, 1, 1000), (0, 2, 3, 500)],
     [(0, 1e-6), (0, 0.5e-6)]),
    ("latency uses no port of a node", LATE, False, [(0, 0, 2, 1000), (0, 1, 3, 500)],
     [(0, 2.5e-6), (0, 2e-6)]),
    ("a share grows up to the own rate", ONE_FAST, False, [(0, 0, 2, 1750), (0, 1, 3, 750)],
     [(0, 2e-6), (0, 1e-6)]),
    ("three nodes", TWO_NODES, False, [(0, 0, 2, 500), (0, 1, 4, 500), (0, 3, 5, 500)],
     [(0, 1e-6), (0, 1e-6), (0, 1e-6)]),
]

SHARES = [
    ("all alike", [4, 4], ["a", "a"], {"a": 4}, [2, 2]),
    ("a cap leaves more", [1, 4], ["a", "a"], {"a": 4}, [1, 3]),
    ("the narrow port first", [9, 9, 9], ["a", "ab", "b"], {"a": 10, "b": 4}, [8, 2, 2]),
    ("nothing binds", [1, 2], ["a", "b"], {"a": 5, "b": 5}, [1, 2]),
]


def batches_of(rows):
    return [Batch(index, *row[:4], waits=row[4:]) for index, row in enumerate(rows)]


def near(found, expected):
    return abs(found - expected) <= 1e-12 * max(1e-3, abs(expected))


def test_times():
    for name, cluster, half, rows, expected in TIMES:
        network = Network(cluster, 6)
        model = PortModel(batches_of(rows), network, half)
        found = list(zip(model.starts, model.ends))
        expect("times: " + name, all(near(a, c) and near(b, d) for (a, b), (c, d)
                                     in zip(found, expected)), "%s, not %s" % (found, expected))
        expect("one slot: " + name, OneSlot(batches_of(rows), half).stuck() is None)
    for name, caps, ports, capacity, expected in SHARES:
        found = max_min_shares(dict(enumerate(caps)), dict(enumerate(ports)), capacity)
        expect("shares: " + name, [found[k] for k in range(len(caps))] == expected, found)
    model = PortModel(batches_of([(0, 0, 1, 8), (0, 1, 2, 4), (1, 2, 1, 3)]), Network(None, 4),
                      False)
    expect("idle", model.idle() == [3, 0, 4, 11], model.idle())


def test_circle():
    circle = batches_of([(0, 0, 1, 8, 1), (1, 0, 2, 8)])
    expect("one slot: a circle", OneSlot(circle, False).stuck() is not None)
    try:
        PortModel(circle, Network(None, 3), False)
        expect("times: a circle", False)
    except Contradiction:
        pass


# ---- the toy scheduler ---------------------------------------------------------------------------


def toy_rounds(pairs, options, rng):
    """A round for each pair (from, to): first fit, or the fewest that are easily had."""
    if options.rule == OPTIMAL and not options.half:
        return coloured(pairs)
    order = list(range(len(pairs)))
    rounds = [0] * len(pairs)
    while True:
        taken = defaultdict(set)
        for index in order:
            ports = port_names(Batch(index, 0, *pairs[index], 0), options.half)
            rounds[index] = first_free([taken[port] for port in ports])
            for port in ports:
                taken[port].add(rounds[index])
        most = max(map(len, taken.values()), default=0)
        if options.rule != OPTIMAL or max(rounds, default=-1) < -(-3 * most // 2):
            return rounds
        rng.shuffle(order)


def coloured(pairs):
    """As many rounds as the busiest side of a rank has pairs: alternating paths are turned over."""
    at = defaultdict(dict)  # {side of a rank: {round: pair}}
    rounds = {}
    for index, (sender, receiver) in enumerate(pairs):
        ends = ("out", sender), ("in", receiver)
        mine, its = (first_free([at[end]]) for end in ends)
        if mine != its:
            turn_over(at, rounds, pairs, ends[1], mine, its)
        rounds[index] = mine
        for end in ends:
            at[end][mine] = index
    return [rounds[index] for index in range(len(pairs))]


def turn_over(at, rounds, pairs, end, wanted, other):
    """Frees round `wanted` at this side by swapping it with `other` all along a path."""
    path, colour = [], wanted
    while colour in at[end]:
        index = at[end][colour]
        path.append(index)
        ends = ("out", pairs[index][0]), ("in", pairs[index][1])
        end = ends[1] if end == ends[0] else ends[0]
        colour = other if colour == wanted else wanted
    for index in path:
        for end in (("out", pairs[index][0]), ("in", pairs[index][1])):
            at[end].pop(rounds[index])
    for index in path:
        rounds[index] = other if rounds[index] == wanted else wanted
        for end in (("out", pairs[index][0]), ("in", pairs[index][1])):
            at[end][rounds[index]] = index


def toy_batches(tasks, options, rng):
    """[round, from, to, segments], nothing relayed."""
    pairs = defaultdict(list)
    for task in tasks.values():
        pairs[task.sender, task.receiver].append(task)
    found = [(pair, segments) for pair in sorted(pairs)
             for segments in pack(pairs[pair], options.slot_bytes, options.max_tasks)]
    rounds = toy_rounds([pair for pair, _ in found], options, rng)
    return [[number, *pair, segments] for number, (pair, segments) in zip(rounds, found)]


def toy_chain(tasks, options):
    """All tasks are copies of one content: each receiver passes every piece on to the next."""
    order = sorted(tasks.values(), key=lambda task: task.receiver)
    step = options.slot_bytes - options.slot_bytes % order[0].element_bytes
    batches = []
    for piece, first in zip(count(), range(0, order[0].bytes, step)):
        for hop, task in enumerate(order):
            segment = [task.id, first, min(step, task.bytes - first)]
            sender = task.sender
            if hop:
                sender, segment = order[hop - 1].receiver, segment + [order[hop - 1].id]
            # Half duplex: a rank takes part in two batches of a piece, one round after the other.
            number = 2 * piece + hop if options.half else piece + hop
            batches.append([number, sender, task.receiver, [segment]])
    return batches


def toy_schedule(spec, plan, options, batches, waits_of):
    """The printed form of batches, with every figure."""
    batches = sorted(batches, key=lambda batch: batch[:2])
    records = [{"round": number, "from": sender, "to": receiver,
                "bytes": sum(segment[2] for segment in segments), "segments": segments}
               for number, sender, receiver, segments in batches]
    model = Model(spec)
    network = Network(model.cluster, model.world)
    timed = PortModel([Batch(index, record["round"], record["from"], record["to"], record["bytes"],
                             waits_of(index, records)) for index, record in enumerate(records)],
                      network, options.half)
    tasks = tasks_of(model, plan["moves"])
    bound = float(bound_of(tasks.values(), network, options.half)[0])
    sides = defaultdict(int)
    for record in records:
        sides["out", record["from"]] += 1
        sides["in", record["to"]] += 1
    seconds = network.has_seconds
    return {"rounds": 1 + max((record["round"] for record in records), default=-1),
            "degree": max(sides.values(), default=0),
            "makespan_s": timed.makespan if seconds else None,
            "bound_s": bound if seconds else None,
            "ratio": timed.makespan / bound if tasks else 1,
            "idle_s": [[rank, idle if seconds else None]
                       for rank, idle in enumerate(timed.idle())],
            "batches": records}


def relayed_from(index, records):
    """The batches that brought what this one passes on."""
    wanted = {(segment[3], segment[1]) for segment in records[index]["segments"]
              if len(segment) > 3}
    return [other for other, record in enumerate(records)
            if any((segment[0], segment[1]) in wanted for segment in record["segments"])]


def toy_plan(spec, options, rng):
    plan = reference_planner.plan_of(spec)
    batches = toy_batches(tasks_of(Model(spec), plan["moves"]), options, rng)
    plan["schedule"] = toy_schedule(spec, plan, options, batches, lambda index, records: [])
    return plan


def relay_plan(spec, options):
    plan = reference_planner.plan_of(spec)
    batches = toy_chain(tasks_of(Model(spec), plan["moves"]), options)
    plan["schedule"] = toy_schedule(spec, plan, options, batches, relayed_from)
    return plan


# ---- ways to break a schedule; each returns False where there is nothing to break ----------------


def some_batch(rng, schedule):
    return rng.choice(schedule["batches"]) if schedule["batches"] else None


def on_batch(change):
    def mutation(rng, plan):
        batch = some_batch(rng, plan["schedule"])
        return batch is not None and change(rng, plan["schedule"], batch)
    return mutation


def drop_segment(rng, schedule, batch):
    gone = batch["segments"].pop(rng.randrange(len(batch["segments"])))
    batch["bytes"] -= gone[2]
    if not batch["segments"]:
        schedule["batches"].remove(batch)


def repeat_segment(rng, _schedule, batch):
    batch["segments"].append(list(rng.choice(batch["segments"])))
    batch["bytes"] += batch["segments"][-1][2]


def empty_segment(rng, _schedule, batch):
    task, first, size = rng.choice(batch["segments"])[:3]
    batch["segments"].append([task, first + size, 0])


def no_segments(_rng, _schedule, batch):
    batch["segments"], batch["bytes"] = [], 0


def shift_segment(rng, _schedule, batch):
    rng.choice(batch["segments"])[1] += rng.choice([1, 8])


def shorten_segment(rng, _schedule, batch):
    rng.choice(batch["segments"])[2] -= 1
    batch["bytes"] -= 1


def other_task(rng, schedule, batch):
    ids = {segment[0] for other in schedule["batches"] for segment in other["segments"]}
    segment = rng.choice(batch["segments"])
    if ids == {segment[0]}:
        return False
    segment[0] = rng.choice(sorted(ids - {segment[0]}))


def setter(key, change):
    def mutation(_rng, _schedule, batch):
        batch[key] = change(batch[key])
    return mutation


def same_round(rng, schedule, batch):
    """Puts the batch into a round in which its sender or receiver is taken, in order."""
    others = [other["round"] for other in schedule["batches"] if other["round"] != batch["round"]
              and (other["from"] == batch["from"] or other["to"] == batch["to"])]
    if not others:
        return False
    batch["round"] = rng.choice(others)
    schedule["batches"].sort(key=lambda record: (record["round"], record["from"]))


def swap_batches(rng, schedule, batch):
    other = some_batch(rng, schedule)
    if (other["round"], other["from"]) == (batch["round"], batch["from"]):
        return False
    batches = schedule["batches"]
    i, j = batches.index(batch), batches.index(other)
    batches[i], batches[j] = batches[j], batches[i]


def leave_round_out(_rng, schedule, batch):
    for other in schedule["batches"]:
        other["round"] += other["round"] >= batch["round"]


def drop_batch(_rng, schedule, batch):
    schedule["batches"].remove(batch)


def scale(key, factor):
    def mutation(_rng, plan):
        schedule = plan["schedule"]
        if schedule[key] is None:
            schedule[key] = 1.0
        elif schedule[key] == 0:
            schedule[key] = 1e-12
        else:
            schedule[key] *= factor
    return mutation


def add(key, number):
    def mutation(_rng, plan):
        plan["schedule"][key] += number
    return mutation


def spoil_idle(rng, plan):
    entry = rng.choice(plan["schedule"]["idle_s"])
    if entry[1] is None:
        entry[1] = 0.0
    else:
        entry[1] += 1e-6 * (plan["schedule"]["makespan_s"] or 1.0)


def forget_idle(rng, plan):
    plan["schedule"]["idle_s"].pop(rng.randrange(len(plan["schedule"]["idle_s"])))


def forget_key(rng, plan):
    del plan["schedule"][rng.choice(list(plan["schedule"]))]


def relayed(rng, schedule):
    found = [(batch, segment) for batch in schedule["batches"] for segment in batch["segments"]
             if len(segment) > 3]
    return rng.choice(found) if found else (None, None)


def not_relayed(rng, plan):
    _, segment = relayed(rng, plan["schedule"])
    if segment is None:
        return False
    segment.pop()


def relayed_from_other(rng, plan):
    _, segment = relayed(rng, plan["schedule"])
    if segment is None:
        return False
    segment[3] = rng.choice([move["task_id"] for move in plan["moves"]
                             if move["task_id"] != segment[3]] + [len(plan["moves"])])


def relayed_too_early(rng, plan):
    """All that is relayed in one hop, a round before it arrives: still proper, in a chain."""
    batch, segment = relayed(rng, plan["schedule"])
    if segment is None:
        return False
    source = [other for other in plan["schedule"]["batches"]
              if any(part[0] == segment[3] and part[1] == segment[1] for part in other["segments"])]
    batch["round"], source[0]["round"] = source[0]["round"], batch["round"]
    plan["schedule"]["batches"].sort(key=lambda record: (record["round"], record["from"]))


MUTATIONS = {
    "drop a segment": on_batch(drop_segment),
    "repeat a segment": on_batch(repeat_segment),
    "a segment of no bytes": on_batch(empty_segment),
    "a batch of no segments": on_batch(no_segments),
    "shift a segment": on_batch(shift_segment),
    "shorten a segment": on_batch(shorten_segment),
    "another task": on_batch(other_task),
    "another sum": on_batch(setter("bytes", lambda size: size + 1)),
    "another sender": on_batch(setter("from", lambda rank: rank ^ 1)),
    "another receiver": on_batch(setter("to", lambda rank: rank ^ 1)),
    "an unknown rank": on_batch(setter("to", lambda rank: rank + 1000)),
    "a negative round": on_batch(setter("round", lambda number: -1)),
    "a fractional round": on_batch(setter("round", lambda number: number + 0.5)),
    "a taken round": on_batch(same_round),
    "an empty round": on_batch(leave_round_out),
    "out of order": on_batch(swap_batches),
    "drop a batch": on_batch(drop_batch),
    "rounds": add("rounds", 1),
    "fewer rounds": add("rounds", -1),
    "degree": add("degree", 1),
    "makespan": scale("makespan_s", 1 + 1e-7),
    "bound": scale("bound_s", 1 - 1e-7),
    "ratio": scale("ratio", 1 + 1e-7),
    "idle time": spoil_idle,
    "a rank without idle time": forget_idle,
    "a missing key": forget_key,
    "a relay that says nothing": not_relayed,
    "a relay of something else": relayed_from_other,
    "a relay too early": relayed_too_early,
}


def break_all(name, spec, plan, options, rng, tried):
    problems = check_schedule(spec, plan, options)
    expect(name, not problems, problems)
    for what, mutation in MUTATIONS.items():
        broken = copy.deepcopy(plan)
        if mutation(rng, broken) is False or broken == plan:
            continue
        tried.add(what)
        expect("%s, %s" % (name, what), check_schedule(spec, broken, options),
               "is not noticed: %s" % broken["schedule"])


def break_limits(name, spec, plan, options):
    """The same schedule under stricter limits, or with relays forbidden."""
    batches = plan["schedule"]["batches"]
    largest = max((batch["bytes"] for batch in batches), default=0)
    longest = max((len(batch["segments"]) for batch in batches), default=0)
    duplex = "half" if options.half else None
    if largest > 1:
        strict = Options(options.rule, duplex, largest - 1)
        expect(name + ", a smaller slot", check_schedule(spec, plan, strict))
    if longest > 1:
        strict = Options(options.rule, duplex, options.slot_bytes, longest - 1)
        expect(name + ", fewer tasks", check_schedule(spec, plan, strict))
    if any(len(segment) > 3 for batch in batches for segment in batch["segments"]):
        strict = Options(options.rule, duplex, options.slot_bytes, relays=False)
        expect(name + ", without relays", check_schedule(spec, plan, strict))


def toy_trace(spec, plan, options):
    model = Model(spec)
    network = Network(model.cluster, model.world)
    records = plan["schedule"]["batches"]
    batches = [Batch(index, record["round"], record["from"], record["to"], record["bytes"],
                     relayed_from(index, records)) for index, record in enumerate(records)]
    timed = PortModel(batches, network, options.half)
    unit = 1e6 if network.has_seconds else 1e-3
    events = [{"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}}
              for rank in range(model.world) for tid, name in enumerate(["send", "receive"])]
    events += [{"ph": "M", "name": "process_name", "pid": rank, "args": {"name": "rank %d" % rank}}
               for rank in range(model.world)]
    for batch in batches:
        start, end = timed.starts[batch.index] * unit, timed.ends[batch.index] * unit
        facts = {"batch": batch.index, "round": batch.round, "from": batch.sender,
                 "to": batch.receiver, "bytes": batch.bytes}
        events += [{"ph": "X", "pid": rank, "tid": tid, "ts": start, "dur": end - start,
                    "args": facts} for tid, rank in enumerate([batch.sender, batch.receiver])]
    return {"traceEvents": events}


def break_trace(name, spec, plan, options, rng):
    trace = toy_trace(spec, plan, options)
    problems = check_trace(spec, plan, options, trace)
    expect(name + ", trace", not problems, problems)
    spans = [index for index, event in enumerate(trace["traceEvents"]) if event["ph"] == "X"]
    if not spans:
        return
    for key, change in (("ts", lambda ts: ts + 1), ("dur", lambda dur: dur * 1.5),
                        ("tid", lambda tid: 1 - tid), ("args", lambda args: {**args, "round": -1})):
        broken = copy.deepcopy(trace)
        event = broken["traceEvents"][rng.choice(spans)]
        event[key] = change(event[key])
        expect("%s, trace, another %s" % (name, key), check_trace(spec, plan, options, broken))
    del trace["traceEvents"][rng.choice(spans)]
    expect(name + ", trace, an event less", check_trace(spec, plan, options, trace))


# ---- the tests -----------------------------------------------------------------------------------


def test_random(seed, cases):
    tried = set()
    for number in range(seed, seed + cases):
        rng = random.Random(number)
        demands = schedule_specs.draw_demands(
            rng, rng.choice(schedule_specs.PATTERNS)(rng, rng.randint(2, 6)))
        demands = [(sender, receivers, [rng.randint(1, 6) * 2], dtype)
                   for sender, receivers, _, dtype in demands][:30]
        if not demands:
            continue
        spec = schedule_specs.pinned_spec(6, demands, schedule_specs.draw_traffic_cluster(rng, 6))
        slot_bytes = schedule_specs.draw_slot_bytes(rng, demands)
        options = schedule_specs.draw_options(rng, slot_bytes, len(demands))
        plan = toy_plan(spec, options, rng)
        if len(plan["schedule"]["batches"]) <= MOST_TOY_BATCHES:
            name = "seed %d" % number
            break_all(name, spec, plan, options, rng, tried)
            break_limits(name, spec, plan, options)
            break_trace(name, spec, plan, options, rng)
    test_chains(random.Random(seed), tried)
    expect("all mutations", tried == set(MUTATIONS), set(MUTATIONS) - tried)


def test_chains(rng, tried):
    """Relays in a chain, and next to them a task that could be confused with what they pass on."""
    for k in range(2, 7):
        for duplex in (None, "half"):
            spec = schedule_specs.pinned_spec(
                8, [(k, [rank for rank in range(8) if rank != k][:k], [10], "f32")],
                rng.choice([None, LATE, SLOW_NODE]))
            options = Options(duplex=duplex, slot_bytes=12)
            plan = relay_plan(spec, options)
            name = "chain to %d, %s" % (k, duplex or "full")
            break_all(name, spec, plan, options, rng, tried)
            break_limits(name, spec, plan, options)
            break_trace(name, spec, plan, options, rng)


def test_rules(seed):
    """Other rules' schedules are not first fit's: too many rounds, another order."""
    rng = random.Random(seed)
    demands = [(0, [1], [8], "u8"), (1, [2], [8], "u8"), (2, [0], [8], "u8"), (0, [2], [8], "u8")]
    spec = schedule_specs.pinned_spec(3, demands)
    full = toy_plan(spec, Options(FIRST_FIT), rng)
    half = toy_plan(spec, Options(FIRST_FIT_HALF), rng)
    expect("first fit is no first fit of half duplex",
           check_schedule(spec, full, Options(FIRST_FIT_HALF)))
    expect("nor the other way", check_schedule(spec, half, Options(FIRST_FIT)))
    expect("more rounds than the degree", check_schedule(spec, half, Options(OPTIMAL)))
    expect("enough for half duplex",
           not check_schedule(spec, half, Options(OPTIMAL, "half")))


def test_quality():
    long = schedule_specs.pinned_spec(3, [(0, [1], [5000], "u8"), (1, [2], [5000], "u8")])
    plan = toy_plan(long, Options(), random.Random(1))
    expect("quality", not check_quality(long, plan, Options()))
    plan["schedule"]["ratio"] = 1.03
    expect("quality, too slow", check_quality(long, plan, Options()))
    expect("quality, another rule", not check_quality(long, plan, Options(FIRST_FIT)))
    short = schedule_specs.pinned_spec(3, [(0, [1], [4000], "u8")])
    plan = toy_plan(short, Options(), random.Random(1))
    plan["schedule"]["ratio"] = 1.03
    expect("quality, too short", not check_quality(short, plan, Options()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150, help="random schedules")
    arguments = parser.parse_args()
    test_times()
    test_circle()
    test_rules(arguments.seed)
    test_quality()
    test_random(arguments.seed, arguments.count)
    print("%d failures (seed %d)" % (len(FAILURES), arguments.seed))
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
