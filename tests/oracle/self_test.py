#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Can the oracle fail? Literal tables, a literal plan, and plans broken on purpose.

    self_test.py [--seed S] [--count N]

Prints the name of every failing row and exits 1.
"""

import argparse
import copy
import random
import sys
from collections import Counter
from fractions import Fraction
from itertools import combinations

import ferry_bound
import ferry_flow
import reference_planner
import spec_random
from ferry_layout import Model, Side, SpecError, cut_dim, glob_match, stage_number
from ferry_oracle import check_balance, check_plan
from shard_oracle import check_shards, lost_elements

FAILURES = []


def expect(name, condition, detail=""):
    if not condition:
        FAILURES.append(name)
        print("FAILED %s %s" % (name, detail))


# ---- literal tables ------------------------------------------------------------------------------


def spell(pieces):
    """Parts as text: '0-2,6' is the indices 0 1 2 6; parts are separated by a blank."""
    words = []
    for piece in pieces:
        spans = []
        for index in piece:
            if spans and index == spans[-1][1] + 1:
                spans[-1][1] = index
            else:
                spans.append([index, index])
        words.append(",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in spans) or ".")
    return " ".join(words)


CUTS = [
    ("even", 8, [4], {}, "0-1 2-3 4-5 6-7"),
    ("chunk rule, short last part", 10, [4], {}, "0-2 3-5 6-8 9"),
    ("chunk rule, empty last part", 10, [6], {}, "0-1 2-3 4-5 6-7 8-9 ."),
    ("more parts than elements", 2, [4], {}, "0 1 . ."),
    ("no elements", 0, [2], {}, ". ."),
    ("product 10 over 2 x 3", 10, [2, 3], {}, "0-1 2-3 4-5 6-7 8-9 ."),
    ("nested 10 over 2 x 3", 10, [2, 3], {"nested": True}, "0-1 2-3 4 5-6 7-8 9"),
    ("nested in units", 12, [2, 2], {"nested": True, "unit": 2}, "0-3 4-5 6-9 10-11"),
    ("stride 2", 8, [2], {"stride": 2}, "0-1,4-5 2-3,6-7"),
    ("stride 2, uneven", 7, [2], {"stride": 2}, "0-1,4-5 2-3,6"),
    ("stride 2 in units of 2", 12, [2], {"stride": 2, "unit": 2}, "0-3,8-11 4-7"),
    ("blocks", 10, [2], {"blocks": [4, 6]}, "0-1,4-6 2-3,7-9"),
    ("blocks, uneven", 8, [2], {"blocks": [3, 5]}, "0-1,3-5 2,6-7"),
    ("blocks, one replicated", 6, [2], {"blocks": [4, [2, 1]]}, "0-1,4-5 2-5"),
    (
        "blocks, one over half of the ranks",
        8,
        [4],
        {"blocks": [4, [4, 2]]},
        "0,4-5 1,4-5 2,6-7 3,6-7",
    ),
    ("blocks in units", 10, [2], {"blocks": [6, 4], "unit": 2}, "0-3,6-7 4-5,8-9"),
    ("sizes", 20, [4], {"sizes": [10, 7, 0, 3]}, "0-9 10-16 . 17-19"),
    ("cycle 1", 5, [2], {"cycle": 1}, "0,2,4 1,3"),
    ("cycle 3", 10, [2], {"cycle": 3}, "0-2,6-8 3-5,9"),
    ("parts 2 of 4", 6, [4], {"parts": 2}, "0-2 0-2 3-5 3-5"),
    ("parts 1", 3, [2], {"parts": 1}, "0-2 0-2"),
    ("parts with unit", 6, [4], {"parts": 2, "unit": 2}, "0-3 0-3 4-5 4-5"),
    ("parts of a product", 6, [2, 3], {"parts": 3}, "0-1 0-1 2-3 2-3 4-5 4-5"),
    ("unit", 10, [3], {"unit": 2}, "0-3 4-7 8-9"),
]

BAD_CUTS = [
    ("unit does not divide", 10, [2], {"unit": 3}),
    ("sizes do not sum", 10, [2], {"sizes": [5, 4]}),
    ("sizes for other parts", 10, [2], {"sizes": [5, 4, 1]}),
    ("blocks do not sum", 10, [2], {"blocks": [5, 4]}),
    ("parts does not divide", 12, [4], {"parts": 3}),
    ("block parts do not divide", 12, [4], {"blocks": [[12, 3]]}),
    ("stride and cycle", 12, [4], {"stride": 1, "cycle": 1}),
    ("nested and stride", 12, [2, 2], {"nested": True, "stride": 2}),
    ("nested and parts", 12, [2, 2], {"nested": True, "parts": 2}),
    ("unit and cycle", 12, [2], {"unit": 2, "cycle": 2}),
    ("cycle 0", 12, [2], {"cycle": 0}),
]

GLOBS = [
    ("*", "", True), ("*", "a.b", True), ("a*c", "abbc", True), ("a*c", "abcd", False),
    ("?", "a", True), ("?", "", False), ("?", "\u00e9", False), ("??", "\u00e9", True),
    ("a.c", "abc", False), ("[a]", "a", False), ("[a]", "[a]", True), ("w", "w.x", False),
]

STAGES = [
    ("layers.{}.*", "layers.12.w", 12), ("layers.{}.*", "layers.0.w", 0),
    ("layers.{}.*", "layers.01.w", None), ("layers.{}.*", "layers.1", None),
    ("*experts.{}.*", "layers.3.experts.7.w", 7), ("*.{}.*", "a.3.b.7.w", 3),
    ("*{}*", "a12b3", 12), ("{}", "7", 7), ("{}", "x", None),
]


def test_tables():
    for name, extent, counts, entry, expected in CUTS:
        found = spell(cut_dim(extent, counts, entry))
        expect("cut: " + name, found == expected, "gives %s, not %s" % (found, expected))
    for name, extent, counts, entry in BAD_CUTS:
        expect("bad cut: " + name, raises(cut_dim, extent, counts, entry))
    for pattern, name, fits in GLOBS:
        expect("glob %s on %s" % (pattern, name), glob_match(pattern, name) == fits)
    for pattern, name, number in STAGES:
        expect("stage %s on %s" % (pattern, name), stage_number(pattern, name) == number)


def raises(function, *arguments):
    try:
        function(*arguments)
    except SpecError:
        return True
    return False


def test_sides():
    side = {
        "mesh": [["pp", 2], ["tp", 2]],
        "ranks": [7, 5, 3, 1],
        "rules": [
            {"match": "flat", "flat": {"axis": "tp"}, "on": {"pp": 0}},
            {
                "match": "ragged",
                "flat": {"axis": "tp", "sizes": [1, 5]},
                "shard": [{"dim": 0, "axis": "pp"}],
            },
            {"match": "*.pinned", "on": {"pp": [-1]}, "shard": [{"dim": 0, "axis": "tp"}]},
            {"match": "swapped", "shard": [{"dim": 0, "axis": ["tp", "pp"]}]},
            {"match": "*"},
        ],
        "stages": [
            {"match": "layers.{}.*", "axis": "pp", "count": 3},
            {"match": "items.{}", "axis": "pp", "sizes": [1, 4]},
        ],
    }
    table = [
        ("flat", [2, 3], {5: [3, 4, 5], 7: [0, 1, 2]}),
        ("ragged", [4, 3], {1: [7, 8, 9, 10, 11], 3: [6], 5: [1, 2, 3, 4, 5], 7: [0]}),
        ("layers.0.pinned", [4], {1: [2, 3], 3: [0, 1]}),
        ("swapped", [4], {1: [3], 3: [1], 5: [2], 7: [0]}),
        ("layers.1.w", [1], {5: [0], 7: [0]}),
        ("layers.2.w", [1], {1: [0], 3: [0]}),
        ("items.0", [1], {5: [0], 7: [0]}),
        ("items.4", [1], {1: [0], 3: [0]}),
        ("scalar", [], {1: [0], 3: [0], 5: [0], 7: [0]}),
    ]
    for name, shape, expected in table:
        placement = Side(side, "source").place(name, shape)
        found = {rank: placement.held(rank) for rank in placement.shards}
        expect("side: " + name, found == expected, "holds %s" % found)
    expect("side: beyond the stage", raises(Side(side, "source").place, "layers.3.w", [1]))
    expect("side: beyond the sizes", raises(Side(side, "source").place, "items.5", [1]))


# ---- a literal plan and its mutations ------------------------------------------------------------

TINY_SPEC = {
    "format": "ferry.spec/1",
    "tensors": [
        {"name": "w", "shape": [4, 6], "dtype": "f32"},
        {"name": "s", "shape": [], "dtype": "f32"},
    ],
    "source": {
        "mesh": [["tp", 2]],
        "first_rank": 0,
        "rules": [{"match": "w", "shard": [{"dim": 0, "axis": "tp"}]}, {"match": "*"}],
    },
    "destination": {
        "mesh": [["tp", 2]],
        "first_rank": 1,
        "rules": [{"match": "w", "shard": [{"dim": 1, "axis": "tp"}]}, {"match": "*"}],
    },
    "cluster": {
        "ranks_per_node": 2,
        "rank_gbytes_per_s": 1,
        "node_gbytes_per_s": 2,
        "latency_us": 0,
    },
}

TINY_PLAN = {
    "format": "ferry.plan/1",
    "digest": "0123456789abcdef0123456789abcdef",
    "world": 3,
    "tensors": 2,
    "bytes": {"moved": 76, "local": 28, "total": 104},
    "bound": {"seconds": 5.2e-08, "rank": 2, "why": "ingress"},
    "ranks": [
        {"rank": 0, "in": 0, "out": 52, "local": 0},
        {"rank": 1, "in": 24, "out": 24, "local": 28},
        {"rank": 2, "in": 52, "out": 0, "local": 0},
    ],
    "moves": [
        {
            "task_id": 0,
            "tensor": "w",
            "from": 0,
            "to": 1,
            "src": [[0, 2], [0, 3]],
            "dst": [[0, 2], [0, 3]],
            "bytes": 24,
        },
        {
            "task_id": 1,
            "tensor": "w",
            "from": 1,
            "to": 1,
            "src": [[0, 2], [0, 3]],
            "dst": [[2, 2], [0, 3]],
            "bytes": 24,
        },
        {"task_id": 2, "tensor": "s", "from": 1, "to": 1, "src": [], "dst": [], "bytes": 4},
        {
            "task_id": 3,
            "tensor": "w",
            "from": 0,
            "to": 2,
            "src": [[0, 2], [3, 3]],
            "dst": [[0, 2], [0, 3]],
            "bytes": 24,
        },
        {
            "task_id": 4,
            "tensor": "w",
            "from": 1,
            "to": 2,
            "src": [[0, 2], [3, 3]],
            "dst": [[2, 2], [0, 3]],
            "bytes": 24,
        },
        {"task_id": 5, "tensor": "s", "from": 0, "to": 2, "src": [], "dst": [], "bytes": 4},
    ],
}


def refresh(plan):
    """Makes ids and sums agree with the moves again, so that only the real fault remains."""
    sent, received, local = Counter(), Counter(), Counter()
    for position, move in enumerate(plan["moves"]):
        move["task_id"] = position
        if move["from"] == move["to"]:
            local[move["to"]] += move["bytes"]
        else:
            sent[move["from"]] += move["bytes"]
            received[move["to"]] += move["bytes"]
    moved, kept = sum(sent.values()), sum(local.values())
    plan["bytes"] = {"moved": moved, "local": kept, "total": moved + kept}
    plan["ranks"] = [{"rank": rank, "in": received[rank], "out": sent[rank], "local": local[rank]}
                     for rank in range(plan["world"])]


def drop(plan):
    del plan["moves"][3]
    refresh(plan)


def duplicate(plan):
    plan["moves"].insert(3, copy.deepcopy(plan["moves"][3]))
    refresh(plan)


def overlap(plan):
    """Row 1 comes again, from the right place: only the count of writes is wrong."""
    again = copy.deepcopy(plan["moves"][3])
    again.update(src=[[1, 1], [3, 3]], dst=[[1, 1], [0, 3]], bytes=12)
    plan["moves"].insert(4, again)
    refresh(plan)


def shift_source(plan):
    plan["moves"][3]["src"] = [[0, 2], [2, 3]]


def swap_destinations(plan):
    first, second = plan["moves"][3:5]
    first["from"], second["from"] = second["from"], first["from"]
    refresh(plan)


def wrong_sender(plan):
    plan["moves"][3]["from"] = 1
    refresh(plan)


def absent_sender(plan):
    plan["moves"][3]["from"] = 2
    refresh(plan)


def absent_receiver(plan):
    plan["moves"][0]["to"] = 0
    refresh(plan)


def split(plan):
    move = plan["moves"][3]
    rest = copy.deepcopy(move)
    move.update(src=[[0, 2], [3, 1]], dst=[[0, 2], [0, 1]], bytes=8)
    rest.update(src=[[0, 2], [4, 2]], dst=[[0, 2], [1, 2]], bytes=16)
    plan["moves"].insert(4, rest)
    refresh(plan)


def split_rows(plan):
    move = plan["moves"][3]
    rest = copy.deepcopy(move)
    move.update(src=[[0, 1], [3, 3]], dst=[[0, 1], [0, 3]], bytes=12)
    rest.update(src=[[1, 1], [3, 3]], dst=[[1, 1], [0, 3]], bytes=12)
    plan["moves"].insert(4, rest)
    refresh(plan)


def swap_order(plan):
    plan["moves"][3], plan["moves"][4] = plan["moves"][4], plan["moves"][3]


def swap_and_renumber(plan):
    swap_order(plan)
    refresh(plan)


def swap_tensors(plan):
    plan["moves"][1], plan["moves"][2] = plan["moves"][2], plan["moves"][1]
    refresh(plan)


def swap_ranks(plan):
    plan["moves"] = plan["moves"][3:] + plan["moves"][:3]
    refresh(plan)


def empty_move(plan):
    plan["moves"].insert(0, {"task_id": 0, "tensor": "w", "from": 0, "to": 1, "bytes": 0,
                             "src": [[0, 0], [0, 3]], "dst": [[0, 0], [0, 3]]})
    refresh(plan)


def not_from_itself(plan):
    plan["moves"][2]["from"] = 0
    refresh(plan)


def setter(*path_and_value):
    *path, key, value = path_and_value

    def mutate(plan):
        for step in path:
            plan = plan[step]
        plan[key] = value
    return mutate


def remover(*path):
    def mutate(plan):
        for step in path[:-1]:
            plan = plan[step]
        del plan[path[-1]]
    return mutate


MUTATIONS = [
    ("drop a move", drop, "never written"),
    ("a move twice", duplicate, "out of order"),
    ("overlapping destination", overlap, "written twice"),
    ("shift a source begin", shift_source, "fed from element"),
    ("shift a destination begin", setter("moves", 3, "dst", 0, 0, 1), "fed from element"),
    ("swap the senders", swap_destinations, "fed from element"),
    ("wrong sender", wrong_sender, "fed from element"),
    ("sender that holds nothing", absent_sender, "does not hold"),
    ("receiver that wants nothing", absent_receiver, "does not hold"),
    ("box beyond the source shard", setter("moves", 3, "src", 1, 0, 4), "leaves the shard"),
    ("box beyond the destination shard", setter("moves", 3, "dst", 1, 0, 1), "leaves the shard"),
    ("lengths differ", setter("moves", 3, "src", 0, 1, 1), "differ in shape"),
    ("split a move by columns", split, "one box"),
    ("split a move by rows", split_rows, "one box"),
    ("swap two moves", swap_order, "stands at position"),
    ("swap two moves, ids in order", swap_and_renumber, "out of order"),
    ("swap two tensors", swap_tensors, "out of order"),
    ("swap two ranks", swap_ranks, "out of order"),
    ("ids from 1", lambda plan: [m.update(task_id=m["task_id"] + 1) for m in plan["moves"]],
     "stands at position"),
    ("a zero-size move", empty_move, "is empty"),
    ("wrong bytes of a move", setter("moves", 0, "bytes", 23), "bytes 23 for"),
    ("a scalar with a box", setter("moves", 2, "src", [[0, 1]]), "dimensions"),
    ("an unknown tensor", setter("moves", 0, "tensor", "v"), "no tensor v"),
    ("a source where there is none", setter("moves", 0, "source", "w"), "source given"),
    ("a move without a field", remover("moves", 0, "src"), "has the fields"),
    ("a move with one field more", setter("moves", 0, "x", 1), "has the fields"),
    ("a negative begin", setter("moves", 0, "src", 0, 0, -1), "malformed"),
    ("a float for a number", setter("moves", 0, "bytes", 24.0), "malformed"),
    ("a tensor that is no text", setter("moves", 0, "tensor", ["w"]), "malformed"),
    ("another format", setter("format", "ferry.plan/2"), "format"),
    ("a short digest", setter("digest", "12"), "digest"),
    ("world too large", setter("world", 4), "world"),
    ("no tensors", setter("tensors", 0), "tensors"),
    ("a missing key", remover("digest"), "keys"),
    ("wrong moved", setter("bytes", "moved", 77), "bytes are"),
    ("wrong total", setter("bytes", "total", 105), "bytes are"),
    ("wrong in", setter("ranks", 2, "in", 51), "ranks says"),
    ("wrong out", setter("ranks", 0, "out", 51), "ranks says"),
    ("wrong local", setter("ranks", 1, "local", 0), "ranks says"),
    ("ranks lacks one", remover("ranks", 2), "does not list"),
    ("bound too high", setter("bound", "seconds", 5.3e-08), "exact bound"),
    ("bound too low", setter("bound", "seconds", 5.1e-08), "exact bound"),
    ("no bound", setter("bound", "seconds", None), "with a cluster"),
    ("another reason", setter("bound", "why", "egress"), "bound.why"),
    ("no reason at all", setter("bound", "why", "fate"), "bound.why"),
    ("not from itself", not_from_itself, "holds some of it itself"),
]


def test_mutations():
    for policy in ("balanced", "seed"):
        problems = check_plan(TINY_SPEC, TINY_PLAN, policy)
        expect("the tiny plan, " + policy, not problems, problems)
    for name, mutate, expected in MUTATIONS:
        plan = copy.deepcopy(TINY_PLAN)
        mutate(plan)
        problems = check_plan(TINY_SPEC, plan, "balanced")
        expect("mutation: " + name, any(expected in problem for problem in problems), problems)
    without = {key: value for key, value in TINY_SPEC.items() if key != "cluster"}
    plan = copy.deepcopy(TINY_PLAN)
    expect("seconds without a cluster", check_plan(without, plan, "balanced"))
    plan["bound"]["seconds"] = None
    expect("null without a cluster", not check_plan(without, plan, "balanced"))


def test_jump():
    """Rows 0 and 2 lie side by side in both shards: right bytes, but two moves."""
    cut = [{"match": "w", "shard": [{"dim": 0, "axis": "tp", "cycle": 1}]}]
    spec = {"format": "ferry.spec/1", "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}],
            "source": {"mesh": [["tp", 2]], "rules": cut},
            "destination": {"mesh": [["tp", 2]], "first_rank": 2, "rules": cut}}
    plan = {"format": "ferry.plan/1", "digest": "0" * 32, "world": 4, "tensors": 1,
            "bound": {"seconds": None, "rank": 0, "why": "egress"},
            "moves": [{"task_id": 0, "tensor": "w", "from": rank, "to": rank + 2, "bytes": 1,
                       "src": [[row, 1]], "dst": [[row, 1]]} for rank in (0, 1) for row in (0, 1)]}
    refresh(plan)
    problems = check_plan(spec, plan, "balanced")
    expect("rows that lie apart, move by move", not problems, problems)
    plan["moves"][2:] = [{**plan["moves"][2], "bytes": 2, "src": [[0, 2]], "dst": [[0, 2]]}]
    refresh(plan)
    problems = check_plan(spec, plan, "balanced")
    expect("rows that lie apart in one move",
           any("not contiguous in the global index" in problem for problem in problems), problems)


# ---- random specs --------------------------------------------------------------------------------


def break_at_random(rng, plan):
    """One fault in a random move; ids and sums agree with the moves afterwards."""
    moves = plan["moves"]
    move = rng.choice(moves)
    how = rng.choice(["drop", "from", "to", "src", "dst", "length", "swap"])
    if how == "drop" or (how == "swap" and len(moves) == 1):
        moves.remove(move)
    elif how == "swap":
        i = rng.randrange(len(moves) - 1)
        moves[i], moves[i + 1] = moves[i + 1], moves[i]
    elif how in ("from", "to") or not move["src"]:
        key = how if how in ("from", "to") else "to"
        move[key] = (move[key] + rng.randint(1, plan["world"])) % (plan["world"] + 1)
    elif how == "length":
        rng.choice(move["dst"])[1] += 1
    else:
        rng.choice(move[how])[0] += rng.choice([-1, 1])
    refresh(plan)
    return how


def test_random(seed, count):
    """Plans of the reference planner pass, and no random fault in one goes unseen."""
    rng = random.Random(seed)
    for case in range(seed, seed + count):
        spec = spec_random.random_spec(case, stack_dims=case % 2 == 1)
        model = Model(spec)
        for policy, prefer_self in (("balanced", True), ("seed", False)):
            plan = reference_planner.plan_of(spec, prefer_self)
            problems = check_plan(spec, plan, policy)
            expect("random spec %d, %s" % (case, policy), not problems, problems)
        broken = reference_planner.plan_of(spec)
        how = break_at_random(rng, broken)
        # Another sender is a fault only where it does not hold the elements.
        if how != "from":
            expect("random fault %d: %s" % (case, how), check_plan(spec, broken, "balanced"))
        compare_demands(case, model)


def compare_demands(case, model):
    for tensor in model.wanted():
        sides = [model.at_destination(tensor.name)]
        sides += [model.at_source(feed.source) for feed in model.feeds(tensor)]
        if any(side.is_flat() for side in sides):
            continue
        expect("demand of spec %d, %s" % (case, tensor.name),
               +ferry_bound.demand_of_tensor(model, tensor, model.at_destination(tensor.name))
               == +ferry_bound.demand_by_dimension(model, tensor))


def test_generators(count):
    """Every way to lay a tensor out is drawn, and grown pairs keep what was there."""
    seen = Counter()
    for seed in range(count):
        seen.update(features(spec_random.random_spec(seed)))
    for feature in FEATURES:
        expect("generator draws " + feature, seen[feature], dict(seen))
    for seed in range(count // 10):
        few, many = map(Model, spec_random.grown_pair(seed))
        kept = few.destination.ranks
        expect("grown pair %d" % seed, many.destination.ranks[:len(kept)] == kept
               and min(many.destination.ranks[len(kept):]) > max(kept))


FEATURES = ["stride", "blocks", "block parts", "sizes", "cycle", "parts", "unit", "nested", "axes",
            "flat", "flat sizes", "on", "on list", "skip", "count", "source name", "source boxes",
            "stage count", "stage sizes", "ranks", "cluster", "nodes", "f4", "empty", "scalar",
            "8 dims"]


def features(spec):
    for entry in spec["tensors"]:
        yield from ("count",) if "count" in entry else ()
        yield from ("f4",) if entry["dtype"] == "f4" else ()
        yield {0: "scalar", 8: "8 dims"}.get(len(entry["shape"]), "")
        yield "empty" if 0 in entry["shape"] else ""
        yield {str: "source name", list: "source boxes"}.get(type(entry.get("source")), "")
    yield from ("cluster",) if "cluster" in spec else ()
    yield from ("nodes",) if "nodes" in spec.get("cluster", {}) else ()
    for side in (spec["source"], spec["destination"]):
        yield "ranks" if "ranks" in side else ""
        for stage in side.get("stages", []):
            yield "stage count" if "count" in stage else "stage sizes"
        for rule in side["rules"]:
            yield from rule
            yield "flat sizes" if "sizes" in rule.get("flat", {}) else ""
            yield "on list" if any(isinstance(v, list) for v in rule.get("on", {}).values()) else ""
            for entry in rule.get("shard", []):
                yield from entry
                yield "axes" if isinstance(entry["axis"], list) else ""
                yield (
                    "block parts"
                    if any(isinstance(b, list) for b in entry.get("blocks", []))
                    else ""
                )


# ---- the flow and the balance --------------------------------------------------------------------


def largest_ratio(classes, rates):
    """The answer by trying every set of classes."""
    best = Fraction(0)
    for size in range(1, len(classes) + 1):
        for chosen in combinations(classes, size):
            union = 0
            for mask in chosen:
                union |= mask
            total = sum(classes[mask] for mask in chosen)
            best = max(best, total / sum(rates[rank] for rank in ferry_flow.members(union)))
    return best


def test_flow(seed, count):
    rng = random.Random(seed)
    for case in range(count):
        ranks = range(rng.randint(1, 6))
        rates = {rank: Fraction(rng.randint(1, 5), rng.randint(1, 3)) for rank in ranks}
        classes = {rng.randrange(1, 1 << len(ranks)): rng.choice([1, 7, 100, 10**12])
                   for _ in range(rng.randint(1, 8))}
        found = ferry_flow.smallest_busiest(classes, rates)
        expect("flow %d" % case, found == largest_ratio(classes, rates), classes)


def one_dim_spec(extent, replicas, dtype="u8"):
    return {
        "format": "ferry.spec/1",
        "tensors": [{"name": "w", "shape": [extent], "dtype": dtype}],
        "source": {"mesh": [["dp", replicas]], "first_rank": 0, "rules": [{"match": "*"}]},
        "destination": {"mesh": [["one", 1]], "first_rank": replicas, "rules": [{"match": "*"}]},
    }


def shared_out(lengths):
    """A plan (only its moves) in which source rank i sends lengths[i] elements of one byte."""
    return {"moves": [{"from": rank, "to": len(lengths), "bytes": length}
                      for rank, length in enumerate(lengths)]}


BALANCES = [
    ("even", 300, [100, 100, 100], True),
    ("within the tolerance", 300, [104, 98, 98], True),
    ("beyond the tolerance", 300, [106, 97, 97], False),
    ("one rank sends all", 300, [300, 0, 0], False),
    ("a tiny tensor", 4, [2, 1, 1], True),
    ("a tiny tensor, not even tried", 4, [3, 1, 0], False),
    ("one element", 1, [1, 0, 0], True),
    ("small, but large enough to share", 60, [22, 19, 19], False),
]


def test_balance():
    for name, extent, lengths, good in BALANCES:
        problems = check_balance(one_dim_spec(extent, len(lengths)), shared_out(lengths))
        expect("balance: " + name, good == (not problems), problems)
    problems = check_balance(one_dim_spec(300, 3), shared_out([99, 99, 99]))
    expect("balance: bytes missing", any("must" in problem for problem in problems), problems)


# ---- shards and lost ranks -----------------------------------------------------------------------

HELD_SPEC = {
    "format": "ferry.spec/1",
    "tensors": [{"name": "w", "shape": [4], "dtype": "u8"}, {"name": "alone", "shape": [1],
                                                             "dtype": "u8"}],
    "source": {"mesh": [["dp", 2], ["tp", 2]], "rules": [
        {"match": "alone", "on": {"dp": 0, "tp": 1}},
        {"match": "*", "shard": [{"dim": 0, "axis": "tp", "stride": 2}]}]},
    "destination": {"mesh": [["dp", 1]], "first_rank": 3, "rules": [
        {"match": "w"}, {"match": "*", "skip": True}]},
}


def held_record(side, rank, local, pieces, origins):
    return {"side": side, "rank": rank, "tensor": "w", "bits": 8, "bytes": local,
            "is_flat": False, "flat": [0, local], "global": [4], "local": [local],
            "pieces": [pieces], "origins": origins}


HELD = [held_record("source", rank, 2, [[0, rank % 2, 1], [1, rank % 2 + 2, 1]], [])
        for rank in range(4)]
HELD.append(held_record("destination", 3, 4, [[0, 0, 4]], [
    {"source": "w", "at": [0], "length": [4], "begin": [0], "source_length": [4],
     "source_global": [4]}]))

BROKEN_HELD = [
    ("bytes", 0, {"bytes": 3}), ("local", 1, {"local": [3]}), ("global", 1, {"global": [5]}),
    ("flat", 4, {"flat": [0, 3]}), ("is_flat", 4, {"is_flat": True}), ("bits", 2, {"bits": 4}),
    ("piece moved", 0, {"pieces": [[[0, 0, 1], [1, 3, 1]]]}),
    ("piece missing", 0, {"pieces": [[[0, 0, 1]]]}),
    ("empty piece", 0, {"pieces": [[[0, 0, 1], [1, 2, 1], [2, 3, 0]]]}),
    ("local out of order", 0, {"pieces": [[[1, 2, 1], [0, 0, 1]]]}),
    ("no origin", 4, {"origins": []}), ("source with origins", 0, {"origins": HELD[4]["origins"]}),
    ("other order", 0, {"rank": 1}), ("other side", 4, {"side": "source"}),
]


def test_shards():
    expect("shards", check_shards(HELD_SPEC, HELD) == [], check_shards(HELD_SPEC, HELD))
    for name, row, change in BROKEN_HELD:
        records = copy.deepcopy(HELD)
        records[row].update(change)
        expect("broken shard: " + name, check_shards(HELD_SPEC, records))
    shifted = copy.deepcopy(HELD)
    shifted[4]["origins"][0]["begin"] = [1]
    expect("broken shard: origin", check_shards(HELD_SPEC, shifted))
    expect("one too few", check_shards(HELD_SPEC, HELD[1:]))
    expect("lost ranks hold nothing",
           check_shards(HELD_SPEC, [r for r in HELD if r["rank"] != 2], None, [2]) == [])
    expect("lost: a replica", lost_elements(HELD_SPEC, [0]) == {})
    expect("lost: both", lost_elements(HELD_SPEC, [0, 2]) == {
        "w": {("w", 0): [0, 2], ("w", 2): [0, 2]}})
    expect("lost: what nobody wants", lost_elements(HELD_SPEC, [1]) == {})
    expect("lost: with the only receiver", lost_elements(HELD_SPEC, [1, 3]) == {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150, help="random specs")
    arguments = parser.parse_args()
    test_tables()
    test_shards()
    test_sides()
    test_mutations()
    test_jump()
    test_flow(arguments.seed, 4 * arguments.count)
    test_balance()
    test_generators(200)
    test_random(arguments.seed, arguments.count)
    print("%d failures (seed %d)" % (len(FAILURES), arguments.seed))
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
