#!/usr/bin/env python3
# Copyright The ferry authors. SPDX-License-Identifier: Apache-2.0
"""Random specs told in other words: one digest means one plan.

    plan_order.py --ferry PATH [--seed S] [--count N] [--keep-going]

Each case takes a random spec and tells the same layout anew: rules and stages change places where
no tensor can tell, meshes turn their axes with the ranks in theirs, get axes of one, or cut by
blocks what they replicated. Those must have the digest and the moves of the first. Then the tensors
change places as well. Where the digest stays, moves must stay too, with their ids; where some rank
receives its tensors in another order, the digest must change.
"""

import argparse
import copy
import itertools
import json
import math
import random
import shlex
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "oracle"))

from ferry_layout import Model, glob_match  # noqa: E402
from plan_random import Failure, Ferry, must  # noqa: E402
import spec_random  # noqa: E402


def names_of(spec):
    return [tensor.name for tensor in Model(spec).tensors]


def commute(one, two, names):
    """Whether no tensor could tell which of the two patterns comes first."""
    return not any(glob_match(one, name) and glob_match(two, name) for name in names)


def shuffle_patterns(rng, entries, names):
    """Swaps neighbours that commute, often enough to get anywhere."""
    for _ in range(len(entries) ** 2):
        i = rng.randrange(max(1, len(entries) - 1))
        if i + 1 < len(entries) and commute(entries[i]["match"], entries[i + 1]["match"], names):
            entries[i], entries[i + 1] = entries[i + 1], entries[i]


def ranks_of(side):
    count = math.prod(size for _, size in side["mesh"])
    first = side.pop("first_rank", 0)
    return side.pop("ranks", None) or list(range(first, first + count))


def turn_mesh(rng, side):
    """The axes in another order, each rank where it was."""
    mesh, ranks = side["mesh"], ranks_of(side)
    at = {coordinates: rank for coordinates, rank in
          zip(itertools.product(*(range(size) for _, size in mesh)), ranks)}
    order = rng.sample(range(len(mesh)), len(mesh))
    side["mesh"] = [mesh[i] for i in order]
    side["ranks"] = [at[tuple(turned[order.index(i)] for i in range(len(mesh)))]
                     for turned in itertools.product(*(range(mesh[i][1]) for i in order))]


def add_axis(rng, side):
    side["mesh"].insert(rng.randint(0, len(side["mesh"])), ["an axis of one", 1])


def block_replicas(rng, side, spec):
    """A dimension that nobody cuts is cut into one block that an idle axis shares."""
    shapes = {tensor.name: tensor.shape for tensor in Model(spec).tensors}
    for rule in side["rules"]:
        matched = {tuple(shape) for name, shape in shapes.items()
                   if glob_match(rule["match"], name)}
        if rule.get("skip") or "flat" in rule or len(matched) != 1 or rng.random() < 0.5:
            continue
        shape = matched.pop()
        cuts = rule.get("shard", [])
        busy = set(rule.get("on", {})) | {stage["axis"] for stage in side.get("stages", [])}
        for cut in cuts:
            busy.update([cut["axis"]] if isinstance(cut["axis"], str) else cut["axis"])
        axes = [name for name, _ in side["mesh"] if name not in busy]
        dims = [d for d in range(len(shape)) if d not in {cut["dim"] for cut in cuts}]
        if axes and dims:
            dim = rng.choice(dims)
            rule["shard"] = cuts + [{"dim": dim, "axis": rng.choice(axes),
                                     "blocks": [[shape[dim], 1]]}]


def retell(rng, spec):
    told = copy.deepcopy(spec)
    names = names_of(spec)
    for which in ("source", "destination"):
        side = told[which]
        if rng.random() < 0.5:
            block_replicas(rng, side, told)
        if rng.random() < 0.7:
            turn_mesh(rng, side)
        if rng.random() < 0.5:
            add_axis(rng, side)
        shuffle_patterns(rng, side["rules"], names)
        shuffle_patterns(rng, side.get("stages", []), names)
    return told


def move_tensors(rng, spec, at_most):
    """Sources stay before what they feed only by name, so any order will do."""
    told = copy.deepcopy(spec)
    tensors = told["tensors"]
    for _ in range(at_most):
        i, j = rng.randrange(len(tensors)), rng.randrange(len(tensors))
        tensors[i], tensors[j] = tensors[j], tensors[i]
    return told


