#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Can the oracle of sides in boxes fail? A literal plan, and plans broken on purpose.

    box_self_test.py [--seed S] [--count N]

Prints the name of every failing row and exits 1.
"""

import argparse
import copy
import json
import random
import sys
from collections import Counter

import box_planner
import box_random
import cast_random
from box_oracle import check_box_plan
from ferry_boxes import model_of
from ferry_layout import SpecError

FAILURES = []
MOST_PLANNED = 1000  # elements, by the slow planner


def expect(name, condition, detail=""):
    if not condition:
        FAILURES.append(name)
        print("FAILED %s %s" % (name, detail))


def hold(tensor, begin, shape, offset, strides, **more):
    return {"tensor": tensor, "begin": begin, "shape": shape, "offset": offset, "strides": strides,
            **more}


def place(parameter, offset, strides):
    return {"parameter": parameter, "offset": offset, "strides": strides}


# ---- a literal spec and its plan -----------------------------------------------------------------

# Rank 0 has q by columns and all of k; rank 1 has the lower half of q, and n. Rank 2 wants q and k
# on top of each other, with a row of padding, and n twice, one with gaps; rank 1 the same n.
SPEC = {
    "format": "ferry.spec/1",
    "tensors": [
        {"name": "q", "shape": [4, 3], "dtype": "bf16"},
        {"name": "k", "shape": [2, 3], "dtype": "bf16"},
        {"name": "n", "shape": [3], "dtype": "f32"},
        {"name": "s", "shape": [], "dtype": "f32"},
    ],
    "source": {"boxes": [
        {"rank": 0, "parameter": "all", "elements": 20, "holds": [
            hold("q", [0, 0], [4, 3], 0, [1, 4]), hold("k", [0, 0], [2, 3], 14, [3, 1])]},
        {"ranks": [1], "parameter": "low", "elements": 6, "holds": [
            hold("q", [2, 0], [2, 3], 0, [3, 1])]},
        {"ranks": [1], "parameter": "n", "elements": 4, "holds": [
            hold("n", [0], [3], 0, [1]), hold("s", [], [], 3, [])]},
    ]},
    "destination": {"boxes": [
        {"rank": 2, "parameter": "qk", "elements": 21, "holds": [
            hold("k", [0, 0], [2, 3], 12, [3, 1]),
            hold("q", [0, 0], [1, 3], 0, [3, 1],
                 repeat=[{"count": 4, "begin": [1, 0], "offset": 3}])],
         "fill": [{"offset": 18, "shape": [3], "strides": [1], "bits": "3f80"}]},
        {"ranks": [1, 2], "parameter": "n", "dtype": "f32", "elements": 8, "partial": True,
         "holds": [hold("n", [0], [3], 0, [2]), hold("s", [], [], 1, [])]},
    ]},
}


def move(tensor, sender, to, shape, src, dst, size):
    return {"task_id": 0, "tensor": tensor, "from": sender, "to": to, "shape": shape, "src": src,
            "dst": dst, "bytes": size}


PLAN = {
    "format": "ferry.plan/1", "digest": "0123456789abcdef0123456789abcdef", "world": 3,
    "tensors": 4,
    "bytes": {"moved": 0, "local": 0, "total": 0},
    "bound": {"seconds": None, "rank": None, "why": "egress"},
    "ranks": [],
    "moves": [
        move("n", 1, 1, [3], place("n", 0, [1]), place("n", 0, [2]), 12),
        move("s", 1, 1, [], place("n", 3, []), place("n", 1, []), 4),
        move("q", 0, 2, [2, 3], place("all", 0, [1, 4]), place("qk", 0, [3, 1]), 12),
        move("q", 1, 2, [2, 3], place("low", 0, [3, 1]), place("qk", 6, [3, 1]), 12),
        move("k", 0, 2, [2, 3], place("all", 14, [3, 1]), place("qk", 12, [3, 1]), 12),
        move("n", 1, 2, [3], place("n", 0, [1]), place("n", 0, [2]), 12),
        move("s", 1, 2, [], place("n", 3, []), place("n", 1, []), 4),
    ],
    "fills": [{"rank": 2, "parameter": "qk", "offset": 18, "shape": [3], "strides": [1],
               "bits": "3f80"}],
}


def refresh(plan):
    """Makes ids and sums agree with the moves again, so that only the real fault remains."""
    sent, received, local = Counter(), Counter(), Counter()
    for position, record in enumerate(plan["moves"]):
        record["task_id"] = position
        if record["from"] == record["to"]:
            local[record["to"]] += record["bytes"]
        else:
            sent[record["from"]] += record["bytes"]
            received[record["to"]] += record["bytes"]
    moved, kept = sum(sent.values()), sum(local.values())
    plan["bytes"] = {"moved": moved, "local": kept, "total": moved + kept}
    plan["ranks"] = [{"rank": rank, "in": received[rank], "out": sent[rank], "local": local[rank]}
                     for rank in range(plan["world"])]
    return plan


def at(*path, **values):
    """A mutation that overwrites members of the value at a path."""
    def mutate(plan):
        there = plan
        for key in path:
            there = there[key]
        there.update(copy.deepcopy(values))
    return mutate


def drop(key, index):
    def mutate(plan):
        del plan[key][index]
    return mutate


def again(key, index):
    def mutate(plan):
        plan[key].insert(index, copy.deepcopy(plan[key][index]))
    return mutate


def swap(key, a, b):
    def mutate(plan):
        plan[key][a], plan[key][b] = plan[key][b], plan[key][a]
    return mutate


def without(key, index, member):
    def mutate(plan):
        del plan[key][index][member]
    return mutate


def cut_rows(plan):
    """Task 2 in two moves of one row each."""
    first = plan["moves"][2]
    second = copy.deepcopy(first)
    first.update(shape=[1, 3], bytes=6)
    second.update(shape=[1, 3], bytes=6, src=place("all", 1, [1, 4]), dst=place("qk", 3, [3, 1]))
    plan["moves"].insert(3, second)


def over_both_tensors(plan):
    """q and k lie one behind the other at rank 2, but are no box of one tensor."""
    plan["moves"][3].update(shape=[4, 3], bytes=24)
    del plan["moves"][4]


MUTATIONS = [
    ("a move dropped", drop("moves", 4)), ("the last move dropped", drop("moves", 6)),
    ("a move twice", again("moves", 3)),
    ("moves of one parameter swapped", swap("moves", 2, 3)),
    ("parameters swapped", lambda plan: plan["moves"].insert(2, plan["moves"].pop(5))),
    ("receivers swapped", swap("moves", 1, 2)),
    ("a move cut without need", cut_rows), ("a move over two tensors", over_both_tensors),
    ("from a rank without it", at("moves", 2, **{"from": 1})),
    ("from a rank outside", at("moves", 2, **{"from": 7})),
    ("to a rank without it", at("moves", 2, to=1)),
    ("the receiver's own left aside", at("moves", 2, src=place("all", 0, [1, 4]), to=0)),
    ("another tensor", at("moves", 4, tensor="q")), ("no such tensor", at("moves", 4, tensor="x")),
    ("a source that is none", at("moves", 4, source="k")),
    ("src of another parameter", at("moves", 3, src=place("n", 0, [3, 1]))),
    ("src of no parameter", at("moves", 3, src=place("lower", 0, [3, 1]))),
    ("src shifted", at("moves", 2, src=place("all", 1, [1, 4]))),
    ("src transposed", at("moves", 4, src=place("all", 14, [1, 2]))),
    ("src strides swapped", at("moves", 2, src=place("all", 0, [4, 1]))),
    ("src outside", at("moves", 4, src=place("all", 15, [3, 1]))),
    ("src in the gap", at("moves", 4, src=place("all", 13, [3, 1]))),
    ("dst of another parameter", at("moves", 3, dst=place("n", 0, [3, 1]))),
    ("dst of no parameter", at("moves", 3, dst=place("none", 6, [3, 1]))),
    ("dst shifted", at("moves", 4, dst=place("qk", 11, [3, 1]))),
    ("dst on the fill", at("moves", 4, dst=place("qk", 15, [3, 1]))),
    ("dst transposed", at("moves", 4, dst=place("qk", 12, [1, 2]))),
    ("dst outside", at("moves", 4, dst=place("qk", 16, [3, 1]))),
    ("dst in what is partial", at("moves", 5, dst=place("n", 2, [2]))),
    ("stride 0", at("moves", 4, dst=place("qk", 12, [0, 1]))),
    ("a stride too few", at("moves", 4, dst=place("qk", 12, [1]))),
    ("a stride too many", at("moves", 4, src=place("all", 14, [3, 1, 1]))),
    ("no stride", at("moves", 4, src={"parameter": "all", "offset": 14})),
    ("a box of a mesh", at("moves", 4, src=[[0, 2], [0, 3]])),
    ("shape transposed", at("moves", 4, shape=[3, 2])),
    ("shape of one dimension", at("moves", 4, shape=[6])),
    ("shape too short", at("moves", 4, shape=[2, 2])), ("empty", at("moves", 4, shape=[0, 3])),
    ("no shape", without("moves", 4, "shape")), ("shape is a number", at("moves", 4, shape=2)),
    ("an unknown key", at("moves", 4, more=1)), ("bytes", at("moves", 4, bytes=6)),
    ("a negative offset", at("moves", 4, dst=place("qk", -1, [3, 1]))),
    ("no fills", lambda plan: plan.pop("fills")), ("a fill dropped", drop("fills", 0)),
    ("a fill twice", again("fills", 0)), ("fill bits", at("fills", 0, bits="3f81")),
    ("fill bits missing", without("fills", 0, "bits")),
    ("fill shorter", at("fills", 0, shape=[2])), ("fill longer", at("fills", 0, shape=[4])),
    ("fill before", at("fills", 0, offset=17)), ("fill steps", at("fills", 0, strides=[2])),
    ("fill of stride 0", at("fills", 0, strides=[0])),
    ("fill of another rank", at("fills", 0, rank=1)),
    ("fill of no parameter", at("fills", 0, parameter="k")),
    ("fill of two shapes", at("fills", 0, shape=[3, 1])), ("fill empty", at("fills", 0, shape=[0])),
]

# Without the sums made right again.
SUMS = [
    ("moved", at("bytes", moved=1)), ("local", at("bytes", local=1)),
    ("total", at("bytes", total=1)),
    ("in", at("ranks", 2, **{"in": 1})), ("a rank left out", drop("ranks", 1)),
    ("ids", at("moves", 3, task_id=4)), ("world", lambda plan: plan.update(world=4)),
]

# Right all the same.
HARMLESS = [
    ("a fill in two", lambda plan: plan.update(fills=[
        {**plan["fills"][0], "shape": [1, 2], "strides": [7, 1]},
        {**plan["fills"][0], "offset": 20, "shape": [], "strides": []}])),
]


def test_literal_plan():
    expect("the literal plan", check_box_plan(SPEC, refresh(copy.deepcopy(PLAN)), "balanced") == [],
           check_box_plan(SPEC, refresh(copy.deepcopy(PLAN)), "balanced"))
    expect("planned", box_planner.plan_of(SPEC, False)["moves"] is not None)
    for name, mutate in MUTATIONS:
        plan = copy.deepcopy(PLAN)
        mutate(plan)
        expect("mutation: " + name, check_box_plan(SPEC, refresh(plan), "balanced"))
    for name, mutate in SUMS:
        plan = refresh(copy.deepcopy(PLAN))
        mutate(plan)
        expect("sum: " + name, check_box_plan(SPEC, plan, "balanced"))
    for name, mutate in HARMLESS:
        plan = copy.deepcopy(PLAN)
        mutate(plan)
        found = check_box_plan(SPEC, refresh(plan), "balanced")
        expect("harmless: " + name, found == [], found)


# ---- sides that are none -------------------------------------------------------------------------


def on_side(which, entry, **values):
    def mutate(spec):
        spec[which]["boxes"][entry].update(copy.deepcopy(values))
    return mutate


def on_box(which, entry, box, **values):
    def mutate(spec):
        spec[which]["boxes"][entry]["holds"][box].update(copy.deepcopy(values))
    return mutate


def loop(count, begin, offset):
    return {"repeat": [{"count": count, "begin": begin, "offset": offset}]}


BAD_SIDES = [
    ("a gap", on_side("destination", 0, fill=[])),
    ("a gap of one", on_side("destination", 0, elements=22)),
    ("an overlap", on_box("destination", 0, 0, offset=11)),
    ("an overlap at the source", on_box("source", 0, 1, offset=11)),
    ("a fill on a box", on_side("destination", 0, fill=[
        {"offset": 17, "shape": [4], "strides": [1]}])),
    ("beyond the parameter", on_side("destination", 1, elements=4)),
    ("beyond the tensor", on_box("destination", 0, 0, begin=[1, 0])),
    ("stride 0", on_box("source", 0, 1, strides=[0, 1])),
    ("a stride too few", on_box("source", 0, 1, strides=[1])),
    ("a negative stride", on_box("source", 0, 1, strides=[-3, 1])),
    ("a negative offset", on_box("source", 0, 1, offset=-1)),
    ("no such tensor", on_box("source", 0, 1, tensor="v")),
    ("a tensor that nobody holds", on_side("source", 2, parameter="x", holds=[], dtype="f32")),
    ("a loop beyond the parameter", on_box("destination", 0, 1, **loop(4, [1, 0], 6))),
    ("a loop beyond the tensor", on_box("destination", 0, 1, **loop(5, [1, 0], 3))),
    ("a loop on itself", on_box("destination", 0, 1, **loop(4, [1, 0], 0))),
    ("a loop of no turns", on_box("destination", 0, 1, **loop(0, [1, 0], 3))),
    ("five loops", on_box("destination", 0, 1, repeat=[{"count": 1, "begin": [0, 0],
                                                        "offset": 0}] * 5)),
    ("another dtype", on_side("destination", 1, dtype="f16")),
    ("fill bits of another length", on_side("destination", 0, fill=[
        {"offset": 18, "shape": [3], "strides": [1], "bits": "3f8"}])),
    ("a name twice", on_side("destination", 1, parameter="qk")),
    ("a rank twice", on_side("destination", 1, ranks=[1, 1])),
    ("no rank", on_side("destination", 1, ranks=[])),
    ("fill at a source", on_side("source", 0, fill=[])),
    ("a cast missing", on_side("destination", 0, dtype="f32", fill=[
        {"offset": 18, "shape": [3], "strides": [1]}])),
    ("a cast to integers", on_side("destination", 1, dtype="i32", cast="round")),
    ("a cast to f64", on_side("destination", 1, dtype="f64", cast="round")),
    ("a cast to f4", on_side("destination", 1, dtype="f4", cast="round")),
    ("a cast by another word", on_side("destination", 1, dtype="f16", cast="floor")),
    ("a cast that is a number", on_side("destination", 1, dtype="f16", cast=1)),
    ("a scale without a cast", on_side("destination", 1, scale=2)),
    ("an add without a cast", on_side("destination", 1, add=1)),
    ("scale 0", on_side("destination", 1, cast="round", scale=0)),
    ("a scale that is 0 in f32", on_side("destination", 1, cast="round", scale=1e-60)),
    ("a scale beyond f32", on_side("destination", 1, cast="round", scale=1e39)),
    ("an add beyond f32", on_side("destination", 1, cast="round", add=-1e39)),
    ("a scale that is a text", on_side("destination", 1, cast="round", scale="2")),
    ("a cast at the source", on_side("source", 1, cast="round")),
    ("another dtype at the source", on_side("source", 1, dtype="f32")),
]


def test_sides():
    expect("the literal spec", not is_refused(SPEC))
    for name, mutate in BAD_SIDES:
        spec = copy.deepcopy(SPEC)
        mutate(spec)
        expect("side: " + name, is_refused(spec))


def is_refused(spec):
    try:
        model_of(spec).validate()
    except SpecError:
        return True
    return False


# ---- random plans, broken on purpose -------------------------------------------------------------


def bend_number(rng, where, key):
    where[key] = max(0, where[key] + rng.choice([-2, -1, 1, 2, 5]))


def bend_place(rng, record, key):
    """Another offset, stride or begin."""
    side = record[key]
    if isinstance(side, dict):
        steps = [d for d, n in enumerate(record["shape"][-len(side["strides"]):])
                 if n > 1 and len(side["strides"]) == len(record["shape"])]
        if steps and rng.random() < 0.5:
            bend_number(rng, side["strides"], rng.choice(steps))
        else:
            bend_number(rng, side, "offset")
    elif side:
        bend_number(rng, rng.choice(side), 0)


def bend_cast(rng, record):
    """Another word, number or type of a cast, one less, or one of none."""
    key, value = rng.choice([("cast", "round"), ("cast", "saturate"), ("at", "sender"),
                             ("at", "receiver"), ("scale", 3), ("scale", 1), ("add", 0.5),
                             ("add", 0), ("dst_dtype", "f16"), ("src_dtype", "bf16")])
    if rng.random() < 0.3:
        record.pop(key, None)
    else:
        record[key] = value


def bend(rng, plan):
    """Makes one thing wrong; says what."""
    moves = plan["moves"]
    at_ = rng.randrange(len(moves))
    kind = rng.choice(["drop", "twice", "swap", "src", "dst", "from", "to", "shape", "fill",
                       "cast"])
    if kind == "drop":
        del moves[at_]
    elif kind == "twice":
        moves.insert(at_, copy.deepcopy(moves[at_]))
    elif kind == "swap" and len(moves) > 1:
        other = (at_ + 1) % len(moves)
        moves[at_], moves[other] = moves[other], moves[at_]
    elif kind in ("src", "dst"):
        bend_place(rng, moves[at_], kind)
    elif kind in ("from", "to"):
        moves[at_][kind] = rng.randrange(plan["world"])
    elif kind == "cast":
        bend_cast(rng, moves[at_])
    elif kind == "shape" and moves[at_]["shape"]:
        bend_number(rng, moves[at_]["shape"], rng.randrange(len(moves[at_]["shape"])))
    elif kind == "fill" and plan.get("fills"):
        fill = rng.choice(plan["fills"])
        choice = rng.choice(["bits", "offset", "rank"])
        if choice == "bits":
            fill["bits"] = ("f" if fill["bits"][0] != "f" else "0") + fill["bits"][1:]
        else:
            bend_number(rng, fill, choice)
    return kind


def test_random(seed):
    spec = cast_random.with_casts(seed, box_random.random_box_spec(seed, MOST_PLANNED))
    rng = random.Random(seed)
    for own, joined in ((True, True), (False, False)):
        plan = box_planner.plan_of(spec, own, joined)
        policy = "balanced" if own else "seed"
        problems = check_box_plan(spec, plan, policy, maximal=joined)
        expect("random spec %d" % seed, problems == [], "%s: %s" % (problems, json.dumps(spec)))
        for _ in range(6):
            bent = copy.deepcopy(plan)
            kind = bend(rng, bent)
            if bent == plan or not bent["moves"]:
                continue
            found = check_box_plan(spec, refresh(bent), policy, maximal=joined)
            expect("bent plan of seed %d (%s)" % (seed, kind), found or is_same(plan, bent),
                   json.dumps(spec))


def is_same(plan, bent):
    """A move may come from another replica, when nobody is held to be the sender."""
    strip = [[{key: value for key, value in record.items() if key not in ("from", "src", "task_id")}
              for record in which["moves"]] for which in (plan, bent)]
    return strip[0] == strip[1] and plan.get("fills") == bent.get("fills")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    arguments = parser.parse_args()
    test_literal_plan()
    test_sides()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        test_random(seed)
    print("%d failures, seeds %d .. %d" % (len(FAILURES), arguments.seed,
                                           arguments.seed + arguments.count - 1))
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