def move_apart(rng, spec):
    """Swaps neighbours of which no rank receives both: every rank keeps its order."""
    told = copy.deepcopy(spec)
    model, tensors = Model(spec), told["tensors"]
    of = {name: set(ranks) for name, ranks in (
        (tensor.name, model.at_destination(tensor.name).shards) for tensor in model.wanted())}
    ranks = [of.get(entry["name"], set()) if "count" not in entry else None for entry in tensors]
    for _ in range(len(tensors) ** 2):
        i = rng.randrange(max(1, len(tensors) - 1))
        if i + 1 < len(tensors) and None not in ranks[i:i + 2] and not ranks[i] & ranks[i + 1]:
            for each in (tensors, ranks):
                each[i], each[i + 1] = each[i + 1], each[i]
    return told


def draw_stages(rng):
    """Tensors of odd shapes, of which some ranks have replicas, go each to one stage."""
    source, stages = ["x", "y"], rng.randint(2, 4)
    tensors = [{"name": "t%d" % i, "dtype": rng.choice(["f32", "bf16", "u8"]),
                "shape": [rng.randint(1, 400), rng.choice([1, 3, 7, 11, 13])]}
               for i in range(rng.randint(2, 7))]
    rules = [{"match": tensor["name"], "shard": [{"dim": 0, "axis": axis} for axis in
                                                 rng.sample(source, rng.choice([0, 0, 1]))]}
             for tensor in tensors]
    pins = [{"match": tensor["name"], "on": {"pp": rng.randrange(stages)}} for tensor in tensors]
    for pin in pins:
        if rng.random() < 0.5:
            pin["shard"] = [{"dim": rng.randrange(2), "axis": "tp"}]
    return {"format": "ferry.spec/1", "tensors": tensors,
            "source": {"mesh": [[axis, rng.randint(1, 4)] for axis in source], "rules": rules},
            "destination": {"mesh": [["pp", stages], ["tp", rng.randint(1, 3)]],
                            "first_rank": rng.choice([0, 2, 16]), "rules": pins}}


def draw_spec(rng, seed):
    if seed % 3 == 0:
        return draw_stages(rng)
    if seed % 3 == 1:
        return spec_random.random_balance_spec(seed)
    return spec_random.random_spec(seed, stack_dims=seed % 2 == 0)


def orders(spec):
    """The tensors that each destination rank receives anything of, in its order."""
    model = Model(spec)
    lists = {}
    for tensor in model.wanted():
        for rank in model.at_destination(tensor.name).shards:
            lists.setdefault(rank, []).append(tensor.name)
    return lists


def without_words(plan):
    return {key: value for key, value in plan.items() if key not in ("bound", "tensors")}


def must_agree(one, two, about):
    for key, value in without_words(one).items():
        must(two[key] == value, "%s: %s differ:\n%s\n%s" % (about, key, json.dumps(value),
                                                           json.dumps(two[key])))


def check_case(ferry, seed, counts):
    rng = random.Random(seed)
    spec = draw_spec(rng, seed)
    plan = ferry.plan(ferry.write(spec))
    told = retell(rng, spec)
    again = ferry.plan(ferry.write(told, "told.json"))
    is_seed = "seed" in ferry.options
    if is_seed:
        # The seed policy asks for words that mean nothing elsewhere: whether a rule cuts.
        must(again["digest"] != plan["digest"] or again["moves"] == plan["moves"],
             "told anew: one digest, two plans")
    else:
        must_agree(plan, again, "told anew")
    for at_most in (0, 1, len(spec["tensors"])):
        moved = move_tensors(rng, told, at_most) if at_most else move_apart(rng, told)
        other = ferry.plan(ferry.write(moved, "moved.json"))
        if other["digest"] == plan["digest"]:
            must(other["moves"] == plan["moves"], "tensors moved: one digest, two plans:\n%s\n%s\n%s"
                 % (json.dumps(moved), json.dumps(plan["moves"]), json.dumps(other["moves"])))
            counts["same"] += moved["tensors"] != told["tensors"]
        else:
            counts["other"] += 1
            must(is_seed or orders(moved) != orders(spec),
                 "tensors moved, no rank's order changed, but the digest did")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ferry", required=True, help="the command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--keep-going", action="store_true",
                        help="do not stop at the first failure")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    counts, failures = {"same": 0, "other": 0}, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            for policy in ("balanced", "seed"):
                try:
                    check_case(Ferry(arguments.ferry, folder, ["--replica", policy]), seed, counts)
                except Failure as failure:
                    failures += 1
                    print("FAILED seed %d, policy %s: %s\nagain: %s --ferry %s --seed %d --count 1"
                          % (seed, policy, failure, shlex.quote(__file__),
                             shlex.quote(arguments.ferry), seed), flush=True)
            if failures and not arguments.keep_going:
                break
    print("%d failures, %d other orders with the same digest, %d with another"
          % (failures, counts["same"], counts["other"]))
    if arguments.count >= 20 and not failures and not (counts["same"] and counts["other"]):
        print("FAILED: no case of one of the two kinds")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
